typedef int placeholder_kernels;
