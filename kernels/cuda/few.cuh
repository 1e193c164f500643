// few - experts of few rows, the whole op in one launch: a persistent grid whose blocks take items
// from a list by an atomic counter.
//
//   inputs    blocks of 128 inputs of a place, prepared for gate and for up
//   gate, up  one lot (up to 8 rows of an expert), a strip of 128 outputs (64 in sets that have
//             more than EXL3) of one of the two matrices, one split of the inputs; each warp has a
//             part. Partial sums go to memory; the block that draws a strip's last ticket makes
//             its hidden values and sets the strip's bit
//   down      the same for the third matrix; a warp first spins on the bits of the strips that its
//             part reads. The last ticket makes the strip's outputs
//   rows      outputs of a row, summed over its experts, once all strips are done
//
// An item waits only for items of lower numbers, and whoever took one of those is at work on it or
// on a lower one: resident blocks never wait for blocks that have not started. All counters are
// zero again when the kernel ends: a ticket wraps around, the last item of rows clears what was
// waited for, and the last block that finds the list empty clears the count of items taken.
#ifndef TANDEM_KERNELS_CUDA_FEW_CUH
#define TANDEM_KERNELS_CUDA_FEW_CUH

#include "kernels/cuda/items.cuh"

#define FEW_NAP 40     // ns between two polls of a spin wait
#define FEW_AGES 400   // ns until the older blocks of a multiprocessor are known
#define FEW_AT_ONCE 10 // partial sums that a lane has in flight: 5 splits of gate and up
#define FEW_CHOICES 8  // outputs of a row's experts that a thread has in flight

// ---- inputs ---------------------------------------------------------------------------------

// An item of inputs. A warp prepares 128 inputs of a place, for gate or for up, p.tasks times.
template <class SET>
__device__ static inline void few_inputs(const struct few_launch &p, const int32_t *id, int item)
{
    const struct moe_args &a = p.a;
    int lane = (int)(thread_here() % CUDA_WARP), warp = (int)(thread_here() / CUDA_WARP);
    int blocks = p.x.ld / EXL3_BLOCK;

    for (int i = 0; i < p.tasks; i++) {
        int task = (item * p.tasks + i) * FEW_WARPS + warp, at = task / blocks;
        int k0 = (task - at * blocks) * EXL3_BLOCK, up = at >= p.places;
        int place = up ? at - p.places : at, expert = place < p.picks ? id[place] : -1;
        int row = place < p.picks ? place / a.k : place - p.picks;
        const struct mat *w = few_mat(p, expert, up);
        struct few_type type;
        float v[4];

        if (at >= 2 * p.places || (place < p.picks ? expert < 0 || expert >= a.experts : !a.s1))
            continue;
        take_four(a.x + (size_t)row * (size_t)a.dim, k0 + 4 * lane, a.dim, v);
        type = few_type_of(w);
        if (!type.there || !(type.kind & a.kinds) || w->rows == 0)
            continue;
        if constexpr (SET::ALL_ROTATED)
            put_inputs<true>(p.x, *w, w->suh + k0, a.in, at, k0, EXL3_BLOCK, v);
        else
            put_any(p.x, *w, w->suh + k0, a.in, at, k0, v);
    }
}

// ---- sums -----------------------------------------------------------------------------------

__device__ static inline void count_wait(const uint32_t *counter, uint32_t until)
{
    while (counter_read(counter) < until)
        __nanosleep(FEW_NAP);
}

template <class C> static constexpr int few_words()
{
    if constexpr (C::F16)
        return C::BYTES / (CUDA_WARP * 16);
    return 0;
}

