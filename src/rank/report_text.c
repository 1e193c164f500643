/* report_text.c owns the terminal's form of a report; what the numbers mean is report_page.c's to
 * tell. */
#include "src/rank/report_text.h"

#include <string.h>

/* Bytes of a log that a terminal would obey are shown as '?'. */
static void put_plain(FILE *f, const char *s)
{
    for (; *s; s++)
        fputc((unsigned char)*s < ' ' || *s == 127 ? '?' : *s, f);
}

static void verdict(const struct report_view *v, FILE *f)
{
    for (int i = 0; i < v->verdicts; i++) {
        fprintf(f, "%s ", v->verdict[i].kind == VERDICT_WARN ? "!" : "-");
        put_plain(f, v->verdict[i].text);
        fputc('\n', f);
    }
}

static void heads(const struct report_view *v, const char *what, FILE *f)
{
    fprintf(f, "\n%-20s", what);
    for (int i = 0; i < v->n; i++)
        fprintf(f, " %12s %5s", v->of[i].label, "");
    fputc('\n', f);
}

static void parts(const struct report_view *v, FILE *f)
{
    heads(v, "ms a round", f);
    for (int p = 0; p < PARTS; p++) {
        fprintf(f, "%-20s", part_name((enum part)p));
        for (int i = 0; i < v->n; i++)
            fprintf(f, " %12.3f %4.0f%%", view_part_ms(v->of[i].log, (enum part)p),
                    100 *
                        per(view_part_ms(v->of[i].log, (enum part)p), view_round_ms(v->of[i].log)));
        fputc('\n', f);
    }
    fprintf(f, "%-20s", "together");
    for (int i = 0; i < v->n; i++)
        fprintf(f, " %12.3f %5s", view_round_ms(v->of[i].log), "");
    fputc('\n', f);
}

/* name | one number a rank, made by `of`. */
static void line(const struct report_view *v, const char *name, const char *unit,
                 double (*of)(const struct view_log *w), FILE *f)
{
    fprintf(f, "%-20s", name);
    for (int i = 0; i < v->n; i++)
        fprintf(f, " %12.2f %-5s", of(&v->of[i]), unit);
    fputc('\n', f);
}

static double rounds_of(const struct view_log *w)
{
    return (double)w->log->sums.rounds;
}

static void numbers(const struct report_view *v, FILE *f)
{
    heads(v, "rounds", f);
    line(v, "how many", "", rounds_of, f);
    line(v, "median", "ms", view_median_ms, f);
    line(v, "slowest hundredth", "ms", view_p99_ms, f);
    line(v, "slowest", "ms", view_max_ms, f);
    line(v, "exchanges a round", "", view_exchanges, f);
    line(v, "wait an exchange", "us", view_wait_us, f);
    line(v, "move an exchange", "us", view_move_us, f);
    line(v, "window starts late", "us", view_lag_us, f);
    line(v, "nothing to do", "ms", view_idle_ms, f);
}

static void drafts(const struct report_log *l, FILE *f)
{
    const struct tally *t = &l->sums;

    if (t->drafted == 0)
        return;
    fprintf(f, "\n%-20s", "draft position");
    for (int j = 0; j < tally_depth(t); j++)
        fprintf(f, " %6d", j + 1);
    fprintf(f, "\n%-20s", "right, if reached");
    for (int j = 0; j < tally_depth(t); j++)
        fprintf(f, " %6.2f", per((double)t->hits[j], (double)t->tries[j]));
    fprintf(f, "\n%-20s", "right, of all");
    for (int j = 0; j < tally_depth(t); j++)
        fprintf(f, " %6.2f", per((double)t->hits[j], (double)tally_reach(t, j + 1)));
    fprintf(f, "\n%-20s", "drafts verified");
    for (int k = 0; k <= tally_depth(t) && k < WINDOW_MAX; k++)
        fprintf(f, " %6d", k);
    fprintf(f, "\n%-20s", "share of windows");
    for (int k = 0; k <= tally_depth(t) && k < WINDOW_MAX; k++)
        fprintf(f, " %5.1f%%", 100 * per((double)t->depth[k], (double)t->windows));
    fprintf(f, "\nefficiency: %.2f of verified drafts, %.2f of those that draft passes proposed\n",
            per((double)t->accepted, (double)t->drafted),
            per((double)t->accepted_of[SOURCE_DRAFTER], (double)t->proposed));
    for (int s = 0; s < SOURCES; s++)
        if (t->drafted_of[s] > 0)
            fprintf(f, "%s: %.0f%% of windows, %.1f drafts each, %.0f%% accepted\n",
                    report_source(l, s), 100 * per((double)t->source[s], (double)t->windows),
                    per((double)t->drafted_of[s], (double)t->source[s]),
                    100 * per((double)t->accepted_of[s], (double)t->drafted_of[s]));
}

/* What has no time between its first and last token has no speed. */
static void speed(const char *name, double tok_s, FILE *f)
{
    if (tok_s > 0)
        fprintf(f, "%s %.1f tok/s", name, tok_s);
}

static void speeds(const struct speed *s, FILE *f)
{
    if (s->requests == 0)
        return;
    fprintf(f, "\n%zu request%s, up to %d at once", s->requests, s->requests == 1 ? "" : "s",
            s->streams);
    speed("; the median one", speed_median(s), f);
    speed(", together", per((double)s->group.tokens * 1e9, (double)s->group.ns), f);
    speed(", while all live", per((double)s->steady.tokens * 1e9, (double)s->steady.ns), f);
    fputc('\n', f);
}

static void broken(const struct report_view *v, FILE *f)
{
    for (int i = 0; i < v->n; i++) {
        const struct report_log *l = v->of[i].log;

        for (unsigned long j = 0; j < l->bad && j < REPORT_NAMED; j++) {
            put_plain(f, l->path);
            fprintf(f, ": line %lu: ", l->named[j].line);
            put_plain(f, l->named[j].why);
            fputc('\n', f);
        }
        if (l->unknowns > 0) {
            put_plain(f, l->path);
            fprintf(f, ": unknown fields:");
            for (int j = 0; j < l->unknowns; j++) {
                fputc(' ', f);
                put_plain(f, l->unknown[j]);
            }
            fputc('\n', f);
        }
    }
}

void report_text(const struct report_view *v, FILE *f)
{
    verdict(v, f);
    if (v->of[0].log->rounds > 0) {
        parts(v, f);
        numbers(v, f);
        drafts(v->of[0].log, f);
        speeds(&v->of[0].log->speed, f);
    }
    broken(v, f);
}
