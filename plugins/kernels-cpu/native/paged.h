/* Attention of rows of one new token over K/V in blocks, in bfloat16: as attention.h, with one pass over the keys. */
#ifndef TENONRY_PAGED_H
#define TENONRY_PAGED_H

#include "attention.h"
#include "rounded.h"

#define MAX_SIZE 256   /* of a head */
#define TILE_KEYS 64   /* whose scores are computed together; whole vectors */
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

/* The tile's scores become weights, relative to the largest score, which may be among them. There is room for whole
 * vectors of them. */
INLINE void soften(asked *q, int64_t count, int64_t size, float *scores) {
    vector most = {0};
    most += q->largest;
    for (int64_t t = count; t % LANES; t++) scores[t] = -INFINITY;
    for (int64_t t = 0; t < count; t += LANES) {
        vector given = *(const vector *)(scores + t);
        most = greatest(given, most);
    }
    float largest = largest_lane(most);
    if (largest > q->largest) {
        float scale = exponential((vector){0} + (q->largest - largest))[0];
        for (int64_t c = 0; c < size; c += LANES) put(q->sums + c, taken(q->sums + c, size - c) * scale, size - c);
        q->weight *= scale;
        q->largest = largest;
    }
    vector sums = {0};
    for (int64_t t = 0; t < count; t += LANES) {
        vector weights = exponential(*(const vector *)(scores + t) - largest);
        put(scores + t, weights, count - t);
        sums += taken(scores + t, count - t);
    }
    q->weight += total(sums);
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

#if !WIDENS
INLINE float dot_halves(const asked *q, const uint16_t *key, int64_t size) {
    vector sums = {0};
    for (int64_t c = 0; c < size; c += LANES) sums += taken(q->values + c, size - c) * take_half(key + c, size - c);
    return total(sums);
}

/* Each lane the sum of a vector. */
INLINE __m512 sixteen_totals(__m512 x[16]) {
#pragma GCC unroll 8
    for (int n = 0; n < 8; n++)
        x[n] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * n], x[2 * n + 1]), _mm512_unpackhi_ps(x[2 * n], x[2 * n + 1]));
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) {
        __m512d a = _mm512_castps_pd(x[2 * n]), b = _mm512_castps_pd(x[2 * n + 1]);
        x[n] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
#pragma GCC unroll 2
    for (int turn = 2; turn; turn--)
#pragma GCC unroll 2
        for (int n = 0; n < turn; n++)
            x[n] = _mm512_add_ps(_mm512_shuffle_f32x4(x[2 * n], x[2 * n + 1], 0x88),
                                 _mm512_shuffle_f32x4(x[2 * n], x[2 * n + 1], 0xdd));
    return x[0];
}

/* scores [count] of the query with keys that follow each other. */
INLINE void score_halves(const asked *q, const uint16_t *keys, int64_t count, int64_t size, float scaling, float *scores) {
    int64_t t = 0;
    if (size % 32 == 0)
        for (; t + 16 <= count; t += 16) {
            __m512 sums[16];
#pragma GCC unroll 16
            for (int n = 0; n < 16; n++) sums[n] = _mm512_setzero_ps();
            for (int64_t c = 0; c < size; c += 32) {
                __m512bh given = (__m512bh)_mm512_loadu_si512(q->halves + c);
#pragma GCC unroll 16
                for (int n = 0; n < 16; n++)
                    sums[n] = _mm512_dpbf16_ps(sums[n], (__m512bh)_mm512_loadu_si512(keys + (t + n) * size + c), given);
            }
            *(vector *)(scores + t) = (vector)sixteen_totals(sums) * scaling;
        }
    for (; t < count; t++) scores[t] = dot_halves(q, keys + t * size, size);
}
#endif

/* Keys of a row that follow each other in a block, and their values. */
typedef struct {
    const char *keys, *values;
    int64_t count;
} run;

/* Those of `count` tokens from `first` on; how many. */
INLINE int64_t find_runs(const paged *at, int64_t row, int64_t h, int64_t first, int64_t count, int64_t size, run *runs) {
    int64_t found = 0;
    for (int64_t end = first + count; first < end; found++) {
        int64_t left = at->block_size - first % at->block_size;
        const char *keys = key_at(at, row, h, first, size);
        runs[found] = (run){keys, keys + values_behind(at, size), left < end - first ? left : end - first};
        first += runs[found].count;
    }
    return found;
}

/* Those of the tile that begins with a token, if it is not behind the last one. */
INLINE int64_t find_tile(const paged *at, int64_t row, int64_t h, int64_t first, int64_t length, int64_t size, run *runs) {
    int64_t left = length - first;
    return find_runs(at, row, h, first, left < 0 ? 0 : left < TILE_KEYS ? left : TILE_KEYS, size, runs);
}

/* Ask for what is computed next: runs are short and lie anywhere, so that no processor foresees them. */
INLINE void fetch_runs(const run *runs, int64_t num_runs, int64_t width) {
    for (int64_t r = 0; r < num_runs; r++)
        for (int64_t byte = 0; byte < runs[r].count * width; byte += 64) {
            __builtin_prefetch(runs[r].keys + byte, 0, 2);
            __builtin_prefetch(runs[r].values + byte, 0, 2);
        }
}