// Shared memory of a warp: codes and inputs of the pieces in flight; then its sums, where a float4
// is outputs g and g + 8 of a tile for rows 2 q and 2 q + 1, as a lane holds them; in few_end,
// partial sums of all splits.
template <class C> struct few_room {
    static constexpr int LOTS = few_shape<C>::LOTS;
    static constexpr int EACH = few_shape<C>::TILES * 8, LD = EACH + 2; // against bank conflicts
    static constexpr int CODES = few_words<C>();                        // 16-byte words of a lane:
    static constexpr int WORDS = C::F16 ? CODES + LOTS * C::STEPS / 2 : 1; // codes and inputs
    union {
        float4 pair[LOTS * STRIP_TOKENS / 2][LD];
        float4 sums[FEW_AT_ONCE][C::TILES * MAT_TILE / 4];
        uint4 piece[FEW_SLOTS][WORDS][CUDA_WARP];
    };
};

// The warp's room. Its address is computed at each use: kept, it would cost the decoding a
// register.
template <class C> __device__ static inline few_room<C> &few_place(const struct few_launch &p)
{
    return *(few_room<C> *)(few_memory + few_mine(p));
}

template <class C>
__device__ static inline void
few_leave(const struct few_launch &p, const struct few_job &j,
          const float (&acc)[few_shape<C>::TILES][few_shape<C>::LOTS][4])
{
    int lane = (int)(thread_here() % CUDA_WARP);
    struct few_room<C> &room = few_place<C>(p);

    __syncwarp();
#pragma unroll
    for (int r = 0; r < few_shape<C>::LOTS; r++) {
        if (r * STRIP_TOKENS + lane % 4 * 2 >= j.n)
            return;
#pragma unroll
        for (int t = 0; t < few_shape<C>::TILES; t++)
            room.pair[r * 4 + lane % 4][t * 8 + lane / 4] =
                make_float4(acc[t][r][0], acc[t][r][1], acc[t][r][2], acc[t][r][3]);
    }
}

// Adds up the warps' sums in the order of the parts and stores them. z: the split's partial sums,
// from the first output of the item on.
template <class C>
__device__ static inline void few_add(int stride, int n, int pick, float *z, int ldz)
{
    constexpr int EACH = few_room<C>::EACH;

    for (uint32_t i = thread_here(); i < (uint32_t)(n + 1) / 2 * EACH; i += FEW_THREADS) {
        uint32_t q = i / EACH, at = i % EACH;
        int low = C::output((int)at / 8, (int)at % 8, 0),
            high = C::output((int)at / 8, (int)at % 8, 1);
        uint32_t first = (uint32_t)__shfl_sync(FULL_MASK, pick, (int)q * 2);
        uint32_t second = (uint32_t)__shfl_sync(FULL_MASK, pick, (int)q * 2 + 1);
        float4 s = ((const struct few_room<C> *)few_memory)->pair[q][at];

#pragma unroll
        for (int w = 1; w < FEW_WARPS; w++) {
            float4 v = ((const struct few_room<C> *)(few_memory + w * stride))->pair[q][at];

            s.x += v.x;
            s.y += v.y;
            s.z += v.z;
            s.w += v.w;
        }
        z[first * (uint32_t)ldz + low] = s.x;
        z[first * (uint32_t)ldz + high] = s.z;
        if (q * 2 + 1 < (uint32_t)n) {
            z[second * (uint32_t)ldz + low] = s.y;
            z[second * (uint32_t)ldz + high] = s.w;
        }
    }
}

// Starts the copies of a row's partial sums of M matrices into `room`, four outputs a lane: of
// splits from, from + 1, ... as many as fit. Through shared memory because registers are short.
template <int M>
__device__ static inline void few_ask(float4 *room, const float *at, uint32_t split, int from,
                                      int splits, int wide)
{
    int lane = (int)(thread_here() % CUDA_WARP), n = splits - from;

    n = n < FEW_AT_ONCE / M ? n : FEW_AT_ONCE / M;
    room += lane;
    at += (uint32_t)from * split + 4 * lane;
    if (4 * lane < wide)
        for (int s = 0; s < n; s++, at += split, room += M * (wide / 4))
#pragma unroll
            for (int m = 0; m < M; m++)
                copy_async((uint4 *)room + m * (wide / 4),
                           (const uint4 *)(at + (uint32_t)(m * splits) * split));
    copy_commit();
}

