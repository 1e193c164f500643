/* asked.c owns the fields of a job; prompts are read in prompt.c, ranges are checked in lead.c. */
#include "src/rank/asked.h"

#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/tokenizer.h"
#include "src/rank/exit_code.h"
#include "src/rank/prompt.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOBS_BYTES ((size_t)256 << 20)
#define JOBS_MAX 65536
#define JOB_DEPTH 8

void asked_drop(struct asked *q)
{
    free(q->ids);
    free(q->stop_id);
    free(q->bias);
    free((void *)q->stop);
    json_close(q->job);
    *q = (struct asked){ 0 };
}

void asked_free(struct asked_list *l)
{
    for (int i = 0; i < l->n; i++)
        asked_drop(&l->at[i]);
    free(l->at);
    *l = (struct asked_list){ 0 };
}

/* As the command line says; what it borrows is the options'. */
static struct asked from_line(const struct options *o)
{
    return (struct asked){ .q = { .max_tokens = o->max_tokens,
                                  .sampler = o->sampler,
                                  .bias = o->bias,
                                  .ignore_end = o->cfg.ignore_eos,
                                  .draft = true,
                                  .stop = o->stop,
                                  .stops = o->stops,
                                  .stop_id = o->stop_id,
                                  .stop_ids = o->stop_ids },
                           .replies = o->replies,
                           .seeded = o->seeded };
}

static int choose_seed(struct asked *q)
{
    int r;

    if (q->seeded || sampler_greedy(&q->q.sampler))
        return 0;
    r = random_bytes(&q->q.sampler.seed, sizeof(q->q.sampler.seed));
    if (r == 0)
        log_info("seed %llu", (unsigned long long)q->q.sampler.seed);
    return r;
}

