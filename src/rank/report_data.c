/* report_data.c owns the shape of the charts' numbers; report_page.js reads it. */
#include "src/rank/report_data.h"

#include "src/base/json.h"

#include <math.h>
#include <stdio.h>

#define PROMPT_PART PARTS /* in stretches only: prompt chunks before a round */
#define SCALE 4 /* a scale shows up to this many slow hundredths; what is higher is cut off */

/* Four decimals are more than a pixel shows. */
static void put(struct json_writer *w, const char *key, double x)
{
    json_put_f64(w, key, isfinite(x) ? round(x * 1e4) / 1e4 : 0);
}

static void put_kinds(struct json_writer *w)
{
    json_begin_array(w, "kinds");
    for (int p = 0; p <= PROMPT_PART; p++) {
        bool prompt = p == PROMPT_PART;

        json_begin_object(w, NULL);
        json_put_str(w, "name", prompt ? "prompt chunks" : part_name((enum part)p));
        json_put_str(w, "help",
                     prompt ? "known rows run before the round" : part_help((enum part)p));
        json_end_object(w);
    }
    json_end_array(w);
}

static double in_ms(double us)
{
    return us / 1e3;
}

static void put_bins(struct json_writer *w, const struct view_log *v)
{
    const struct view_bin *b = v->bin;
    double scale = SCALE * v->p99_us < v->max_us ? SCALE * v->p99_us : v->max_us;

    json_put_int(w, "each", (int64_t)(v->bins ? b[0].rounds : 1));
    put(w, "scale", in_ms(scale) * 1.05);
    json_begin_array(w, "rounds");
    for (int i = 0; i < v->bins; i++)
        json_put_int(w, NULL, b[i].first);
    json_end_array(w);
    json_begin_array(w, "seconds");
    for (int i = 0; i < v->bins; i++)
        json_put_f64(w, NULL, round(b[i].at_s * 100) / 100);
    json_end_array(w);
    json_begin_array(w, "tokens");
    for (int i = 0; i < v->bins; i++)
        put(w, NULL, b[i].tokens);
    json_end_array(w);
    json_begin_array(w, "slowest");
    for (int i = 0; i < v->bins; i++)
        put(w, NULL, in_ms(b[i].us_max));
    json_end_array(w);
    json_begin_array(w, "waits");
    for (int i = 0; i < v->bins; i++)
        put(w, NULL, in_ms(b[i].us[PART_WAIT]));
    json_end_array(w);
    json_begin_array(w, "moves");
    for (int i = 0; i < v->bins; i++)
        put(w, NULL, in_ms(b[i].move_us));
    json_end_array(w);
    json_begin_array(w, "over");
    for (int p = 0; p < PARTS; p++) {
        json_begin_array(w, NULL);
        for (int i = 0; i < v->bins; i++)
            put(w, NULL, in_ms(b[i].us[p]));
        json_end_array(w);
    }
    json_end_array(w);
}

static void put_logs(struct json_writer *w, const struct report_view *v)
{
    json_begin_array(w, "logs");
    for (int i = 0; i < v->n; i++) {
        json_begin_object(w, NULL);
        json_put_str(w, "label", v->of[i].label);
        json_begin_array(w, "parts");
        for (int p = 0; p < PARTS; p++)
            put(w, NULL, view_part_ms(v->of[i].log, (enum part)p));
        json_end_array(w);
        put_bins(w, &v->of[i]);
        json_end_object(w);
    }
    json_end_array(w);
}

/* ---- stretches ------------------------------------------------------------------------------- */

struct pen {
    struct json_writer *w;
    int lane;
    uint32_t round;
    double at_us, origin_us, end_us;
};

static void segment(struct pen *p, int kind, double us)
{
    double from = p->at_us - p->origin_us;

    p->at_us += us;
    if (us < 0.05)
        return;
    if (p->at_us > p->end_us)
        p->end_us = p->at_us;
    json_begin_array(p->w, NULL);
    json_put_int(p->w, NULL, p->lane);
    json_put_int(p->w, NULL, kind);
    put(p->w, NULL, in_ms(from));
    put(p->w, NULL, in_ms(from + us));
    json_put_int(p->w, NULL, p->round);
    json_end_array(p->w);
}