// The lane's four sums of each matrix, splits added in order. few_ask has been called with from 0.
template <int M>
__device__ static inline void few_take(float4 *room, const float *at, uint32_t split, int splits,
                                       int wide, float (&v)[M][4])
{
    constexpr int ONCE = FEW_AT_ONCE / M;
    int lane = (int)(thread_here() % CUDA_WARP);

#pragma unroll
    for (int m = 0; m < M; m++)
        v[m][0] = v[m][1] = v[m][2] = v[m][3] = 0;
    for (int from = 0; from < splits; from += ONCE) {
        const float4 *o = room + lane;
        int n = splits - from < ONCE ? splits - from : ONCE;

        if (from > 0)
            few_ask<M>(room, at, split, from, splits, wide);
        copy_wait<0>();
        for (int s = 0; s < n && 4 * lane < wide; s++, o += M * (wide / 4))
#pragma unroll
            for (int m = 0; m < M; m++) {
                float4 z = o[m * (wide / 4)];
                bool first = from + s == 0;

                v[m][0] = first ? z.x : v[m][0] + z.x;
                v[m][1] = first ? z.y : v[m][1] + z.y;
                v[m][2] = first ? z.z : v[m][2] + z.z;
                v[m][3] = first ? z.w : v[m][3] + z.w;
            }
    }
}

// Scales and bias of a strip's outputs, loaded while the partial sums are in flight.
template <bool ROTATED> struct few_last {
    uint2 by, plus;
    bool biased, none;

    __device__ few_last(const struct mat &w, int n0)
    {
        int at = n0 + 4 * ((int)(thread_here() % CUDA_WARP));

        by = plus = make_uint2(0, 0);
        none = w.cols == 0;
        biased = ROTATED && w.bias != NULL;
        if (ROTATED && !none)
            by = *(const uint2 *)(w.svh + at);
        if (biased)
            plus = *(const uint2 *)(w.bias + at);
    }

    __device__ void finish(const struct mat &w, int n0, int wide, float (&v)[4]) const
    {
        if constexpr (ROTATED) {
            if (none)
                v[0] = v[1] = v[2] = v[3] = 0;
            else
                finish_rotated(by, plus, biased, v);
        } else {
            finish_outputs<false>(w, n0, wide, v);
        }
    }
};

// The hidden values or the outputs of a strip, one row a warp.
template <class C>
__device__ static inline void few_give(const struct few_launch &p, const struct few_list &list,
                                       const struct few_job &j)
{
    constexpr bool ROTATED = C::F16;
    const struct few_phase &f = p.of[j.down];
    int lane = (int)(thread_here() % CUDA_WARP);
    int wide = ROTATED ? EXL3_BLOCK : 64, n0 = j.strip * wide;
    uint32_t split = (uint32_t)(p.places * f.ld);
    float4 *room = (float4 *)(few_memory + few_mine(p));

    for (int i = (int)(thread_here() / CUDA_WARP); i < j.n; i += FEW_WARPS) {
        int pick = list_member(p)[j.first + i];
        const float *at = f.z + (uint32_t)(pick * f.ld + n0);

        if (!j.down) {
            few_ask<2>(room, at, split, 0, f.splits, wide); // in flight while the matrices are read

            const struct mat *w1 = few_mat(p, j.expert, 0), *w3 = few_mat(p, j.expert, 1);
            const struct mat *w2 = few_mat(p, j.expert, 2);
            struct few_last<ROTATED> gate(*w1, n0), up(*w3, n0);
            float weight = j.expert < 0 ? 1 : p.a.weight[pick], v[2][4];
            uint2 su = make_uint2(0, 0);
            int rows = w1->rows;

            if (ROTATED)
                su = *(const uint2 *)(w2->suh + n0 + 4 * lane);
            few_take(room, at, split, f.splits, wide, v);
            gate.finish(*w1, n0, wide, v[0]);
            up.finish(*w3, n0, wide, v[1]);
#pragma unroll
            for (int k = 0; k < 4; k++)
                v[0][k] = n0 + 4 * lane + k < rows
                              ? swiglu(rounded(v[0][k], p.a.round), rounded(v[1][k], p.a.round),
                                       weight, p.a.limit, p.a.round)
                              : 0;
            if constexpr (ROTATED)
                put_rotated(p.h.data + (size_t)pick * (size_t)p.h.ld + n0 + lane / 16 * STRIP_UNIT,
                            su, v[0]);
            else
                put_inputs<false>(p.h, *w2, w2->suh + n0, p.a.in, pick, n0, wide, v[0]);
        } else {
            few_ask<1>(room, at, split, 0, f.splits, wide);

            struct few_last<ROTATED> last(*j.w, n0);
            float v[1][4];
            int rows = j.w->rows;

            few_take(room, at, split, f.splits, wide, v);
            last.finish(*j.w, n0, wide, v[0]);
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (4 * lane < wide && n0 + 4 * lane + k < rows)
                    p.out[(size_t)pick * (size_t)p.ldo + (size_t)(n0 + 4 * lane + k)] = v[0][k];
        }
    }
}

