/* test_report_page.c - the page is one well-formed file whatever a log holds, and a log's text
 * stays text. */
#include "tests/rank/report_rig.h"

#include "src/base/json.h"
#include "src/rank/report_page.h"
#include "src/rank/report_text.h"

#include <criterion/new/assert.h>

#define HOSTILE "</script><script>alert(1)</script><!--&\"'\\u2028"

static char *text_of(void (*write)(const struct report_view *v, FILE *f),
                     const struct report_view *v, size_t *n)
{
    static char *text;
    FILE *f = open_memstream(&text, n);

    cr_assert(f != NULL);
    write(v, f);
    cr_assert(eq(int, fclose(f), 0));
    return text;
}

static void write_page(const struct report_view *v, FILE *f)
{
    cr_assert(eq(int, report_page_write(v, f), 0));
}

Test(report_page, text_is_escaped)
{
    static const struct {
        const char *text, *html;
    } t[] = {
        { "", "" },
        { "plain, 100 %", "plain, 100 %" },
        { "<b>", "&lt;b&gt;" },
        { "a&lt;", "a&amp;lt;" },
        { "\"'", "&quot;&#39;" },
        { "\xc3\xbc", "\xc3\xbc" },
    };

    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        char *text = NULL;
        size_t n;
        FILE *f = open_memstream(&text, &n);

        cr_assert(f != NULL);
        html_put(f, t[i].text);
        fclose(f);
        cr_expect(eq(str, text, (char *)t[i].html));
        free(text);
    }
}

/* ---- well-formed ----------------------------------------------------------------------------- */

static bool has(const char *const *list, const char *name, size_t n)
{
    for (; *list; list++)
        if (strlen(*list) == n && strncmp(*list, name, n) == 0)
            return true;
    return false;
}

/* What is wrong with the nesting of a page's elements; NULL if nothing is. Text of scripts and
 * styles is skipped. */
static const char *wrong_nesting(const char *page)
{
    static const char *const empty[] = { "meta", "!doctype", NULL }, *const raw[] = { "script",
                                                                                      "style",
                                                                                      NULL };
    static char why[200];
    const char *open[64];
    size_t length[64];
    int depth = 0;

    for (const char *p = strchr(page, '<'); p; p = strchr(p, '<')) {
        bool end = p[1] == '/';
        const char *name = p + 1 + end, *close = strchr(name, '>');
        size_t n = strspn(name, "!abcdefghijklmnopqrstuvwxyz0123456789");

        snprintf(why, sizeof(why), "at %.60s", p);
        if (n == 0 || !close || (name[n] != '>' && name[n] != ' '))
            return why;
        p = close;
        if (has(empty, name, n))
            continue;
        if (end) {
            if (depth == 0 || length[depth - 1] != n || strncmp(open[depth - 1], name, n) != 0)
                return why;
            depth--;
        } else {
            if (depth == 64)
                return "too deep";
            open[depth] = name;
            length[depth++] = n;
            if (has(raw, name, n)) {
                char close_raw[16];

                snprintf(close_raw, sizeof(close_raw), "</%.*s>", (int)n, name);
                p = strstr(close, close_raw);
                if (!p)
                    return why;
                p--;
            }
        }
    }
    return depth == 0 ? NULL : "something stays open";
}

static int count(const char *page, const char *what)
{
    int n = 0;

    for (const char *p = strstr(page, what); p; p = strstr(p + 1, what))
        n++;
    return n;
}

/* The object that the charts are drawn from is JSON, and no byte of it could end its element. */
static void check_data(const char *page)
{
    const char *begin = strstr(page, "id=\"data\">"), *end;
    struct json *o;
    char why[200];

    cr_assert(begin != NULL);
    begin += strlen("id=\"data\">");
    end = strstr(begin, "</script>");
    cr_assert(end != NULL);
    cr_expect(memchr(begin, '<', (size_t)(end - begin)) == NULL);
    cr_assert(eq(int, json_try(begin, (size_t)(end - begin), "data", 10, &o, why, sizeof(why)), 0),
              "%s", why);
    cr_expect(json_is(json_get(o, "logs"), JSON_IS_ARRAY));
    json_close(o);
}

static void check_page(const struct report_view *v, const char *name)
{
    int scripts = report_page_charts() && v->of[0].log->rounds > 0 ? 3 : 0;
    size_t n;
    char *page = text_of(write_page, v, &n);

    cr_expect(wrong_nesting(page) == NULL, "%s: %s", name, wrong_nesting(page));
    cr_expect(eq(int, count(page, "<script"), scripts), "%s", name);
    cr_expect(eq(int, count(page, "</script"), scripts), "%s", name);
    cr_expect(eq(int, count(page, " src="), 0), "%s: something is loaded", name);
    cr_expect(eq(int, count(page, " href="), 0), "%s", name);
    cr_expect(strstr(page, "default-src 'none'") != NULL, "%s", name);
    cr_expect(strstr(page, "nan") == NULL || strstr(page, ">nan<") == NULL, "%s", name);
    if (scripts)
        check_data(page);
    free(page);
}

