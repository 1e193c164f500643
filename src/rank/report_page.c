/* report_page.c owns the page's text and tables; its charts are report_page.js's, from
 * report_data. */
#include "src/rank/report_page.h"

#include "src/base/json.h"
#include "src/base/log.h"
#include "src/rank/report_asset.h"
#include "src/rank/report_data.h"

#include <string.h>

#define REQUESTS_SHOWN 20

bool report_page_charts(void)
{
    return report_asset_chart.n > 0;
}

void html_put(FILE *f, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&':
            fputs("&amp;", f);
            break;
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '"':
            fputs("&quot;", f);
            break;
        case '\'':
            fputs("&#39;", f);
            break;
        default:
            fputc(*text, f);
        }
    }
}

static void asset(FILE *f, const struct report_asset *a)
{
    fwrite(a->bytes, 1, a->n, f);
}

/* ---- head ------------------------------------------------------------------------------------ */

static void about(const struct report_view *v, FILE *f)
{
    const struct report_log *l = v->of[0].log;
    const struct {
        const char *name, *value;
    } what[] = {
        { "model", l->model },     { "family", l->family },   { "numerics", l->numerics },
        { "drafter", l->drafter }, { "backend", l->backend }, { "link", l->link },
    };
    bool any = false;

    fputs("<p class=\"soft\">", f);
    for (size_t i = 0; i < sizeof(what) / sizeof(what[0]); i++) {
        if (!what[i].value[0])
            continue;
        fprintf(f, "%s%s <code>", any ? " &middot; " : "", what[i].name);
        html_put(f, what[i].value);
        fputs("</code>", f);
        any = true;
    }
    if (l->ranks > 0)
        fprintf(f, "%s%d rank%s", any ? " &middot; " : "", l->ranks, l->ranks == 1 ? "" : "s");
    fputs("</p>\n", f);
    if (l->ranks > v->n)
        fprintf(f, "<p class=\"soft\">Logs of %d of %d ranks.</p>\n", v->n, l->ranks);
}

static void head(const struct report_view *v, FILE *f)
{
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
          "style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; "
          "form-action 'none'\">\n<title>tandem: round report",
          f);
    if (v->of[0].log->model[0]) {
        fputs(" of ", f);
        html_put(f, v->of[0].log->model);
    }
    fputs("</title>\n<style>\n", f);
    asset(f, &report_asset_css);
    fprintf(f, "</style>\n</head>\n<body%s>\n<h1>Round report</h1>\n",
            report_page_charts() ? "" : " class=\"no-charts\"");
    about(v, f);
}

static void verdict(const struct report_view *v, FILE *f)
{
    fputs("<section class=\"card verdict\"><ul>\n", f);
    for (int i = 0; i < v->verdicts; i++) {
        fputs(v->verdict[i].kind == VERDICT_WARN ? "<li class=\"warn\">" : "<li>", f);
        html_put(f, v->verdict[i].text);
        fputs("</li>\n", f);
    }
    fputs("</ul></section>\n", f);
    if (!report_page_charts())
        fputs("<p class=\"soft\">This build has no charts: Chart.js (package libjs-chart.js) was "
              "not there when it was built. All numbers are in the tables.</p>\n",
              f);
}

static void tile(FILE *f, const char *what, const char *unit, double x, int decimals)
{
    fprintf(f, "<div class=\"tile\"><b>%.*f%s</b><span>%s</span></div>\n", decimals, x, unit, what);
}

static void tiles(const struct report_view *v, FILE *f)
{
    const struct report_log *l = v->of[0].log;
    const struct tally *t = &l->sums;

    fputs("<div class=\"tiles\">\n", f);
    tile(f, "tokens a second", "", view_tok_s(l), 1);
    tile(f, "tokens a round", "", per((double)t->landed, (double)t->rounds), 2);
    tile(f, "a round", " ms", view_round_ms(l), 2);
    tile(f, "of verified drafts accepted", " %", 100 * per((double)t->accepted, (double)t->drafted),
         0);
    tile(f, "of a round spent waiting for other ranks", " %",
         100 * per(view_part_ms(l, PART_WAIT), view_round_ms(l)), 0);
    fputs("</div>\n", f);
}

/* ---- charts with their tables ---------------------------------------------------------------- */

static void card(FILE *f, const char *title, const char *text)
{
    fprintf(f, "<section class=\"card\">\n<h2>%s</h2>\n<p class=\"soft\">%s</p>\n", title, text);
}