// ---- the product ----------------------------------------------------------------------------

// Spins until the strips of hidden values that the warp's part reads are stored.
template <class C>
__device__ static inline void few_wait(const struct few_launch &p, const struct few_job &j,
                                       const struct few_span &span)
{
    constexpr int EACH = C::TILES / C::STEPS; // pieces that read a strip
    const uint32_t *made = p.made + j.head * FEW_LINE;
    int first = span.at / EACH, end = (span.end + EACH - 1) / EACH;

    if (thread_here() % CUDA_WARP == 0 && span.at < span.end)
        for (int word = first / 32; word * 32 < end; word++) {
            int low = first - word * 32, high = end - word * 32;
            uint32_t mask =
                FULL_MASK << (low > 0 ? low : 0) & FULL_MASK >> (high < 32 ? 32 - high : 0);

            while (~counter_read(made + word) & mask)
                __nanosleep(FEW_NAP);
        }
    __syncwarp();
}

// Prepared inputs of the lane's row of each lot.
template <class C> struct few_from {
    const uint16_t *row[few_shape<C>::LOTS];
    bool live[few_shape<C>::LOTS];
};

// Start asynchronous copies of a piece's codes or inputs into a slot of the room. A lane copies
// only what it reads itself, so no barrier is needed; a lane without a row gets zeros.
template <class C> __device__ static inline void few_bring_codes(uint4 *to, const uint4 *from)
{
#pragma unroll
    for (int c = 0; c < few_room<C>::CODES; c++)
        copy_async_once(to + c * CUDA_WARP, from + c * CUDA_WARP);
}

template <class C>
__device__ static inline void few_bring_rows(uint4 *to, const struct few_from<C> &x, uint32_t n)
{
    constexpr uint32_t EACH = 4 / C::STEPS; // pieces of a unit
    uint32_t at = n / EACH * STRIP_UNIT + n % EACH * (C::STEPS * 4);

#pragma unroll
    for (int r = 0; r < few_shape<C>::LOTS; r++)
#pragma unroll
        for (int i = 0; i < C::STEPS / 2; i++)
            copy_async_some(
                shared_at(to + (few_room<C>::CODES + r * (C::STEPS / 2) + i) * CUDA_WARP),
                x.row[r] + at + 8 * i, x.live[r] ? 16 : 0);
}

// The codes of piece n.
template <class C> __device__ static inline const uint4 *few_codes(const struct few_span &j, int n)
{
    return j.from + (uint32_t)(n * few_room<C>::CODES) * (uint32_t)CUDA_WARP;
}

