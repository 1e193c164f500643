/* fuzz_config_json - a config.json of any bytes: refused by name, or a model whose weights and
 * states have sizes, cut for any rank.
 *
 * Input: a byte that chooses rank and ranks, then the text.
 */
#include "tests/fuzz/fuzz.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/draft/drafter.h"
#include "src/model/family.h"
#include "src/rank/packs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHTS_MAX 100000

static const char *const folders[] = { POCKET, VECTORS "/dense/llama", VECTORS "/dense/qwen3" };

static void ignore(void *arg, enum log_level level, const char *line)
{
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    log_sink(ignore, NULL);
    return 0;
}

size_t fuzz_seed(int i, uint8_t out[FUZZ_INPUT_MAX])
{
    char path[PATH_CAP], *text;
    size_t bytes;

    if (i >= (int)(sizeof(folders) / sizeof(folders[0])))
        return 0;
    if (path_join(path, sizeof(path), folders[i], "config.json") < 0 ||
        file_read(path, FUZZ_INPUT_MAX - 1, &text, &bytes) < 0)
        abort();
    out[0] = (uint8_t)i;
    memcpy(out + 1, text, bytes);
    free(text);
    return bytes + 1;
}

struct sum {
    struct walk w;
    int n;
};

static int count(struct walk *w, const struct weight *d, void *target)
{
    struct sum *s = (struct sum *)w;
    int64_t rows, cols;

    weight_local(d, &rows, &cols);
    if (rows < 0 || cols < 0 || d->rows < 1 || d->cols < 1 || d->count < 0 ||
        d->first + d->count > (d->kind == WEIGHT_ROWS   ? d->columns
                               : d->shard == SHARD_COLS ? d->cols
                                                        : d->rows))
        abort();
    return ++s->n < WEIGHTS_MAX ? 0 : -E2BIG;
}

static void use(const struct blueprint *b, int rank, int ranks)
{
    struct sum s = { .w = { .visit = count, .rank = rank, .ranks = ranks } };
    struct state_list *l = calloc(1, sizeof(*l));

    if (!l)
        abort();
    if (walk_parts(&s.w, b->part, BLUEPRINT_PARTS) == 0) {
        b->model->ops->states(b->model, l);
        b->drafter->ops->states(b->drafter, l);
        slot_pool_bytes(l, 4, 8192, 512);
    }
    if (b->model->vocab < 1 || b->model->vocab_first + b->model->vocab_share > b->model->vocab)
        abort();
    free(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum exit_step step = STEP_DATA;
    struct blueprint b = { 0 };
    int ranks, rank;

    if (size < 1)
        return 0;
    ranks = 1 + data[0] % 4;
    rank = data[0] / 4 % ranks;
    if (blueprint_open((const char *)data + 1, size - 1, NULL, true, rank, ranks, data[0] & 64,
                       &step, &b) == 0)
        use(&b, rank, ranks);
    blueprint_close(&b);
    return 0;
}
