/* bench_decode - how fast one core multiplies rows with weights of every stored type, by
 * instruction set and rows.
 *
 * A 5120 x 2304 matrix, as the experts of the largest model have it; whole op, rotations included;
 * the best of several passes. Each case is first compared with ref, bit for bit. The table is what
 * the format's document measured with exact values at one row on one core; sets that the machine
 * lacks are named and left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"
#include "src/base/rng.h"

enum { IN = 5120, OUT = 2304, ROWS_MOST = 16, CHECKED = 256 };

static const int row_counts[] = { 1, 2, 4, 8, 16 };

/* G weights a second by twice the bits: 2, 3, 4, 5, 6, 8 bits. */
static const struct {
    const char *set;
    double rate[17];
} table[] = {
    { "avx2", { [4] = 3.57, [6] = 3.04, [8] = 3.62, [10] = 3.80, [12] = 3.39, [16] = 3.77 } },
    { "avx512", { [4] = 5.43, [6] = 4.58, [8] = 6.44, [10] = 5.87, [12] = 5.32, [16] = 6.36 } },
    { "avx512-vnni",
      { [4] = 5.43, [6] = 4.58, [8] = 6.44, [10] = 5.87, [12] = 5.32, [16] = 6.36 } },
};

static const struct {
    const char *name;
    struct mat m;
} types[] = {
    { "bf16", { .dtype = DTYPE_BF16 } },
    { "f32", { .dtype = DTYPE_F32 } },
    { "fp8 32 e8m0", { .dtype = DTYPE_FP8, .q = { .block = 32, .e8m0 = 1 } } },
    { "fp8 128 f32", { .dtype = DTYPE_FP8, .q = { .block = 128 } } },
    { "mxfp4", { .dtype = DTYPE_MXFP4 } },
    { "nvfp4", { .dtype = DTYPE_NVFP4, .q = { .global = 0.001f } } },
    { "exl3 3inst", { .dtype = DTYPE_EXL3, .q = { .codebook = CODEBOOK_3INST, .bits2 = 6 } } },
    { "exl3 mcg", { .dtype = DTYPE_EXL3, .q = { .codebook = CODEBOOK_MCG, .bits2 = 6 } } },
    { "exl3 mul1", { .dtype = DTYPE_EXL3, .q = { .codebook = CODEBOOK_MUL1, .bits2 = 2 } } },
    { "exl3 mul1", { .dtype = DTYPE_EXL3, .q = { .codebook = CODEBOOK_MUL1, .bits2 = 3 } } },
    { "exl3 mul1", { .dtype = DTYPE_EXL3, .q = { .codebook = CODEBOOK_MUL1, .bits2 = 4 } } },
    { "exl3 mul1", { .dtype = DTYPE_EXL3, .q = { .codebook = CODEBOOK_MUL1, .bits2 = 5 } } },
    { "exl3 mul1", { .dtype = DTYPE_EXL3, .q = { .codebook = CODEBOOK_MUL1, .bits2 = 6 } } },
    { "exl3 mul1", { .dtype = DTYPE_EXL3, .q = { .codebook = CODEBOOK_MUL1, .bits2 = 7 } } },
    { "exl3 mul1", { .dtype = DTYPE_EXL3, .q = { .codebook = CODEBOOK_MUL1, .bits2 = 8 } } },
    { "exl3 mul1", { .dtype = DTYPE_EXL3, .q = { .codebook = CODEBOOK_MUL1, .bits2 = 10 } } },
    { "exl3 mul1", { .dtype = DTYPE_EXL3, .q = { .codebook = CODEBOOK_MUL1, .bits2 = 12 } } },
    { "exl3 mul1", { .dtype = DTYPE_EXL3, .q = { .codebook = CODEBOOK_MUL1, .bits2 = 14 } } },
    { "exl3 mul1", { .dtype = DTYPE_EXL3, .q = { .codebook = CODEBOOK_MUL1, .bits2 = 16 } } },
};

/* Any bits are trellis codes and e2m1 codes; what could be a NaN elsewhere is kept in range. */
static void fill(struct mat *m, unsigned char *blob, const struct mat_parts *p)
{
    for (size_t i = 0; i < p->total; i++)
        blob[i] = (unsigned char)(philox4x32((uint32_t)(i / 4), 0, 0, 5, 7).w[i % 4] >> 3);
    for (size_t i = 0; i < p->bytes[PART_CODES]; i++) {
        if (m->dtype == DTYPE_F32 && i % 4 == 3)
            blob[i] = (unsigned char)((blob[i] & 0x81) + 0x3c);
        if (m->dtype == DTYPE_BF16 && i % 2 == 1)
            blob[i] = (unsigned char)((blob[i] & 0x81) + 0x3c);
        if (m->dtype == DTYPE_FP8 && (blob[i] & 0x7f) == 0x7f)
            blob[i] = 1;
    }
    for (size_t i = 0; i < p->bytes[PART_SCALES]; i++) {
        unsigned char *b = blob + p->at[PART_SCALES] + i;

        if (m->dtype == DTYPE_FP8 && !m->q.e8m0)
            *b = i % 4 == 3 ? 0x3c : *b;
        else
            *b = (unsigned char)(m->dtype == DTYPE_NVFP4 ? *b % 127 : 120 + *b % 8);
    }
    for (int part = PART_SUH; part <= PART_BIAS; part++)
        for (size_t i = 1; i < p->bytes[part]; i += 2)
            blob[p->at[part] + i] = (unsigned char)((blob[p->at[part] + i] & 0x83) + 0x34);
    mat_place(m, blob);
}

