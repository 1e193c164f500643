/* fuzz_safetensors - headers of any bytes: refused, or every promise of the reader holds.
 *
 * Input: two bytes, how large the data area is; then the header. Built with clang:
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I.
 *     tests/fuzz/fuzz_safetensors.c
 *     src/model/safetensors.c src/base/{json,file,hash,log}.c -ljansson -lcrypto -lxxhash
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/log.h"
#include "src/model/safetensors.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void ignore(void *arg, enum log_level level, const char *line)
{
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    log_sink(ignore, NULL);
    return 0;
}

/* The data area is covered once, names are found again, sizes follow from the shape. */
static void check(const struct safetensors *s, uint64_t data_bytes)
{
    uint64_t at = 0;

    for (size_t i = 0; i < s->n; i++) {
        const struct st_tensor *t = &s->tensor[i];
        uint64_t elements = 1;

        for (int d = 0; d < t->rank; d++)
            elements *= (uint64_t)t->shape[d];
        if (t->begin != at || t->end < t->begin || t->end > data_bytes ||
            t->rank > TENSOR_RANK_MAX || elements != t->elements ||
            (t->dtype < DTYPE_COUNT && elements * dtype_bytes(t->dtype) != t->end - t->begin))
            abort();
        if (safetensors_find(s, t->name) != t || strlen(t->name) > ST_NAME_MAX || !t->name[0])
            abort();
        at = t->end;
    }
    if (at != data_bytes)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct safetensors *s;
    uint64_t data_bytes;
    char *header;

    if (bytes < 2)
        return 0;
    data_bytes = (uint64_t)(data[0] | data[1] << 8);
    header =
        malloc(bytes - 2 + (bytes == 2)); /* exactly as long, so that a read beyond it is seen */
    if (!header)
        abort();
    memcpy(header, data + 2, bytes - 2);
    if (safetensors_parse("fuzz", header, bytes - 2, data_bytes, &s) == 0) {
        check(s, data_bytes);
        safetensors_close(s);
    }
    free(header);
    return 0;
}
