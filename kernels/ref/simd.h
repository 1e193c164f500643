/* simd - how plain loops become vector code without changing a bit.
 *
 * A function marked SIMD is compiled for AVX-512, AVX2 and the baseline, and the loader picks one.
 * Products are never contracted into sums, so all of them return the same bits. Elsewhere the mark
 * does nothing, and the compiler uses what the architecture always has.
 */
#ifndef TANDEM_KERNELS_REF_SIMD_H
#define TANDEM_KERNELS_REF_SIMD_H

/* Sanitizers run before the loader has resolved clones; clang has no such attribute in C17. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) &&       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SIMD_X86 1
#define SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SIMD_X86 0
#define SIMD
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))

#endif
