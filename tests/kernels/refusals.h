/* refusals - calls that no backend takes: each fails the queue with -EINVAL, whatever it would have
 * read. */
#ifndef TANDEM_TESTS_KERNELS_REFUSALS_H
#define TANDEM_TESTS_KERNELS_REFUSALS_H

#include "kernels/backend.h"
#include "kernels/ops.h"

#define REFUSALS_BYTES ((size_t)1 << 20)

/* got - a call, in words, and what the wait behind it returned. */
typedef void refusals_fn(const char *call, int r);

#define REFUSED(name, ...)                                                                         \
    do {                                                                                           \
        q->ops->op->name(q, &(struct name##_args){ __VA_ARGS__ });                                 \
        got(#name " " #__VA_ARGS__, q->ops->wait(q));                                              \
    } while (0)

static inline struct state_view refusals_rows(void *m, enum codec codec, int cols)
{
    return (struct state_view){ m, 16384, 4096, 4, codec, cols };
}

static inline void refusals_of_states(struct queue *q, void *m, refusals_fn *got)
{
    struct state_view f32 = refusals_rows(m, CODEC_F32, 64), qw = refusals_rows(m, CODEC_QW, 64),
                      part = refusals_rows(m, CODEC_QW, 40), few = f32;

    few.cap = 2;
    REFUSED(requant, .x = m, .rows = 1, .cols = 40, .codec = CODEC_QW);
    REFUSED(row_put, .x = m, .view = f32, .info = m, .rows = 1, .col0 = -1, .width = 4);
    REFUSED(row_put, .x = m, .view = f32, .info = m, .rows = 1, .col0 = 61, .width = 4);
    REFUSED(row_put, .x = m, .view = qw, .info = m, .rows = 1, .width = 32);
    REFUSED(row_put, .x = m, .view = part, .info = m, .rows = 1);
    REFUSED(row_get, .view = qw, .info = m, .y = m, .rows = 1);
    REFUSED(pool, .raw = f32, .info = m, .y = m, .rows = 1, .cols = 32, .ratio = 0);
    REFUSED(pool, .raw = few, .info = m, .y = m, .rows = 1, .cols = 32, .ratio = 3);
    REFUSED(pool, .raw = qw, .info = m, .y = m, .rows = 1, .cols = 32, .ratio = 2);
    REFUSED(unshard, .x = m, .y = m, .width = { 2 }, .ranks = 0, .rows = 1, .ldx = 2);
    REFUSED(unshard, .x = m, .y = m, .width = { 2 }, .ranks = RANKS_MAX + 1, .rows = 1, .ldx = 2);
    REFUSED(unshard, .x = m, .y = m, .width = { -1 }, .ranks = 1, .rows = 1, .ldx = 2);
    REFUSED(unshard, .x = m, .y = m, .width = { 3 }, .ranks = 1, .rows = 1, .ldx = 2);
}

#define REFUSED_ATTEND(...)                                                                        \
    REFUSED(attend, .q = m, .sink = m, .info = m, .o = m, .scratch = m, .rows = 1, .heads = 2,     \
            .span = 2, __VA_ARGS__)
#define REFUSED_GQA(...)                                                                           \
    REFUSED(attend_gqa, .q = m, .info = m, .o = m, .scratch = m, .rows = 1, .dim = 32, __VA_ARGS__)
#define REFUSED_SELECT(...)                                                                        \
    REFUSED(select, .q = m, .wt = m, .info = m, .sel = m, .scratch = m, .rows = 1, .heads = 2,     \
            .topk = 4, __VA_ARGS__)

static inline void refusals_of_attention(struct queue *q, void *m, refusals_fn *got)
{
    struct state_view f32 = refusals_rows(m, CODEC_F32, 64), f16 = refusals_rows(m, CODEC_F32, 16),
                      qw = refusals_rows(m, CODEC_QW, 64), odd = refusals_rows(m, CODEC_QW, 48),
                      half = refusals_rows(m, CODEC_QI, 16), wide = refusals_rows(m, CODEC_QI, 544),
                      thin = refusals_rows(m, CODEC_F32, 24);

    REFUSED(rope, .x = m, .freq = m, .info = m, .rows = 1, .heads = 1, .cols = 64, .dims = 31);
    REFUSED(rope, .x = m, .freq = m, .info = m, .rows = 1, .heads = 1, .cols = 64, .dims = 66);
    REFUSED_ATTEND(.win = thin, .dim = 24);
    REFUSED_ATTEND(.win = odd, .dim = 48);
    REFUSED_ATTEND(.win = qw, .dim = 32);
    REFUSED_ATTEND(.win = qw, .dim = 64, .more = f16, .sel = m, .topk = 2);
    REFUSED_ATTEND(.win = f16, .dim = 16, .more = half, .sel = m, .topk = 2);
    REFUSED_GQA(.k = f32, .v = f32, .heads = 2, .kv_heads = 0);
    REFUSED_GQA(.k = f32, .v = f32, .heads = 3, .kv_heads = 2);
    REFUSED_GQA(.k = qw, .v = f32, .heads = 2, .kv_heads = 2);
    REFUSED_GQA(.k = f32, .v = qw, .heads = 2, .kv_heads = 2);
    REFUSED_SELECT(.keys = thin, .dim = 24);
    REFUSED_SELECT(.keys = wide, .dim = 544);
    REFUSED_SELECT(.keys = f32, .dim = 32);
    REFUSED_SELECT(.keys = half, .dim = 16);
    REFUSED_SELECT(.keys = f32, .dim = 64, .cand_out = m, .blocks = 0, .block = 4);
    REFUSED_SELECT(.keys = f32, .dim = 64, .cand_in = m, .blocks = 2, .block = 0);
    REFUSED_SELECT(.keys = f32, .dim = 64, .cand_in = m, .cand_out = m, .blocks = 2, .block = 4);
}

#define REFUSED_MIX(...)                                                                           \
    REFUSED(hc_mix, .x = m, .base = m, .scale = m, .pre = m, .post = m, .comb = m, .rows = 1,      \
            .dim = 32, .iters = 2, __VA_ARGS__)

static inline void refusals_of_products(struct queue *q, void *m, refusals_fn *got)
{
    struct mat plain = { .data = m, .dtype = DTYPE_F32, .rows = 24, .cols = 128 };
    struct mat fp8 = { .data = m, .scale = m, .dtype = DTYPE_FP8, .rows = 32, .cols = 72 };
    struct mat exl3 = { .data = m, .suh = m, .svh = m, .dtype = DTYPE_EXL3, .cols = 128 };

    fp8.q = (struct quant){ .layout = LAYOUT_DEVICE, .block = 32, .e8m0 = 1 };
    exl3.rows = 128;
    exl3.q = (struct quant){ .layout = LAYOUT_DEVICE, .bits2 = 6 };
    REFUSED(matmul, .w = &plain, .x = m, .y = m, .rows = 1, .groups = 5);
    REFUSED(matmul, .w = &plain, .x = m, .y = m, .rows = 1, .groups = -1);
    REFUSED(matmul, .w = &fp8, .x = m, .y = m, .rows = 1, .in = CODEC_QW);
    REFUSED(matmul, .w = &exl3, .x = m, .y = m, .rows = 1, .groups = 4);
    REFUSED_MIX(.fn = &plain, .hc = 0);
    REFUSED_MIX(.fn = &plain, .hc = HC_MAX + 1);
    plain.cols = 96; /* 3 streams have 15 mixes */
    REFUSED_MIX(.fn = &plain, .hc = 3);
    REFUSED_MIX(.fn = &plain, .hc = 4);
    fp8.rows = 24;
    fp8.cols = 128;
    REFUSED_MIX(.fn = &fp8, .hc = 4);
    REFUSED(hc_expand, .y = m, .post = m, .comb = m, .x = m, .rows = 1, .hc = 0, .dim = 32);
    REFUSED(hc_expand, .y = m, .post = m, .comb = m, .x = m, .rows = 1, .hc = HC_MAX + 1,
            .dim = 32);
    REFUSED(route, .logit = m, .bias = m, .id = m, .weight = m, .rows = 1, .experts = 8, .k = 0);
    REFUSED(route, .logit = m, .bias = m, .id = m, .weight = m, .rows = 1, .experts = 8, .k = 9);
    REFUSED(route, .logit = m, .bias = m, .id = m, .weight = m, .rows = 1, .experts = 1025, .k = 2);
    REFUSED(moe, .w1 = &exl3, .w3 = &exl3, .w2 = &exl3, .x = m, .weight = m, .id = m, .y = m,
            .scratch = m, .rows = 1, .experts = 0, .k = 1, .dim = 128, .inter = 128);
    REFUSED(moe, .w1 = &exl3, .w3 = &exl3, .w2 = &exl3, .x = m, .weight = m, .id = m, .y = m,
            .scratch = m, .rows = 1, .experts = 1025, .k = 1, .dim = 128, .inter = 128);
    exl3.q.layout = LAYOUT_CPU;
    REFUSED(synth, .w = exl3, .tile_cols = 8, .strips = 1);
    fp8.q.layout = LAYOUT_DEVICE;
    REFUSED(synth, .w = fp8, .tile_cols = 8, .strips = 1);
}

#define REFUSED_CHOICE(...)                                                                        \
    REFUSED(choose, .best = m, .sampler = m, .info = m, .choice = m, .scratch = m, .rows = 1,      \
            __VA_ARGS__)
#define REFUSED_CHAIN(...)                                                                         \
    REFUSED(markov, .cand = m, .h = m, .proj = m, .sampler = m, .info = m, .draft = m, .conf = m,  \
            .dim = 8, __VA_ARGS__)

static inline void refusals_of_choices(struct queue *q, void *m, refusals_fn *got)
{
    struct table embed = { m, DTYPE_F32, 16, 8 }, head = { m, DTYPE_F32, 16, 12 },
                 wide = { m, DTYPE_F32, 16, 1025 };

    REFUSED(best, .logits = m, .cand = m, .rows = 1, .cols = 64, .k = 0);
    REFUSED(best, .logits = m, .cand = m, .rows = 1, .cols = 4096, .k = TOPK_MAX + 1);
    REFUSED(mass, .logits = m, .sampler = m, .info = m, .mass = m, .rows = 1, .cols = 64, .id0 = 64,
            .ld = 4);
    REFUSED(mass, .logits = m, .sampler = m, .info = m, .mass = m, .rows = 1, .cols = 321, .ld = 1);
    REFUSED_CHOICE(.width = { 64 }, .ranks = 0);
    REFUSED_CHOICE(.width = { 64 }, .ranks = RANKS_MAX + 1);
    REFUSED_CHOICE(.width = { 64 }, .ranks = 1, .k = -1);
    REFUSED(logprob, .best = m, .mass = m, .sampler = m, .info = m, .out = m, .width = { 64 },
            .ranks = 0, .rows = 1, .k = 1, .ldm = 1);
    REFUSED(logprob, .best = m, .mass = m, .sampler = m, .info = m, .out = m, .width = { 64 },
            .ranks = RANKS_MAX + 1, .rows = 1, .k = 1, .ldm = 1);
    REFUSED(logprob, .best = m, .mass = m, .sampler = m, .info = m, .out = m, .width = { 64 },
            .ranks = 1, .rows = 1, .k = 0, .ldm = 1);
    REFUSED_CHAIN(.rows = 4, .block = 4, .ranks = 0, .k = 2);
    REFUSED_CHAIN(.rows = 4, .block = 4, .ranks = RANKS_MAX + 1, .k = 2);
    REFUSED_CHAIN(.rows = 4, .block = 4, .ranks = 1, .k = 0);
    REFUSED_CHAIN(.rows = 4, .block = 4, .ranks = 1, .k = TOPK_MAX + 1);
    REFUSED_CHAIN(.rows = 4, .block = 0, .ranks = 1, .k = 2);
    REFUSED_CHAIN(.rows = 4, .block = 3, .ranks = 1, .k = 2);
    REFUSED_CHAIN(.embed = &embed, .head = &head, .rows = 4, .block = 4, .ranks = 1, .k = 2);
    REFUSED_CHAIN(.embed = &embed, .rows = 4, .block = 4, .ranks = 1, .k = 2);
    REFUSED_CHAIN(.embed = &wide, .head = &wide, .rows = 4, .block = 4, .ranks = 1, .k = 2);
    REFUSED(side, .at = SIDE_JOIN, .lane = -1);
    REFUSED(side, .at = SIDE_JOIN, .lane = SIDE_LANES);
}

/* refusals_run - every one of them on q; m: REFUSALS_BYTES of the device, zeros. */
static inline void refusals_run(struct queue *q, void *m, refusals_fn *got)
{
    refusals_of_states(q, m, got);
    refusals_of_attention(q, m, got);
    refusals_of_products(q, m, got);
    refusals_of_choices(q, m, got);
}

#endif