/* On the first log's clock. */
static double begin_us(const struct view_log *v, const struct log_round *r)
{
    return (double)(r->t_ns - v->ahead_ns) / 1e3 - (double)r->us[PART_PLAN];
}

/* What a step waited is drawn at its end. */
static void draw_round(struct pen *p, const struct view_log *v, const struct log_round *r)
{
    double begin = begin_us(v, r);

    p->round = r->round;
    p->at_us = begin - (double)r->prompt_us;
    if (p->at_us < p->origin_us)
        p->at_us = p->origin_us;
    if (p->at_us < begin)
        segment(p, PROMPT_PART, begin - p->at_us);
    p->at_us = begin;
    for (int s = 0; s < PART_STEPS; s++) {
        segment(p, s, (double)r->us[s]);
        segment(p, PART_WAIT, (double)r->wait_us[s]);
    }
}

static void put_note(struct json_writer *w, const struct report_view *v, const struct view_cut *c)
{
    const struct log_round *r = &v->of[0].log->round[c->first];
    char note[200];
    int guessed = 0;

    for (int i = 1; i < v->n; i++)
        guessed += v->of[i].clock == CLOCK_GUESSED;
    snprintf(note, sizeof(note), "Round %u to %u.%s", r->round, r[c->rounds - 1].round,
             guessed ? " The ranks' clocks were not compared: their windows are drawn as if they "
                       "started together."
                     : "");
    json_put_str(w, "note", note);
}

static void put_cut(struct json_writer *w, const struct report_view *v, const struct view_cut *c)
{
    const struct log_round *first = &v->of[0].log->round[c->first];
    struct pen p = { .w = w, .origin_us = begin_us(&v->of[0], first) };

    json_begin_object(w, NULL);
    json_put_str(w, "title", c->title);
    put_note(w, v, c);
    json_begin_array(w, "lanes");
    for (int i = 0; i < v->n; i++)
        if (v->of[i].clock != CLOCK_NONE)
            json_put_str(w, NULL, v->of[i].label);
    json_end_array(w);
    json_begin_array(w, "segs");
    for (int i = 0; i < v->n; i++) {
        if (v->of[i].clock == CLOCK_NONE)
            continue;
        for (size_t j = 0; j < c->rounds; j++) {
            const struct log_round *r = view_round(v->of[i].log, first[j].round);

            if (r)
                draw_round(&p, &v->of[i], r);
        }
        p.lane++;
    }
    json_end_array(w);
    put(w, "end", in_ms(p.end_us - p.origin_us));
    json_end_object(w);
}

/* ---- drafts ---------------------------------------------------------------------------------- */

static void put_drafts(struct json_writer *w, const struct tally *t)
{
    int n = tally_depth(t);

    json_begin_object(w, "accept");
    json_begin_array(w, "tries");
    for (int j = 0; j < n; j++)
        json_put_u64(w, NULL, t->tries[j]);
    json_end_array(w);
    json_begin_array(w, "hits");
    for (int j = 0; j < n; j++)
        json_put_u64(w, NULL, t->hits[j]);
    json_end_array(w);
    json_begin_array(w, "deep");
    for (int j = 0; j < n; j++)
        json_put_u64(w, NULL, tally_reach(t, j + 1));
    json_end_array(w);
    json_end_object(w);
    json_begin_array(w, "depth");
    for (int k = 0; k <= n && k < WINDOW_MAX; k++)
        json_put_u64(w, NULL, t->depth[k]);
    json_end_array(w);
    json_begin_array(w, "tenths");
    for (int d = 0; d < 10; d++) {
        const struct tenth *x = &t->tenth[d];

        if (x->n == 0)
            continue;
        json_begin_array(w, NULL);
        put(w, NULL, (double)x->q_ppm / 1e6 / (double)x->n);
        put(w, NULL, (double)x->hits / (double)x->n);
        json_put_u64(w, NULL, x->n);
        json_end_array(w);
    }
    json_end_array(w);
}

void report_data(const struct report_view *v, struct json_writer *w)
{
    json_begin_object(w, NULL);
    put_kinds(w);
    put_logs(w, v);
    json_begin_array(w, "cuts");
    for (int i = 0; i < v->cuts; i++)
        put_cut(w, v, &v->cut[i]);
    json_end_array(w);
    put_drafts(w, &v->of[0].log->sums);
    json_end_object(w);
}
