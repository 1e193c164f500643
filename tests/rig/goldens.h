/* goldens - reference outputs of the pocket model, by name. A missing one ends the test. */
#ifndef TANDEM_TESTS_RIG_GOLDENS_H
#define TANDEM_TESTS_RIG_GOLDENS_H

#include <stddef.h>
#include <stdint.h>

/* The names are printf formats; the values live as long as the process. *n is the number of
 * values. */
__attribute__((format(printf, 2, 3))) const float *golden_f32(size_t *n, const char *fmt, ...);
__attribute__((format(printf, 2, 3))) const int32_t *golden_i32(size_t *n, const char *fmt, ...);
__attribute__((format(printf, 2, 3))) const int64_t *golden_i64(size_t *n, const char *fmt, ...);

extern const char *const golden_prompts[6];

#endif