/* Time that this thread has run: what other programs take of the core does not count. */
static int64_t run_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Seconds of the fastest pass. */
static double best_time(struct queue *q, const struct matmul_args *a, strip_fn *strip)
{
    int64_t best = INT64_MAX, until = run_ns() + 100000000;

    for (int i = 0; i < 5 || run_ns() < until; i++) {
        int64_t t = run_ns();

        product_matmul(q, a, strip);
        t = run_ns() - t;
        best = t < best ? t : best;
    }
    return (double)best * 1e-9;
}

/* A chain of dependent additions runs one a cycle. */
static double core_ghz(void)
{
    int64_t best = INT64_MAX;

    for (int i = 0; i < 20; i++) {
        uint64_t v = 1;
        int64_t t = run_ns();

        for (int j = 0; j < 1000000; j++) {
            v += 3;
            __asm__ volatile("" : "+r"(v));
        }
        t = run_ns() - t;
        best = t < best ? t : best;
    }
    return 1e6 / (double)best;
}

static double table_rate(const char *set, const struct mat *m)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].set, set) == 0 && m->dtype == DTYPE_EXL3 &&
            m->q.codebook == CODEBOOK_MUL1)
            return table[i].rate[m->q.bits2];
    return 0;
}

static double lowest; /* share of the table; 0: none of its rows was run */

static int type_bench(struct queue *q, const char *name, struct mat m, const float *x,
                      const char *only)
{
    static float y[ROWS_MOST * OUT], want[ROWS_MOST * OUT];
    struct mat_parts p;
    struct mat part;
    unsigned char *blob;
    char label[40];

    m.rows = OUT;
    m.cols = IN;
    mat_parts(&m, &p);
    blob = aligned_alloc(MAT_ALIGN, mat_round_up(p.total, MAT_ALIGN) + 65536);
    if (!blob)
        return 1;
    fill(&m, blob, &p);
    part = m;
    part.rows = CHECKED; /* whole strips from the first on lie as in the whole matrix */
    product_matmul(q, &(struct matmul_args){ .w = &part, .x = x, .y = want, .rows = ROWS_MOST },
                   ref_strip);
    snprintf(label, sizeof(label), m.dtype == DTYPE_EXL3 ? "%s %d%s" : "%s", name, m.q.bits2 / 2,
             m.q.bits2 % 2 ? ".5" : "");
    for (int i = 0; cpu_set_at(i); i++) {
        const struct cpu_set *set = cpu_set_at(i);

        if (!set->works() || (only && strcmp(only, set->name)))
            continue;
        printf("%-14s %-12s", label, set->name);
        for (size_t r = 0; r < sizeof(row_counts) / sizeof(row_counts[0]); r++) {
            struct matmul_args a = { .w = &m, .x = x, .y = y, .rows = row_counts[r] };
            double rate, from = table_rate(set->name, &m);

            a.w = &part;
            product_matmul(q, &a, set->strip);
            if (memcmp(y, want, (size_t)row_counts[r] * CHECKED * sizeof(*y)) != 0) {
                printf("  %d rows differ from ref\n", row_counts[r]);
                return 1;
            }
            a.w = &m;
            rate = (double)IN * OUT / best_time(q, &a, set->strip) * 1e-9;
            printf(" %7.2f", rate);
            if (row_counts[r] == 1 && from > 0) {
                printf(" (table %.2f, %3.0f%%)", from, 100 * rate / from);
                lowest = lowest > 0 && lowest < rate / from ? lowest : rate / from;
            } else if (row_counts[r] == 1)
                printf("%19s", "");
        }
        printf("\n");
        fflush(stdout);
    }
    free(blob);
    return 0;
}

/* Sets of instructions that are left out here, by name. */
static void tell_missing(void)
{
    static const char *const all[] = { "avx2", "avx512", "avx512-vnni", "neon" };

    for (size_t n = 0; n < sizeof(all) / sizeof(all[0]); n++) {
        int i = 0;

        while (cpu_set_at(i) && strcmp(cpu_set_at(i)->name, all[n]) != 0)
            i++;
        if (!cpu_set_at(i) || !cpu_set_at(i)->works())
            printf("%s: not on this machine\n", all[n]);
    }
}

int main(int argc, char **argv)
{
    static float x[ROWS_MOST * IN];
    struct device *d;
    struct queue *q;
    int wrong = 0;

    if (backend_ref.open(0, 1, &d) < 0 || backend_ref.queue_open(d, &q) < 0)
        return 1;
    for (int i = 0; i < ROWS_MOST * IN; i++)
        x[i] = synth_uniform(9, (uint64_t)i);
    printf("%d x %d, one core at %.2f GHz, G weights/s at", IN, OUT, core_ghz());
    for (size_t r = 0; r < sizeof(row_counts) / sizeof(row_counts[0]); r++)
        printf(" %d,", row_counts[r]);
    printf(" rows\n");
    tell_missing();
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]) && !wrong; i++)
        if (argc < 3 || strstr(types[i].name, argv[2]))
            wrong = type_bench(q, types[i].name, types[i].m, x,
                               argc > 1 && argv[1][0] ? argv[1] : NULL);
    if (lowest > 0)
        printf("lowest share of the table: %.0f%%, wanted 90%%\n", 100 * lowest);
    d->ops->queue_close(q);
    d->ops->close(d);
    return wrong;
}
