/* ops - everything a device computes, one args struct an op.
 *
 * Pointers are device pointers; shapes are C order and sizes are this rank's share. Activations are
 * stored as f32 in every backend; `round` says whether a result is rounded to bf16 (nearest even)
 * where the family's numerics put a rounding point. R is the number of rows of the window.
 *
 * Laws of every op: a row's result does not depend on the other rows, on R, or on the number of
 * workers, bit for bit; sums run in index order in f32, multiply then add. cuda == ref within
 * `tol`, stated beside an op as the largest allowed |difference| / max(1, |ref|) at L0; 0: equal.
 *
 * An op that finds a bad argument fails the queue with -EINVAL and writes nothing.
 */
#ifndef TANDEM_KERNELS_OPS_H
#define TANDEM_KERNELS_OPS_H

#include "kernels/mat.h"
#include "src/base/limits.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

struct queue;

#define TOPK_MAX 1024 /* candidates a rank offers for one drafted row, at most */

enum round { ROUND_NONE, ROUND_BF16 };

/* How a row of a state is stored. QW, QC and QI are the cache quantisers of the V4.1 family: blocks
 * of 32 e4m3 with a power-of-two scale, of 16 e2m1 with an e4m3 scale, of 32 e2m1 with a
 * power-of-two scale. Of two e2m1 codes in a byte the even element is the low nibble. A block with
 * a NaN or an infinity stores a NaN as its scale and reads back as NaN, so bad numbers reach the
 * logits, where they end the request. */
enum codec { CODEC_F32, CODEC_QW, CODEC_QC, CODEC_QI };

/* codec_bytes - of a row of cols values: codes first, then one scale byte a block.
 * 528 for QW of 512 values, 288 for QC of 512, 68 for QI of 128. cols: whole blocks. */
static inline size_t codec_bytes(enum codec c, int cols)
{
    size_t n = (size_t)cols;

    switch (c) {
    case CODEC_QW:
        return n + n / 32;
    case CODEC_QC:
        return n / 2 + n / 16;
    case CODEC_QI:
        return n / 2 + n / 32;
    default:
        return n * 4;
    }
}

/* ---- what lives on the device between ops ---------------------------------------------------- */

/* State of a slot that kernels read: the number of committed tokens, the fold lane and the kept
 * updates, the first position whose drafter rows belong to this request, and the pending token. */
struct slot_head {
    int32_t pos, base, pend, floor, next;
    int32_t pad[3];
};
static_assert(sizeof(struct slot_head) == 32, "slot_head is shared with devices");

/* One slot's part of a window: rows first .. first + len - 1 of the window belong to slot. The
 * tokens of a SEG_KNOWN segment are text already (a prompt's chunk): all of its rows are kept. */
enum segment_flag { SEG_KNOWN = 1 };

struct segment {
    int32_t slot, first, len, flags;
};
static_assert(sizeof(struct segment) == 16, "segment is shared with devices");

/* What an op knows about a row: slot, absolute position, token and its slot's first row. */
struct row_info {
    int32_t slot, pos, tok, first;
};
static_assert(sizeof(struct row_info) == 16, "row_info is shared with devices");

/* The rows of one state: row p of slot s is at base + s * slot_stride + (p % cap) * row_bytes. */
struct state_view {
    unsigned char *base;
    size_t slot_stride, row_bytes;
    int cap;
    enum codec codec;
    int cols;
};

/* Sampling of one request. temperature <= 0 is greedy; top_k 0, top_p outside (0, 1), min_p <= 0,
 * repetition 0 or 1, frequency 0 and presence 0 are off. Order: bias, repetition, frequency and
 * presence, bans, temperature, top-k, top-p, min-p, keyed draw (docs/DECODE.md "sampling"). */
#define SAMPLER_ENDS 16
struct sampler {
    double temperature, top_p, min_p;
    uint64_t seed;
    double repetition, frequency, presence;
    int32_t top_k;
    int32_t min_tokens; /* the reply is at least so long: the tokens in end[] are banned before */
    int32_t prompt;     /* tokens of the prompt: what stands behind them is output */
    int32_t biases;     /* > 0: a row of biases belongs to the slot; a bias of -inf bans */
    int32_t logprobs;   /* 0: none, else one more than the best tokens wanted beside the chosen */
    int32_t ends, end[SAMPLER_ENDS];
};
static_assert(sizeof(struct sampler) == 144, "sampler is shared with devices");

