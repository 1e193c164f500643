/* source_weight - source_stored of what is stored plain, for tests that read it themselves. */
#ifndef TANDEM_TESTS_MODEL_SOURCE_WEIGHT_H
#define TANDEM_TESTS_MODEL_SOURCE_WEIGHT_H

#include "src/base/log.h"
#include "src/model/source.h"
#include "src/model/stored.h"

#include <errno.h>
#include <string.h>

/* The tensor that holds the weight, its own name for read, and where row 0 begins. */
static inline int source_weight(struct source *s, const char *released, int64_t rows, int64_t cols,
                                struct tensor *t, char *name, size_t name_bytes,
                                uint64_t *first_element)
{
    struct stored w;
    int r = source_stored(s, released, STORED_PLAIN, rows, cols, &w);

    if (r != 0)
        return r;
    if (strlen(w.slice[0].codes.name) >= name_bytes)
        return fail(-ENAMETOOLONG, "tensor %s: name of more than %zu bytes", w.slice[0].codes.name,
                    name_bytes - 1);
    strcpy(name, w.slice[0].codes.name);
    *t = w.slice[0].codes.t;
    *first_element = w.first_element;
    return 0;
}

#endif
