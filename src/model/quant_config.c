/* quant_config.c owns the few words of a quantization_config that matter. */
#include "src/model/quant_config.h"

#include <errno.h>
#include <string.h>

#include "kernels/mat.h"
#include "src/base/json.h"
#include "src/base/log.h"

#define BLOCK_MAX 65536

static const char *const methods[] = { "exl3", "fp8", "modelopt", "compressed-tensors", "mxfp4" };

static int read_method(const struct json *q)
{
    char where[256];
    const char *name = NULL;
    int r = json_opt_str(q, "quant_method", &name);

    if (r < 0 || !name)
        return r;
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
        if (strcmp(name, methods[i]) == 0)
            return 0;
    return fail(-EINVAL,
                "%s: quant_method \"%s\" is not supported: exl3, fp8, modelopt, "
                "compressed-tensors and mxfp4 are",
                json_path(q, where, sizeof(where)), name);
}

/* Scales of a square of weights: a tile of outputs must not straddle two. */
static int read_block(const struct json *q, int *block)
{
    const struct json *size = NULL;
    char where[256];
    int side[2], r = json_opt_array(q, "weight_block_size", &size);

    if (r < 0 || !size)
        return r;
    if (json_count(size) != 2)
        return fail(-EINVAL, "%s: %zu numbers, want 2", json_path(size, where, sizeof(where)),
                    json_count(size));
    for (int i = 0; i < 2; i++) {
        r = json_as_int(json_at(size, (size_t)i), 1, BLOCK_MAX, &side[i]);
        if (r < 0)
            return r;
    }
    if (side[0] != side[1] || side[0] % MAT_TILE != 0)
        return fail(-EINVAL, "%s: blocks of %d x %d, want squares of a multiple of %d",
                    json_path(size, where, sizeof(where)), side[0], side[1], MAT_TILE);
    *block = side[0];
    return 0;
}

static int read_level(const struct json *parent, const char *key, struct quant_config *c)
{
    const struct json *q = NULL;
    int r = json_opt_object(parent, key, &q);

    if (r < 0 || !q)
        return r;
    r = read_method(q);
    if (r == 0 && c->block == 0)
        r = read_block(q, &c->block);
    /* What a quantiser left as it found it. */
    return r < 0 || strcmp(key, "quantization_config") != 0
               ? r
               : read_level(q, "original_quantization_config", c);
}

int quant_config_read(const struct json *config, struct quant_config *out)
{
    struct quant_config c = { 0 };
    const struct json *text = NULL;
    int r = json_opt_object(config, "text_config", &text);

    if (r == 0)
        r = read_level(config, "quantization_config", &c);
    if (r == 0 && text)
        r = read_level(text, "quantization_config", &c);
    if (r == 0)
        *out = c;
    return r;
}