/* Everything that a request must be, whoever wrote it. */
static int check(struct asked *q, const struct asking *a, const char *name)
{
    struct prompt p = { .ids = q->ids, .n = q->q.n };
    int code = prompt_fits(&p, a->context, name);

    q->q.ids = q->ids;
    if (code == 0 && request_check(&q->q, a->vocab) < 0)
        code = CODE_DATA;
    return code ? code : exit_code_of(STEP_DEVICE, choose_seed(q));
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static int no_memory(void)
{
    return fail(-ENOMEM, "no memory for a request");
}

/* A list of token ids, which becomes the caller's. */
static int read_ids(const struct json *o, const char *key, int vocab, int32_t **out, int *n)
{
    const struct json *list = NULL;
    size_t count;
    int r = json_opt_array(o, key, &list);

    if (r < 0 || !list)
        return r;
    count = json_count(list);
    free(*out);
    *out = malloc((count + 1) * sizeof(**out));
    if (!*out)
        return no_memory();
    for (size_t i = 0; i < count && r == 0; i++)
        r = json_as_int(json_at(list, i), 0, vocab - 1, &(*out)[i]);
    *n = (int)count;
    return r;
}

static int read_prompt(struct asked *q, const struct asking *a, const struct json *o)
{
    bool markers = a->o->markers, bos = !a->o->no_bos;
    const char *text = NULL;
    int r = json_opt_str(o, "prompt", &text);

    if (r == 0)
        r = json_opt_bool(o, "markers", &markers);
    if (r == 0)
        r = json_opt_bool(o, "bos", &bos);
    if (r == 0 && (text != NULL) == json_has(o, "ids"))
        r = fail(-EINVAL, "wants one of prompt and ids");
    if (r < 0)
        return r;
    if (!text)
        return read_ids(o, "ids", a->vocab, &q->ids, &q->q.n);
    return tokenizer_encode(a->tok, text, strlen(text),
                            (bos ? ENCODE_BOS : 0) | (markers ? ENCODE_MARKERS : 0), &q->ids,
                            &q->q.n);
}

/* A number, or the digits of one: JSON's integers end at 2^63 - 1. */
static int read_seed(struct asked *q, const struct json *o)
{
    const struct json *v = json_get(o, "seed");
    const char *digits;
    int64_t seed = 0;
    int r;

    if (!json_has(o, "seed"))
        return 0;
    q->seeded = true;
    if (!json_is(v, JSON_IS_STRING)) {
        r = json_as_i64(v, 0, INT64_MAX, &seed);
        q->q.sampler.seed = (uint64_t)seed;
        return r;
    }
    r = json_as_str(v, &digits);
    if (r == 0 && seed_parse(digits, &q->q.sampler.seed) < 0)
        r = fail(-EINVAL, "seed: want a whole number in 0 .. 2^64 - 1, got \"%s\"", digits);
    return r;
}

/* One text or a list of them. */
static int read_stops(struct asked *q, const struct json *o)
{
    const struct json *v = json_get(o, "stop");
    bool list = json_is(v, JSON_IS_ARRAY);
    size_t n = list ? json_count(v) : 1;
    int r = 0;

    if (!json_has(o, "stop"))
        return 0;
    if (n > STOPS_MAX)
        return fail(-EINVAL, "stop has %zu texts, want at most %d", n, STOPS_MAX);
    q->stop = calloc(n + 1, sizeof(*q->stop));
    if (!q->stop)
        return no_memory();
    for (size_t i = 0; i < n && r == 0; i++) {
        r = json_as_str(list ? json_at(v, i) : v, &q->stop[i]);
        if (r == 0)
            r = stop_check(q->stop[i]);
    }
    q->q.stop = q->stop;
    q->q.stops = (int)n;
    return r;
}

static int read_bias(const struct json *v, int vocab, struct logit_bias *out)
{
    const char *key = json_key(v);
    char *end;
    double add = 0;
    long id = strtol(key, &end, 10);
    int r;

    if (key[0] < '0' || key[0] > '9' || *end || id >= vocab)
        return fail(-EINVAL, "logit_bias.%s: want a token id in 0 .. %d", key, vocab - 1);
    r = json_as_f64(v, &add);
    *out = (struct logit_bias){ .id = (int32_t)id, .add = (float)add };
    return r;
}

/* Those of a job take the place of the command line's. */
static int read_biases(struct asked *q, const struct json *o, int vocab)
{
    const struct json *biases = NULL, *bans = NULL;
    size_t n;
    int r = json_opt_object(o, "logit_bias", &biases), at = 0;

    if (r == 0)
        r = json_opt_array(o, "banned_token_ids", &bans);
    if (r < 0 || (!biases && !bans))
        return r;
    n = (biases ? json_count(biases) : 0) + (bans ? json_count(bans) : 0);
    if (n > LOGIT_BIASES_MAX)
        return fail(-EINVAL, "logit_bias and banned_token_ids name %zu tokens, want at most %d", n,
                    LOGIT_BIASES_MAX);
    q->bias = calloc(n + 1, sizeof(*q->bias));
    if (!q->bias)
        return no_memory();
    for (size_t i = 0; biases && i < json_count(biases) && r == 0; i++)
        r = read_bias(json_at(biases, i), vocab, &q->bias[at++]);
    for (size_t i = 0; bans && i < json_count(bans) && r == 0; i++) {
        q->bias[at].add = -INFINITY;
        r = json_as_int(json_at(bans, i), 0, vocab - 1, &q->bias[at++].id);
    }
    q->q.bias = q->bias;
    q->q.sampler.biases = (int)n;
    return r;
}

static int read_numbers(struct asked *q, const struct json *o)
{
    struct sampler *s = &q->q.sampler;
    const struct {
        const char *key;
        double *at;
    } real[] = {
        { "temperature", &s->temperature },
        { "top_p", &s->top_p },
        { "min_p", &s->min_p },
        { "repetition_penalty", &s->repetition },
        { "frequency_penalty", &s->frequency },
        { "presence_penalty", &s->presence },
    };
    const struct {
        const char *key;
        int least, most;
        int *at;
    } whole[] = {
        { "max_tokens", 0, INT32_MAX, &q->q.max_tokens },
        { "top_k", 0, INT32_MAX, &s->top_k },
        { "min_tokens", 0, INT32_MAX, &s->min_tokens },
        { "n", 1, REPLIES_MAX, &q->replies },
    };
    int r = 0, top = 0;

    for (size_t i = 0; i < sizeof(real) / sizeof(real[0]) && r == 0; i++)
        r = json_opt_f64(o, real[i].key, real[i].at);
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]) && r == 0; i++)
        r = json_opt_int(o, whole[i].key, whole[i].least, whole[i].most, whole[i].at);
    if (r == 0 && json_has(o, "logprobs")) {
        r = json_int(o, "logprobs", 0, LOGPROBS_MAX, &top);
        s->logprobs = top + 1;
    }
    return r;
}

static int check_fields(const struct json *o)
{
    static const char *const fields[] = {
        "id",
        "prompt",
        "ids",
        "markers",
        "bos",
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "n",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "logit_bias",
        "banned_token_ids",
        "logprobs",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "draft",
    };

    if (!json_is(o, JSON_IS_OBJECT))
        return fail(-EINVAL, "want an object");
    for (size_t i = 0; i < json_count(o); i++) {
        const char *key = json_key(json_at(o, i));
        bool known = false;

        for (size_t f = 0; f < sizeof(fields) / sizeof(fields[0]); f++)
            known |= strcmp(key, fields[f]) == 0;
        if (!known)
            return fail(-EINVAL, "%s: no such field", key);
    }
    return 0;
}