struct candidate {
    float z;
    int32_t id; /* -1: no finite logit */
};
static_assert(sizeof(struct candidate) == 8, "candidate crosses the wire");

#define MASS_CHUNK 320 /* ids; chunks are counted from id 0, so a share begins with a whole one */

/* Of a chunk of ids: its largest logit, and the sum of e^(x - x of that) at some temperature. */
struct chunk_mass {
    double sum;
    float peak; /* -inf: nothing finite */
    float z;    /* the logit of a token that was asked for, -inf if it is not in this chunk */
};
static_assert(sizeof(struct chunk_mass) == 16, "chunk_mass crosses the wire");

#define LOGPROBS_MAX 20

/* Of one row: log p of the chosen token, and the n best tokens with theirs. */
struct logprobs {
    double chosen, top[LOGPROBS_MAX];
    int32_t id[LOGPROBS_MAX], n, pad;
};
static_assert(sizeof(struct logprobs) == 256, "logprobs is shared with devices");

#define COUNT_PROMPT 0x80000000u /* in a count: the token stands in the prompt */

/* ---- window and embedding -------------------------------------------------------------------- */

/* stage - expand segments to rows: info[first + i] = { slot, head[slot].pos + ahead + i, tok[first
 * + i], first }.
 * note     tok -1 is the slot's pending token, head[slot].next: drafters start from it on the
 *          device; ahead is how far a chain of drafts has come          tol 0 */
struct stage_args {
    const struct segment *seg;    /* [segs] */
    const struct slot_head *head; /* [slots] */
    const int32_t *tok;           /* [R] */
    struct row_info *info;        /* [R] out */
    int segs, ahead;
};

/* embed - y[r][c] = table[info[r].tok] for each of `copies` streams c.
 * shapes   y [R][copies][cols]          errors   -EINVAL a token outside the table         tol 0 */
struct embed_args {
    const struct table *table;
    const struct row_info *info;
    float *y;
    int rows, copies;
};

/* ---- dense pieces ---------------------------------------------------------------------------- */

/* rmsnorm - y = x * rsqrt(mean(x^2) + eps) * w, one rounding.
 * shapes   x, y [rows][cols], may be the same; w [cols] f32         tol 1e-6 + 3e-8 * sqrt(cols) */
struct rmsnorm_args {
    const float *x, *w;
    float *y;
    int rows, cols;
    float eps;
    enum round round;
};

/* matmul - y[r][g][n] = sum_k w[g * rows/groups + n][k] x[r][g][k].
 * shapes   x [rows][groups][w.cols]; y [rows][w.rows]; groups divides w.rows (1: plain)
 * units    y = round(sum); what w and the sum are for quantised weights: mat.h
 * note     in CODEC_QW: the inputs of an FP8 or MXFP4 weight first go through the quantiser, as the
 *          released numerics have it; other weights ignore it. cols is then a multiple of its block
 * tol 2e-6 * sqrt(cols), bf16 results 1 ulp */
struct matmul_args {
    const struct mat *w;
    const float *x;
    float *y;
    int rows, groups; /* groups 0 is 1 */
    enum codec in;    /* CODEC_F32: as they are */
    enum round round;
};

/* matmuls - n products of the same inputs: each as op matmul has it, in any order or side by side.
 * shapes   x and rows are those of of[0] in all; no y is another's, or x
 * note     on a device the bits may depend on what else is in the list, as ever not on the number
 *          of rows */
#define MATMULS_MAX 6

struct matmuls_args {
    struct matmul_args of[MATMULS_MAX];
    int n;
};

/* add - y = round(y + x).
 * note     x is a sum over ranks that nobody has rounded: the residual is rounded once     tol 0 */
struct add_args {
    const float *x;
    float *y;
    int rows, cols;
    enum round round;
};

/* swiglu - y = silu(gate) * up. With limit > 0: gate is capped at limit, up clamped to +-limit.
 * shapes   all [rows][cols]; y may be gate          tol 1e-6 */
struct swiglu_args {
    const float *gate, *up;
    float *y;
    int rows, cols;
    float limit;
    enum round round;
};

enum rope_pairs { ROPE_ADJACENT, ROPE_HALVES }; /* (2i, 2i+1), or (i, i + dims/2) */

