/* golden - tensors of the golden safetensors files, by name. A missing one ends the test. */
#ifndef TANDEM_TESTS_KERNELS_GOLDEN_H
#define TANDEM_TESTS_KERNELS_GOLDEN_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "src/base/json.h"

struct golden {
    char *bytes;
    const char *data;
    struct json *header;
};

static inline void golden_open(struct golden *g, const char *file)
{
    char path[512];
    uint64_t header;
    long size;
    FILE *f;

    snprintf(path, sizeof(path), "%s/formats/%s.safetensors", VECTORS, file);
    f = fopen(path, "rb");
    cr_assert(f != NULL, "%s", path);
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    g->bytes = malloc((size_t)size);
    cr_assert(fread(g->bytes, 1, (size_t)size, f) == (size_t)size);
    fclose(f);
    memcpy(&header, g->bytes, sizeof(header));
    cr_assert(header + 8 <= (uint64_t)size);
    g->data = g->bytes + 8 + header;
    cr_assert(eq(int, json_parse(g->bytes + 8, header, file, 8, &g->header), 0));
}

static inline void golden_close(struct golden *g)
{
    json_close(g->header);
    free(g->bytes);
}

/* A copy of a tensor, aligned for any type; *bytes, if not NULL, is its size. The caller frees it.
 */
__attribute__((format(printf, 3, 4))) static inline void *
golden_tensor(const struct golden *g, size_t *bytes, const char *fmt, ...)
{
    char name[128];
    const struct json *offsets;
    int64_t lo = 0, hi = 0;
    va_list ap;
    void *p;

    va_start(ap, fmt);
    vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    offsets = json_get(json_get(g->header, name), "data_offsets");
    cr_assert(eq(sz, json_count(offsets), 2), "%s", name);
    cr_assert(json_as_i64(json_at(offsets, 0), 0, INT64_MAX, &lo) == 0);
    cr_assert(json_as_i64(json_at(offsets, 1), lo, INT64_MAX, &hi) == 0);
    p = malloc((size_t)(hi - lo) + 1);
    cr_assert(p != NULL);
    memcpy(p, g->data + lo, (size_t)(hi - lo));
    if (bytes)
        *bytes = (size_t)(hi - lo);
    return p;
}

#endif
