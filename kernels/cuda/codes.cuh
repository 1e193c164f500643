// codes - from stored codes to mma fragments: a lane loads its bytes of a piece into registers and
// decodes them a pair of tiles (16 outputs x 16 inputs) at a time. Layouts: kernels/mat.h.
//
// Every class has
//   TILES     tiles of a strip
//   STEPS     k-steps (16 inputs) of a piece, BYTES its size
//   F16       fragments are f16, else bf16
//   SCALED    the sums of a piece are multiplied by scale()
//   BOOKS     ways to read the codes; `book` is the matrix's, a template argument of operands
//   load      loads the lane's bytes of piece n
//   operands  A fragments of tiles t and t + 1 of a k-step; all lanes take part
//   output    which output of the strip is row `row` (+ 8 if upper) of tile t
#ifndef TANDEM_KERNELS_CUDA_CODES_CUH
#define TANDEM_KERNELS_CUDA_CODES_CUH

#include "kernels/cuda/matrix.cuh"
#include "kernels/cuda/strip.cuh"

struct outputs_in_order {
    __device__ static constexpr int output(int t, int row, int upper)
    {
        return t * MAT_TILE + row + upper * 8;
    }
};

// ---- EXL3 ---------------------------------------------------------------------------------------

// X(bits2) for every width that a checkpoint may have, in half bits.
#define EXL3_WIDTHS(X) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(10) X(12) X(14) X(16)

// Two states to two f16 values of the codebook, the first in the low half.
__device__ static inline uint32_t mul1_pair(uint32_t s0, uint32_t s1)
{
    const uint32_t ones = 0x01010101u, base = 0x6400u; // f16 of 1024 + n is base + n
    uint32_t d0 = __dp4a(s0 * 0x83dcd12du, ones, base), d1 = __dp4a(s1 * 0x83dcd12du, ones, base);
    uint32_t sum = __byte_perm(d0, d1, 0x5410), by = 0x1eee1eeeu, from = 0xc931c931u;

    return f16_fused(sum, by, from);
}

__device__ static inline uint32_t inst_pair(uint32_t s0, uint32_t s1, uint32_t by, uint32_t plus)
{
    uint32_t x0 = ((s0 * by + plus) & 0x8fff8fffu) ^ 0x3b603b60u;
    uint32_t x1 = ((s1 * by + plus) & 0x8fff8fffu) ^ 0x3b603b60u;

    return f16_plus(__byte_perm(x0, x1, 0x5410), __byte_perm(x0, x1, 0x7632));
}