/* rope - rotate the last `dims` of each head by angle position * freq[i], in place.
 * shapes   x [rows][heads][cols]; freq [dims / 2] f32
 * units    position = info[r].pos, or for ratio > 1 the first token of its group, pos - pos % ratio
 * note     angle is the f32 product; cos and sin are those of that angle, rounded to f32
 * tol 1e-6 */
struct rope_args {
    float *x;
    const float *freq;
    const struct row_info *info;
    int rows, heads, cols, dims, ratio; /* ratio 0 is 1 */
    int inverse;
    enum rope_pairs pairs;
    enum round round;
};

/* ---- state ----------------------------------------------------------------------------------- */

/* requant - replace each row by what storing it with the codec would give back.          tol 0 */
struct requant_args {
    float *x; /* [rows][cols] */
    int rows, cols;
    enum codec codec;
};

/* row_put - store row r of x as row (pos / ratio) of its slot's state; for ratio > 1 only rows that
 * end a group, (pos + 1) % ratio == 0, are stored.
 * shapes   x [rows][view.cols]
 * note     ldx is the distance of rows in x, 0 for view.cols; col0 the first value of a stored row
 *          that x covers, for states whose rows are written in pieces (f32 codec only); width 0 is
 *          view.cols          tol 0 */
struct row_put_args {
    const float *x;
    struct state_view view;
    const struct row_info *info;
    int rows, ratio, ldx, col0, width;
};

/* row_keeps - of n arrays of rows, each: rmsnorm by w, rope with ROPE_ADJACENT, then row_put. In
 * any order or side by side.
 * shapes   x [rows][view.cols], freq [dims / 2]; w NULL: no norm; rows are those of of[0] in all
 * note     x is scratch afterwards; ratio as in rope and row_put. view.base NULL: nothing is stored
 *          or turned, x is normed in place          tol as rmsnorm, one code */
#define ROW_KEEPS_MAX 3

struct row_keep {
    float *x;
    const float *w, *freq;
    struct state_view view;
    const struct row_info *info;
    int rows, dims, ratio;
    float eps;
    enum round round;
};

struct row_keeps_args {
    struct row_keep of[ROW_KEEPS_MAX];
    int n;
};

/* row_get - y[r] = row (pos + offset) of the row's slot; zeros if there is no such row yet.
 * shapes   y [rows][view.cols]          errors   -EINVAL a codec but f32          tol 0 */
struct row_get_args {
    struct state_view view;
    const struct row_info *info;
    float *y;
    int rows, offset;
};

/* pool - compressor of a group of `ratio` tokens: for a row that ends a group,
 *   y[c] = sum_i softmax_i(b_i[c]) * a_i[c] over the group's tokens in order;
 * other rows give zeros. a and b are the two halves of the rows of `raw`, written by row_put
 * before.
 * shapes   raw rows [2 * cols] f32, y [rows][cols]          tol 1e-6 */
struct pool_args {
    struct state_view raw;
    const struct row_info *info;
    float *y;
    int rows, cols, ratio;
    enum round round;
};

/* ---- hyper-connections ----------------------------------------------------------------------- */

#define HC_MAX 4

/* hc_mix - the three mixes of a site, from the flattened streams:
 *   m = (fn z) * rsqrt(mean(z^2) + eps), then pre, post and the Sinkhorn-normalised comb.
 * shapes   x [rows][hc][dim]; fn [(2 + hc) * hc][hc * dim] f32; base [(2 + hc) * hc], scale [3]
 *          f32; pre, post [rows][hc]; comb [rows][hc source][hc destination]
 * units    iters counts column normalisations; hc_eps is added where the released code adds it
 * tol 1e-5          source   docs/DECODE.md "hyper-connections" */
struct hc_mix_args {
    const float *x;
    const struct mat *fn;
    const float *base, *scale;
    float *pre, *post, *comb;
    int rows, hc, dim, iters;
    float eps, hc_eps;
};

/* hc_collapse - y[r] = round(sum_i pre[r][i] x[r][i]).
 * note     pre NULL is (1, 0, 0, ...): the identity of the first sublayer          tol 1e-6 */
struct hc_collapse_args {
    const float *x, *pre;
    float *y;
    int rows, hc, dim;
    enum round round;
};

/* hc_expand - x[r][k] = round(post[r][k] round(y[r]) + sum_j comb[r][j][k] x[r][j]), in place.
 * note     y is a sum over ranks that nobody has rounded yet          tol 1e-6 */
