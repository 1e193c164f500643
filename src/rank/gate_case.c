/* gate_case.c owns what gates ask for: texts, ways to sample, and who is in company with whom. */
#include "src/rank/gate.h"

#include "src/base/log.h"
#include "src/base/utf8.h"
#include "src/rank/options.h"
#include "src/rank/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_QUICK 24
#define DOCUMENT_TOKENS 16 /* of replies to the document in the quick size */
#define LOGPROBS 6         /* the chosen token's and the five best */

/* ---- texts ---------------------------------------------------------------------------------- */

/* All texts behind each other, again and again: one of them ends in the middle. */
static int compose(struct gate *g, int tokens)
{
    struct gate_prompt *p = &g->prompt[g->prompts];
    int32_t *ids = malloc((size_t)tokens * sizeof(*ids));

    if (!ids) {
        fail(-ENOMEM, "gate: no memory for a document of %d tokens", tokens);
        return CODE_RESOURCE;
    }
    for (int i = 0; p->n < tokens; i = (i + 1) % g->prompts) {
        const struct gate_prompt *from = &g->prompt[i];
        int n = from->n < tokens - p->n ? from->n : tokens - p->n;

        memcpy(ids + p->n, from->ids, (size_t)n * sizeof(*ids));
        p->n += n;
    }
    snprintf(p->name, sizeof(p->name), "document");
    p->ids = ids;
    g->prompts++;
    return 0;
}

int gate_texts(struct gate *g, const char *folder, const struct tokenizer *t, int tokens)
{
    struct named_prompt text[PROMPTS_MAX];
    int n, code = prompt_folder(folder, t, text, &n);

    if (code == 0 && n >= GATE_PROMPTS_MAX) {
        fail(-EINVAL, "prompts %s: %d files *.txt, want at most %d", folder, n,
             GATE_PROMPTS_MAX - 1);
        code = CODE_DATA;
    }
    for (int i = 0; i < n && code == 0; i++) {
        struct gate_prompt *p = &g->prompt[g->prompts++];

        if (text[i].prompt.n == 0) {
            fail(-EINVAL, "prompts %s: %s is empty", folder, text[i].name);
            code = CODE_DATA;
        }
        memcpy(p->name, text[i].name, sizeof(p->name));
        p->ids = text[i].prompt.ids;
        p->n = text[i].prompt.n;
        text[i].prompt.ids = NULL; /* now the gate's */
    }
    prompts_free(text, n);
    return code == 0 ? compose(g, tokens) : code;
}

void gate_texts_free(struct gate *g)
{
    for (int i = 0; i < g->prompts; i++)
        free(g->prompt[i].ids);
    g->prompts = 0;
}

/* ---- ways to sample ------------------------------------------------------------------------- */

struct filter {
    const char *name;
    int top_k;
    double top_p, min_p;
};

static const struct filter filters[] = {
    { "", 0, 1, 0 },
    { " top_k 20", 20, 1, 0 },
    { " top_p 0.95", 0, 0.95, 0 },
    { " top_k 20 top_p 0.95", 20, 0.95, 0 },
    { " min_p 0.05", 0, 1, 0.05 },
};

#define FILTERS ((int)(sizeof(filters) / sizeof(filters[0])))

static struct sampler sampler_of(double temperature, const struct filter *f, bool edits)
{
    struct sampler s;

    sampler_default(&s);
    s.temperature = temperature;
    s.top_k = f->top_k;
    s.top_p = f->top_p;
    s.min_p = f->min_p;
    if (edits) {
        s.repetition = 1.15;
        s.frequency = 0.2;
        s.presence = 0.3;
        s.min_tokens = 12;
    }
    return s;
}

