/* fuzz_index - a model.safetensors.index.json of any bytes: refused, or every name stays in its
 * folder and every tensor has a shard. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/model/source_index.h"

static const char *const seeds[] = {
    "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"a.weight\":\"model-00001-of-00002."
    "safetensors\","
    "\"b.scale\":\"model-00002-of-00002.safetensors\",\"c\":\"model-00001-of-00002.safetensors\"}}",
    "{\"weight_map\":{}}",
    "{\"weight_map\":{\"a\":\"..\\u002fx.safetensors\"}}",
};

size_t fuzz_seed(int i, uint8_t out[FUZZ_INPUT_MAX])
{
    size_t n = i < (int)(sizeof(seeds) / sizeof(seeds[0])) ? strlen(seeds[i]) : 0;

    memcpy(out, n ? seeds[i] : "", n);
    return n;
}

static void ignore(void *arg, enum log_level level, const char *line)
{
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    log_sink(ignore, NULL);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct source_index x;

    if (source_index_parse("fuzz", (const char *)data, bytes, &x) < 0)
        return 0;
    if (!x.listed || x.n_shards < 0 || (size_t)x.n_shards > x.n_list)
        abort();
    for (int i = 0; i < x.n_shards; i++)
        if (!is_plain_name(x.shard[i], strlen(x.shard[i])) ||
            (i > 0 && strcmp(x.shard[i - 1], x.shard[i]) >= 0))
            abort();
    for (size_t i = 0; i < x.n_list; i++)
        if (!x.list[i].tensor || x.list[i].shard < 0 || x.list[i].shard >= x.n_shards)
            abort();
    source_index_free(&x);
    return 0;
}
