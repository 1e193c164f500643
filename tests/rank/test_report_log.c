/* test_report_log.c - round logs written and read back, and whatever else a file of that name may
 * hold. */
#include "src/rank/report_log.h"
#include "src/rank/roundlog.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/rng.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEED 31
#define ROUNDS 300

static char folder[] = "/tmp/tandem-report-XXXXXX";

static void make_folder(void)
{
    cr_assert(mkdtemp(folder) != NULL);
}

static void remove_folder(void)
{
    static const char *const names[] = { "rank0.jsonl", "rank1.jsonl", "rank0.phases.json",
                                         "rank1.phases.json", "some.jsonl" };
    char path[128];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static int below(uint64_t *n, int end)
{
    return (int)(philox4x32((uint32_t)(*n)++, 0, 0, 0, SEED).w[0] % (uint32_t)end);
}

static struct round_record some_record(uint64_t *n, int round, int64_t t_ns)
{
    struct round_record r = { .round = (uint32_t)round,
                              .t_ns = t_ns,
                              .windows = 1 + below(n, SLOTS_MAX),
                              .bucket = 8,
                              .ctx = below(n, 5000),
                              .mode = (enum round_mode)below(n, MODES),
                              .spec = (enum spec_end)below(n, SPEC_ENDS),
                              .lag_known = below(n, 2) };

    for (int i = 0; i < r.windows; i++) {
        struct round_slot *s = &r.slot[i];

        *s = (struct round_slot){ .slot = (i + round) % SLOTS_MAX,
                                  .pos = below(n, 5000),
                                  .k = below(n, 6),
                                  .finish = (enum finish)below(n, FINISHES) };
        s->a = below(n, s->k + 1);
        s->landed = below(n, s->a + 2);
        s->offered = s->k + below(n, 3);
        s->source = s->k ? SOURCE_DRAFTER : SOURCE_NONE;
        for (int j = 0; j < s->offered; j++) {
            s->p[j] = (float)below(n, 10000) / 9999;
            s->q[j] = (float)below(n, 10000) / 9999;
        }
        if (s->k == 0 && s->offered > 0)
            s->skipped = (enum skipped)below(n, SKIPPED_RIGHT + 1);
        r.rows += 1 + s->k;
    }
    /* Whole microseconds, as lines can say them exactly. */
    for (const struct record_field *f = record_fields; f->key; f++)
        *(int64_t *)(void *)((char *)&r + f->in_record) =
            below(n, 100000) * (f->unit == UNIT_COUNT ? 1 : NS_PER_US);
    r.lag_ns = r.lag_known ? (below(n, 2000) - 1000) * NS_PER_US : 0;
    return r;
}

static const struct roundlog_about about = { .rank = 1,
                                             .ranks = 2,
                                             .model = "a \"model\"\n</script>",
                                             .family = "dense",
                                             .drafter = "dspark",
                                             .backend = "ref",
                                             .link = "tcp",
                                             .numerics = "bf16" };

Test(report_log, what_was_written_is_read, .init = make_folder, .fini = remove_folder)
{
    struct tally want = { 0 };
    struct report_log *l;
    struct roundlog *w;
    uint64_t n = 0;
    char path[128];

    cr_assert(eq(int, roundlog_open(folder, &about, &w), 0));
    for (int i = 0; i < ROUNDS; i++) {
        struct round_record r = some_record(&n, 2 * i, 1000000 + i * NS_PER_MS);

        tally_add(&want, &r);
        roundlog_put(w, &r);
    }
    cr_assert(eq(int, roundlog_close(w), 0));

    snprintf(path, sizeof(path), "%s/rank1.jsonl", folder);
    cr_assert(eq(int, report_log_open(path, &l), 0));
    cr_expect(eq(u64, l->bad, 0), "%s", l->named[0].why);
    cr_expect(eq(int, l->unknowns, 0), "%s", l->unknown[0]);
    cr_expect(eq(sz, l->rounds, (size_t)ROUNDS));
    cr_expect(l->ended && !l->cut);
    cr_expect(eq(int, l->rank, 1));
    cr_expect(eq(int, l->ranks, 2));
    cr_expect(eq(str, l->model, (char *)about.model));
    cr_expect(eq(str, l->drafter, (char *)about.drafter));
    cr_expect(eq(str, l->numerics, (char *)about.numerics));
    cr_expect(memcmp(&l->sums, &want, sizeof(want)) == 0, "seed %d", SEED);
    for (const struct record_field *f = record_fields; f->key; f++)
        cr_expect(eq(i64, tally_number(&l->sums, f), tally_number(&want, f)), "%s", f->key);
    report_log_close(l);
}

/* ---- lines ----------------------------------------------------------------------------------- */

#define GOOD                                                                                       \
    "{\"r\":5,\"t\":100,\"win\":[{\"slot\":0,\"P\":9,\"k\":2,\"a\":1,\"landed\":2}],\"window_"     \
    "ms\":2.5}"

struct bad_line {
    const char *name, *line, *why;
};

static const struct bad_line bad_lines[] = {
    { "no JSON", "hello", "column" },
    { "nothing", "", "column" },
    { "cut", "{\"r\":6,\"t\":200,\"wi", "column" },
    { "a list", "[1,2]", "neither" },
    { "another object", "{\"a\":1}", "neither" },
    { "no time", "{\"r\":6,\"win\":[]}", "time" },
    { "no windows", "{\"r\":6,\"t\":200}", "win" },
    { "a round that is text", "{\"r\":\"6\",\"t\":200,\"win\":[]}", "r is no whole number" },
    { "a negative round", "{\"r\":-6,\"t\":200,\"win\":[]}", "r -6" },
    { "a round beyond 32 bits", "{\"r\":4294967296,\"t\":200,\"win\":[]}", "r 4294967296" },
    { "the same round again", "{\"r\":5,\"t\":200,\"win\":[]}", "round 5 comes after round 5" },
    { "time that goes back", "{\"r\":6,\"t\":99,\"win\":[]}", "time goes back" },
    { "windows that are no list", "{\"r\":6,\"t\":200,\"win\":{}}", "win" },
    { "five windows", "{\"r\":6,\"t\":200,\"win\":[{},{\"slot\":1},{\"slot\":2},{\"slot\":3},{}]}",
      "win" },
    { "a window that is a number", "{\"r\":6,\"t\":200,\"win\":[3]}", "window 0" },
    { "a slot twice", "{\"r\":6,\"t\":200,\"win\":[{},{}]}", "slot 0 twice" },
    { "a slot too many", "{\"r\":6,\"t\":200,\"win\":[{\"slot\":4}]}", "slot 4" },
    { "sixteen drafts", "{\"r\":6,\"t\":200,\"win\":[{\"k\":16}]}", "k 16" },
    { "more accepted than verified", "{\"r\":6,\"t\":200,\"win\":[{\"k\":2,\"a\":3}]}", "a 3" },
    { "more landed than chosen", "{\"r\":6,\"t\":200,\"win\":[{\"k\":2,\"a\":2,\"landed\":4}]}",
      "landed 4" },
    { "an unknown end", "{\"r\":6,\"t\":200,\"win\":[{\"stop\":\"tired\"}]}",
      "\"tired\" is unknown" },
    { "an unknown mode", "{\"r\":6,\"t\":200,\"win\":[],\"mode\":\"<b>\"}",
      "mode \"<b>\" is unknown" },
    { "a mode that is a number", "{\"r\":6,\"t\":200,\"win\":[],\"mode\":1}", "mode is no string" },
    { "negative time", "{\"r\":6,\"t\":200,\"win\":[],\"window_ms\":-1}", "window_ms" },
    { "time without end", "{\"r\":6,\"t\":200,\"win\":[],\"window_ms\":1e300}", "window_ms" },
    { "time that is a list", "{\"r\":6,\"t\":200,\"win\":[],\"plan_us\":[]}", "plan_us" },
    { "half an exchange", "{\"r\":6,\"t\":200,\"win\":[],\"xn\":0.5}", "xn is no whole number" },
    { "chances without windows' lists", "{\"r\":6,\"t\":200,\"win\":[{}],\"q\":[]}",
      "q has no list" },
    { "lag without end", "{\"r\":6,\"t\":200,\"win\":[],\"lag_us\":-1e300}", "lag_us" },
    { "deeper than a round", "{\"r\":6,\"x\":[[[[[[[[[[1]]]]]]]]]]}", "nested" },
    { "a key twice", "{\"r\":6,\"r\":7,\"t\":200,\"win\":[]}", "duplicate" },
};

static struct report_log *fresh(void)
{
    struct report_log *l = calloc(1, sizeof(*l));

    cr_assert(l != NULL);
    cr_assert(eq(int, report_log_line(l, GOOD, strlen(GOOD)), 0));
    return l;
}

static int lines_logged;

static void count_line(void *arg, enum log_level level, const char *line)
{
    lines_logged++;
}

Test(report_log, bad_lines_are_named_and_left_out)
{
    log_sink(count_line, NULL);
    for (size_t i = 0; i < sizeof(bad_lines) / sizeof(bad_lines[0]); i++) {
        const struct bad_line *b = &bad_lines[i];
        struct report_log *l = fresh();
        struct tally before = l->sums;

        cr_expect(eq(int, report_log_line(l, b->line, strlen(b->line)), 0), "%s", b->name);
        cr_expect(eq(u64, l->bad, 1), "%s", b->name);
        cr_expect(eq(u64, l->named[0].line, 2), "%s", b->name);
        cr_expect(strstr(l->named[0].why, b->why) != NULL, "%s: \"%s\"", b->name, l->named[0].why);
        cr_expect(eq(sz, l->rounds, 1), "%s", b->name);
        cr_expect(memcmp(&l->sums, &before, sizeof(before)) == 0, "%s", b->name);
        report_log_close(l);
    }
    cr_expect(eq(int, lines_logged, 0), "the log stays quiet");
}

Test(report_log, bad_lines_are_counted_and_five_are_named)
{
    struct report_log *l = fresh();

    for (int i = 0; i < 20000; i++)
        report_log_line(l, "?", 1);
    cr_expect(eq(u64, l->bad, 20000));
    cr_expect(eq(u64, l->named[REPORT_NAMED - 1].line, 1 + REPORT_NAMED));
    report_log_close(l);
}

Test(report_log, what_a_newer_program_writes_is_read_and_named)
{
    const char *line =
        "{\"r\":6,\"t\":200,\"win\":[{\"src\":\"oracle\",\"new\":1}],\"colour\":\"<i>\","
        "\"deep\":{\"a\":[1]},\"window_ms\":1,\"lag_us\":null}";
    struct report_log *l = fresh();

    cr_assert(eq(int, report_log_line(l, line, strlen(line)), 0));
    cr_expect(eq(u64, l->bad, 0), "%s", l->named[0].why);
    cr_expect(eq(sz, l->rounds, 2));
    cr_expect(eq(int, l->unknowns, 2));
    cr_expect(eq(str, l->unknown[0], (char *)"colour"));
    cr_expect(eq(str, l->unknown[1], (char *)"deep"));
    cr_expect(eq(str, l->drafter, (char *)"oracle"));
    report_log_close(l);
}

Test(report_log, waiting_is_taken_out_of_the_steps_that_waited)
{
    const char *line =
        "{\"r\":6,\"t\":200,\"win\":[{}],\"plan_us\":100,\"stage_us\":10,\"engram_ms\":0.02,"
        "\"window_ms\":5,\"choose_ms\":1,\"draft_ms\":2,\"draft_wait_ms\":0.5,\"ingest_ms\":0.3,"
        "\"commit_us\":70,\"wall_ms\":10,\"xwait_us\":3000,\"xwait_window_us\":2000,"
        "\"xwait_choose_us\":400}";
    static const float us[PARTS] = { 100, 10, 20, 3000, 600, 300, 1900, 70, 3000, 1000 };
    struct report_log *l = fresh();
    const struct log_round *r;

    cr_assert(eq(int, report_log_line(l, line, strlen(line)), 0));
    cr_assert(eq(sz, l->rounds, 2), "%s", l->named[0].why);
    r = &l->round[1];
    for (int p = 0; p < PARTS; p++)
        cr_expect(epsilon_eq(flt, r->us[p], us[p], 0.01f), "%s", part_name((enum part)p));
    cr_expect(epsilon_eq(flt, r->wait_us[PART_DRAFT], 600.0f, 0.01f));
    cr_expect(epsilon_eq(dbl, log_round_us(r), 10000.0, 0.1), "all of it is the wall time");
    report_log_close(l);
}

/* ---- files ----------------------------------------------------------------------------------- */

struct file_case {
    const char *name, *text;
    size_t rounds;
    unsigned long bad;
    bool cut;
};

#define NEXT "{\"r\":6,\"t\":200,\"win\":[]}"

static const struct file_case files[] = {
    { "empty", "", 0, 0, false },
    { "one round", GOOD "\n", 1, 0, false },
    { "no newline at the end", GOOD "\n" NEXT, 2, 0, false },
    { "cut at the end", GOOD "\n{\"r\":6,\"t\":2", 1, 1, true },
    { "cut earlier", "{\"r\":4,\"t\n" GOOD "\n", 1, 1, false },
    { "an empty line", GOOD "\n\n" NEXT "\n", 2, 1, false },
    { "carriage returns", GOOD "\r\n" NEXT "\r\n", 2, 0, false },
    { "sums alone", "{\"summary\":{\"rounds\":0}}\n", 0, 0, false },
};

static struct report_log *read_text(const char *text, size_t bytes)
{
    char path[128];
    struct report_log *l;
    FILE *f;

    snprintf(path, sizeof(path), "%s/some.jsonl", folder);
    f = fopen(path, "w");
    cr_assert(f != NULL);
    cr_assert(eq(sz, fwrite(text, 1, bytes, f), bytes));
    cr_assert(eq(int, fclose(f), 0));
    cr_assert(eq(int, report_log_open(path, &l), 0));
    return l;
}

Test(report_log, files_end_where_they_end, .init = make_folder, .fini = remove_folder)
{
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        const struct file_case *c = &files[i];
        struct report_log *l = read_text(c->text, strlen(c->text));

        cr_expect(eq(sz, l->rounds, c->rounds), "%s", c->name);
        cr_expect(eq(u64, l->bad, c->bad), "%s", c->name);
        cr_expect(eq(int, l->cut, c->cut), "%s", c->name);
        cr_expect(eq(int, l->rank, -1), "%s", c->name);
        report_log_close(l);
    }
}