struct hc_expand_args {
    const float *y, *post, *comb;
    float *x;
    int rows, hc, dim;
    enum round round;
};

/* hc_site - from one sublayer to the next: hc_expand of x by y, hc_mix of what that gives, and the
 * next sublayer's input, h = hc_collapse of it and n = rmsnorm of h.
 * shapes   as there; h may be NULL; y NULL: nothing is expanded; fn NULL: nothing is mixed
 * note     post and comb are read before to_post and to_comb are written: they may be the same. The
 *          mixes have the bits that hc_mix gives them          tol 1e-5 on the mixes; n 1e-5 */
struct hc_site_args {
    const float *y, *post, *comb;
    float *x;
    const struct mat *fn;
    const float *base, *scale;
    float *to_pre, *to_post, *to_comb;
    const float *pre, *w;
    float *h, *n;
    int rows, hc, dim, iters;
    float eps, hc_eps;
    enum round round;
};

/* hc_mean - y[r] = round((x[r][0] + ... + x[r][hc-1]) / hc), written with row distance ldy.
 * tol 1e-6 */
struct hc_mean_args {
    const float *x;
    float *y;
    int rows, hc, dim, ldy;
    enum round round;
};

/* ---- attention ------------------------------------------------------------------------------- */

/* select - index scores of the visible entries of each row and the exact best of them.
 *   score[j] = scale * sum_h wt[r][h] * max(0, q[r][h] . key_j),   j < n = (pos + 1) / ratio
 * sel[r] holds the entries of the `topk` largest scores in ascending order, -1 behind them; larger
 * score first, then lower entry; -0 equals +0. If n <= topk every entry is selected and nothing is
 * scored. Candidates, two levels: with cand_out the blocks of `block` entries are ranked by their
 * largest visible score, the newest block first of all, ties to the lower block, and the best
 * `blocks` are written ascending, -1 behind them: with or without scoring, and all of them if they
 * are no more than `blocks`. With cand_in only entries of those blocks compete, if n > topk; not
 * both at once.
 * shapes   q [rows][heads][dim]; wt [rows][heads]; keys: rows of dim values; sel [rows][topk];
 *          cand_in, cand_out [rows][blocks]; scratch [workers][keys.cap] f32; dim a multiple of 16,
 *          up to 512
 * note     in CODEC_QI: q went through requant with it, and keys are stored with it
 * tol 0 on q.key sums whose products are exact; sets differ only among equal scores */
struct select_args {
    const float *q, *wt;
    struct state_view keys;
    const struct row_info *info;
    const int32_t *cand_in;
    int32_t *cand_out, *sel;
    float *scratch;
    int rows, heads, dim, ratio, topk, blocks, block;
    enum codec in;
    float scale;
};

enum attend_span {
    ATTEND_CAUSAL, /* positions pos - span + 1 .. pos */
    /* p - span .. p + block - 1 with p the position of the slot's first row, for every row */
    ATTEND_BLOCK
};

/* attend - one latent row is key and value of all heads; a sink enlarges the denominator only.
 *   l_j = q . k_j * scale; o = sum_j e^(l_j - m) k_j / (sum_j e^(l_j - m) + e^(sink - m))
 *   with m the largest of l and sink
 * keys: window rows in ascending position, then the selected rows of `more` in the order of sel.
 * shapes   q, o [rows][heads][dim], may not overlap; sink [heads]; sel [rows][topk], -1 ends;
 *          floor: rows before head[slot].floor are not read if `head` is given (drafter rings)
 *          scratch [workers][attend_scratch(...)] f32; dim a multiple of 16
 * note     round ROUND_BF16 rounds the probabilities before the value product, not the denominator,
 *          and o. With freq [dims / 2] the heads of q are first turned by their row's position, as
 *          rope does, and those of o turned back; q is scratch afterwards. sink and freq are
 *          weights: no op in front of this one, that has not been waited for, writes them
 * tol 2e-6 * (1 + log2 keys) */
struct attend_args {
    float *q;
    const float *sink, *freq;    /* freq NULL: q is turned already, o is not */
    struct state_view win, more; /* more.base NULL: none */
    const struct slot_head *head;
    const struct row_info *info;
    const int32_t *sel;
    float *o, *scratch;
    int rows, heads, dim, span, topk, block, dims;
    enum attend_span mode;
    float scale;
    enum round round;
};

