typedef int placeholder_rank;
