/* Weights laid out in blocks of 64 outputs, and products of few rows with those in bfloat16, which oneDNN lays out so for
 * itself; quantised ones are in low_bit.h. */
#ifndef TENONRY_BLOCKED_H
#define TENONRY_BLOCKED_H

#include "pool.h"
#include "vectors.h"

#define BLOCK 64       /* outputs of a block */
#define PAIR_MULTIPLE 16 /* pairs of inputs are filled up to a multiple */
#define HALF_BITS 16     /* of a weight in bfloat16 */

/* An element of what is multiplied with weights in bfloat16: widened where no instruction takes such. */
#if defined(__AVX512BF16__)
#define WIDENS 0
typedef uint16_t factor;
#else
#define WIDENS 1
typedef float factor;
#endif

enum { FLOATS, BFLOATS, HALVES }; /* float32, bfloat16, float16 */

#if defined(__AVX512F__)
#define BLOCK_ROWS 6
#define BLOCK_VECTORS 4
#elif defined(__AVX2__)
#define BLOCK_ROWS 6
#define BLOCK_VECTORS 2
#else
#define BLOCK_ROWS 2
#define BLOCK_VECTORS 2
#endif

/* With 16 bits see `BlockedWeight` in tenonry_torch_base.step_kernels, otherwise `LowBitWeight` in its low_bit. */
typedef struct {
    int64_t inputs, outputs; /* in bfloat16, inputs are even */
    const void *weight;
    const float *bias; /* [outputs] or NULL */
    int64_t bits;
    int64_t groups;      /* of inputs, each with scales of its own */
    const void *scales;   /* [blocks, groups, 64] */
    const void *zeros;    /* as scales; NULL: the middle of the range, or with minimums 0 */
    const void *minimums; /* as scales, or NULL: a number is value * scale + minimum */
    int64_t scale_type;   /* of all three: one of FLOATS, BFLOATS, HALVES */
    int64_t input_bytes; /* of a rounded input: 1, or 2 with groups of at most 256 inputs */
} blocked;

INLINE int64_t blocks_of(const blocked *w) { return (w->outputs + BLOCK - 1) / BLOCK; }

/* The weights of a block of outputs, in bfloat16. */
INLINE const uint16_t *block_of(const blocked *w, int64_t block) {
    int64_t pairs = (w->inputs / 2 + PAIR_MULTIPLE - 1) / PAIR_MULTIPLE * PAIR_MULTIPLE;
    return (const uint16_t *)w->weight + block * pairs * 2 * BLOCK;
}

INLINE float widened(uint16_t half) {
    union {
        uint32_t bits;
        float value;
    } both = {(uint32_t)half << 16};
    return both.value;
}

/* One of float16. */
INLINE float of_half(uint16_t half) {
    uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, rest = half & 0x3ff;
    union {
        uint32_t bits;
        float value;
    } both;
    if (exponent == 0) {
        both.value = (float)rest * 0x1p-24f;
        both.bits |= sign;
    } else
        both.bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | rest << 13;
    return both.value;
}

/* LANES of float16. */
INLINE vector of_halves(const void *halves) {
#if defined(__AVX512F__)
    return (vector)_mm512_cvtph_ps(_mm256_loadu_si256(halves));
#elif defined(__AVX2__)
    return (vector)_mm256_cvtph_ps(_mm_loadu_si128(halves));
#else
    vector values;
    for (int i = 0; i < LANES; i++) values[i] = of_half(((const half_vector *)halves)[0][i]);
    return values;
#endif
}

/* LANES scales, zeros or minimums from an element on. */
INLINE vector scales_at(const blocked *w, const void *base, int64_t element) {
    if (w->scale_type == FLOATS) return *(const vector *)((const float *)base + element);
    const void *place = (const uint16_t *)base + element;
    return w->scale_type == HALVES ? of_halves(place) : widened_vector(place);
}

/* One of them. */
INLINE float scale_at(const blocked *w, const void *base, int64_t element) {
    if (w->scale_type == FLOATS) return ((const float *)base)[element];
    uint16_t half = ((const uint16_t *)base)[element];
    return w->scale_type == HALVES ? of_half(half) : widened(half);
}