// A warp's part of EXL3. The codes of the first pieces are in flight already. The shuffles for the
// heads of the next pair of tiles are issued before the current pair is decoded. Addresses are
// stepped from piece to piece; computing them each time took 5% of a piece.
template <class C, int BOOK>
__device__ static inline void few_run(const struct few_span &j, const C &codes,
                                      struct few_room<C> &room, const struct few_from<C> &x,
                                      float (&acc)[few_shape<C>::TILES][few_shape<C>::LOTS][4])
{
    constexpr int LOTS = few_shape<C>::LOTS, TILES = few_shape<C>::TILES;
    constexpr int CODES = few_room<C>::CODES, PAIRS = C::STEPS * TILES;
    constexpr int PLACE = few_room<C>::WORDS * CUDA_WARP; // from slot to slot
    int lane = (int)(thread_here() % CUDA_WARP);
    uint4 *mine = &room.piece[0][0][lane];
    const uint4 *more = few_codes<C>(j, j.at + FEW_SLOTS) + lane;

#pragma unroll
    for (int k = 0; k < FEW_SLOTS; k++) {
        if (j.at + k < j.end)
            few_bring_rows<C>(mine + k * PLACE, x, (uint32_t)(j.at + k));
        copy_commit();
    }
    for (int n = j.at, step = PLACE; n < j.end; n++, mine += step, step = -step) {
        typename C::piece now;
        uint4 b[LOTS * C::STEPS / 2];
        uint32_t head[2];

        static_assert(FEW_SLOTS == 2, "two places in turn");
        copy_wait<FEW_SLOTS - 1>();
        codes.take(mine, now);
#pragma unroll
        for (int i = 0; i < LOTS * C::STEPS / 2; i++)
            b[i] = mine[(CODES + i) * CUDA_WARP];
        codes.heads(now, 0, head);
        if (n + FEW_SLOTS < j.end) { // into the slot just read
            few_bring_codes<C>(mine, more);
            few_bring_rows<C>(mine, x, (uint32_t)(n + FEW_SLOTS));
        }
        more += CODES * CUDA_WARP;
        copy_commit();
#pragma unroll
        for (int i = 0; i < PAIRS; i += 2) {
            uint32_t next[2] = {}, a[2][4];

            if (i + 2 < PAIRS)
                codes.heads(now, i + 2, next);
            codes.template values<BOOK>(now, i, head, a);
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int r = 0; r < LOTS; r++) {
                    const uint4 rows = b[r * (C::STEPS / 2) + i / TILES / 2]; // two k-steps

                    mma<C::F16>(acc[i % TILES + n][r], a[n], i / TILES % 2 ? rows.z : rows.x,
                                i / TILES % 2 ? rows.w : rows.y);
                }
            head[0] = next[0];
            head[1] = next[1];
        }
    }
}

template <class C>
__device__ static inline void few_part(const struct few_launch &p, const struct few_list &list,
                                       const struct few_job &j, const struct few_span &span)
{
    const struct strip_x &in = j.down ? p.h : p.x;
    int lane = (int)(thread_here() % CUDA_WARP);
    float acc[few_shape<C>::TILES][few_shape<C>::LOTS][4] = {};
    struct few_from<C> from;
    int row = 0;

#pragma unroll
    for (int r = few_shape<C>::LOTS - 1; r >= 0; r--) {
        int i = r * STRIP_TOKENS + lane / 4;

        from.live[r] = i < j.n;
        row = (!j.down && j.split >= p.of[0].splits ? p.places : 0) +
              list_member(p)[j.first + (from.live[r] ? i : 0)];
        from.row[r] = in.data + (uint32_t)(row * in.ld + lane % 4 * 16);
    }

    if (j.down)
        few_wait<C>(p, j, span);
    if constexpr (C::F16) {
        C codes(span.from, span.book, lane);

        if constexpr (few_shape<C>::LOTS > 1)
            codes.half = j.half;
        if (C::BOOKS > 1 && codes.book)
            few_run<C, C::BOOKS - 1>(span, codes, few_place<C>(p), from, acc);
        else
            few_run<C, 0>(span, codes, few_place<C>(p), from, acc);
    } else {
        const C codes(*j.w, j.strip, lane);
        struct narrow_x<1> x = {
            { from.row[0] }, { in.count + (size_t)row * (size_t)(in.ld / STRIP_UNIT) }, in.plane,
            {
                from.live[0]
            }
        };
        typename C::piece now;

        if (span.at < span.end)
            codes.load(span.at, now);
        narrow_part<C, 1, 0>(codes, x, span.at, span.end, now, acc);
    }
    few_leave<C>(p, j, acc);
}

