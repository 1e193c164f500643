/* fuzz_quant_config - a config.json of any bytes: refused, or a block that a tile fits into. */
#include "tests/fuzz/fuzz.h"

#include <stdint.h>
#include <stdlib.h>

#include "kernels/mat.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/quant_config.h"

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
    struct quant_config c = { 0 };
    struct json *root;

    if (json_parse((const char *)data, bytes, "fuzz", 64, &root) < 0)
        return 0;
    if (quant_config_read(root, &c) == 0 && (c.block < 0 || c.block % MAT_TILE != 0))
        abort();
    json_close(root);
    return 0;
}