static void canvas(FILE *f, const char *id, const char *label, int height)
{
    fprintf(f,
            "<div class=\"chart\" style=\"height:%dpx\"><canvas id=\"%s\" role=\"img\" "
            "aria-label=\"%s\"></canvas></div>\n",
            height, id, label);
}

static void numbers(FILE *f)
{
    fprintf(f, "<details%s><summary>Numbers</summary><div class=\"scroll\"><table>\n",
            report_page_charts() ? "" : " open");
}

static void numbers_end(FILE *f)
{
    fputs("</table></div></details>\n</section>\n", f);
}

static void heads(const struct report_view *v, const char *first, int columns, FILE *f)
{
    fprintf(f, "<tr><th>%s</th>", first);
    for (int i = 0; i < v->n; i++)
        fprintf(f, "<th colspan=\"%d\">%s</th>", columns, v->of[i].label);
    fputs("</tr>\n", f);
}

static void parts(const struct report_view *v, FILE *f)
{
    card(
        f, "Where the time of a round goes",
        "Mean of all rounds. The longest part is where a speed-up pays; a rank with much red waits "
        "for another one. The red part is spread over window, choices and draft pass.");
    canvas(f, "parts", "Stacked bars of the parts of a round, one bar a rank", 70 + 52 * v->n);
    fputs("<div class=\"key\" id=\"parts-key\"></div>\n", f);
    numbers(f);
    heads(v, "milliseconds a round", 2, f);
    for (int p = 0; p < PARTS; p++) {
        fprintf(f, "<tr><td>%s</td>", part_name((enum part)p));
        for (int i = 0; i < v->n; i++)
            fprintf(f, "<td>%.3f</td><td>%.0f %%</td>", view_part_ms(v->of[i].log, (enum part)p),
                    100 *
                        per(view_part_ms(v->of[i].log, (enum part)p), view_round_ms(v->of[i].log)));
        fprintf(f, "<td class=\"text soft\">%s</td></tr>\n", part_help((enum part)p));
    }
    fputs("<tr><td>together</td>", f);
    for (int i = 0; i < v->n; i++)
        fprintf(f, "<td>%.3f</td><td></td>", view_round_ms(v->of[i].log));
    fputs("</tr>\n", f);
    numbers_end(f);
}

static void stretches(const struct report_view *v, FILE *f)
{
    if (!report_page_charts())
        return;
    card(
        f, "A few rounds, step by step",
        "All ranks on one clock. A window that ends later on one rank makes the others wait; empty "
        "gaps are time in which a rank did nothing for a round. What a step waited for other ranks "
        "is drawn at its end.");
    fputs("<div class=\"tabs\" id=\"cut-tabs\"></div>\n<p class=\"soft\" id=\"cut-note\"></p>\n",
          f);
    canvas(f, "cut", "Bars of the steps of a few rounds over time, one line a rank",
           60 + 62 * v->n);
    fputs("<div class=\"key\" id=\"cut-key\"></div>\n</section>\n", f);
}

/* name | one number a log, made by `of`. */
static void row(const struct report_view *v, const char *name, int decimals,
                double (*of)(const struct view_log *w), FILE *f)
{
    fprintf(f, "<tr><td>%s</td>", name);
    for (int i = 0; i < v->n; i++)
        fprintf(f, "<td>%.*f</td>", decimals, of(&v->of[i]));
    fputs("</tr>\n", f);
}

static double prompts_ms(const struct view_log *w)
{
    return (double)w->log->sums.prompt_ns / 1e6;
}

static double move_ms(const struct view_log *w)
{
    return per((double)w->log->sums.move_ns / 1e6, (double)w->log->sums.rounds);
}

static void over_time(const struct report_view *v, FILE *f)
{
    card(f, "The whole run: time of a round",
         "The same parts from the first round to the last, neighbouring rounds averaged. A step up "
         "means that something became slower; the thin line is the slowest round of each point.");
    if (v->of[0].bins > 1) {
        fputs("<div class=\"tabs\" id=\"over-tabs\"></div>\n", f);
        canvas(f, "over", "Stacked areas of the parts of a round over the run", 260);
        fputs("<div class=\"key\" id=\"over-key\"></div>\n", f);
    }
    numbers(f);
    heads(v, "milliseconds of a round", 1, f);
    row(v, "median", 3, view_median_ms, f);
    row(v, "slowest hundredth from", 3, view_p99_ms, f);
    row(v, "slowest", 3, view_max_ms, f);
    row(v, "nothing to do, in all", 1, view_idle_ms, f);
    row(v, "prompt chunks, in all", 1, prompts_ms, f);
    numbers_end(f);
}