// Starts the copies of the codes of the part's pieces FROM .. TO - 1.
template <class C, int FROM, int TO>
__device__ static inline void few_start(const struct few_launch &p, const struct few_span &span)
{
    if constexpr (C::F16) {
        struct few_room<C> &room = few_place<C>(p);
        int lane = (int)(thread_here() % CUDA_WARP);

#pragma unroll
        for (int k = FROM; k < TO; k++)
            if (span.at + k < span.end)
                few_bring_codes<C>(&room.piece[k][0][lane], few_codes<C>(span, span.at + k) + lane);
    }
}

// Takes a ticket for the item's sums of a strip; whether it was the last. The barrier in front
// orders the block's stores before it. The ticket wraps to zero. One thread.
__device__ static inline bool few_count(const struct few_launch &p, const struct few_job &j)
{
    const struct few_phase &f = p.of[j.down];
    uint32_t end = (uint32_t)(f.each * j.lots) - 1, before = end;

    if (j.w && end > 0)
        before = counter_turn(f.ticket + (size_t)j.head * (size_t)f.strips + (size_t)j.strip, end);
    return before == end;
}

// Finishes a strip after the last ticket.
template <class SET>
__device__ static inline void few_end(const struct few_launch &p, const struct few_list &list,
                                      const struct few_job &j)
{
    if (!j.w && (!j.down || j.split))
        return;
    if (j.w)
        SET::like(j.kind, [&]<class C>() { few_give<C>(p, list, j); });
    __syncthreads();
    if (thread_here() < (j.w ? j.lots : 1) && j.down)
        counter_add(p.done);
    else if (thread_here() == 0)
        counter_mark(p.made + j.head * FEW_LINE + j.strip / 32, 1u << j.strip % 32);
}

// ---- rows -----------------------------------------------------------------------------------

// The choices of the row of item n, sorted by expert. The row's first item checks them.
__device__ static inline void few_sort(const struct few_launch &p, const struct few_list &list,
                                       int n, int *sorted)
{
    int row = n / p.across, t = (int)thread_here(), k = p.a.k, at = 0;
    const int32_t *id = list_id(p) + row * k;

    if (t >= k)
        return;
    for (int i = 0; i < k; i++)
        at += id[i] < id[t] || (id[i] == id[t] && i < t);
    sorted[at] = t;
    if (n == row * p.across)
        check_pick(p.a, row, id[t], p.alarm);
}

// FEW_ACROSS outputs of a row: the sum over its experts in ascending order, then the shared one.
__device__ static inline void few_row(const struct few_launch &p, const struct few_list &list,
                                      int n, const int *sorted)
{
    int row = n / p.across, part = n - row * p.across, k = p.a.k;
    int n0 = part * FEW_ACROSS + 4 * (int)thread_here();
    float sum[4] = {};

    if (n0 >= p.a.dim)
        return;
    for (int from = 0; from <= k; from += FEW_CHOICES) {
        float4 v[FEW_CHOICES];

#pragma unroll
        for (int i = 0; i < FEW_CHOICES; i++) {
            int at = from + i, place = at < k ? row * k + sorted[at] : p.picks + row;

            v[i] = make_float4(0, 0, 0, 0); // adding 0 changes no sum, none is -0
            if (at < k ? list_lot(p)[place] != FEW_NOBODY : at == k && list.shared)
                v[i] = __ldcg((const float4 *)(p.out + (size_t)place * (size_t)p.ldo + n0));
        }
#pragma unroll
        for (int i = 0; i < FEW_CHOICES; i++) {
            sum[0] += v[i].x;
            sum[1] += v[i].y;
            sum[2] += v[i].z;
            sum[3] += v[i].w;
        }
    }
#pragma unroll
    for (int c = 0; c < 4; c++)
        if (n0 + c < p.a.dim)
            p.a.y[(size_t)row * (size_t)p.a.dim + (size_t)(n0 + c)] = sum[c];
}