static int read_job(struct asked *q, const struct asking *a, const struct json *o)
{
    int r = check_fields(o);

    if (r == 0)
        r = json_opt_str(o, "id", &q->id);
    if (r == 0)
        r = read_prompt(q, a, o);
    if (r == 0)
        r = read_numbers(q, o);
    if (r == 0)
        r = read_seed(q, o);
    if (r == 0)
        r = read_stops(q, o);
    if (r == 0)
        r = read_ids(o, "stop_token_ids", a->vocab, &q->stop_id, &q->q.stop_ids);
    if (q->stop_id)
        q->q.stop_id = q->stop_id;
    if (r == 0)
        r = read_biases(q, o, a->vocab);
    if (r == 0)
        r = json_opt_bool(o, "ignore_eos", &q->q.ignore_end);
    if (r == 0)
        r = json_opt_bool(o, "draft", &q->q.draft);
    return r;
}

int asked_job(const struct asking *a, const char *text, size_t bytes, const char *name,
              struct asked *out)
{
    struct asked q = from_line(a->o);
    int r, code;

    log_about(name);
    r = json_parse(text, bytes, "job", JOB_DEPTH, &q.job);
    if (r == 0)
        r = read_job(&q, a, q.job);
    code = exit_code_of(STEP_DATA, r);
    if (code == 0)
        code = check(&q, a, NULL); /* every line says what it is about */
    log_about(NULL);
    if (code == 0)
        *out = q;
    else
        asked_drop(&q);
    return code;
}

/* ---- the command line ------------------------------------------------------------------------ */

static struct asked *one_more(struct asked_list *l)
{
    struct asked *at = realloc(l->at, ((size_t)l->n + 1) * sizeof(*at));

    if (!at) {
        no_memory();
        return NULL;
    }
    l->at = at;
    l->at[l->n] = (struct asked){ 0 };
    return &l->at[l->n++];
}

static int read_line(const struct asking *a, const struct given *g, struct asked_list *l)
{
    struct asked *q = one_more(l);
    char buf[PROMPT_NAME_CAP];
    struct prompt p;
    int code;

    if (!q)
        return CODE_RESOURCE;
    *q = from_line(a->o);
    code = prompt_read(a->o, g, a->tok, a->vocab, &p);
    if (code != 0)
        return code;
    q->ids = p.ids;
    q->q.n = p.n;
    return check(q, a, prompt_name(a->o, g, buf));
}

/* One line; blank ones say nothing. */
static int read_job_line(const struct asking *a, const char *text, size_t bytes, const char *name,
                         struct asked_list *l)
{
    struct asked *q;
    size_t blank = 0;

    while (blank < bytes && memchr(" \t\r", text[blank], 3))
        blank++;
    if (blank == bytes)
        return 0;
    if (l->n == JOBS_MAX) {
        fail(-EINVAL, "%s: more than %d requests", name, JOBS_MAX);
        return CODE_DATA;
    }
    q = one_more(l);
    return q ? asked_job(a, text, bytes, name, q) : CODE_RESOURCE;
}

static int read_jobs(const struct asking *a, const char *path, struct asked_list *l)
{
    char *text, name[PATH_CAP + 32];
    size_t bytes, at = 0;
    int r = file_read_stream(path, JOBS_BYTES, &text, &bytes), code = exit_code_of(STEP_DATA, r);
    int before = l->n;

    if (code != 0)
        return code;
    for (int line = 1; at < bytes && code == 0; line++) {
        const char *eol = memchr(text + at, '\n', bytes - at);
        size_t n = eol ? (size_t)(eol - text) - at : bytes - at;

        snprintf(name, sizeof(name), "jobs %s line %d", path, line);
        code = read_job_line(a, text + at, n, name, l);
        at += n + 1;
    }
    free(text);
    if (code == 0 && l->n == before) {
        fail(-EINVAL, "jobs %s: no requests", path);
        code = CODE_DATA;
    }
    return code;
}

int asked_read(const struct asking *a, struct asked_list *out)
{
    int code = 0;

    *out = (struct asked_list){ 0 };
    for (int i = 0; i < a->o->givens && code == 0; i++) {
        const struct given *g = &a->o->given[i];

        code = g->as == GIVEN_JOBS_FILE ? read_jobs(a, g->what, out) : read_line(a, g, out);
    }
    return code;
}
