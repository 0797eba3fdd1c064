/* Attention of rows of one new token over K/V in blocks, in bfloat16: as attention.h, with one pass over the keys. */
#ifndef TENONRY_PAGED_H
#define TENONRY_PAGED_H

#include "attention.h"
#include "rounded.h"

#define MAX_SIZE 256   /* of a head */
#define TILE_KEYS 32   /* whose scores are computed together */
#define TOGETHER 2     /* queries for which keys become floats once */

/* See `PagedKeys` in tenonry_torch_base.step_kernels. */
typedef struct {
    char *blocks; /* [blocks, 2 * kv_heads, block_size] vectors, in bfloat16 */
    int64_t is_rounded; /* they are as rounded.h has them */
    int64_t block_size, kv_heads;
    const int32_t *table; /* [rows, width] */
    int64_t width;
    const int64_t *length; /* [rows]: with the new token */
    int64_t window;        /* so many of the last tokens are seen; 0: all */
    int64_t is_dependent;  /* a row may see the new tokens of others */
} paged;

INLINE int64_t vector_bytes(const paged *at, int64_t size) { return at->is_rounded ? rounded_width(size) : 2 * size; }

/* A row's key of head `h`; `values_behind` bytes further is the value. */
INLINE char *key_at(const paged *at, int64_t row, int64_t h, int64_t token, int64_t size) {
    int64_t block = at->table[row * at->width + token / at->block_size];
    int64_t line = (block * 2 * at->kv_heads + h) * at->block_size + token % at->block_size;
    return at->blocks + line * vector_bytes(at, size);
}

INLINE int64_t values_behind(const paged *at, int64_t size) { return at->kv_heads * at->block_size * vector_bytes(at, size); }

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

/* The tile's scores become weights, relative to the largest score, which may be among them. */
INLINE void soften(asked *q, int64_t count, int64_t size, float *scores) {
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
}

/* `left` elements of a key or value, and zeros behind them. */
INLINE vector take_kept(const char *x, int64_t left, int is_rounded) {
    return is_rounded ? take_bytes((const int8_t *)x, left) : take_half((const uint16_t *)x, left);
}

INLINE int64_t kept_bytes(int64_t size, int is_rounded) { return is_rounded ? rounded_width(size) : 2 * size; }

INLINE float scale_of_kept(const char *x, int64_t size, int is_rounded) {
    return is_rounded ? scale_of((const int8_t *)x, size) : 1.0f;
}

/* scores [n][count] of n queries with keys that follow each other. */
INLINE void score_kept(int n, const asked *q, const char *keys, int64_t count, int64_t size, int is_rounded,
                       float (*scores)[TILE_KEYS]) {
    int64_t width = kept_bytes(size, is_rounded);
    int64_t element = is_rounded ? 1 : 2;
    int64_t t = 0;
    for (; t + 4 <= count; t += 4) {
        vector sums[4][TOGETHER];
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++)
#pragma GCC unroll 2
            for (int i = 0; i < n; i++) sums[k][i] = (vector){0};
        for (int64_t c = 0; c < size; c += LANES)
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                vector key = take_kept(keys + (t + k) * width + c * element, size - c, is_rounded);
#pragma GCC unroll 2
                for (int i = 0; i < n; i++) sums[k][i] += key * taken(q[i].values + c, size - c);
            }
        four scales;
        for (int k = 0; k < 4; k++) scales[k] = scale_of_kept(keys + (t + k) * width, size, is_rounded);
#pragma GCC unroll 2
        for (int i = 0; i < n; i++) {
            four parts[4];
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) parts[k] = folded(sums[k][i]);
            *(four *)(scores[i] + t) = totals(parts[0], parts[1], parts[2], parts[3]) * scales;
        }
    }
    for (; t < count; t++)
        for (int i = 0; i < n; i++) {
            vector sums = {0};
            for (int64_t c = 0; c < size; c += LANES)
                sums += take_kept(keys + t * width + c * element, size - c, is_rounded) * taken(q[i].values + c, size - c);
            scores[i][t] = total(sums) * scale_of_kept(keys + t * width, size, is_rounded);
        }
}

