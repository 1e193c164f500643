/* backend.c owns the table of the reference backend. */
#include "kernels/ref/host.h"
#include "kernels/ref/ref.h"

static int ref_open(int ordinal, int threads, struct device **out)
{
    return host_open(&backend_ref, "plain", threads, out);
}

const struct op_table ref_ops = {
#define REF_FILL(name) .name = ref_##name,
    OP_LIST(REF_FILL)
#undef REF_FILL
};

const struct backend_ops backend_ref = {
    .name = "ref", .op = &ref_ops, .open = ref_open, HOST_ENTRIES
};