/* What the values of runs add to so many vectors of each query. */
INLINE void add_kept(int n, int vectors, asked *q, const run *runs, int64_t num_runs, int64_t c, int64_t size,
                     int is_rounded, float (*weights)[TILE_KEYS]) {
    vector sums[TOGETHER][4];
    int64_t width = kept_bytes(size, is_rounded);
    int64_t element = is_rounded ? 1 : 2;
    int64_t left = vectors > 1 ? vectors * LANES : size - c; /* several are whole, which spares a question each time */
#pragma GCC unroll 2
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sums[i][v] = taken(q[i].sums + c + v * LANES, left - v * LANES);
    int64_t passed = 0;
    for (int64_t r = 0; r < num_runs; passed += runs[r++].count) {
        const char *values = runs[r].values + c * element;
        for (int64_t t = 0; t < runs[r].count; t++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                vector value = take_kept(values + t * width + v * LANES * element, left - v * LANES, is_rounded);
#pragma GCC unroll 2
                for (int i = 0; i < n; i++) sums[i][v] += weights[i][passed + t] * value;
            }
    }
#pragma GCC unroll 2
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) put(q[i].sums + c + v * LANES, sums[i][v], left - v * LANES);
}

/* scores [n][count] of n queries with the keys of a run. */
INLINE void score_run(int n, const asked *q, const run *of, int64_t size, float scaling, int is_rounded,
                      float (*scores)[TILE_KEYS]) {
#if !WIDENS
    if (!is_rounded) {
        for (int i = 0; i < n; i++)
            score_halves(q + i, (const uint16_t *)of->keys, of->count, size, scaling, scores[i]);
        return;
    }
#endif
    (void)scaling;
    score_kept(n, q, of->keys, of->count, size, is_rounded, scores);
}

/* A tile of keys takes part in the softmax of n queries, which share what is widened of them. */
INLINE void pass_kept(int n, asked *q, const run *runs, int64_t num_runs, int64_t size, float scaling, int is_rounded) {
    float scores[TOGETHER][TILE_KEYS];
    int64_t count = 0;
    for (int64_t r = 0; r < num_runs; count += runs[r++].count)
        score_run(n, q, runs + r, size, scaling, is_rounded, (float(*)[TILE_KEYS])(scores[0] + count));
    for (int i = 0; i < n; i++) soften(q + i, count, size, scores[i]);
    if (is_rounded) {
        count = 0;
        for (int64_t r = 0; r < num_runs; count += runs[r++].count)
            for (int64_t t = 0; t < runs[r].count; t++) {
                float scale = scale_of((const int8_t *)runs[r].values + t * rounded_width(size), size);
                for (int i = 0; i < n; i++) scores[i][count + t] *= scale;
            }
    }
    int64_t c = 0;
    for (; c + 4 * LANES <= size; c += 4 * LANES) add_kept(n, 4, q, runs, num_runs, c, size, is_rounded, scores);
    for (; c + 2 * LANES <= size; c += 2 * LANES) add_kept(n, 2, q, runs, num_runs, c, size, is_rounded, scores);
    for (; c < size; c += LANES) add_kept(n, 1, q, runs, num_runs, c, size, is_rounded, scores);
}

/* As above, of all queries. */
INLINE void pass_shared(int64_t sharing, asked *q, const run *runs, int64_t num_runs, int64_t size, float scaling,
                        int is_rounded) {
    int64_t g = 0;
    for (; g + TOGETHER <= sharing; g += TOGETHER) pass_kept(TOGETHER, q + g, runs, num_runs, size, scaling, is_rounded);
    for (; g < sharing; g++) pass_kept(1, q + g, runs, num_runs, size, scaling, is_rounded);
}

/* `sharing` queries that have been begun, over the keys of head `h` of a row; their results in bfloat16. */
INLINE void attend(const paged *at, int64_t row, int64_t h, int64_t sharing, int64_t size, float scaling, asked *queries,
                   uint16_t *out) {
    int64_t length = at->length[row];
    int64_t first = at->window && length > at->window ? length - at->window : 0;
    run runs[2][TILE_KEYS];
    int64_t num_runs[2];
    num_runs[0] = find_tile(at, row, h, first, length, size, runs[0]);
    for (int64_t t = first, turn = 0; t < length; t += TILE_KEYS, turn = !turn) {
        num_runs[!turn] = find_tile(at, row, h, t + TILE_KEYS, length, size, runs[!turn]);
        fetch_runs(runs[!turn], num_runs[!turn], kept_bytes(size, at->is_rounded));
        if (at->is_rounded)
            pass_shared(sharing, queries, runs[turn], num_runs[turn], size, scaling, 1);
        else
            pass_shared(sharing, queries, runs[turn], num_runs[turn], size, scaling, 0);
    }
    for (int64_t g = 0; g < sharing; g++) {
        float scale = 1.0f / queries[g].weight;
        for (int64_t c = 0; c < size; c += LANES)
            put_half(out + g * size + c, taken(queries[g].sums + c, size - c) * scale, size - c);
    }
}

#endif
