/* fuzz_jobs - lines of a jobs file of any bytes: refused by name, or a request that every range
 * check holds for. */
#include "tests/fuzz/fuzz.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/model/tokenizer.h"
#include "src/rank/asked.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 512, LINES = 8 };

static struct tokenizer *tok;
static struct options opts;

static void ignore(void *arg, enum log_level level, const char *line)
{
}

static void must(int holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    char *text;
    size_t bytes;

    log_sink(ignore, NULL);
    must(file_read(POCKET "/tokenizer.json", (size_t)64 << 20, &text, &bytes) == 0 &&
         tokenizer_open(text, bytes, "tokenizer.json", &tok) == 0);
    free(text);
    opts.max_tokens = MAX_TOKENS_DEFAULT;
    opts.replies = 1;
    opts.seeded = true; /* no draw of one: the same input does the same */
    sampler_default(&opts.sampler);
    return 0;
}

static const char *const seeds[] = {
    "{\"id\":\"a\",\"prompt\":\"Once upon a "
    "time\",\"max_tokens\":20,\"temperature\":0.7,\"seed\":7,"
    "\"stop\":[\"STOP\",\"\\n\\n\"],\"n\":2}\n{\"prompt\":\"1 2 3\",\"logprobs\":3}\n",
    "{\"ids\":[0,1,2,3],\"top_k\":40,\"top_p\":0.95,\"min_p\":0.05,\"stop\":\"x\",\"ignore_eos\":"
    "true,"
    "\"stop_token_ids\":[5,6],\"min_tokens\":2,\"draft\":false}\n",
    "{\"prompt\":\"<\xef\xbd\x9cUser\xef\xbd\x9c>\",\"markers\":true,\"bos\":false,\"logit_bias\":{"
    "\"17\""
    ":-100,\"18\":1.5},\"banned_token_ids\":[3,4],\"repetition_penalty\":1.1,\"frequency_penalty\":"
    "2,"
    "\"presence_penalty\":-2}\n\n",
};

size_t fuzz_seed(int i, uint8_t out[FUZZ_INPUT_MAX])
{
    if (i >= (int)(sizeof(seeds) / sizeof(seeds[0])))
        return 0;
    memcpy(out, seeds[i], strlen(seeds[i]));
    return strlen(seeds[i]);
}

static void check(const struct asked *q, int vocab)
{
    const struct request *r = &q->q;

    must(r->n >= 1 && r->n <= CONTEXT && r->max_tokens >= 0 && q->replies >= 1 &&
         q->replies <= REPLIES_MAX && r->stops <= STOPS_MAX && r->stop_ids <= STOP_IDS_MAX &&
         r->sampler.biases <= LOGIT_BIASES_MAX);
    for (int i = 0; i < r->n; i++)
        must(r->ids[i] >= 0 && r->ids[i] < vocab);
    for (int i = 0; i < r->stop_ids; i++)
        must(r->stop_id[i] >= 0 && r->stop_id[i] < vocab);
    for (int i = 0; i < r->stops; i++)
        must(r->stop[i][0] != 0);
    for (int i = 0; i < r->sampler.biases; i++)
        must(r->bias[i].id >= 0 && r->bias[i].id < vocab && !isnan(r->bias[i].add));
    must(isfinite(r->sampler.temperature) && isfinite(r->sampler.repetition) &&
         isfinite(r->sampler.top_p) && isfinite(r->sampler.min_p));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct asking a = { &opts, tok, tokenizer_vocab(tok), CONTEXT };

    for (int line = 0; line < LINES && size > 0; line++) {
        const uint8_t *end = memchr(data, '\n', size);
        size_t n = end ? (size_t)(end - data) : size;
        struct asked q = { 0 };

        if (asked_job(&a, (const char *)data, n, "job", &q) == 0) {
            check(&q, a.vocab);
            asked_drop(&q);
        }
        n += end != NULL;
        data += n;
        size -= n;
    }
    return 0;
}