static void exchanges(const struct report_view *v, FILE *f)
{
    card(
        f, "Exchanges: waiting against moving",
        "Whole lines: waiting until the other ranks' bytes are here, the wire and their lateness "
        "together. Broken lines: rounding, copying and adding. The rank whose line is lower is the "
        "one that others wait for.");
    if (v->of[0].bins > 1) {
        canvas(f, "exchanges", "Lines of waiting and moving a round over the run, two a rank", 250);
        fputs("<div class=\"key\" id=\"exchanges-key\"></div>\n", f);
    }
    numbers(f);
    heads(v, "", 1, f);
    row(v, "exchanges a round", 1, view_exchanges, f);
    row(v, "waiting, ms a round", 3, view_wait_ms, f);
    row(v, "waiting, us an exchange", 1, view_wait_us, f);
    row(v, "moving, ms a round", 3, move_ms, f);
    row(v, "moving, us an exchange", 1, view_move_us, f);
    row(v, "window starts after rank 0's, us", 1, view_lag_us, f);
    numbers_end(f);
}

static void tokens(const struct report_view *v, FILE *f)
{
    const struct speed *s = &v->of[0].log->speed;

    card(f, "The whole run: tokens a round",
         "What one verify window gives over all streams. It follows the text: code and lists are "
         "guessed well, prose is not.");
    if (v->of[0].bins > 1)
        canvas(f, "tokens", "Line of tokens a round over the run", 250);
    numbers(f);
    fprintf(f,
            "<tr><td>requests</td><td>%zu</td></tr>\n"
            "<tr><td>most streams at once</td><td>%d</td></tr>\n"
            "<tr><td>tok/s of the median request</td><td>%.1f</td></tr>\n"
            "<tr><td>tok/s of all streams together</td><td>%.1f</td></tr>\n"
            "<tr><td>the same while all streams live</td><td>%.1f</td></tr>\n",
            s->requests, s->streams, speed_median(s),
            per((double)s->group.tokens * 1e9, (double)s->group.ns),
            per((double)s->steady.tokens * 1e9, (double)s->steady.ns));
    numbers_end(f);
}

/* ---- drafts ---------------------------------------------------------------------------------- */

static void acceptance(const struct report_log *l, FILE *f)
{
    const struct tally *t = &l->sums;

    card(f, "Are the drafts right?",
         "By position in the window. Blue tells how good the drafter is at that position; green is "
         "what is left after the ones before it.");
    canvas(f, "accept", "Bars of acceptance by draft position", 250);
    numbers(f);
    fputs("<tr><th>position</th><th>reached</th><th>right</th><th>if reached</th><th>windows that "
          "deep</th><th>of all</th></tr>\n",
          f);
    for (int j = 0; j < tally_depth(t); j++)
        fprintf(f,
                "<tr><td>%d</td><td>%llu</td><td>%llu</td><td>%.3f</td><td>%llu</td>"
                "<td>%.3f</td></tr>\n",
                j + 1, (unsigned long long)t->tries[j], (unsigned long long)t->hits[j],
                per((double)t->hits[j], (double)t->tries[j]),
                (unsigned long long)tally_reach(t, j + 1),
                per((double)t->hits[j], (double)tally_reach(t, j + 1)));
    fprintf(f,
            "<tr><td>accepted of verified</td><td colspan=\"5\">%.3f</td></tr>\n"
            "<tr><td>accepted of proposed</td><td colspan=\"5\">%.3f</td></tr>\n",
            per((double)t->accepted, (double)t->drafted),
            per((double)t->accepted_of[SOURCE_DRAFTER], (double)t->proposed));
    for (int s = 0; s < SOURCES; s++) {
        if (t->drafted_of[s] == 0)
            continue;
        fputs("<tr><td>", f);
        html_put(f, report_source(l, s));
        fprintf(f,
                "</td><td colspan=\"5\">%.0f%% of windows, %.1f drafts each, %.0f%% "
                "accepted</td></tr>\n",
                100 * per((double)t->source[s], (double)t->windows),
                per((double)t->drafted_of[s], (double)t->source[s]),
                100 * per((double)t->accepted_of[s], (double)t->drafted_of[s]));
    }
    numbers_end(f);
}

