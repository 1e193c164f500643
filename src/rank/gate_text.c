/* gate_text.c owns the gates on where a prompt is cut, where a reply ends, and on settings that may
 * change speed and nothing else. */
#include "src/rank/gate.h"

#include "kernels/backend.h"
#include "src/base/log.h"
#include "src/base/utf8.h"
#include "src/model/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- G10 ------------------------------------------------------------------------------------ */

#define SEAM_TOKENS 32
#define SEAM_MODES 2
#define SEAM_PROMPT 64 /* shorter ones are few chunks: not in the quick size */
#define TAIL_ROWS 24

/* A hash against that of the world's first job. */
static void same_logits(struct gate *g, struct gate_logits *known, uint64_t hash, int prompt,
                        const char *which)
{
    if (known->known && known->hash != hash)
        gate_fail(g, "%s: the logits of %s hash to %016llx, without this setting to %016llx",
                  g->prompt[prompt].name, which, (unsigned long long)hash,
                  (unsigned long long)known->hash);
    *known = (struct gate_logits){ true, hash };
    g->sum[g->now].cases++;
}

static int seam(struct gate *g, int prompt, int mode)
{
    struct gate_play p = { .ask = gate_ask(g, prompt, mode, SEAM_TOKENS), .depth = -1 };
    const struct gate_play *serial;
    int r = gate_serial_of(g, &p.ask, &serial);

    if (r == 0)
        r = gate_run(g, &p, 1);
    if (r == 0)
        gate_judge(g, &p, serial);
    gate_plays_free(&p, 1);
    return r;
}

/* The first job has the prompt in as few chunks as it may, and keeps its serial replies; the others
 * cut elsewhere. */
int gate_seams(struct gate *g)
{
    int r = 0;

    for (int p = 0; p < g->prompts && r == 0 && !gate_failed(g); p++) {
        uint64_t hash;

        if (!g->full && p < g->prompts - 1 && g->prompt[p].n < SEAM_PROMPT)
            continue;
        r = gate_logits_of(g, &g->prompt[p], 1, &hash);
        if (r == 0)
            same_logits(g, &g->last[p], hash, p, "the last row");
        for (int m = 0; m < (g->full ? SEAM_MODES : 1) && r == 0 && !gate_failed(g); m++)
            r = seam(g, p, m * 9 + g->world % 2 * 6);
    }
    return r;
}

/* ---- G9, G6 --------------------------------------------------------------------------------- */

int gate_levers(struct gate *g)
{
    struct gate_ask ask[GATE_CASES_MAX];
    int n = gate_cases(g, ask), step = g->full ? 5 : 2, r = 0;

    g->depth = GATE_DEPTH_FULL;
    for (int p = 0; p < g->prompts && r == 0 && !gate_failed(g); p++) {
        uint64_t hash;

        if (g->prompt[p].n <= TAIL_ROWS || (!g->full && p % 2))
            continue;
        r = gate_logits_of(g, &g->prompt[p], TAIL_ROWS, &hash);
        if (r == 0)
            same_logits(g, &g->tail[p], hash, p, "the last 24 rows");
    }
    for (int i = 0; i < n && r == 0 && !gate_failed(g); i += step)
        r = gate_try(g, &ask[i], -1);
    return r;
}

/* A world's first job has graphs as the setting says, its last one none. */
int gate_graphs(struct gate *g)
{
    const struct rank *k = lead_round(g->l)->k;
    int r;

    if (!(k->dev->ops->caps & BACKEND_GRAPHS))
        return 0;
    r = gate_levers(g);
    if (r == 0 && g->replays == 0 && !gate_failed(g)) {
        struct gate_sum *s = &g->sum[g->now];

        s->cases = 0;
        snprintf(s->skipped, sizeof(s->skipped), "no round was replayed on this backend");
    }
    return r;
}

/* ---- G11 ------------------------------------------------------------------------------------ */

#define STOP_BLOCK 6 /* tokens of a window whose five drafts are right */
#define STOP_BASE 16 /* tokens of a reply that is to be cut */
#define STOP_TRIES 24
#define STOP_MODE 10 /* T 0.7 with top_p: replies that do not repeat themselves */
#define TURN_TOKENS 8

