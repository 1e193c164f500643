/* set_avx512_vnni - the strips of set_avx512 once more, built with VNNI. */
#include "kernels/cpu/set_avx512.c"