static void depth(const struct tally *t, FILE *f)
{
    uint64_t known = t->skipped[SKIPPED_RIGHT] + t->skipped[SKIPPED_WRONG];

    card(f, "How many drafts are verified?",
         "Chosen by price: a draft is verified if it is likely enough to be worth its row. Many "
         "windows at 0 whose skipped draft would have been right mean that too few are.");
    canvas(f, "depth", "Bars of windows by number of drafts", 250);
    numbers(f);
    fputs("<tr><th>drafts</th><th>windows</th><th>share</th></tr>\n", f);
    for (int k = 0; k <= tally_depth(t) && k < WINDOW_MAX; k++)
        fprintf(f, "<tr><td>%d</td><td>%llu</td><td>%.1f %%</td></tr>\n", k,
                (unsigned long long)t->depth[k],
                100 * per((double)t->depth[k], (double)t->windows));
    fprintf(f,
            "<tr><td>none, though there were drafts</td><td>%llu</td><td></td></tr>\n"
            "<tr><td>of these, first draft right</td><td>%llu of %llu</td><td>%.0f %%</td></tr>\n",
            (unsigned long long)(known + t->skipped[SKIPPED_UNKNOWN]),
            (unsigned long long)t->skipped[SKIPPED_RIGHT], (unsigned long long)known,
            100 * per((double)t->skipped[SKIPPED_RIGHT], (double)known));
    numbers_end(f);
}

