/* Attention of rows of one new token over K/V in blocks, in bfloat16: as attention.h, with one pass over the keys. */
#ifndef TENONRY_PAGED_H
#define TENONRY_PAGED_H

#include "attention.h"
#include "blocked.h"

#define MAX_SIZE 256   /* of a head */
#define TILE_KEYS 32   /* whose scores are computed together */

/* See `PagedKeys` in tenonry_torch_base.step_kernels. */
typedef struct {
    uint16_t *blocks; /* [blocks, 2 * kv_heads, block_size, size] */
    int64_t block_size, kv_heads;
    const int32_t *table; /* [rows, width] */
    int64_t width;
    const int64_t *length; /* [rows]: with the new token */
    int64_t window;        /* so many of the last tokens are seen; 0: all */
    int64_t is_dependent;  /* a row may see the new tokens of others */
} paged;

/* One query while keys pass by: what they weigh so far, relative to the largest score. */
typedef struct {
    float values[MAX_SIZE]; /* of the query, times scaling */
    uint16_t halves[MAX_SIZE];
    float sums[MAX_SIZE];
    float largest;
    float weight;
} asked;

INLINE void begin_query(asked *q, int64_t size, float scaling) {
    for (int64_t c = 0; c < size; c += LANES) {
        put_half(q->halves + c, taken(q->values + c, size - c), size - c);
        put(q->values + c, taken(q->values + c, size - c) * scaling, size - c);
        put(q->sums + c, (vector){0}, size - c);
    }
    q->largest = -INFINITY;
    q->weight = 0.0f;
}

INLINE float dot_halves(const asked *q, const uint16_t *key, int64_t size) {
    vector sums = {0};
    for (int64_t c = 0; c < size; c += LANES) sums += taken(q->values + c, size - c) * take_half(key + c, size - c);
    return total(sums);
}

/* scores [count] of the query with keys that follow each other, zeros behind them. */
INLINE void score_halves(const asked *q, const uint16_t *keys, int64_t count, int64_t size, float scaling, float *scores) {
    int64_t t = 0;
#if defined(__AVX512BF16__)
    if (size % 32 == 0)
        for (; t + 4 <= count; t += 4) {
            __m512 sums[4];
            for (int n = 0; n < 4; n++) sums[n] = _mm512_setzero_ps();
            for (int64_t c = 0; c < size; c += 32) {
                __m512bh given = (__m512bh)_mm512_loadu_si512(q->halves + c);
                for (int n = 0; n < 4; n++)
                    sums[n] = _mm512_dpbf16_ps(sums[n], (__m512bh)_mm512_loadu_si512(keys + (t + n) * size + c), given);
            }
            four parts[4];
            for (int n = 0; n < 4; n++) parts[n] = folded((vector)sums[n]);
            *(four *)(scores + t) = totals(parts[0], parts[1], parts[2], parts[3]) * scaling;
        }
#endif
    (void)scaling;
    for (; t < count; t++) scores[t] = dot_halves(q, keys + t * size, size);
}

/* The tile's keys take part in the softmax. */
INLINE void weigh_halves(asked *q, const uint16_t *values, int64_t count, int64_t size, float *scores) {
    float largest = q->largest;
    for (int64_t t = 0; t < count; t++) largest = scores[t] > largest ? scores[t] : largest;
    if (largest > q->largest) {
        float scale = exponential((vector){0} + (q->largest - largest))[0];
        for (int64_t c = 0; c < size; c += LANES) put(q->sums + c, taken(q->sums + c, size - c) * scale, size - c);
        q->weight *= scale;
        q->largest = largest;
    }
    float sum = 0.0f;
    for (int64_t t = 0; t < count; t += LANES) {
        vector weights = exponential(taken(scores + t, count - t) - largest);
        put(scores + t, weights, count - t);
        sum += total(taken(scores + t, count - t));
    }
    q->weight += sum;
    int64_t c = 0;
    for (; c + 2 * LANES <= size; c += 2 * LANES) {
        vector first = *(vector *)(q->sums + c), second = *(vector *)(q->sums + c + LANES);
        for (int64_t t = 0; t < count; t++) {
            first += scores[t] * take_half(values + t * size + c, LANES);
            second += scores[t] * take_half(values + t * size + c + LANES, LANES);
        }
        *(vector *)(q->sums + c) = first;
        *(vector *)(q->sums + c + LANES) = second;
    }
    for (; c < size; c += LANES) {
        vector sums = taken(q->sums + c, size - c);
        for (int64_t t = 0; t < count; t++) sums += scores[t] * take_half(values + t * size + c, size - c);
        put(q->sums + c, sums, size - c);
    }
}

/* `sharing` queries that have been begun, over the keys of head `h` of a row; their results in bfloat16. */
INLINE void attend(const paged *at, int64_t row, int64_t h, int64_t sharing, int64_t size, float scaling, asked *queries,
                   uint16_t *out) {
    int64_t length = at->length[row];
    int64_t first = at->window && length > at->window ? length - at->window : 0;
    const int32_t *table = at->table + row * at->width;
    for (int64_t t = first; t < length;) {
        int64_t place = t % at->block_size;
        int64_t count = at->block_size - place;
        if (count > length - t) count = length - t;
        if (count > TILE_KEYS) count = TILE_KEYS;
        int64_t line = (int64_t)table[t / at->block_size] * 2 * at->kv_heads + h;
        const uint16_t *keys = at->blocks + (line * at->block_size + place) * size;
        const uint16_t *values = keys + at->kv_heads * at->block_size * size;
        for (int64_t g = 0; g < sharing; g++) {
            float scores[TILE_KEYS];
            score_halves(queries + g, keys, count, size, scaling, scores);
            weigh_halves(queries + g, values, count, size, scores);
        }
        t += count;
    }
    for (int64_t g = 0; g < sharing; g++) {
        float scale = 1.0f / queries[g].weight;
        for (int64_t c = 0; c < size; c += LANES)
            put_half(out + g * size + c, taken(queries[g].sums + c, size - c) * scale, size - c);
    }
}

#endif
