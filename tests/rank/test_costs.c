/* Files of cost tables: whatever stands in them, a table has as many entries as it has room for,
 * all of them prices. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/file.h"
#include "src/rank/costs.h"
#include "tests/base/capture.h"

static struct capture lines;

static int read_text(const char *text, struct cost_table *out)
{
    char path[] = "/tmp/tandem-costs-XXXXXX";
    int fd = mkstemp(path), r;

    cr_assert(fd >= 0 && full_pwrite(fd, text, strlen(text), 0, path) == 0);
    close(fd);
    r = costs_read(path, out);
    unlink(path);
    if (r < 0)
        cr_expect(strstr(lines.last, path) != NULL, "%s", lines.last);
    return r;
}

/* A list of n prices from `first` on. */
static const char *list(int n, int first)
{
    static char text[2][4096];
    static int turn;
    char *at = text[turn ^= 1];
    size_t used = 0;

    for (int i = 0; i < n; i++)
        used +=
            (size_t)snprintf(at + used, sizeof(text[0]) - used, "%s%d", i ? "," : "", first + i);
    at[used] = 0;
    return at;
}

Test(costs, a_table_has_2_to_64_windows_and_1_to_4_passes)
{
    static const struct {
        int windows, passes, r;
        const char *says;
    } cases[] = {
        { 2, 1, 0, NULL },
        { COST_ROWS_MAX, SLOTS_MAX, 0, NULL },
        { 1, 1, -EINVAL, "window_us: want 2 .. 64 whole numbers" },
        { 0, 1, -EINVAL, "window_us: want 2 .. 64 whole numbers" },
        { COST_ROWS_MAX + 1, 1, -EINVAL, "window_us: want 2 .. 64 whole numbers" },
        { 500, 1, -EINVAL, "window_us: want 2 .. 64 whole numbers" },
        { 2, 0, -EINVAL, "draft_us: want 1 .. 4 whole numbers" },
        { 2, SLOTS_MAX + 1, -EINVAL, "draft_us: want 1 .. 4 whole numbers" },
    };
    char text[8192];

    capture_start(&lines);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cost_table t;

        memset(&t, 0x55, sizeof(t));
        snprintf(text, sizeof(text), "{\"key\":\"of nobody\",\"window_us\":[%s],\"draft_us\":[%s]}",
                 list(cases[i].windows, 700), list(cases[i].passes, 30));
        cr_assert(eq(int, read_text(text, &t), cases[i].r), "case %zu", i);
        if (cases[i].r < 0) {
            cr_expect(strstr(lines.last, cases[i].says) != NULL, "case %zu: %s", i, lines.last);
            cr_expect(eq(int, t.rows, 0x55555555), "case %zu", i);
            continue;
        }
        cr_expect(eq(int, t.rows, cases[i].windows), "case %zu", i);
        cr_expect(eq(int, t.window_us[1], 700));
        cr_expect(eq(int, t.window_us[t.rows], 699 + t.rows));
        cr_expect(eq(int, t.draft_us[SLOTS_MAX], 29 + cases[i].passes));
    }
}

Test(costs, what_is_no_price_is_refused)
{
    static const char *const wrong[] = {
        "",
        "[]",
        "{}",
        "{\"window_us\":[1,2]}",
        "{\"window_us\":3,\"draft_us\":[1]}",
        "{\"window_us\":[0,2],\"draft_us\":[1]}",
        "{\"window_us\":[1,-2],\"draft_us\":[1]}",
        "{\"window_us\":[1,2.5],\"draft_us\":[1]}",
        "{\"window_us\":[1,\"2\"],\"draft_us\":[1]}",
        "{\"window_us\":[1,2147483648],\"draft_us\":[1]}",
        "{\"window_us\":[1,2],\"draft_us\":[null]}",
        "{\"window_us\":[1,2],\"draft_us\":[[1]]}",
    };
    struct cost_table t;

    capture_start(&lines);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        cr_expect(eq(int, read_text(wrong[i], &t), -EINVAL), "%s", wrong[i]);
    cr_expect(eq(int, costs_read("/tmp/none-of-these.json", &t), -ENOENT));
    cr_expect(
        eq(int, read_text("{\"window_us\":[1,2147483647],\"draft_us\":[2147483647]}", &t), 0));
    cr_expect(eq(int, t.window_us[2], INT32_MAX));
}