template <int BITS2> struct exl3_codes : outputs_in_order {
    static constexpr int TILES = 8, STEPS = BITS2 % 2 ? 4 : 2;
    // Blocks of narrow.cuh for 8 rows a multiprocessor.
    static constexpr int BLOCKS = BITS2 == 7 || BITS2 > 10 ? 2 : 3;
    static constexpr bool F16 = true, SCALED = false;
    static constexpr uint32_t KIND = MAT_KIND_EXL3 << BITS2;
    static constexpr int OWN = 4 * BITS2; // bits of a lane in a tile: 8 values of a ring of 256
    // A head is the word that states at the start of the lane's bits are cut from: HEAD of its own
    // bits behind those of the lane in front. With 16 + a value's bits the first state is the upper
    // half and needs no mask.
    static constexpr int HEAD = OWN < 16 ? OWN : OWN < 16 + BITS2 / 2 ? 16 : 16 + BITS2 / 2;
    static constexpr int CHUNKS = BITS2 * STEPS / 4, BYTES = CHUNKS * CUDA_WARP * 16;
    static constexpr int BOOKS = BITS2 % 2 ? 1 : 2; // MUL1; MCG and 3INST

    struct piece {
        uint32_t word[4 * CHUNKS];
    };

    const uint4 *at;
    uint32_t by, plus;
    int lane, book;

    __device__ exl3_codes(const struct mat &w, int strip, int lane_)
        : exl3_codes((const uint4 *)((const char *)w.data +
                                     (size_t)strip *
                                         ((uint32_t)mat_round_up((uint32_t)w.cols, EXL3_BLOCK) *
                                          (EXL3_BLOCK * BITS2 / 16))),
                     (enum codebook)w.q.codebook, lane_)
    {
    }

    // from: the strip's codes.
    __device__ exl3_codes(const uint4 *from, enum codebook codebook, int lane_)
    {
        at = from + lane_;
        book = codebook != CODEBOOK_MUL1;
        by = codebook == CODEBOOK_MCG ? 0xcbac1fedu : 89226354u;
        plus = codebook == CODEBOOK_MCG ? 0 : 64248484u;
        lane = lane_;
    }

    __device__ void load(int n, piece &p) const
    {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            uint4 v = load_once(at + ((size_t)n * CHUNKS + c) * CUDA_WARP);

            p.word[4 * c] = v.x;
            p.word[4 * c + 1] = v.y;
            p.word[4 * c + 2] = v.z;
            p.word[4 * c + 3] = v.w;
        }
    }

    // load for a piece in shared memory; from: the lane's first word.
    __device__ static void take(const uint4 *from, piece &p)
    {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            uint4 v = from[c * CUDA_WARP];

            p.word[4 * c] = v.x;
            p.word[4 * c + 1] = v.y;
            p.word[4 * c + 2] = v.z;
            p.word[4 * c + 3] = v.w;
        }
    }

    // The lane's bits up to `end` (exclusive), the last one lowest; at least 16 or OWN are valid.
    __device__ static uint32_t upto(const piece &p, int end)
    {
        int w = end / 32, r = end % 32;

        if (r == 0)
            return p.word[w - 1];
        if (r >= 16 || r >= OWN)
            return p.word[w] >> (32 - r);
        return __funnelshift_l(p.word[w], p.word[w - 1], r);
    }

    // 32 of the lane's bits from `begin` on, the first one highest.
    __device__ static uint32_t from(const piece &p, int begin)
    {
        int w = begin / 32, r = begin % 32;

        if (r == 0)
            return p.word[w];
        return w + 1 < 4 * CHUNKS ? __funnelshift_l(p.word[w + 1], p.word[w], r) : p.word[w] << r;
    }

    // The heads of tiles i and i + 1, by shuffles from the lane (of narrow widths, two) in front.
    __device__ void heads(const piece &p, int i, uint32_t (&head)[2]) const
    {
        uint32_t both, tail;

        if constexpr (HEAD > 16) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                tail = __shfl_sync(FULL_MASK, upto(p, (i + k + 1) * OWN), (lane + 31) & 31);
                head[k] = __funnelshift_l(from(p, (i + k) * OWN), tail, HEAD);
            }
        } else if constexpr (OWN >= 16) {
            both = __byte_perm(upto(p, (i + 1) * OWN), upto(p, (i + 2) * OWN), 0x5410);
            tail = __shfl_sync(FULL_MASK, both, (lane + 31) & 31);
            head[0] = __byte_perm(upto(p, i * OWN + 16), tail, 0x5410);
            head[1] = __byte_perm(upto(p, (i + 1) * OWN + 16), tail, 0x7610);
        } else {
            const uint32_t mask = (1u << OWN) - 1;
            uint32_t own0 = upto(p, (i + 1) * OWN) & mask, own1 = upto(p, (i + 2) * OWN) & mask;
            uint32_t before;

            both = own0 | own1 << 16;
            tail = __shfl_sync(FULL_MASK, both, (lane + 31) & 31);
            before = __shfl_sync(FULL_MASK, both, (lane + 30) & 31);
            head[0] = before << (2 * OWN) | (tail & 0xffff) << OWN | own0;
            head[1] = (before >> 16) << (2 * OWN) | (tail >> 16) << OWN | own1;
        }
    }

    // The 16-bit state of value v of tile i.
    __device__ static uint32_t state(const piece &p, int i, int v, uint32_t head)
    {
        int end = (v + 1) * BITS2 / 2;

        return (end > HEAD ? upto(p, i * OWN + end) : head >> (HEAD - end)) & 0xffff;
    }

    template <int BOOK>
    __device__ void operands(const piece &p, int step, int t, uint32_t (&a)[2][4]) const
    {
        uint32_t head[2];

        heads(p, step * TILES + t, head);
        values<BOOK>(p, step * TILES + t, head, a);
    }

    // The fragments of tiles i and i + 1 from their heads.
    template <int BOOK>
    __device__ void values(const piece &p, int i, const uint32_t (&head)[2],
                           uint32_t (&a)[2][4]) const
    {
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int v = 0; v < 8; v += 2) {
                uint32_t s0 = state(p, i + k, v, head[k]), s1 = state(p, i + k, v + 1, head[k]);

                a[k][operand(v)] = BOOK ? inst_pair(s0, s1, by, plus) : mul1_pair(s0, s1);
            }
    }

    // The register of the fragment for values v, v + 1: values 4 .. 7 are 8 outputs further.
    __device__ static constexpr int operand(int v)
    {
        return v / 4 + v % 4 / 2 * 2;
    }
};

