/* fuzz_safetensors - headers of any bytes: refused, or every promise of the reader holds.
 *
 * Input: two bytes, how large the data area is; then the header.
 */
#include "tests/fuzz/fuzz.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/log.h"
#include "src/model/safetensors.h"

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

static const char *const seeds[] = {
    "{\"__metadata__\":{\"format\":\"pt\"},\"a.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_"
    "offsets\":[0,24]},"
    "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}}",
    "{\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},\"e\":{\"dtype\":\"F8_E4M3\","
    "\"shape\":[0,5],"
    "\"data_offsets\":[8,8]},\"u\":{\"dtype\":\"U8\",\"shape\":[24],\"data_offsets\":[8,32]}}",
    "{\"\\u0061\\ud83d\\ude00\":{\"shape\":[8,4,1],\"data_offsets\":[0,32],\"dtype\":\"F8_E8M0\"}} "
    "  ",
    "{}",
};

size_t fuzz_seed(int i, uint8_t out[FUZZ_INPUT_MAX])
{
    if (i >= (int)(sizeof(seeds) / sizeof(seeds[0])))
        return 0;
    out[0] = strlen(seeds[i]) > 2 ? 32 : 0; /* bytes of data */
    out[1] = 0;
    memcpy(out + 2, seeds[i], strlen(seeds[i]));
    return 2 + strlen(seeds[i]);
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
