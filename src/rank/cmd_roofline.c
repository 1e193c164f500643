/* cmd_roofline.c owns the table of what windows should take on a device. */
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/model/pack.h"
#include "src/rank/commands.h"
#include "src/rank/exit_code.h"
#include "src/rank/roof_fit.h"
#include "src/rank/roofline.h"

#include <stdio.h>
#include <string.h>

static const int rows_of[] = { 1, 2, 3, 4, 5, 6, 7, 8, 16 };
#define ROWS ((int)(sizeof(rows_of) / sizeof(rows_of[0])))

static void print_parts(const struct roof_window *w)
{
    printf("\n%-24s %6s %10s %12s %10s %8s\n", "part of a one-row window", "ops", "MB", "M weights",
           "us", "share");
    for (int i = 0; i < w->parts; i++)
        printf("%-24s %6d %10.1f %12.1f %10.1f %7.1f%%\n", w->part[i].title, w->part[i].calls,
               w->part[i].bytes / 1e6, w->part[i].weights / 1e6, w->part[i].us,
               100 * w->part[i].us / w->us);
}

/* A line of the table: expected, what is known, and by how much the first is off. */
static void print_line(const char *what, double ms, double known)
{
    if (known > 0)
        printf("%-24s %12.2f %12.2f %+11.1f%%\n", what, ms, known, 100 * (ms - known) / known);
    else
        printf("%-24s %12.2f %12s\n", what, ms, "-");
}

static void put_window(struct json_writer *j, const struct roof_window *w, double known)
{
    json_begin_object(j, NULL);
    json_put_int(j, "rows", w->rows);
    json_put_f64(j, "us", w->us);
    json_put_f64(j, "bytes", w->bytes);
    if (known > 0)
        json_put_f64(j, "known_us", known * 1e3);
    json_begin_array(j, "parts");
    for (int i = 0; i < w->parts; i++) {
        json_begin_object(j, NULL);
        json_put_str(j, "part", w->part[i].title);
        json_put_int(j, "ops", w->part[i].calls);
        json_put_f64(j, "bytes", w->part[i].bytes);
        json_put_f64(j, "us", w->part[i].us);
        json_end_object(j);
    }
    json_end_array(j);
    json_end_object(j);
}

static int windows(const struct options *o, const struct pack *p, const struct roof_device *d,
                   const struct roof_kernels *k, struct json_writer *j)
{
    double exchange = d->exchange_us * roof_exchanges(p) * (pack_ranks(p) > 1) / 1e3;
    struct roof_window w;
    char what[32];
    int r = 0;

    json_begin_array(j, "windows");
    for (int i = 0; i <= ROWS && r == 0; i++) {
        bool pass = i == ROWS;
        double known = pass ? d->pass_ms : d->window_ms[rows_of[i]];

        r = roof_window(p, d, k, pass ? 1 : rows_of[i], pass, &w);
        if (r < 0)
            break;
        if (!pass)
            w.us += exchange * 1e3;
        put_window(j, &w, known);
        if (o->json)
            continue;
        if (i == 0) {
            print_parts(&w);
            printf("%-24s %6d %10s %12s %10.1f\n", "exchanges", roof_exchanges(p), "", "",
                   exchange * 1e3);
            printf("\n%-24s %12s %12s %12s\n", "ms", "expected", "known", "off by");
        }
        snprintf(what, sizeof(what), pass ? "draft pass, %d rows" : "window of %d rows", w.rows);
        print_line(what, w.us / 1e3, known);
    }
    json_end_array(j);
    return r;
}

static int fit(const struct options *o, struct pack *p, const struct roof_device *d,
               struct roof_kernels *k)
{
    struct json_writer j;
    int r = roof_fit(o->fit, p, d, k);

    json_writer_init(&j);
    roof_put_kernels(&j, k);
    if (r == 0)
        r = json_write_line(&j, stdout);
    json_writer_free(&j);
    pack_close(p);
    return r < 0 ? exit_code_of(STEP_DATA, r) : CODE_DONE;
}

int cmd_roofline(struct options *o)
{
    struct roof_device d;
    struct roof_kernels k;
    struct json_writer j;
    struct pack *p;
    int r;

    if (o->measured && o->fit) {
        fail(-EINVAL, "roofline: --measured and --fit, want one of them");
        return CODE_USAGE;
    }
    r = roof_read_device(o->word[1], &d);
    if (r == 0)
        r = roof_read_kernels(o->word[2], &k);
    if (r == 0 && (o->measured || o->fit))
        r = roof_read_measured(o->fit ? o->fit : o->measured, &d);
    if (r == 0)
        r = pack_open(o->word[0], &p);
    if (r < 0)
        return exit_code_of(STEP_DATA, r);
    if (o->fit)
        return fit(o, p, &d, &k);
    if (!o->json)
        printf("%s: %d multiprocessors at %.2f GHz, reads of %.0f GB/s\n", d.name, d.sms,
               d.clock_ghz, d.read_gbps);
    json_writer_init(&j);
    json_begin_object(&j, NULL);
    json_put_str(&j, "device", d.name);
    json_put_int(&j, "exchanges", roof_exchanges(p));
    r = windows(o, p, &d, &k, &j);
    json_end_object(&j);
    if (r == 0 && o->json)
        r = json_write_line(&j, stdout);
    json_writer_free(&j);
    pack_close(p);
    return r < 0 ? exit_code_of(STEP_DATA, r) : CODE_DONE;
}
