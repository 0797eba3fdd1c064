/* Products of few rows with weights in bfloat16, laid out in blocks of 64 outputs as oneDNN lays them out for itself. */
#ifndef TENONRY_BLOCKED_H
#define TENONRY_BLOCKED_H

#include "pool.h"
#include "vectors.h"
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#define BLOCK 64       /* outputs of a block */
#define FEW_CHUNKS 16  /* less than what can be shared well */
#define ALONE_NS 80000
#define PAIR_MULTIPLE 16 /* pairs of inputs are filled up to a multiple */

#if defined(__AVX512F__)
#define BLOCK_ROWS 6
#define BLOCK_VECTORS 4
#elif defined(__AVX2__)
#define BLOCK_ROWS 3
#define BLOCK_VECTORS 2
#else
#define BLOCK_ROWS 2
#define BLOCK_VECTORS 2
#endif

/* See `BlockedWeight` in tenonry_torch_base.step_kernels: [outputs / 64, inputs / 2, 64, 2], filled up with zeros. */
typedef struct {
    int64_t inputs, outputs; /* inputs are even */
    const uint16_t *weight;
    const float *bias; /* [outputs] or NULL */
} blocked;

INLINE int64_t blocks_of(const blocked *w) { return (w->outputs + BLOCK - 1) / BLOCK; }

/* The weights of a block of outputs. */
INLINE const uint16_t *block_of(const blocked *w, int64_t block) {
    int64_t pairs = (w->inputs / 2 + PAIR_MULTIPLE - 1) / PAIR_MULTIPLE * PAIR_MULTIPLE;
    return w->weight + block * pairs * 2 * BLOCK;
}

INLINE float widened(uint16_t half) {
    union {
        uint32_t bits;
        float value;
    } both = {(uint32_t)half << 16};
    return both.value;
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

/* sums = rows of x times `vectors` vectors of a block's outputs. */
INLINE void block_tile(int rows, int vectors, int64_t pairs, const uint16_t *x, int64_t x_step, const uint16_t *weight,
                       vector sums[BLOCK_ROWS][BLOCK_VECTORS]) {
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = (vector){0};
    for (int64_t k = 0; k < pairs; k++) {
        const uint16_t *line = weight + k * 2 * BLOCK;
#if defined(__AVX512BF16__)
        __m512i columns[BLOCK_VECTORS];
        for (int v = 0; v < vectors; v++) columns[v] = _mm512_loadu_si512(line + v * 2 * LANES);
        for (int r = 0; r < rows; r++) {
            int32_t both;
            __builtin_memcpy(&both, x + r * x_step + 2 * k, 4);
            __m512i given = _mm512_set1_epi32(both);
            for (int v = 0; v < vectors; v++)
                sums[r][v] = (vector)_mm512_dpbf16_ps((__m512)sums[r][v], (__m512bh)columns[v], (__m512bh)given);
        }
#else
        for (int v = 0; v < vectors; v++) {
            bits_vector both = *(const bits_vector *)(line + v * 2 * LANES);
            vector first = (vector)(both << 16);
            vector second = (vector)(both & 0xffff0000u);
            for (int r = 0; r < rows; r++) {
                const uint16_t *given = x + r * x_step + 2 * k;
                sums[r][v] += first * widened(given[0]);
                sums[r][v] += second * widened(given[1]);
            }
        }
#endif
    }
}

/* out [rows, 64] floats = rows of x times a block. */
INLINE void block_rows(int rows, const blocked *w, int64_t block, const uint16_t *x, int64_t x_step, float *out) {
    const uint16_t *weight = block_of(w, block);
    for (int c = 0; c < BLOCK; c += BLOCK_VECTORS * LANES) {
        vector sums[BLOCK_ROWS][BLOCK_VECTORS];
        block_tile(rows, BLOCK_VECTORS, w->inputs / 2, x, x_step, weight + 2 * c, sums);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < BLOCK_VECTORS; v++) *(vector *)(out + r * BLOCK + c + v * LANES) = sums[r][v];
    }
    if (!w->bias) return;
    int64_t left = w->outputs - block * BLOCK;
    for (int r = 0; r < rows; r++)
        for (int64_t c = 0; c < BLOCK && c < left; c++) out[r * BLOCK + c] += w->bias[block * BLOCK + c];
}