enum stop_kind {
    STOP_BY_ID,       /* a token of the request */
    STOP_BY_TEXT,     /* text that one token completes */
    STOP_BY_SPAN,     /* text of two tokens */
    STOP_BY_LENGTH,   /* the limit */
    STOP_BY_END,      /* the model's end token */
    STOP_ID_AT_LIMIT, /* the first of the two wins */
    STOP_TEXT_AT_LIMIT,
    STOP_KINDS
};

static const struct {
    const char *name;
    enum finish finish;
} stops[STOP_KINDS] = {
    [STOP_BY_ID] = { "a stop token", FINISH_END },
    [STOP_BY_TEXT] = { "a stop string in a token", FINISH_STOP },
    [STOP_BY_SPAN] = { "a stop string over two tokens", FINISH_STOP },
    [STOP_BY_LENGTH] = { "the limit", FINISH_LENGTH },
    [STOP_BY_END] = { "an end token", FINISH_END },
    [STOP_ID_AT_LIMIT] = { "a stop token at the limit", FINISH_END },
    [STOP_TEXT_AT_LIMIT] = { "a stop string at the limit", FINISH_STOP },
};

/* The text of tokens from .. to of a reply as a stop string, if it can be one and comes with token
 * `to` and not before. */
static bool stop_of(const struct gate *g, const struct reply *r, int from, int to, char out[32])
{
    const struct tokenizer *t = lead_round(g->l)->k->tok;
    struct text all = { 0 };
    size_t before = 0, start = 0, bytes, whole;
    const char *b;
    bool ok = true;

    for (int i = 0; i <= to && ok; i++) {
        b = tokenizer_flags(t, r->ids[i]) & TOKEN_SPECIAL ? NULL
                                                          : tokenizer_bytes(t, r->ids[i], &bytes);
        if (i == from)
            start = all.bytes;
        if (i == to)
            before = all.bytes;
        ok = b && text_add(&all, b, bytes) == 0;
    }
    bytes = ok ? all.bytes - start : 0;
    ok = ok && bytes > 0 && bytes < 32 && memchr(all.s + start, 0, bytes) == NULL &&
         utf8_scan(all.s + start, bytes, &whole) == UTF8_NONE;
    /* Not complete before the last token: no match may end in what came before it. */
    for (size_t end = bytes; ok && end <= before; end++)
        ok = memcmp(all.s + end - bytes, all.s + start, bytes) != 0;
    if (ok) {
        memcpy(out, all.s + start, bytes);
        out[bytes] = 0;
    }
    text_free(&all);
    return ok;
}

static bool is_new(const struct reply *r, int at)
{
    for (int i = 0; i < at; i++)
        if (r->ids[i] == r->ids[at])
            return false;
    return true;
}

/* The request of `base` with a stop of this kind at token `at`; false if its reply does not allow
 * one. */
static bool ask_stop(const struct gate *g, const struct gate_play *base, enum stop_kind kind,
                     int at, struct gate_ask *out)
{
    const struct reply *r = &base->reply;

    *out = base->ask;
    switch (kind) {
    case STOP_ID_AT_LIMIT:
        out->max_tokens = at + 1; /* fallthrough */
    case STOP_BY_ID:
        out->stop_id = r->ids[at];
        return is_new(r, at);
    case STOP_TEXT_AT_LIMIT:
        out->max_tokens = at + 1; /* fallthrough */
    case STOP_BY_TEXT:
        return stop_of(g, r, at, at, out->stop);
    case STOP_BY_SPAN:
        return at > 0 && stop_of(g, r, at - 1, at, out->stop);
    case STOP_BY_LENGTH:
        out->max_tokens = at + 1;
        return true;
    default:
        out->end_at = at;
        out->ignore_end = false;
        return true;
    }
}

/* The next turn: what was said and a few tokens more. Nothing of the cut block may be left in the
 * slot. */
