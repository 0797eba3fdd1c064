/* Attention of rows of one new token, between the projections of the layer: norm of heads, rotation (arXiv:2104.09864),
 * K/V to their places, softmax over what each row holds, gate. */
#ifndef TENONRY_ATTENTION_H
#define TENONRY_ATTENTION_H

#include "vectors.h"

/* See `AttentionParts` in tenonry_torch_base.step_kernels. */
typedef struct {
    int64_t heads, kv_heads, size;
    int64_t is_gated;         /* a gate of its output stands behind each query head */
    const float *norm_weight; /* [heads + kv_heads, size] or NULL */
    float norm_eps, scaling;
} attention;

/* Where the K/V of rows are. `slab` [2, slots, kv_heads, capacity, size] with `value_step` floats from keys to values;
 * `column` [rows]: slot * capacity + place of the newest token. `blocks` [blocks, 2 * kv_heads, block_size, size];
 * `place` [rows]: block * block_size + place of the newest token. */
typedef struct {
    float *slab;
    int64_t value_step, capacity;
    const int64_t *column;
    float *blocks;
    int64_t block_size;
    const int64_t *place;
} held;

/* One head: out [size] = x, normalised and its first `rotated` elements rotated. `normed`: room for [size]. */
INLINE void turn(const float *x, const float *weight, float eps, const float *cos, const float *sin, int64_t rotated,
                 int64_t size, float *normed, float *out) {
    if (weight) {
        normalise(x, weight, eps, size, normed);
        x = normed;
    }
    int64_t half = rotated / 2;
    int64_t rest = rotated - half;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) out[i] = x[i] * cos[i] + x[i + rest] * sin[i];
#pragma omp simd
    for (int64_t i = half; i < rotated; i++) out[i] = x[i] * cos[i] + x[i - half] * sin[i];
    for (int64_t i = rotated; i < size; i++) out[i] = x[i];
}

/* scores [count] become weights that sum to 1. */
INLINE void softmax(int64_t count, float *scores) {
    float largest = scores[0];
#pragma omp simd reduction(max : largest)
    for (int64_t t = 1; t < count; t++) largest = scores[t] > largest ? scores[t] : largest;
    vector sums = {0};
    for (int64_t t = 0; t < count; t += LANES) {
        vector weights = exponential(taken(scores + t, count - t) - largest);
        put(scores + t, weights, count - t);
        sums += taken(scores + t, count - t);
    }
    float scale = 1.0f / total(sums);
#pragma omp simd
    for (int64_t t = 0; t < count; t++) scores[t] *= scale;
}

/* scores [count] = query [size] times each of keys [count, size], times scaling. */
INLINE void score(int64_t count, int64_t size, const float *query, const float *keys, float scaling, float *scores) {
    int64_t t = 0;
    for (; t + 4 <= count; t += 4) dot_four(query, keys + t * size, size, scores + t);
    for (; t < count; t++) scores[t] = dot(query, keys + t * size, size);
#pragma omp simd
    for (t = 0; t < count; t++) scores[t] *= scaling;
}

/* out [size] = weights [count] times values [count, size]. */
INLINE void weigh(int64_t count, int64_t size, const float *weights, const float *values, float *out) {
    int64_t c = 0;
    for (; c + LANES <= size; c += LANES) {
        vector sums[4] = {{0}, {0}, {0}, {0}};
        int64_t t = 0;
        for (; t + 4 <= count; t += 4)
            for (int n = 0; n < 4; n++) sums[n] += weights[t + n] * *(const vector *)(values + (t + n) * size + c);
        for (; t < count; t++) sums[0] += weights[t] * *(const vector *)(values + t * size + c);
        *(vector *)(out + c) = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    for (; c < size; c++) {
        float sum = 0.0f;
        for (int64_t t = 0; t < count; t++) sum += weights[t] * values[t * size + c];
        out[c] = sum;
    }
}

/* `projected` [count, row_step]: queries (each with its gate behind it), keys, values. `cos`, `sin` [count, rotated], the
 * first half of sin negated. `out` [count, heads * size]; `scratch`: capacity + 2 * size floats. */
void KERNEL(attention)(const attention *p, int64_t count, const float *projected, int64_t row_step, const float *cos,
                       const float *sin, int64_t rotated, const held *at, float *out, float *scratch) {
    int64_t size = p->size;
    int64_t sharing = p->heads / p->kv_heads;
    int64_t query_step = p->is_gated ? 2 * size : size;
    float *normed = scratch;
    float *query = normed + size;
    float *scores = query + size;
    for (int64_t i = 0; i < count; i++) {
        const float *queries = projected + i * row_step;
        const float *new_keys = queries + p->heads * query_step;
        const float *new_values = new_keys + p->kv_heads * size;
        const float *turned_by = cos + i * rotated;
        const float *turned_back = sin + i * rotated;
        int64_t slot = at->column[i] / at->capacity;
        int64_t newest = at->column[i] - slot * at->capacity;
        int64_t block = at->place[i] / at->block_size;
        int64_t place = at->place[i] - block * at->block_size;
        for (int64_t h = 0; h < p->kv_heads; h++) {
            float *keys = at->slab + (slot * p->kv_heads + h) * at->capacity * size;
            float *values = keys + at->value_step;
            float *key = keys + newest * size;
            float *value = values + newest * size;
            const float *weight = p->norm_weight ? p->norm_weight + (p->heads + h) * size : NULL;
            turn(new_keys + h * size, weight, p->norm_eps, turned_by, turned_back, rotated, size, normed, key);
            float *key_copy = at->blocks + ((block * 2 * p->kv_heads + h) * at->block_size + place) * size;
            float *value_copy = key_copy + p->kv_heads * at->block_size * size;
            for (int64_t c = 0; c < size; c++) {
                value[c] = new_values[h * size + c];
                value_copy[c] = value[c];
                key_copy[c] = key[c];
            }
            for (int64_t g = h * sharing; g < (h + 1) * sharing; g++) {
                const float *asked = queries + g * query_step;
                weight = p->norm_weight ? p->norm_weight + g * size : NULL;
                turn(asked, weight, p->norm_eps, turned_by, turned_back, rotated, size, normed, query);
                score(newest + 1, size, query, keys, p->scaling, scores);
                softmax(newest + 1, scores);
                float *made = out + (i * p->heads + g) * size;
                weigh(newest + 1, size, scores, values, made);
                if (!p->is_gated) continue;
                const float *gate = asked + size;
                for (int64_t c = 0; c < size; c += LANES)
                    put(made + c, taken(made + c, size - c) * sigmoid(taken(gate + c, size - c)), size - c);
            }
        }
    }
}

#endif