/* attend_scratch - f32 values of scratch one worker of attend needs: keys and values of a window
 * that WINDOW_MAX rows share and of a selection, each a whole number of tiles, and their weights
 * for 8 heads. */
static inline size_t attend_scratch(int dim, int span, int block, int topk)
{
    size_t window = (size_t)(span + block + WINDOW_MAX - 1 + MAT_TILE - 1) / MAT_TILE * MAT_TILE;
    size_t chosen = (size_t)(topk + MAT_TILE - 1) / MAT_TILE * MAT_TILE;

    return (window + chosen) * (size_t)(2 * dim + 8);
}

/* attend_gqa - plain causal attention over all positions <= pos; query head h reads kv head
 * h / (heads / kv_heads).
 * shapes   q, o [rows][heads][dim]; k, v: f32 rows of kv_heads * dim; scratch [workers][k.cap]
 * note     rows before head[slot].floor are not read if `head` is given, but the row itself is
 * tol 1e-5 */
struct attend_gqa_args {
    const float *q;
    struct state_view k, v;
    const struct slot_head *head;
    const struct row_info *info;
    float *o, *scratch;
    int rows, heads, kv_heads, dim;
    float scale;
    enum round round;
};

/* ---- experts --------------------------------------------------------------------------------- */

/* route - s = sqrt(softplus(logit * temp)); the k experts with the largest s + bias, ties to the
 * lower id, listed by ascending id; weight = s / (sum of the k + 1e-20 if norm) * scale.
 * top_p    0: all of the k. Else one is left out, with id -1 and weight 0, where those of the k
 *          with a larger s (or the same and a lower id) hold top_p of their sum already; the sum is
 *          then that of those which stay
 * shapes   logit [rows][experts], up to 1024; bias [experts]; id, weight [rows][k]
 * tol 1e-6, ids equal unless tied
 * note     with a gate [experts][dim] the logits are made first: logit = gate x, x [rows][dim], tol
 *          as matmul */
struct route_args {
    const struct mat *gate; /* NULL: logit is there */
    const float *x;
    float *logit;
    const float *bias;
    int32_t *id;
    float *weight;
    int rows, experts, k, norm;
    float scale, temp, top_p;
};

/* moe - y[r] = sum over the row's experts, ascending, of w2 (weight * h) + shared w2 h,
 *   h = round(weight * silu(min(w1 x, limit)) * clamp(w3 x, +-limit)); w1 x and w3 x are rounded;
 * the shared expert comes last with weight 1. y is the f32 partial sum of this rank's share.
 * shapes   w1, w3, w2 [experts] mats of [inter][dim], [inter][dim], [dim][inter]; shared s1, s3, s2
 *          or NULL; id, weight [rows][k], id may be -1 (an expert that is not here); y [rows][dim];
 *          scratch [rows * (k + 1)][2 * widest inter] f32
 * note     in as in matmul, for x and for h; experts may differ in dtype and width; kinds is the
 *          union of their mat_kind: it says which products a device has to queue, for it reads the
 *          mats later. y is not x, whose rows are read after others of y have been written
 * errors   -ENOTSUP on a device: an expert whose kind is not in kinds
 * tol 2e-6 * sqrt(dim) */
struct moe_args {
    const struct mat *w1, *w3, *w2, *s1, *s3, *s2;
    const float *x, *weight;
    const int32_t *id;
    float *y, *scratch;
    /* inter: the widest share of w1 and s1, which scratch counts by */
    int rows, experts, k, dim, inter;
    uint32_t kinds;
    int mixed; /* mats_mixed of some expert */
    float limit;
    enum codec in;
    enum round round;
};

/* ---- engram ---------------------------------------------------------------------------------- */

/* unshard - y[r] = the ranks' pieces of row r, side by side: piece i has width[i] values.
 * shapes   x [ranks][rows][ldx], as a gather leaves it; y [rows][sum of width]          tol 0 */
struct unshard_args {
    const float *x;
    float *y;
    int width[RANKS_MAX];
    int ranks, rows, ldx;
};

/* engram_gate - x[r][i] = round(x + g_i * val), g_i = sigmoid(sign(d) sqrt(max(|d|, 1e-6))),
 *   d_i = sum_c x qw kw key * rsqrt(mean(x^2) + eps) * rsqrt(mean(key^2) + eps) * dim^-0.5
 * shapes   x [rows][hc][dim]; kv [rows][(hc + 1)][dim], keys first; qw, kw [hc][dim] f32
 * tol 1e-5 */
