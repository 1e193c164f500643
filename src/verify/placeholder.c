typedef int placeholder_verify;