// ---- FP8 ----------------------------------------------------------------------------------------

// One scale for a tile and `block` inputs; a piece has 32 inputs.
struct fp8_codes : outputs_in_order {
    static constexpr int TILES = 4, STEPS = 2, BLOCKS = 3, BYTES = STEPS * 2 * CUDA_WARP * 16;
    static constexpr int BOOKS = 1, book = 0;
    static constexpr bool F16 = false, SCALED = true;
    static constexpr uint32_t KIND = 1u << DTYPE_FP8;

    struct piece {
        uint4 v[STEPS][2];
    };

    const uint4 *at;
    const void *scales;
    int steps, block, blocks, tiles;
    bool e8m0;

    __device__ fp8_codes(const struct mat &w, int strip, int lane)
    {
        at = (const uint4 *)((const char *)w.data +
                             (size_t)strip * mat_strip_bytes(w.dtype, &w.q, w.cols)) +
             lane;
        steps = (w.cols + 15) / 16;
        block = w.q.block;
        blocks = (w.cols + block - 1) / block;
        tiles = (w.rows + MAT_TILE - 1) / MAT_TILE - strip * TILES;
        e8m0 = w.q.e8m0;
        scales = (const char *)w.scale + (size_t)(strip * TILES) * blocks * (e8m0 ? 1 : 4);
    }

    __device__ void load(int n, piece &p) const
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                p.v[s][h] = n * STEPS + s < steps
                                ? load_once(at + ((size_t)(n * STEPS + s) * 2 + h) * CUDA_WARP)
                                : make_uint4(0, 0, 0, 0);
    }

    template <int>
    __device__ void operands(const piece &p, int step, int t, uint32_t (&a)[2][4]) const
    {
        uint4 v = p.v[step][t / 2];

#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t lo = k ? v.z : v.x, hi = k ? v.w : v.y;

            a[k][0] = e4m3_far(__byte_perm(lo, 0, 0x4140));
            a[k][1] = e4m3_far(__byte_perm(hi, 0, 0x4140));
            a[k][2] = e4m3_far(__byte_perm(lo, 0, 0x4342));
            a[k][3] = e4m3_far(__byte_perm(hi, 0, 0x4342));
        }
    }

    // The scale of tile t in piece n.
    __device__ float scale(int n, int t) const
    {
        int i = t * blocks + n * STEPS * 16 / block;

        if (t >= tiles || n * STEPS >= steps)
            return 0;
        return e8m0 ? f32_from_e8m0(((const uint8_t *)scales)[i]) : ((const float *)scales)[i];
    }
};

// ---- FP4 ----------------------------------------------------------------------------------------

// The four e2m1 codes in the low 16 bits of c to two pairs of bf16.
__device__ static inline void e2m1_four(uint32_t c, uint32_t *first, uint32_t *second)
{
    // upper and lower bytes of bf16 0, 0.5, 1, 1.5, 2, 3, 4, 6, selected by magnitude
    uint32_t magnitude = c & 0x7777u;
    uint32_t low = __byte_perm(0xc0800000u, 0xc0804000u, magnitude);
    uint32_t high = __byte_perm(0x3f3f3f00u, 0x40404040u, magnitude);

    *first = __byte_perm(low, high, 0x5140) | (c & 8) << 12 | (c & 0x80) << 24;
    *second = __byte_perm(low, high, 0x7362) | (c & 0x800) << 4 | (c & 0x8000) << 16;
}

