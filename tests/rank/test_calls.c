/* What a recorded call of the experts reads: by who was chosen, whatever the number of choices. */
#include "src/model/exec.h"
#include "src/rank/calls.h"
#include "tests/kernels/bed.h"

#define SIDE 16
#define EXPERTS 2

static void record(struct bed *b, int rows, int k, int distinct)
{
    struct exec x = { .op = b->op, .q = b->q };
    struct mat w[3 * EXPERTS];
    int32_t *id = bed_take(b, (size_t)(rows * k) * sizeof(*id));
    double one = 3.0 * SIDE * SIDE;
    const struct call *c;
    struct calls *calls;

    for (int i = 0; i < 3 * EXPERTS; i++)
        w[i] = bed_mat(b, SIDE, SIDE, DTYPE_F32, 1, NULL);
    for (int i = 0; i < rows * k; i++)
        id[i] = i == rows * k - 1 ? distinct - 1 : -1; /* the last of all counts as well */
    id[0] = 0;
    cr_assert(eq(int, calls_open(&x, 1, &calls), 0));
    calls_record(calls);
    x.op->moe(x.q, &(struct moe_args){ .w1 = w,
                                       .w3 = w + EXPERTS,
                                       .w2 = w + 2 * EXPERTS,
                                       .x = bed_f32(b, (size_t)(rows * SIDE), 1),
                                       .weight = bed_f32(b, (size_t)(rows * k), 1),
                                       .id = id,
                                       .y = bed_zeros(b, (size_t)(rows * SIDE)),
                                       .scratch = bed_zeros(b, (size_t)(rows * (k + 1) * 2 * SIDE)),
                                       .rows = rows,
                                       .experts = EXPERTS,
                                       .k = k,
                                       .dim = SIDE,
                                       .inter = SIDE,
                                       .kinds = 1u << DTYPE_F32 });
    calls_end(calls);
    cr_assert(eq(int, calls_settle(calls), 0));
    c = calls_at(calls, 0);
    cr_expect(eq(int, c->chosen, distinct), "%d rows", rows);
    cr_expect(eq(dbl, c->weights, distinct * one), "%d rows", rows);
    cr_expect(eq(dbl, c->bytes, distinct * one * sizeof(float)), "%d rows", rows);
    calls_close(calls);
}

Test(calls, experts_are_counted_whatever_the_rows)
{
    struct bed b;

    bed_open(&b, 1);
    record(&b, 1, 1, 1);
    record(&b, 4, 2, 2);
    record(&b, 4096, 6, 2);
    bed_close(&b);
}