static int next_turn(struct gate *g, const struct gate_play *cut)
{
    const struct gate_prompt *p = cut->ask.prompt;
    int more = p->n < TURN_TOKENS ? p->n : TURN_TOKENS, r;
    int n = p->n + cut->reply.n + more;
    struct gate_prompt prompt = { .ids = malloc((size_t)n * sizeof(int32_t)), .n = n };
    struct gate_play turn[2] = { 0 };

    if (!prompt.ids)
        return fail(-ENOMEM, "gate: no memory for %d tokens", n);
    snprintf(prompt.name, sizeof(prompt.name), "next turn");
    memcpy(prompt.ids, p->ids, (size_t)p->n * sizeof(int32_t));
    memcpy(prompt.ids + p->n, cut->reply.ids, (size_t)cut->reply.n * sizeof(int32_t));
    memcpy(prompt.ids + n - more, p->ids + p->n - more, (size_t)more * sizeof(int32_t));
    for (int i = 0; i < 2; i++) {
        turn[i].ask = gate_ask(g, 0, cut->ask.mode, TURN_TOKENS);
        turn[i].ask.prompt = &prompt;
        turn[i].depth = -1;
    }
    r = gate_run(g, &turn[0], 1);
    turn[1].draft = true;
    turn[1].record = turn[0].reply.ids;
    turn[1].record_n = turn[0].reply.n;
    if (r == 0)
        r = gate_run(g, &turn[1], 1);
    if (r == 0)
        gate_judge(g, &turn[1], &turn[0]);
    gate_plays_free(turn, 2);
    free(prompt.ids);
    return r;
}

/* What the oracle reads goes on behind the stop: the drafts there are right, and nothing of them
 * may land. */
static int try_stop(struct gate *g, const struct gate_play *base, const struct gate_ask *ask,
                    enum stop_kind kind, int at, bool turn)
{
    struct gate_play p = { .ask = *ask, .draft = true, .depth = STOP_BLOCK - 1 };
    const struct gate_play *serial;
    int32_t record[2 * STOP_BASE];
    int n = 0, r = gate_serial_of(g, ask, &serial);

    if (r != 0)
        return r;
    if (serial->reply.n != at + 1 || serial->reply.finish != stops[kind].finish) {
        gate_fail(g, "%s at token %d: the serial reply ends at %d as %s", stops[kind].name, at,
                  serial->reply.n - 1, finish_name(serial->reply.finish));
        return 0;
    }
    for (; n < serial->reply.n; n++)
        record[n] = serial->reply.ids[n];
    for (; n < base->reply.n; n++)
        record[n] = base->reply.ids[n];
    p.record = record;
    p.record_n = n;
    r = gate_run(g, &p, 1);
    if (r == 0 && gate_judge(g, &p, serial) && p.reply.rounds != 1 + at / STOP_BLOCK)
        gate_fail(g, "%s at token %d took %d rounds", stops[kind].name, at, p.reply.rounds);
    if (r == 0 && turn && !gate_failed(g))
        r = next_turn(g, &p);
    gate_plays_free(&p, 1);
    return r;
}

/* Replies are tried until one has a place for the stop. */
static int stop_at(struct gate *g, enum stop_kind kind, int at)
{
    if (kind == STOP_BY_END && lead_round(g->l)->k->ends == 0)
        return 0;
    for (int i = 0; i < STOP_TRIES; i++) {
        struct gate_ask ask = gate_ask(g, i, i % 2 ? STOP_MODE : 0, STOP_BASE), cut;
        const struct gate_play *base;
        int r;

        if (ask.prompt == &g->prompt[g->prompts - 1])
            continue;
        ask.seed += (uint64_t)i;
        ask.ignore_end = true;
        r = gate_serial_of(g, &ask, &base);
        if (r != 0)
            return r;
        if (ask_stop(g, base, kind, at, &cut))
            return try_stop(g, base, &cut, kind, at, at == 2 || g->full);
    }
    /* Two tokens are behind each other from the second on. A model whose tokens have no text has no
     * place for text. */
    if (kind != STOP_BY_SPAN || at > 0)
        snprintf(g->sum[g->now].note, sizeof(g->sum[g->now].note), "not tried: %s at token %d",
                 stops[kind].name, at);
    return 0;
}

int gate_stops(struct gate *g)
{
    int r = 0;

    g->depth = GATE_DEPTH_FULL;
    for (enum stop_kind k = 0; k < STOP_KINDS; k++)
        for (int at = 0; at <= STOP_BLOCK && r == 0 && !gate_failed(g); at++)
            r = stop_at(g, k, at);
    return r;
}