struct engram_gate_args {
    const float *kv, *qw, *kw;
    float *x;
    int rows, hc, dim;
    float eps;
    enum round round;
};

/* ---- choices (pick.c) ------------------------------------------------------------------------ */

/* best - the k largest logits of each row as candidates: larger first, then lower id.
 * shapes   logits [rows][cols]; cand [rows][k], k <= TOPK_MAX, padded with { -inf, -1 }
 * units    ids count from id0; a NaN or +inf in a row gives { NaN, -1 } in its first place
 * tol 0 */
struct best_args {
    const float *logits;
    struct candidate *cand;
    int rows, cols, k, id0;
};

/* draw - for rows of slots that sample without a filter: the token of this share that wins the draw
 * takes the first candidate's place. Other rows, and rows whose first candidate says NaN or none,
 * stay.
 * shapes   logits [rows][cols]; cand [rows][k], as best leaves it
 * units    ids count from id0; positions as choose          tol 0 */
struct draw_args {
    const float *logits;
    const struct sampler *sampler;
    const struct row_info *info;
    struct candidate *cand;
    void *scratch; /* [rows][DRAW_SCRATCH] bytes */
    int rows, cols, k, id0;
};

#define DRAW_SCRATCH 512

/* mass - of each chunk of this share, for rows that need the whole vocabulary's:
 *   pick NULL: rows whose sampler has top-p and no top-k, at their temperature;
 *   else: rows whose sampler wants logprobs, at temperature 1, with z of token pick[r]. Others
 *   stay.
 * In double: lane l sums ids l, l + 64, ... of the chunk in order, then the lanes are halved.
 * shapes   logits [rows][cols]; mass [rows][ld]; pick [rows]
 * units    ids count from id0, which is a multiple of MASS_CHUNK          tol 0 */
struct mass_args {
    const float *logits;
    const struct sampler *sampler;
    const struct row_info *info;
    const int32_t *pick;
    struct chunk_mass *mass;
    int rows, cols, id0, ld;
};

/* choose - one token a row from what the ranks gathered. Rows are
 *   greedy      the best of the ranks' first candidates
 *   sampled     from `full` if it is given: [ranks][rows][ldf] f32, where rank i holds width[i]
 *               logits, side by side the whole vocabulary. Else from candidates: without a filter
 *               the winner among the ranks' winners (draw); with top-k, and k at least that, the
 *               best of all; with top-p or min-p alone as far as they are sure, top-p by the mass
 *               of all chunks. Both give the same token.
 * A row that its candidates do not decide gets CHOICE_OPEN: top-p or min-p may reach behind the
 * last of some rank's candidates or tie with it, a sum comes within 1e-9 of top_p, the best
 * candidate is not the peak of the chunks, or the mass is not finite or not there.
 * shapes   sampler [SLOTS_MAX] by slot; choice [rows]; best [rows][k] and mass [rows][ldm] of rank
 *          0, rank i's i * stride bytes further on; k 0 is 1, stride 0 one of rows * k candidates
 * units    the position of a choice is info[r].pos + 1
 * note     top-p's mass: of what top-k left, summed in sorted order; without top-k of the whole
 *          vocabulary, by chunks (mass), which add times e^(their largest - the row's) in order.
 *          n_p counts up to the pair that brings the running sum of e^(x - largest) / mass to top_p
 * errors   a row without a finite logit fails the queue with -EBADMSG naming slot and row
 * tol 0 */
#define CHOICE_OPEN (-2)

struct choose_args {
    const struct candidate *best;
    const struct chunk_mass *mass; /* NULL: none */
    const float *full;             /* NULL: none */
    const struct sampler *sampler;
    const struct row_info *info;
    int32_t *choice;
    void *scratch; /* [workers][choose_scratch(vocab)] bytes */
    int width[RANKS_MAX];
    int ranks, rows, ldf, k, ldm;
    size_t stride;
};

static inline size_t choose_scratch(size_t vocab)
{
    return vocab * 24 + 1024;
}