/* out = `left` lanes or all, rounded to bfloat16, to even where two are as near; NaN stays NaN. */
INLINE void put_half(uint16_t *out, vector values, int64_t left) {
#if defined(__AVX512BF16__)
    half_vector halves = (half_vector)_mm512_cvtneps_pbh((__m512)values);
#else
    bits_vector bits = (bits_vector)values;
    bits_vector rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    bits_vector is_nan = (bits_vector)(values != values);
    bits_vector kept = (rounded & ~is_nan) | (((bits >> 16) | 0x40) & is_nan);
    half_vector halves = __builtin_convertvector(kept, half_vector);
#endif
    if (left >= LANES)
        *(half_vector *)out = halves;
    else
        for (int64_t i = 0; i < left; i++) out[i] = halves[i];
}

INLINE vector take_half(const uint16_t *x, int64_t left) { return load(x, left, 1); }

/* out = x / sqrt(mean(x * x) + eps) * weight, of and in bfloat16. */
INLINE void normalise_half(const uint16_t *x, const float *weight, float eps, int64_t size, uint16_t *out) {
    vector squares = {0};
    for (int64_t i = 0; i < size; i += LANES) {
        vector values = take_half(x + i, size - i);
        squares += values * values;
    }
    float scale = 1.0f / sqrtf(total(squares) / (float)size + eps);
    for (int64_t i = 0; i < size; i += LANES)
        put_half(out + i, take_half(x + i, size - i) * scale * taken(weight + i, size - i), size - i);
}

/* Sums of rows for all outputs of a block fit into registers, so many vectors of them at a time. */
INLINE int vectors_at_once(int rows) {
    int most = BLOCK / LANES;
    int fitting = BLOCK_ROWS * BLOCK_VECTORS / rows;
    return fitting >= most ? most : fitting >= 4 ? 4 : fitting >= 2 ? 2 : 1;
}

INLINE void begin_sums(int rows, int vectors, vector sums[BLOCK_ROWS][BLOCK / LANES]) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) sums[r][v] = (vector){0};
}

/* sums += `rows` rows times `vectors` vectors of a block's outputs. */
INLINE void block_tile(int rows, int vectors, int64_t pairs, const factor *x, int64_t x_step, const uint16_t *weight,
                       vector sums[BLOCK_ROWS][BLOCK / LANES]) {
#if WIDENS /* weights are read twice, once for each input of a pair, which leaves more registers to sums */
    const bits_vector upper = (bits_vector){0} + 0xffff0000u;
    for (int64_t k = 0; k < pairs; k++) {
        const uint16_t *line = weight + k * 2 * BLOCK;
#pragma GCC unroll 2
        for (int which = 0; which < 2; which++) {
            vector columns[BLOCK / LANES];
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++) {
                bits_vector both = *(const bits_vector *)(line + v * 2 * LANES);
                columns[v] = (vector)(which == 0 ? (bits_vector)(both << 16) : (bits_vector)(both & upper));
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
                for (int v = 0; v < vectors; v++) sums[r][v] += columns[v] * x[r * x_step + 2 * k + which];
        }
    }
#else
    for (int64_t k = 0; k < pairs; k++) {
        const uint16_t *line = weight + k * 2 * BLOCK;
        __m512i columns[BLOCK / LANES];
        for (int v = 0; v < vectors; v++) columns[v] = _mm512_loadu_si512(line + v * 2 * LANES);
        for (int r = 0; r < rows; r++) {
            int32_t both;
            __builtin_memcpy(&both, x + r * x_step + 2 * k, 4);
            __m512i given = _mm512_set1_epi32(both);
            for (int v = 0; v < vectors; v++)
                sums[r][v] = (vector)_mm512_dpbf16_ps((__m512)sums[r][v], (__m512bh)columns[v], (__m512bh)given);
        }
    }
#endif
}

/* out [rows, 64] floats = rows of x times a block. */
INLINE void half_rows(int rows, const blocked *w, int64_t block, const factor *x, int64_t x_step, float *out) {
    const uint16_t *weight = block_of(w, block);
    int vectors = vectors_at_once(rows);
    for (int c = 0; c < BLOCK; c += vectors * LANES) {
        vector sums[BLOCK_ROWS][BLOCK / LANES];
        begin_sums(rows, vectors, sums);
        block_tile(rows, vectors, w->inputs / 2, x, x_step, weight + 2 * c, sums);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++) *(vector *)(out + r * BLOCK + c + v * LANES) = sums[r][v];
    }
}

INLINE void put_factors(factor *out, vector values, int64_t left) {
#if WIDENS
    put(out, values, left);
#else
    put_half(out, values, left);
#endif
}

INLINE void take_factors(const uint16_t *x, int64_t size, factor *out) {
    for (int64_t i = 0; i < size; i += LANES) put_factors(out + i, take_half(x + i, size - i), size - i);
}

#endif