// Fragments are multiplied by their scales, which is exact. GROUP inputs of an output share one.
template <enum dtype D> struct fp4_codes : outputs_in_order {
    static constexpr int TILES = 4, STEPS = 2, BLOCKS = 3, BYTES = STEPS * CUDA_WARP * 16;
    static constexpr int BOOKS = 1, book = 0, GROUP = D == DTYPE_MXFP4 ? 32 : 16;
    static constexpr bool F16 = false, SCALED = false;
    static constexpr uint32_t KIND = 1u << D;
    static constexpr int GROUPS = STEPS * 16 / GROUP; // of a piece

    struct piece {
        uint4 v[STEPS];
        uint2 scale[GROUPS]; // four bytes a tile pair: outputs g and g + 8 of each tile
    };

    const uint4 *at;
    const uint2 *scales;
    int steps;

    __device__ fp4_codes(const struct mat &w, int strip, int lane)
    {
        at = (const uint4 *)((const char *)w.data +
                             (size_t)strip * mat_strip_bytes(w.dtype, &w.q, w.cols)) +
             lane;
        steps = w.cols / 16;
        scales = (const uint2 *)((const char *)w.scale + (size_t)strip * (w.cols / GROUP) * 64) +
                 lane / 4;
    }

    __device__ void load(int n, piece &p) const
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            p.v[s] = n * STEPS + s < steps ? load_once(at + (size_t)(n * STEPS + s) * CUDA_WARP)
                                           : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            p.scale[g] = n * STEPS + g * GROUP / 16 < steps ? scales[(size_t)(n * GROUPS + g) * 8]
                                                            : make_uint2(0, 0);
    }

    // A scale as a pair of equal bf16 numbers.
    __device__ static uint32_t scale_pair(uint32_t c)
    {
        uint32_t v =
            bf16_from_f32(D == DTYPE_MXFP4 ? f32_from_e8m0((uint8_t)c) : f32_from_e4m3((uint8_t)c));

        return v | v << 16;
    }

    template <int>
    __device__ void operands(const piece &p, int step, int t, uint32_t (&a)[2][4]) const
    {
        uint4 v = p.v[step];
        uint2 scale = p.scale[step * 16 / GROUP];

#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t word = t == 0 ? (k ? v.y : v.x) : (k ? v.w : v.z);
            uint32_t four = (t == 0 ? scale.x : scale.y) >> (16 * k);
            uint32_t near = scale_pair(four & 0xff), far = scale_pair(four >> 8 & 0xff);

            e2m1_four(word, &a[k][0], &a[k][2]);
            e2m1_four(word >> 16, &a[k][1], &a[k][3]);
            a[k][0] = bf16_times(a[k][0], near);
            a[k][2] = bf16_times(a[k][2], near);
            a[k][1] = bf16_times(a[k][1], far);
            a[k][3] = bf16_times(a[k][3], far);
        }
    }
};

// ---- bf16 ---------------------------------------------------------------------------------------

// Plain tiles: the 16 outputs of an input are adjacent. A lane loads 8 outputs of each of its four
// inputs of a k-step (16 bytes each); fragments take only the permutations that pair up inputs.
// The rows of tile t are outputs 2 t and 2 t + 1 of every eight.
struct bf16_codes {
    static constexpr int TILES = 4, STEPS = 2, BLOCKS = STRIP_PLACES_PLAIN;
    static constexpr int BOOKS = 1, book = 0,
                         COLUMN = MAT_TILE * 2 / 16; // 16-byte words of an input
    static constexpr bool F16 = false, SCALED = false;
    static constexpr uint32_t KIND = 1u << DTYPE_BF16;

    struct piece {
        uint4 v[STEPS][4]; // of inputs q, 4 + q, 8 + q, 12 + q; q is lane % 4
    };

    const uint4 *at; // the lane's eight outputs of input 0
    int k0, cols;    // the lane's inputs are k0, k0 + 4, ...; cols 0: it has no outputs

    __device__ bf16_codes(const struct mat &w, int strip, int lane)
    {
        int tile = strip * TILES + lane / 8;

        cols = tile * MAT_TILE < w.rows ? w.cols : 0;
        at = (const uint4 *)w.data + (size_t)tile * (size_t)w.cols * COLUMN + lane / 4 % 2;
        k0 = lane % 4;
    }

    __device__ void load(int n, piece &p) const
    {
        load_steps(n, 0, STEPS, p);
    }

    // load for k-steps first .. end - 1 of the piece.
    __device__ void load_steps(int n, int first, int end, piece &p) const
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int k = (n * STEPS + s) * 16 + k0 + i * 4;

                if (s < first || s >= end)
                    continue;

                p.v[s][i] = k < cols ? load_once(at + (size_t)k * COLUMN) : make_uint4(0, 0, 0, 0);
            }
    }

    template <int>
    __device__ void operands(const piece &p, int step, int t, uint32_t (&a)[2][4]) const
    {
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t even = word(p.v[step][2 * half], t + k);
                uint32_t odd = word(p.v[step][2 * half + 1], t + k);

                a[k][2 * half] = __byte_perm(even, odd, 0x5410);
                a[k][2 * half + 1] = __byte_perm(even, odd, 0x7632);
            }
    }

    __device__ static constexpr uint32_t word(const uint4 &v, int i)
    {
        return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
    }

    __device__ static constexpr int output(int t, int row, int upper)
    {
        return t / TILES * TILES * MAT_TILE + row * 8 + t % TILES * 2 + upper;
    }
};

#endif