/* logprob - log p = (z - m) - log(sum of the chunks' masses relative to m), m the largest logit,
 * for rows of slots that want logprobs; others stay. Before any edit, at temperature 1, in double.
 * shapes   best [rows][k] and mass [rows][ldm] of each rank (rank i's i * stride bytes further on),
 *          k at least logprobs - 1; the chosen token's z in its chunk, out [rows]
 * note     a row with CHOICE_OPEN gets nothing that counts          tol 0 */
struct logprob_args {
    const struct candidate *best;
    const struct chunk_mass *mass;
    const struct sampler *sampler;
    const struct row_info *info;
    struct logprobs *out;
    int width[RANKS_MAX];
    int ranks, rows, k, ldm;
    size_t stride;
};

/* count - tokens of known places become history: one before sampler[slot].prompt marks COUNT_PROMPT
 * in its token's count, another adds one.
 * shapes   info [rows], entries with slot -1 are nobody's; count [SLOTS_MAX][cols]; ids count from
 *          id0          tol 0 */
struct count_args {
    const struct row_info *info;
    const struct sampler *sampler;
    uint32_t *count;
    int rows, cols, id0;
};

/* penalize - the logits that are sampled from: y = logits with bias, penalties and bans
 * (sampling.h). The history of row r is count[slot] and the tokens of the slot's rows of the window
 * up to r; a token of end[] is -inf while the choice would be output number < min_tokens. Rows of
 * slots without edits are copied.
 * shapes   logits, y [rows][cols], no overlap; info [rows], whole slots; count, bias
 *          [SLOTS_MAX][cols]          tol 0 */
struct penalize_args {
    const float *logits;
    float *y;
    const struct sampler *sampler;
    const struct row_info *info;
    const uint32_t *count;
    const float *bias;
    int rows, cols, id0;
};

/* accept - for each segment the rows whose tokens became text:
 *   n_ok = 1 + the largest m with tok[first + i] == choice[first + i - 1] for i = 1 .. m (0 if len
 *   is 0)
 *   next = choice[first + n_ok - 1]
 * If one of these choices is CHOICE_OPEN the segment is undecided: n_ok = 0 and next = CHOICE_OPEN.
 * A SEG_KNOWN segment gets n_ok = len and next = -1; its choices are not read. next is -1 if len
 * is 0, too.
 * shapes   seg [segs]; tok, choice [R]; n_ok, next [segs]          tol 0 */
struct accept_args {
    const struct segment *seg;
    const int32_t *tok, *choice;
    int32_t *n_ok, *next;
    int segs;
};

/* commit - head[slot].pos += n_ok; head[slot].next = next; folds: base ^= 1, pend = n_ok. A segment
 * with n_ok 0 changes nothing: no row ran, so the fold's lanes are as they were.          tol 0 */
struct commit_args {
    const struct segment *seg;
    const int32_t *n_ok, *next;
    struct slot_head *head;
    int segs;
};

/* markov - the drafter's chain over gathered candidates, one block of `block` rows a slot:
 *   prev = anchor; for i: z[c] = cand[i][c].z + head[c] . embed[prev]; draft = keyed pick at pos +
 *   1 + i;
 *   conf[i] = proj . [h_i ; embed[prev]] (a logit); prev = draft
 * Ties go to the lower id; sampled slots apply their sampler to the candidates (their mass is the
 * whole). From a row with a NaN or without a candidate on, the block gets draft -1, conf NaN and
 * padding in z: a bad proposal is no error.
 * A chain without tables (embed and head NULL) has no terms and no confidences: each block's draft
 * i is the keyed pick from its candidates, conf 0.
 * shapes   cand [ranks][rows][k]; rows = segs * block; h [rows][dim]; embed, head tables
 *          [vocab][rank]; proj [dim + rank] f32; draft, conf [rows]; z, if not NULL, [rows][ranks *
 *          k] refined candidates          tol 1e-5, drafts equal unless within it */
struct markov_args {
    const struct candidate *cand;
    const struct table *embed, *head;
    const float *h, *proj;
    const struct sampler *sampler;
    const struct row_info *info;
    int32_t *draft;
    float *conf;
    struct candidate *z;
    int rows, block, ranks, k, dim;
};

/* ---- what comes late ------------------------------------------------------------------------- */

#define BRING_HERE 1

