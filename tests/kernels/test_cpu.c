#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/qmat.h"

static const int row_counts[] = { 1, 2, 3, 4, 5, 7, 8, 9, 16, 63, 64, 70 };

/* Values of all magnitudes that f16 has, zeros and negative zeros among them. */
static void wide_values(struct bed *b, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t w = qmat_word(b);
        float v = synth_uniform(w, i) * f32_from_bits((uint32_t)(104 + w % 32) << 23);

        x[i] = w % 19 == 0 ? 0 : w % 23 == 0 ? -0.0f : v;
    }
}

static void expect_ref_bits(struct bed *b, const struct cpu_set *set, const struct mat *m,
                            const float *x, enum codec in)
{
    int most = row_counts[COUNT(row_counts) - 1];
    size_t n = (size_t)(most * m->rows);
    float *want = bed_zeros(b, n), *y = bed_zeros(b, n);
    struct matmul_args a = { .w = m, .x = x, .y = want, .rows = most, .in = in };

    product_matmul(b->q, &a, ref_strip);
    a.y = y;
    for (size_t i = 0; i < COUNT(row_counts); i++) {
        bed_fill(b, y, n, 1);
        a.rows = row_counts[i];
        product_matmul(b->q, &a, set->strip);
        cr_expect(bed_same(y, want, (size_t)(a.rows * m->rows)),
                  "%s, %s, %d x %d, %d rows, codec %d", set->name, qmat_name(m), m->rows, m->cols,
                  a.rows, (int)in);
    }
}

Test(cpu, every_set_has_the_bits_of_ref)
{
    static const struct {
        int rows, cols;
    } shapes[] = { { 200, 288 }, { 128, 1440 }, { 16, 32 } };
    int sets = 0;

    for (int i = 0; cpu_set_at(i); i++) {
        const struct cpu_set *set = cpu_set_at(i);
        struct mat m;

        if (!set->works()) {
            cr_log_warn("%s: not on this machine", set->name);
            continue;
        }
        sets++;
        for (int type = 0; qmat_each(type, &m); type++)
            for (size_t s = 0; s < COUNT(shapes); s++) {
                struct bed b;
                float *x;

                bed_open(&b, 1 + type % 3);
                b.seed += (uint64_t)(100 * type);
                m.rows = shapes[s].rows;
                m.cols = shapes[s].cols;
                m.q.has_bias = type % 2;
                qmat_make(&b, &m);
                x = bed_zeros(&b, (size_t)(70 * m.cols));
                wide_values(&b, x, (size_t)(70 * m.cols));
                expect_ref_bits(&b, set, &m, x, type % 2 ? CODEC_QW : CODEC_F32);
                cr_expect(eq(int, bed_wait(&b), 0));
                bed_close(&b);
            }
    }
    cr_expect(sets >= 1);
}

/* At 8 bits a tile's states are pairs of neighbouring bytes: 1.2 million of them leave out next to
 * none. */
Test(cpu, every_set_decodes_all_states)
{
    for (int i = 0; cpu_set_at(i); i++)
        for (int c = CODEBOOK_3INST; c <= CODEBOOK_MUL1 && cpu_set_at(i)->works(); c++) {
            struct mat m = { .dtype = DTYPE_EXL3,
                             .rows = 1024,
                             .cols = 1152,
                             .q = { .codebook = (uint8_t)c, .bits2 = 16 } };
            float *x, *y, *want;
            struct bed b;

            bed_open(&b, 2);
            qmat_make(&b, &m);
            for (int n = 0; n < m.rows; n++)
                ((uint16_t *)m.svh)[n] = 0x3c00;
            x = bed_f32(&b, (size_t)m.cols, 1);
            y = bed_zeros(&b, (size_t)m.rows);
            want = bed_zeros(&b, (size_t)m.rows);
            product_matmul(b.q, &(struct matmul_args){ .w = &m, .x = x, .y = want, .rows = 1 },
                           ref_strip);
            product_matmul(b.q, &(struct matmul_args){ .w = &m, .x = x, .y = y, .rows = 1 },
                           cpu_set_at(i)->strip);
            cr_expect(bed_same(y, want, (size_t)m.rows), "%s, %s", cpu_set_at(i)->name,
                      qmat_name(&m));
            bed_close(&b);
        }
}

Test(cpu, the_best_set_works_here)
{
    cr_expect(cpu_best()->works());
    cr_expect(backend_cpu.op->matmul != ref_ops.matmul && backend_cpu.op->moe != ref_ops.moe);
    cr_expect(backend_cpu.op->attend == ref_ops.attend);
    cr_expect(cpu_set_at(-1) == NULL);
    cr_expect(cpu_set_at(0)->works());
}

Test(cpu, a_device_is_called_by_its_set)
{
    const struct backend_ops *backend;
    struct device *d;

    cr_assert(eq(int, backend_find("cpu", &backend), 0));
    cr_assert(eq(int, backend->open(0, 1, &d), 0));
    cr_expect(eq(str, d->name, (char *)cpu_best()->name));
    backend->close(d);
}
