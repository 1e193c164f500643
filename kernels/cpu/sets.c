/* sets.c owns the list of instruction sets. */
#include "kernels/cpu/sets.h"

static const struct cpu_set *const built[] = {
    &cpu_portable,
#if defined(__x86_64__)
    &cpu_avx2,
    &cpu_avx512,
    &cpu_avx512_vnni,
#elif defined(__aarch64__)
    &cpu_neon,
#endif
};

#define BUILT ((int)(sizeof(built) / sizeof(built[0])))

const struct cpu_set *cpu_set_at(int i)
{
    return i >= 0 && i < BUILT ? built[i] : NULL;
}

const struct cpu_set *cpu_best(void)
{
    for (int i = BUILT - 1; i > 0; i--)
        if (built[i]->works())
            return built[i];
    return built[0];
}