Test(report_log, bytes_that_are_no_text_are_bad_lines, .init = make_folder, .fini = remove_folder)
{
    size_t size = (size_t)3 << 20, at = 0;
    char *text = malloc(size);
    struct report_log *l;

    cr_assert(text != NULL);
    memset(text, 'x', size); /* longer than any line */
    memcpy(text, GOOD "\n\0\0\xff\xfe\n", strlen(GOOD) + 6);
    at = size - strlen("\n" NEXT "\n");
    memcpy(text + at, "\n" NEXT "\n", strlen("\n" NEXT "\n"));
    l = read_text(text, size);
    cr_expect(eq(sz, l->rounds, 2));
    cr_expect(eq(u64, l->bad, 2));
    cr_expect(strstr(l->named[1].why, "longer") != NULL, "%s", l->named[1].why);
    report_log_close(l);
    free(text);
}

Test(report_log, a_file_that_cannot_be_read_is_an_error, .init = make_folder, .fini = remove_folder)
{
    struct report_log *l = NULL;

    log_sink(count_line, NULL);
    cr_expect(eq(int, report_log_open("/nonexistent/rank0.jsonl", &l), -ENOENT));
    cr_expect(eq(int, report_log_open(folder, &l), -EISDIR));
    cr_expect(eq(int, lines_logged, 2));
    cr_expect(eq(ptr, l, NULL));
}
