#include "tests/kernels/qmat.h"

#undef COUNT /* bed.h and lab.h count alike, in other types */
#include "tests/device/qmats.h"

bool qmats_type(int i, struct mat *m)
{
    bool there = qmat_each(i, m);

    if (there && m->dtype > DTYPE_COUNT)
        m->q.layout = LAYOUT_DEVICE;
    return there;
}

const char *qmats_name(const struct mat *m)
{
    return qmat_name(m);
}

void *qmats_fill(struct lab *l, struct mat *m, size_t *bytes)
{
    struct mat_parts p;
    struct bed b;
    void *blob;

    mat_parts(m, &p);
    *bytes = p.total;
    blob = calloc(1, p.total + 64);
    bed_open(&b, 1);
    b.seed = l->seed += 1 << 20;
    qmat_make(&b, m);
    if (blob && m->data)
        memcpy(blob, m->data, p.total);
    bed_close(&b);
    mat_place(m, blob);
    return blob;
}