// The last item of rows to get here clears the counters and bits. One warp.
__device__ static inline void few_clear(const struct few_launch &p, uint32_t before,
                                        uint32_t strips)
{
    int lane = (int)(thread_here() % CUDA_WARP), words = (p.of[0].strips + 31) / 32;

    if (__shfl_sync(FULL_MASK, before, 0) != strips + (uint32_t)p.rows - 1)
        return;
    for (int i = lane; i < p.places; i += CUDA_WARP)
        for (int word = 0; word < words; word++)
            p.made[i * FEW_LINE + word] = 0;
    if (lane == 0)
        *p.done = *p.ready = 0;
}

// ---- all of it ------------------------------------------------------------------------------

// The seat of the block: the word of its warp 0's slot of the multiprocessor.
__device__ static inline uint32_t *few_seat(const struct few_launch &p)
{
    return p.seats + device_sm() % CUDA_SEATED * CUDA_SEATS + warp_place() % CUDA_SEATS;
}

// Delays the block's first item by its rank among the blocks of its multiprocessor, so that all
// multiprocessors take equally many. The scheduler prefers older warps: where decoding is the
// bound, the rank is by age, so that blocks of one age, which run equally fast, take neighbours in
// the list, and the oldest take what others will wait for. One warp.
template <class SET> __device__ static inline void few_turn(const struct few_launch &p)
{
    uint64_t since = device_ns();
    uint32_t order = warp_place() / FEW_WARPS, ns = 0;

    if constexpr (SET::ALL_ROTATED) {
        const uint32_t *seats = p.seats + device_sm() % CUDA_SEATED * CUDA_SEATS;

        order = 0;
        ns = FEW_AGES;
        for (int i = 0; i < CUDA_SEATS; i += CUDA_WARP) {
            uint32_t who = fresh_word(seats + i + (int)(threadIdx.x % CUDA_WARP));

            order += (uint32_t)__popc(__ballot_sync(FULL_MASK, who != 0 && who <= blockIdx.x));
        }
    }
    order = order < SET::BLOCKS ? order : SET::BLOCKS - 1;
    ns += order * (uint32_t)p.turn;
    while (device_ns() - since < ns)
        ;
}

// Waits for the inputs, once a block, with its first item that has a job. Not earlier: a block
// without a job may come so late that the last item of rows has cleared the counter. All threads.
__device__ static inline void few_enter(const struct few_launch &p, bool *begun)
{
    if (*begun)
        return;
    if (thread_here() == 0)
        count_wait(p.ready, (uint32_t)p.inputs);
    __syncthreads();
    if (thread_here() == 0)
        *begun = true;
}

