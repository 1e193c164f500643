/* sort - numbers in rising order, for medians and quantiles. */
#ifndef TANDEM_BASE_SORT_H
#define TANDEM_BASE_SORT_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

static inline int sort_by_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static inline void sort_i64(int64_t *v, size_t n)
{
    qsort(v, n, sizeof(*v), sort_by_i64);
}

static inline int sort_by_f64(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static inline void sort_f64(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), sort_by_f64);
}

#endif