/* As above, of 1 to BLOCK_ROWS rows. */
static void few_block_rows(int64_t rows, const blocked *w, int64_t block, const uint16_t *x, int64_t x_step, float *out) {
    switch (rows) {
        case 1: block_rows(1, w, block, x, x_step, out); break;
        case 2: block_rows(2, w, block, x, x_step, out); break;
#if BLOCK_ROWS > 2
        case 3: block_rows(3, w, block, x, x_step, out); break;
#endif
#if BLOCK_ROWS > 3
        case 4: block_rows(4, w, block, x, x_step, out); break;
        case 5: block_rows(5, w, block, x, x_step, out); break;
        case 6: block_rows(6, w, block, x, x_step, out); break;
#endif
    }
}

/* What becomes of a product: floats, or halves to which `others` are added where there are some, or with `is_gated` of
 * [gate, up] the half silu(gate) * up. Rows are `step` elements apart. */
typedef struct {
    const blocked *weight;
    const uint16_t *x;
    int64_t count, x_step, group; /* rows; how many of them are a chunk */
    float *floats;
    uint16_t *halves;
    const uint16_t *others;
    int64_t step;
    int64_t is_gated;
} product_job;

static void product_chunk(const void *context, int64_t chunk) {
    const product_job *job = context;
    const blocked *w = job->weight;
    int64_t groups = (job->count + job->group - 1) / job->group;
    int64_t block = chunk / groups;
    int64_t begin = chunk % groups * job->group;
    int64_t end = begin + job->group < job->count ? begin + job->group : job->count;
    int64_t first = block * BLOCK;
    int64_t outputs = job->is_gated ? w->outputs / 2 : w->outputs;
    float made[BLOCK_ROWS * BLOCK], ups[BLOCK_ROWS * BLOCK];
    for (int64_t r = begin; r < end; r += BLOCK_ROWS) {
        int64_t rows = end - r < BLOCK_ROWS ? end - r : BLOCK_ROWS;
        const uint16_t *x = job->x + r * job->x_step;
        few_block_rows(rows, w, block, x, job->x_step, made);
        if (job->is_gated) few_block_rows(rows, w, block + outputs / BLOCK, x, job->x_step, ups);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t c = 0; c < BLOCK && first + c < outputs; c += LANES) {
                int64_t left = outputs - first - c;
                int64_t place = (r + i) * job->step + first + c;
                vector values = *(vector *)(made + i * BLOCK + c);
                if (job->is_gated) values = silu(values) * *(vector *)(ups + i * BLOCK + c);
                if (job->others) values += take_half(job->others + place, left);
                if (job->floats)
                    put(job->floats + place, values, left);
                else
                    put_half(job->halves + place, values, left);
            }
    }
}

/* Chunks are blocks, or where these are few, some rows of them. */
static void blocked_product(product_job *job) {
    int64_t blocks = blocks_of(job->weight);
    if (job->is_gated) blocks /= 2;
    int64_t groups = (FEW_CHUNKS + blocks - 1) / blocks;
    int64_t tiles = (job->count + BLOCK_ROWS - 1) / BLOCK_ROWS;
    if (groups > tiles) groups = tiles;
    job->group = (tiles + groups - 1) / groups * BLOCK_ROWS;
    groups = (job->count + job->group - 1) / job->group;
    tenonry_share(product_chunk, job, blocks * groups);
}

/* Nanoseconds that a product takes one thread, roughly. */
INLINE int64_t product_ns(const blocked *w, int64_t count) { return w->inputs * w->outputs * (4 + count) / 120; }

/* As many threads as pay for so much work: waking one takes as long as some of it. */
INLINE int64_t threads_for(int64_t threads, int64_t work_ns) { return work_ns < ALONE_NS ? 1 : threads; }

#endif