/* What the tile's values add to so many vectors of each query. */
INLINE void add_kept(int n, int vectors, asked *q, const char *values, int64_t c, int64_t count, int64_t size,
                     int is_rounded, float (*weights)[TILE_KEYS]) {
    vector sums[TOGETHER][4];
    int64_t width = kept_bytes(size, is_rounded);
    int64_t element = is_rounded ? 1 : 2;
    int64_t left = size - c;
#pragma GCC unroll 2
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sums[i][v] = taken(q[i].sums + c + v * LANES, left - v * LANES);
    for (int64_t t = 0; t < count; t++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const char *place = values + t * width + (c + v * LANES) * element;
            vector value = take_kept(place, left - v * LANES, is_rounded);
#pragma GCC unroll 2
            for (int i = 0; i < n; i++) sums[i][v] += weights[i][t] * value;
        }
#pragma GCC unroll 2
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) put(q[i].sums + c + v * LANES, sums[i][v], left - v * LANES);
}

/* The tile's keys take part in the softmax of n queries, which share what is widened of them. */
INLINE void pass_kept(int n, asked *q, const char *keys, const char *values, int64_t count, int64_t size, int is_rounded) {
    float scores[TOGETHER][TILE_KEYS];
    score_kept(n, q, keys, count, size, is_rounded, scores);
    for (int i = 0; i < n; i++) {
        soften(q + i, count, size, scores[i]);
        if (is_rounded)
            for (int64_t t = 0; t < count; t++) scores[i][t] *= scale_of((const int8_t *)values + t * rounded_width(size), size);
    }
    int64_t c = 0;
    for (; c + 4 * LANES <= size; c += 4 * LANES) add_kept(n, 4, q, values, c, count, size, is_rounded, scores);
    for (; c < size; c += LANES) add_kept(n, 1, q, values, c, count, size, is_rounded, scores);
}

/* As above, of all queries. */
INLINE void pass_shared(int64_t sharing, asked *q, const char *keys, const char *values, int64_t count, int64_t size,
                        int is_rounded) {
    int64_t g = 0;
    for (; g + TOGETHER <= sharing; g += TOGETHER) pass_kept(TOGETHER, q + g, keys, values, count, size, is_rounded);
    for (; g < sharing; g++) pass_kept(1, q + g, keys, values, count, size, is_rounded);
}

#if !WIDENS
INLINE float dot_halves(const asked *q, const uint16_t *key, int64_t size) {
    vector sums = {0};
    for (int64_t c = 0; c < size; c += LANES) sums += taken(q->values + c, size - c) * take_half(key + c, size - c);
    return total(sums);
}

/* scores [count] of the query with keys that follow each other, zeros behind them. */
INLINE void score_halves(const asked *q, const uint16_t *keys, int64_t count, int64_t size, float scaling, float *scores) {
    int64_t t = 0;
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
    for (; t < count; t++) scores[t] = dot_halves(q, keys + t * size, size);
}

/* The tile's keys take part in the softmax. */
INLINE void weigh_halves(asked *q, const uint16_t *values, int64_t count, int64_t size, float *scores) {
    soften(q, count, size, scores);
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
#endif

/* `sharing` queries that have been begun, over the keys of head `h` of a row; their results in bfloat16. */
INLINE void attend(const paged *at, int64_t row, int64_t h, int64_t sharing, int64_t size, float scaling, asked *queries,
                   uint16_t *out) {
    int64_t length = at->length[row];
    int64_t first = at->window && length > at->window ? length - at->window : 0;
    for (int64_t t = first; t < length;) {
        int64_t place = t % at->block_size;
        int64_t count = at->block_size - place;
        if (count > length - t) count = length - t;
        if (count > TILE_KEYS) count = TILE_KEYS;
        const char *kept = key_at(at, row, h, t, size);
        t += count;
        const char *values = kept + values_behind(at, size);
        if (at->is_rounded) {
            pass_shared(sharing, queries, kept, values, count, size, 1);
            continue;
        }
#if WIDENS
        (void)scaling;
        pass_shared(sharing, queries, kept, values, count, size, 0);
#else
        for (int64_t g = 0; g < sharing; g++) {
            float scores[TILE_KEYS];
            score_halves(queries + g, (const uint16_t *)kept, count, size, scaling, scores);
            weigh_halves(queries + g, (const uint16_t *)values, count, size, scores);
        }
#endif
    }
    for (int64_t g = 0; g < sharing; g++) {
        float scale = 1.0f / queries[g].weight;
        for (int64_t c = 0; c < size; c += LANES)
            put_half(out + g * size + c, taken(queries[g].sums + c, size - c) * scale, size - c);
    }
}

#endif