// A block takes items one after the other; a warp has a part of its split. Bound by decoding.
template <class SET>
__global__ static void __launch_bounds__(FEW_THREADS, SET::BLOCKS)
    few_rows(const __grid_constant__ struct few_launch p)
{
    __shared__ int next[2], sorted[2][CHOICES_MAX];
    __shared__ bool last, begun;
    __shared__ struct few_job jobs[2];
    __shared__ struct few_list list;
    __shared__ uint32_t *seat;
    int turn = 0, item;
    int32_t *id = list_id(p);

    if (thread_here() == 0)
        begun = false;
    few_near(p.a);
    if (SET::ALL_ROTATED && thread_here() == 0) {
        seat = few_seat(p);
        *(volatile uint32_t *)seat = blockIdx.x + 1;
    }
    dependency_settle(); // the next kernel's settle waits for the whole of this one
    dependency_next();
    if (thread_here() < CUDA_WARP)
        few_turn<SET>(p);
    if (thread_here() == 0)
        next[0] = (int)atomicAdd(p.taken, 1);
    for (int i = (int)thread_here(); i < p.picks; i += FEW_THREADS)
        id[i] = p.a.id[i];
    __syncthreads();
    for (item = next[0]; item < p.inputs; item = next[turn]) {
        turn ^= 1;
        few_inputs<SET>(p, id, item);
        if (thread_here() == 0)
            next[turn] = (int)atomicAdd(p.taken, 1);
        __syncthreads();
        if (thread_here() == 0)
            counter_add(p.ready);
    }
    few_begin<SET>(p, &list);
    // The next item is taken once the parts are decoded; the last warp resolves it while thread 0
    // takes the ticket.
    if (item < list.products && thread_here() / CUDA_WARP == FEW_WARPS - 1)
        few_item<SET>(p, list, item, &jobs[0]);
    __syncthreads();
    for (turn = 0; item < list.products; item = next[0], turn ^= 1) {
        const struct few_job &j = jobs[turn];
        int taken = 0;

        if (j.w) {
            const struct few_span span = few_share(p, j, (int)(thread_here() / CUDA_WARP));

            SET::with(j.kind, [&]<class C>() {
                few_start<C, 0, 1>(p, span);
                // All blocks start at once: no second piece is requested before the first ones.
                few_enter(p, &begun);
                few_start<C, 1, FEW_SLOTS>(p, span);
                few_part<C>(p, list, j, span);
            });
        }
        if (thread_here() == 0)
            taken = (int)atomicAdd(p.taken, 1);
        __syncthreads();
        if (j.w) {
            const struct few_phase &f = p.of[j.down];

            SET::sums(j.kind, [&]<class C>() {
                constexpr int LOTS = few_shape<C>::LOTS;

                few_add<C>(p.room, j.n, few_pick(p, j.first, LOTS),
                           f.z + (uint32_t)(j.split * p.places * f.ld) +
                               (j.strip * LOTS + (LOTS > 1 ? j.half : 0)) *
                                   (few_shape<C>::TILES * MAT_TILE),
                           f.ld);
            });
        }
        if (thread_here() == 0)
            next[0] = taken;
        __syncthreads();
        if (thread_here() == 0)
            last = few_count(p, j);
        else if (thread_here() / CUDA_WARP == FEW_WARPS - 1 && next[0] < list.products)
            few_item<SET>(p, list, next[0], &jobs[turn ^ 1]);
        __syncthreads();
        if (last) // first of all, others wait for it
            few_end<SET>(p, list, j);
    }
    turn = 0;
    for (; item < list.products + p.rows; item = next[turn]) {
        uint32_t strips = (uint32_t)(list.lots * p.of[1].strips), before = 0;

        turn ^= 1;
        if (thread_here() == 0)
            next[turn] = (int)atomicAdd(p.taken, 1);
        few_sort(p, list, item - list.products, sorted[turn]);
        if (thread_here() == 0) {
            count_wait(p.ready, (uint32_t)p.inputs);
            count_wait(p.done, strips);
            before = atomicAdd(p.done, 1);
        }
        __syncthreads();
        few_row(p, list, item - list.products, sorted[turn]);
        if (thread_here() < CUDA_WARP)
            few_clear(p, before, strips);
    }
    if (thread_here() == 0 && // the last block to find the list empty
        item == list.products + p.rows + (int)gridDim.x - 1)
        *p.taken = 0;
    if (SET::ALL_ROTATED && thread_here() == 0)
        *(volatile uint32_t *)seat = 0;
}

// few_experts - queue the op, by the first set that serves all of a.kinds. Fills in what depends on
// the set: strips, items and inverses of both phases, down's tickets, room, turn.
void few_experts(struct queue *q, struct few_launch *p);

#endif
