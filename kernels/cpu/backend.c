/* backend.c owns the table of the cpu backend: ref's, with the products of the best instruction
 * set. */
#include "kernels/cpu/cpu.h"
#include "kernels/ref/host.h"
#include "kernels/ref/ref.h"

static void cpu_matmul(struct queue *q, const struct matmul_args *a)
{
    product_matmul(q, a, cpu_best()->strip);
}

static void cpu_moe(struct queue *q, const struct moe_args *a)
{
    product_moe(q, a, cpu_best()->strip);
}

static int cpu_open(int ordinal, int threads, struct device **out)
{
    return host_open(&backend_cpu, cpu_best()->name, threads, out);
}

/* The last initialiser of an entry is the one that stays. */
#pragma GCC diagnostic ignored "-Woverride-init"
static const struct op_table cpu_ops = {
#define REF_FILL(name) .name = ref_##name,
    OP_LIST(REF_FILL)
#undef REF_FILL
        .matmul = cpu_matmul,
    .moe = cpu_moe,
};

const struct backend_ops backend_cpu = {
    .name = "cpu", .op = &cpu_ops, .open = cpu_open, HOST_ENTRIES
};
