/* fuzz_quant_config - a config.json of any bytes: refused, or a block that a tile fits into.
 *
 * Built with clang:
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I.
 *     tests/fuzz/fuzz_quant_config.c src/model/quant_config.c src/base/{json,file,log,utf8}.c -ljansson
 */
#include <stdint.h>
#include <stdlib.h>

#include "kernels/mat.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/quant_config.h"

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
