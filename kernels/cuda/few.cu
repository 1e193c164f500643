// few.cu launches the experts of few rows: an instance of the kernel for each set of kinds that
// occur together, and one for any other mixture.
#include "kernels/cuda/few.cuh"

#define TURN 150    // ns between the first items of two blocks of a multiprocessor
#define BESIDE 2304 // bytes of a block in shared memory beside rooms and list

#define W(b) exl3_codes<b>,
// The commonest widths first: kinds are compared in this order.
using light = few_set<exl3_codes<6>, exl3_codes<10>, exl3_codes<8>, exl3_codes<4>, exl3_codes<5>,
                      exl3_codes<3>, exl3_codes<2>, few_half<10>, few_half<6>>;
using scaled = few_set<fp8_codes, fp4_codes<DTYPE_MXFP4>, fp4_codes<DTYPE_NVFP4>>;
using plain = few_set<bf16_codes>;
using rest =
    few_set<EXL3_WIDTHS(W) fp8_codes, fp4_codes<DTYPE_MXFP4>, fp4_codes<DTYPE_NVFP4>, bf16_codes>;
#undef W

template <class SET> static bool go(struct queue *q, struct few_launch *p)
{
    const struct cuda_device *d = (const struct cuda_device *)q->dev;
    int lots = p->picks + (p->a.s1 ? (int)blocks_for((size_t)p->a.rows, STRIP_TOKENS) : 0);
    int items = p->inputs + p->rows, shared, fit;

    if (p->a.kinds & ~SET::KINDS)
        return false;
    for (int i = 0; i < 2; i++) {
        struct few_phase *f = &p->of[i];

        f->strips = (int)blocks_for((size_t)(i ? p->a.dim : p->a.inter), SET::OUTPUTS);
        f->each = (2 - i) * f->splits;
        f->over_each = few_inverse(f->each);
        f->over_strips = few_inverse(f->strips);
        f->over_parts = few_inverse(f->splits * FEW_WARPS);
        items += lots * f->strips * f->each;
    }
    p->of[1].ticket = p->of[0].ticket + p->places * p->of[0].strips;
    for (int i = 0; i < 3; i++) {
        p->mats[0][i] = i == 0 ? p->a.w1 : i == 1 ? p->a.w3 : p->a.w2;
        p->mats[1][i] = i == 0 ? p->a.s1 : i == 1 ? p->a.s3 : p->a.s2;
    }
    p->turn = TURN;
    p->room =
        SET::room(p->a.kinds | (p->a.s1 && p->a.rows > STRIP_TOKENS ? SET::halves(p->a.kinds) : 0));
    shared = FEW_WARPS * p->room + few_list_bytes(p->picks, lots);
    fit = d->shared_sm / (shared + BESIDE);
    fit = d->sms * (fit < SET::BLOCKS ? fit : SET::BLOCKS);
    launch(q, few_rows<SET>, (unsigned)(items < fit ? items : fit), FEW_THREADS, (size_t)shared,
           *p);
    return true;
}

void few_experts(struct queue *q, struct few_launch *p)
{
    (void)(go<light>(q, p) || go<scaled>(q, p) || go<plain>(q, p) || go<rest>(q, p));
}
