typedef int placeholder_draft;