static void chances(const struct tally *t, FILE *f)
{
    card(
        f, "Do the drafter's chances mean what they say?",
        "First drafts by the chance that they were given. On the dotted line a chance of 0.7 comes "
        "true seven times of ten; points below it are too sure of themselves. Larger points stand "
        "for more drafts.");
    canvas(f, "chances", "Points of given chances against what came true", 300);
    numbers(f);
    fputs("<tr><th>given</th><th>mean</th><th>drafts</th><th>right</th><th>share</th></tr>\n", f);
    for (int d = 0; d < 10; d++)
        if (t->tenth[d].n > 0)
            fprintf(f,
                    "<tr><td>0.%d &ndash; %s%d</td><td>%.3f</td><td>%llu</td><td>%llu</td>"
                    "<td>%.3f</td></tr>\n",
                    d, d == 9 ? "1." : "0.", (d + 1) % 10,
                    (double)t->tenth[d].q_ppm / 1e6 / (double)t->tenth[d].n,
                    (unsigned long long)t->tenth[d].n, (unsigned long long)t->tenth[d].hits,
                    per((double)t->tenth[d].hits, (double)t->tenth[d].n));
    numbers_end(f);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void requests(const struct speed *s, FILE *f)
{
    if (s->requests == 0)
        return;
    fprintf(f,
            "<section class=\"card\">\n<h2>Requests</h2>\n<div class=\"scroll\"><table>\n"
            "<tr><th>slot</th><th>prompt</th><th>tokens</th><th>rounds</th><th>tokens a round</th>"
            "<th>accepted</th><th>tok/s</th><th>end</th></tr>\n");
    for (size_t i = 0; i < s->requests && i < REQUESTS_SHOWN; i++) {
        const struct speed_request *q = &s->request[i];
        char tok_s[24] = "";

        if (speed_of(q) > 0)
            snprintf(tok_s, sizeof(tok_s), "%.1f", speed_of(q));
        fprintf(f,
                "<tr><td>%d</td><td>%d</td><td>%llu</td><td>%llu</td><td>%.2f</td><td>%.0f %%</td>"
                "<td>%s</td><td>%s</td></tr>\n",
                q->slot, q->start + 1, (unsigned long long)q->tokens, (unsigned long long)q->rounds,
                per((double)q->tokens, (double)q->rounds),
                100 * per((double)q->accepted, (double)q->drafted), tok_s,
                q->finish == FINISH_NONE ? "not in the log" : finish_name(q->finish));
    }
    fputs("</table></div>\n", f);
    if (s->requests > REQUESTS_SHOWN)
        fprintf(f, "<p class=\"soft\">The first %d of %zu.</p>\n", REQUESTS_SHOWN, s->requests);
    fputs("</section>\n", f);
}

static void logs(const struct report_view *v, FILE *f)
{
    fputs("<section class=\"card\">\n<h2>Logs</h2>\n", f);
    for (int i = 0; i < v->n; i++) {
        const struct report_log *l = v->of[i].log;

        fprintf(f, "<p><b>%s</b> <code>", v->of[i].label);
        html_put(f, l->path);
        fprintf(f, "</code>: lines %lu, rounds %zu%s%s.", l->lines, l->rounds,
                l->ended ? "" : ", no sums at the end: the run goes on, or ended badly",
                l->cut ? ", the last line is cut off" : "");
        if (l->bad > 0) {
            fprintf(f, " %lu broken:</p>\n<ul>\n", l->bad);
            for (unsigned long j = 0; j < l->bad && j < REPORT_NAMED; j++) {
                fprintf(f, "<li>line %lu: ", l->named[j].line);
                html_put(f, l->named[j].why);
                fputs("</li>\n", f);
            }
            fprintf(f, "</ul>\n<p>%s", l->bad > REPORT_NAMED ? "and more." : "");
        }
        for (int j = 0; j < l->unknowns; j++) {
            fputs(j ? ", <code>" : " Fields that this build does not know: <code>", f);
            html_put(f, l->unknown[j]);
            fputs("</code>", f);
        }
        fputs("</p>\n", f);
    }
    fputs("</section>\n", f);
}

static void words(FILE *f)
{
    fputs(
        "<section class=\"card\">\n<details><summary>What the words mean</summary>\n<dl>\n"
        "<dt>round</dt><dd>one run of the model over the next rows of all streams: for each "
        "stream its pending token and the drafts that are verified</dd>\n"
        "<dt>draft</dt><dd>a guessed token. It is accepted if it is the token that the model "
        "chooses itself, so drafts change speed and never the text</dd>\n"
        "<dt>tokens a round</dt><dd>landed tokens / rounds; the token behind the last accepted "
        "draft is included</dd>\n"
        "<dt>right, if reached</dt><dd>rounds that accepted draft j / rounds that verified it "
        "and accepted all before it</dd>\n"
        "<dt>right, of all</dt><dd>rounds that accepted draft j / rounds that verified at least "
        "j drafts; other servers print this as acceptance by position</dd>\n"
        "<dt>accepted of proposed</dt><dd>accepted drafts of the drafter, without copies / all "
        "that "
        "its passes proposed, verified or not</dd>\n"
        "<dt>copies</dt><dd>drafts copied from where the same words stand earlier in the text; no "
        "pass is needed for them, and a window may be deeper than the drafter's</dd>\n"
        "<dt>tok/s of a request</dt><dd>(tokens - 1) / (last - first token time); a token's "
        "time is the end of its round</dd>\n"
        "<dt>tok/s together</dt><dd>all tokens / (last - first token time) over requests whose "
        "lives overlap</dd>\n"
        "<dt>waiting</dt><dd>from the last byte sent to the last one received, summed over a "
        "round's exchanges. A rank that is late shows as waiting on the others</dd>\n",
        f);
    for (int p = 0; p < PARTS; p++)
        fprintf(f, "<dt>%s</dt><dd>%s</dd>\n", part_name((enum part)p), part_help((enum part)p));
    fputs("</dl></details>\n</section>\n", f);
}

/* The object inside a script element: no byte of it may look like markup. */
static int scripts(const struct report_view *v, FILE *f)
{
    struct json_writer w;
    const char *text;
    size_t n;
    int r;

    if (!report_page_charts())
        return 0;
    json_writer_init(&w);
    report_data(v, &w);
    r = json_writer_text(&w, &text, &n);
    if (r == 0) {
        fputs("<script type=\"application/json\" id=\"data\">", f);
        for (size_t i = 0; i < n; i++) {
            if (strchr("<>&", text[i]))
                fprintf(f, "\\u%04x", (unsigned)text[i]);
            else
                fputc(text[i], f);
        }
        fputs("</script>\n<script>\n", f);
        asset(f, &report_asset_chart);
        fputs("\n</script>\n<script>\n", f);
        asset(f, &report_asset_js);
        fputs("</script>\n", f);
    } else {
        r = fail(r, "report: no memory for the page");
    }
    json_writer_free(&w);
    return r;
}

int report_page_write(const struct report_view *v, FILE *f)
{
    const struct tally *t = &v->of[0].log->sums;
    int r = 0;

    head(v, f);
    verdict(v, f);
    if (v->of[0].log->rounds > 0) {
        tiles(v, f);
        parts(v, f);
        stretches(v, f);
        fputs("<div class=\"pair\">\n", f);
        over_time(v, f);
        exchanges(v, f);
        tokens(v, f);
        if (t->drafted > 0) {
            acceptance(v->of[0].log, f);
            depth(t, f);
            chances(t, f);
        }
        fputs("</div>\n", f);
        requests(&v->of[0].log->speed, f);
    }
    logs(v, f);
    words(f);
    if (v->of[0].log->rounds > 0)
        r = scripts(v, f);
    fputs("</body>\n</html>\n", f);
    return r;
}