/* Greedy, then two temperatures with every filter, each without edits and with them. */
void gate_modes(struct gate *g)
{
    static const double heat[] = { 0.7, 1.0 };
    int n = 0;

    for (int edits = 0; edits < 2; edits++) {
        struct gate_mode *m = &g->mode[n++];

        snprintf(m->name, sizeof(m->name), "greedy%s", edits ? ", penalties" : "");
        m->edits = edits;
        m->s = sampler_of(0, &filters[0], edits);
    }
    for (int f = 0; f < FILTERS; f++)
        for (int t = 0; t < 2; t++)
            for (int edits = 0; edits < 2; edits++) {
                struct gate_mode *m = &g->mode[n++];

                snprintf(m->name, sizeof(m->name), "T %.1f%s%s", heat[t], filters[f].name,
                         edits ? ", penalties" : "");
                m->edits = edits;
                m->s = sampler_of(heat[t], &filters[f], edits);
            }
    /* A third goes without log-probabilities: less crosses the wire then. */
    for (int i = 0; i < n; i++)
        g->mode[i].s.logprobs = i % 3 == 2 ? 0 : LOGPROBS;
}

/* ---- cases ---------------------------------------------------------------------------------- */

struct gate_ask gate_ask(const struct gate *g, int prompt, int mode, int max_tokens)
{
    mode %= GATE_MODES;
    prompt %= g->prompts;
    if (g->o->gate_tokens > 0 && max_tokens > g->o->gate_tokens)
        max_tokens = g->o->gate_tokens;
    return (struct gate_ask){ .prompt = &g->prompt[prompt],
                              .mode = mode,
                              .max_tokens = max_tokens,
                              .seed = UINT64_C(0x9E3779B97F4A7C15) * (uint64_t)(mode + 1) +
                                      (uint64_t)prompt,
                              .ignore_end = !g->mode[mode].edits,
                              .stop_id = -1,
                              .end_at = -1 };
}

int gate_cases(const struct gate *g, struct gate_ask ask[GATE_CASES_MAX])
{
    int n = 0;

    if (!g->full) {
        for (int p = 0; p < g->prompts; p++)
            ask[n++] = gate_ask(g, p, g->world * g->prompts + p,
                                p == g->prompts - 1 ? DOCUMENT_TOKENS : TOKENS_QUICK);
        return n;
    }
    /* A document costs more than its reply: it gets the plainest mode and the fullest. */
    for (int p = 0; p < g->prompts; p++)
        for (int m = 0; m < GATE_MODES; m += p == g->prompts - 1 ? GATE_MODES - 1 : 1)
            ask[n++] = gate_ask(g, p, m, GATE_TOKENS_FULL);
    return n;
}

/* Four bytes, or what of them are whole characters. */
void gate_stop_in(struct gate_ask *a, const struct gate_play *serial)
{
    const struct text *t = &serial->reply.text;
    size_t from = t->bytes / 2, whole;

    if (t->bytes < 8)
        return;
    while (from > 0 && ((unsigned char)t->s[from] & 0xC0) == 0x80)
        from--;
    memcpy(a->stop, t->s + from, 4);
    a->stop[4] = 0;
    if (utf8_scan(a->stop, 4, &whole) != UTF8_NONE)
        a->stop[whole] = 0;
}

int gate_company(struct gate *g, struct gate_play p[GATE_COMPANY])
{
    static const int join[GATE_COMPANY] = { 0, 0, 2, 5, 6, 9, 11, 14, 15, 22 };
    int times = g->full ? 6 : 1;

    for (int i = 0; i < GATE_COMPANY; i++) {
        p[i] =
            (struct gate_play){ .ask = gate_ask(g, i, g->world + i * 5, (16 + i % 4 * 5) * times),
                                .draft = i != 6,
                                .join = join[i],
                                .cancel = i == 3 ? 7 * times : 0,
                                .depth = -1 };
        if (i % 5 == 2) {
            const struct gate_play *serial;
            int r = gate_serial_of(g, &p[i].ask, &serial);

            if (r != 0)
                return r;
            gate_stop_in(&p[i].ask, serial);
        }
    }
    return 0;
}