/* bring - y = bytes that the host has not had yet when the op was queued: they lie in src once
 * *flag is set. A negative errno in it is the queue's error, which whoever found it has logged.
 *
 *   a call that runs at once   calls fetch(arg), which sets the flag and returns
 *   a captured one             waits on the device; the queue's wait behind each launch calls
 *                              fetch(arg) first
 *
 * An eager call does not wait on the device: a stream takes about a thousand launches and then
 * holds the caller back, who would still owe it the bytes.
 * shapes   src, flag in memory of host_alloc; y [bytes]
 * note     fetch returns at once if the flag is set; it is set with release order
 * errors   -ETIMEDOUT in the queue: the device has waited limit_ns (< 0: for ever)         tol 0 */
struct bring_args {
    void *y;
    const void *src;
    size_t bytes;
    int64_t *flag;
    void (*fetch)(void *arg);
    void *arg;
    int64_t limit_ns;
};

/* ---- what looks on --------------------------------------------------------------------------- */

/* stamp - *at = the device's clock in ns when everything before it has run; only differences count.
 * name     of what ends here, for profilers; it lives for ever */
struct stamp_args {
    int64_t *at;
    const char *name;
};

/* side - ops that do not need each other. What is queued from SIDE_BEGIN to SIDE_END may run beside
 * what is queued behind SIDE_END, until SIDE_JOIN of the same lane: what follows that stands behind
 * it. Sections of a lane run one after the other, each behind all in front of its SIDE_BEGIN.
 * note     until then neither writes what the other reads or writes. Where nothing is captured, and
 *          on hosts, all runs in the order of the calls: no result depends on it
 * errors   -EINVAL no such lane; where it is captured, a section inside another */
#define SIDE_LANES 2

enum side_at { SIDE_BEGIN, SIDE_END, SIDE_JOIN };

struct side_args {
    enum side_at at;
    int lane;
};

/* prefetch - weights that ops behind will read come into the device's cache: range after range, at
 * most `rate` GB a second, so that others find the memory free. Nothing is read or written, and no
 * result depends on it.
 * units    ranges begin at multiples of MAT_ALIGN
 * note     by devices in sections of op `side` that are captured: elsewhere others would wait for
 *          it
 * errors   -EINVAL more than PREFETCH_MAX ranges, or a rate below 1 */
#define PREFETCH_MAX 16

struct prefetch_args {
    struct {
        const void *at;
        size_t bytes;
    } of[PREFETCH_MAX];
    int n, rate;
};

/* inspect - fails the queue with -EBADMSG if a value is a NaN or an infinity, and names the layer
 * and the first such row with its slot and position. Nothing is committed then.
 * shapes   x [R][cols] */
struct inspect_args {
    const float *x;
    const struct row_info *info;
    int rows, cols;
    int layer;
};

/* ---- weights that are made ------------------------------------------------------------------- */

/* synth - strips of codes of an EXL3 matrix in the device's layout, as a made-up checkpoint has
 * them: the tensor of trellis words is synth_word's sequence of `hash` (src/base/synth.h), its tile
 * rows are tile_cols tiles long.
 * shapes   strips strip0 .. strip0 + strips - 1 of w, whose first tile is (tile_row, tile_col) of
 *          the tensor
 * note     w's codes are written, nothing else of it is read          tol 0 */
struct synth_args {
    struct mat w;
    uint64_t hash;
    int64_t tile_row, tile_col, tile_cols;
    int strip0, strips;
};

/* ---- the table ------------------------------------------------------------------------------- */

/* Every backend fills every entry; the order is that of the file. */
/* clang-format off */
#define OP_LIST(OP)                                                                                \
    OP(stage) OP(embed) OP(rmsnorm) OP(matmul) OP(matmuls) OP(add) OP(swiglu) OP(rope)             \
    OP(requant) OP(row_put) OP(row_keeps) OP(row_get) OP(pool) OP(hc_mix) OP(hc_collapse)          \
    OP(hc_expand) OP(hc_site) OP(hc_mean) OP(select) OP(attend) OP(attend_gqa) OP(route) OP(moe)   \
    OP(unshard) OP(engram_gate) OP(best) OP(draw) OP(mass) OP(choose) OP(logprob) OP(count)        \
    OP(penalize) OP(accept) OP(commit) OP(markov) OP(bring) OP(stamp) OP(side) OP(prefetch)        \
    OP(inspect) OP(synth)
/* clang-format on */

struct op_table {
#define OP_ENTRY(name) void (*name)(struct queue *q, const struct name##_args *a);
    OP_LIST(OP_ENTRY)
#undef OP_ENTRY
};

#endif