static const struct {
    const char *name;
    struct rig_rank of[2];
    int n;
} views[] = {
    { "nothing", { { .rounds = 0 } }, 1 },
    { "one round", { { .rounds = 1, .k = 2, .a = 1, .window = 5, .q = 0.5 } }, 1 },
    { "one round that took no time", { { .rounds = 1 } }, 1 },
    { "no drafts", { { .rounds = 50, .window = 5 } }, 1 },
    { "two ranks",
      { { .rounds = 50, .k = 3, .a = 1, .window = 5, .wait = 1, .q = 0.5, .lag = -1 },
        { .rank = 1,
          .rounds = 49,
          .k = 3,
          .a = 1,
          .window = 5,
          .wait = 2,
          .lag = 0.1,
          .clock = 1e6 } },
      2 },
    { "the second log is empty", { { .rounds = 50, .window = 5 }, { .rank = 1 } }, 2 },
    { "the first log is empty", { { .rounds = 0 }, { .rank = 1, .rounds = 50, .window = 5 } }, 2 },
};

Test(report_page, is_well_formed_for_every_kind_of_log)
{
    for (size_t i = 0; i < sizeof(views) / sizeof(views[0]); i++) {
        struct report_view *v = rig_view(views[i].of, views[i].n);

        check_page(v, views[i].name);
        report_view_close(v);
    }
}

Test(report_page, text_of_a_log_stays_text)
{
    static const char line[] = "{\"r\":9,\"t\":1,\"" HOSTILE "\":1,\"win\":[{\"src\":\"" HOSTILE
                               "\"}],\"mode\":\"" HOSTILE "\"}";
    struct rig_rank of = { .rounds = 5, .k = 2, .a = 1, .window = 5, .q = 0.5 };
    struct report_log *l = rig_log(&of), *log[1];
    char summary[2000], quoted[400] = "";
    struct report_view *v;
    char *page;
    size_t n = 0;

    for (const char *p = HOSTILE; *p; p++) {
        if (strchr("\"\\", *p))
            quoted[n++] = '\\';
        quoted[n++] = *p;
    }
    quoted[n] = 0;
    n = (size_t)snprintf(
        summary, sizeof(summary),
        "{\"summary\":{\"about\":{\"rank\":0,\"ranks\":1,\"model\":\"%s\",\"family\":\"%s\","
        "\"drafter\":\"%s\",\"backend\":\"%s\",\"link\":\"%s\",\"numerics\":\"%s\"}}}",
        quoted, quoted, quoted, quoted, quoted, quoted);
    cr_assert(eq(int, report_log_line(l, summary, n), 0));
    report_log_line(l, line, strlen(line));
    report_log_line(l, HOSTILE, strlen(HOSTILE));
    snprintf(l->path, sizeof(l->path), "/tmp/%s", HOSTILE);
    snprintf(l->unknown[l->unknowns++], sizeof(l->unknown[0]), "%.31s", HOSTILE);
    cr_expect(eq(str, l->model, (char *)HOSTILE), "it got as far as this");
    cr_expect(gt(u64, l->bad, 0));
    log[0] = l;
    cr_assert(eq(int, report_view_open(log, 1, &v), 0));
    check_page(v, "hostile");
    page = text_of(write_page, v, &n);
    cr_expect(strstr(page, "alert(1)") != NULL, "it is shown");
    cr_expect(strstr(page, "<script>alert") == NULL);
    free(page);
    report_view_close(v);
}

Test(report_page, a_long_run_makes_no_large_page)
{
    struct rig_rank of[2] = {
        { .rounds = 20000, .k = 3, .a = 2, .window = 5.1234, .wait = 1.077, .q = 0.71, .lag = -1 },
        { .rank = 1,
          .rounds = 20000,
          .k = 3,
          .a = 2,
          .window = 5.1234,
          .wait = 0.99,
          .lag = 0.013,
          .clock = 1e6 }
    };
    struct report_view *v = rig_view(of, 2);
    size_t charts = report_page_charts() ? 220000 : 0, n;
    char *page = text_of(write_page, v, &n);

    cr_expect(lt(sz, n, charts + 150000));
    free(page);
    report_view_close(v);
}

/* ---- the terminal ---------------------------------------------------------------------------- */

Test(report_page, a_terminal_is_told_the_same_and_obeys_nothing)
{
    struct rig_rank of = { .rounds = 50, .k = 3, .a = 1, .window = 5, .wait = 1, .q = 0.5 };
    struct report_log *l = rig_log(&of), *log[1] = { l };
    struct report_view *v;
    char *text;
    size_t n;

    snprintf(l->path, sizeof(l->path), "\033[2J\r.jsonl");
    report_log_line(l, "x", 1);
    cr_assert(eq(int, report_view_open(log, 1, &v), 0));
    text = text_of(report_text, v, &n);
    cr_expect(strstr(text, "verify window") != NULL);
    cr_expect(strstr(text, v->verdict[0].text) != NULL);
    cr_expect(strstr(text, "line 51: ") != NULL);
    cr_expect(strchr(text, '\033') == NULL && strchr(text, '\r') == NULL);
    free(text);
    report_view_close(v);
}
