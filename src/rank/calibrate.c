/* calibrate.c owns the text and the schedule of the measurement; what a window is and costs is not
 * its business. */
#include "src/rank/calibrate.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/model/tokenizer.h"
#include "src/rank/order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_CYCLES 1
#define CYCLES 9
#define PROMPT_MAX 128

static const char text[] = "The old lighthouse keeper climbed the stairs every evening, counting "
                           "them aloud so that he would not think of the "
                           "sea. There were one hundred and forty, and the last one was broken. A "
                           "recursive function calls itself on a smaller "
                           "part of its input until nothing is left to do.\n\n"
                           "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a\n\n"
                           "for i in range(1, 11):\n    print(i, i * i, gcd(i, 12))\n";

static int compare_ns(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static int32_t median_us(int64_t *ns)
{
    qsort(ns, CYCLES, sizeof(*ns), compare_ns);
    return (int32_t)(ns[CYCLES / 2] / NS_PER_US < INT32_MAX ? ns[CYCLES / 2] / NS_PER_US
                                                            : INT32_MAX);
}

static int measure(struct rounds *r, const int32_t *tok, int rows, struct cost_table *out)
{
    int64_t window[WINDOW_MAX + 1][CYCLES], pass[CYCLES], ns;
    int err = 0;

    for (int c = -WARM_CYCLES; c < CYCLES && err == 0; c++) {
        struct plan_calibrate p = { .rows = 0 };

        memcpy(p.tok, tok, (size_t)rows * sizeof(*tok));
        for (p.rows = 1; p.rows <= rows && err == 0; p.rows++) {
            err = order_calibrate(r, &p, &ns);
            if (c >= 0)
                window[p.rows][c] = ns;
        }
        p.rows = 0;
        p.flags = CALIBRATE_PASS;
        if (err == 0)
            err = order_calibrate(r, &p, &ns);
        if (c >= 0)
            pass[c] = ns;
    }
    if (err < 0)
        return err;
    *out = (struct cost_table){ .rows = rows };
    for (int i = 1; i <= rows; i++)
        out->window_us[i] = median_us(window[i]);
    out->draft_us[1] = median_us(pass);
    cost_settle(out);
    return 0;
}

static int fill(struct rounds *r, const int32_t *ids, int n)
{
    struct plan_admit a = { .n = n, .flags = ADMIT_DRAFT, .ids = ids };
    int err = order_admit(r, &a);

    for (struct plan_span s = { 0 }; s.start < n - 1 && err == 0; s.start = s.end) {
        s.end = s.start + r->k->bounds.prefill_chunk;
        if (s.end > n - 1)
            s.end = n - 1;
        err = order_fill(r, &s);
    }
    return err;
}

static void print(const struct cost_table *t)
{
    char line[WINDOW_MAX * 12] = "";
    size_t at = 0;

    for (int i = 1; i <= t->rows; i++)
        at += (size_t)snprintf(line + at, sizeof(line) - at, " %.2f", t->window_us[i] / 1000.0);
    log_info("costs: windows of 1 .. %d rows%s ms, draft pass %.2f ms", t->rows, line,
             t->draft_us[1] / 1000.0);
}

int calibrate_run(struct rounds *r, struct cost_table *out)
{
    const struct rank *k = r->k;
    int rows = k->copies ? WINDOW_MAX : k->drafter->block + 1, n, all, err;
    int32_t *ids;

    if (rows > k->bounds.window_max)
        rows = k->bounds.window_max;
    err = tokenizer_encode(k->tok, text, strlen(text), 0, &ids, &all);
    if (err < 0)
        return err;
    n = all < k->bounds.context ? all : k->bounds.context;
    n = n - rows < PROMPT_MAX ? n - rows : PROMPT_MAX;
    if (n < 1) {
        free(ids);
        return 1;
    }
    err = fill(r, ids, n);
    if (err == 0)
        err = measure(r, ids + n - 1, rows, out);
    if (err == 0)
        err = order_release(r, 0);
    free(ids);
    if (err == 0)
        print(out);
    return err;
}
