/* Scores in columns: a tile of them has a key in each line and 16 queries side by side, so that the softmax of queries
 * goes down the lines and never across lanes. Keys are multiplied as they are kept; weights are turned around for the
 * product with values. */
#ifndef TENONRY_COLUMNS_H
#define TENONRY_COLUMNS_H

#include "tiles.h"

#if defined(__AMX_BF16__)

/* The words x[line] of 16 lines, turned around: line n gets word n of each. */
INLINE void turn_words(__m512i x[TILE_SIDE]) {
    __m512i y[TILE_SIDE];
#pragma GCC unroll 8
    for (int n = 0; n < 16; n += 2) {
        y[n] = _mm512_unpacklo_epi32(x[n], x[n + 1]);
        y[n + 1] = _mm512_unpackhi_epi32(x[n], x[n + 1]);
    }
#pragma GCC unroll 4
    for (int n = 0; n < 16; n += 4) {
        x[n] = _mm512_unpacklo_epi64(y[n], y[n + 2]);
        x[n + 1] = _mm512_unpackhi_epi64(y[n], y[n + 2]);
        x[n + 2] = _mm512_unpacklo_epi64(y[n + 1], y[n + 3]);
        x[n + 3] = _mm512_unpackhi_epi64(y[n + 1], y[n + 3]);
    }
#pragma GCC unroll 2
    for (int n = 0; n < 16; n += 8)
#pragma GCC unroll 4
        for (int m = n; m < n + 4; m++) {
            y[m] = _mm512_shuffle_i32x4(x[m], x[m + 4], 0x88);
            y[m + 4] = _mm512_shuffle_i32x4(x[m], x[m + 4], 0xdd);
        }
#pragma GCC unroll 4
    for (int m = 0; m < 4; m++) {
        x[m] = _mm512_shuffle_i32x4(y[m], y[m + 8], 0x88);
        x[m + 4] = _mm512_shuffle_i32x4(y[m + 4], y[m + 12], 0x88);
        x[m + 8] = _mm512_shuffle_i32x4(y[m], y[m + 8], 0xdd);
        x[m + 12] = _mm512_shuffle_i32x4(y[m + 4], y[m + 12], 0xdd);
    }
}

/* Queries [count, size] of halves into blocks of 64, as weights are: [size / 2][64][2]. */
INLINE void lay_queries(const uint16_t *queries, int64_t count, int64_t size, uint16_t *blocks) {
    for (int64_t n = 0; n < count; n += TILE_SIDE)
        for (int64_t c = 0; c < size; c += TILE_INPUTS) {
            __m512i lines[TILE_SIDE];
#pragma GCC unroll 16
            for (int r = 0; r < TILE_SIDE; r++) lines[r] = _mm512_loadu_si512(queries + (n + r) * size + c);
            turn_words(lines);
            uint16_t *out = blocks + n / BLOCK * BLOCK * size + 2 * (c / 2 * BLOCK + n % BLOCK);
#pragma GCC unroll 16
            for (int r = 0; r < TILE_SIDE; r++) _mm512_storeu_si512(out + r * 2 * BLOCK, lines[r]);
        }
}

/* 16 queries while keys pass by: the largest score of each, and what all its weights add up to. */
typedef struct {
    vector largest, weight;
} column;

/* Which of a tile's keys a query sees: [low, high), for each lane. */
typedef struct {
    integers low, high;
    int is_cut; /* some do not see all */
} seen_keys;

/* Pairs of weights of 16 queries, rounded: what belongs to the first key of a pair is in the lower half of a word. */
INLINE __m512i packed_pair(vector first, vector second) {
    __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)first));
    __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)second));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* As `given`, and -INFINITY where the key is out of sight. */
INLINE vector in_sight(vector given, int32_t key, const seen_keys *seen) {
    if (!seen->is_cut) return given;
    integers is_hidden = (integers)(key < seen->low) | (integers)(key >= seen->high);
    return either(is_hidden, (vector){0} - INFINITY, given);
}

/* Scores [64 keys][`step`] of 16 queries become weights [16 queries][64 keys] in bfloat16; what earlier sums shrink by is
 * returned. `scaling`: to powers of two. */
INLINE vector weigh_column(column *c, const float *scores, int64_t step, const seen_keys *seen, float scaling,
                           uint16_t *weights) {
    vector most = (vector){0} - INFINITY;
    for (int32_t t = 0; t < BLOCK; t++) {
        vector given = in_sight(*(const vector *)(scores + t * step), t, seen);
        most = greatest(given, most);
    }
    most *= scaling;
    vector largest = greatest(most, c->largest);
    vector base = either(largest == -INFINITY, (vector){0}, largest); /* it has seen none so far */
    vector shrink = power_of_two(c->largest - base);
    shrink = either(largest == c->largest, (vector){0} + 1.0f, shrink);
    vector sum = c->weight * shrink;
    for (int32_t t = 0; t < BLOCK; t += TILE_INPUTS) {
        __m512i pairs[TILE_SIDE];
#pragma GCC unroll 16
        for (int n = 0; n < TILE_SIDE; n++) {
            vector both[2];
            for (int i = 0; i < 2; i++) {
                int32_t key = t + 2 * n + i;
                vector given = *(const vector *)(scores + key * step);
                both[i] = power_of_two(given * scaling - base);
                if (seen->is_cut) both[i] = either(in_sight(given, key, seen) == -INFINITY, (vector){0}, both[i]);
                sum += both[i];
            }
            pairs[n] = packed_pair(both[0], both[1]);
        }
        turn_words(pairs);
#pragma GCC unroll 16
        for (int n = 0; n < TILE_SIDE; n++) _mm512_storeu_si512(weights + n * BLOCK + t, pairs[n]);
    }
    *c = (column){largest, sum};
    return shrink;
}
#endif

#endif
