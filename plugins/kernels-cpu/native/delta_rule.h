/* The gated delta rule (arXiv:2412.06464) of decoding rows, between the projections of the layer. */
#include "vectors.h"

/* See `DeltaRuleParts` in tenonry_torch_base.step_kernels. `run_begin`, `run_length` [runs]: where the parts of a projected row
 * are, one after another in the order query, key, value, gate, rate, decay. */
typedef struct {
    int64_t key_heads, heads, key_size, value_size, taps, runs;
    const int64_t *run_begin, *run_length;
    const float *window_weight; /* [taps, channels] */
    const float *window_bias;   /* [channels] or NULL */
    const float *decay_rate, *decay_bias; /* [heads] */
    const float *norm_weight;   /* [value_size] */
    float norm_eps, unit_eps;
} delta_rule;

/* The window moves on by one token; out = silu(sum over taps of weight * input). */
INLINE void convolve(const delta_rule *p, int64_t channels, const float *input, float *window, int64_t tap_step,
                     float *out) {
    int64_t last = p->taps - 1;
    if (p->window_bias)
        for (int64_t c = 0; c < channels; c++) out[c] = p->window_bias[c];
    else
        for (int64_t c = 0; c < channels; c++) out[c] = 0.0f;
    for (int64_t t = 0; t < last; t++) {
        float *here = window + t * tap_step;
        const float *next = here + tap_step;
        const float *weight = p->window_weight + t * channels;
#pragma omp simd
        for (int64_t c = 0; c < channels; c++) {
            float value = next[c];
            here[c] = value;
            out[c] += value * weight[c];
        }
    }
    float *newest = window + last * tap_step;
    const float *weight = p->window_weight + last * channels;
    for (int64_t c = 0; c < channels; c += LANES) {
        vector value = taken(input + c, channels - c);
        put(newest + c, value, channels - c);
        put(out + c, silu(taken(out + c, channels - c) + value * taken(weight + c, channels - c)), channels - c);
    }
}

/* `recur` for LANES neighbouring values; sums stay in registers. */
INLINE void recur_lanes(int64_t key_size, int64_t value_size, const float *query, const float *key, const float *value,
                        float decay, float rate, float *state, float *out) {
    vector known[2] = {{0}, {0}};
    for (int64_t k = 0; k < key_size; k++) {
        vector *line = (vector *)(state + k * value_size);
        vector faded = *line * decay;
        *line = faded;
        known[k & 1] += faded * key[k];
    }
    vector change = (*(const vector *)value - (known[0] + known[1])) * rate;
    vector made[2] = {{0}, {0}};
    for (int64_t k = 0; k < key_size; k++) {
        vector *line = (vector *)(state + k * value_size);
        vector moved = *line + key[k] * change;
        *line = moved;
        made[k & 1] += moved * query[k];
    }
    *(vector *)out = made[0] + made[1];
}

/* One head: the state [key, value] changes, out [value] = state read with the query. */
INLINE void recur(int64_t key_size, int64_t value_size, const float *query, const float *key, const float *value,
                  float decay, float rate, float *state, float *out) {
    int64_t v = 0;
    for (; v + LANES <= value_size; v += LANES)
        recur_lanes(key_size, value_size, query, key, value + v, decay, rate, state + v, out + v);
    for (; v < value_size; v++) {
        float known = 0.0f;
        for (int64_t k = 0; k < key_size; k++) {
            float faded = state[k * value_size + v] * decay;
            state[k * value_size + v] = faded;
            known += faded * key[k];
        }
        float change = (value[v] - known) * rate;
        float made = 0.0f;
        for (int64_t k = 0; k < key_size; k++) {
            float moved = state[k * value_size + v] + key[k] * change;
            state[k * value_size + v] = moved;
            made += moved * query[k];
        }
        out[v] = made;
    }
}

INLINE void scale_heads(float *heads, int64_t count, int64_t size, float eps, float factor) {
    for (int64_t h = 0; h < count; h++) {
        float *head = heads + h * size;
        float scale = factor / sqrtf(sum_of_squares(head, size) + eps);
#pragma omp simd
        for (int64_t i = 0; i < size; i++) head[i] *= scale;
    }
}

/* `projected` [count, row_step] of `count` rows, whose states are in `window` and `matrix` at `rows` (NULL: 0, 1, ...).
 * `out` [count, heads * value_size]; `scratch`: columns + channels floats. */
void KERNEL(delta_rule)(const delta_rule *p, int64_t count, const float *projected, int64_t row_step, float *window,
                        int64_t window_step, int64_t tap_step, float *matrix, int64_t matrix_step, const int64_t *rows,
                        float *out, float *scratch) {
    int64_t keys = p->key_heads * p->key_size;
    int64_t values = p->heads * p->value_size;
    int64_t channels = 2 * keys + values;
    int64_t sharing = p->heads / p->key_heads;
    float *columns = scratch;
    float *mixed = columns + channels + values + 2 * p->heads;
    const float *gate = columns + channels;
    const float *rate = gate + values;
    const float *decay = rate + p->heads;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = rows ? rows[i] : i;
        const float *given = projected + i * row_step;
        float *place = columns;
        for (int64_t r = 0; r < p->runs; r++) {
            const float *run = given + p->run_begin[r];
            int64_t length = p->run_length[r];
#pragma omp simd
            for (int64_t c = 0; c < length; c++) place[c] = run[c];
            place += length;
        }
        convolve(p, channels, columns, window + row * window_step, tap_step, mixed);
        scale_heads(mixed, p->key_heads, p->key_size, p->unit_eps, 1.0f / sqrtf((float)p->key_size));
        scale_heads(mixed + keys, p->key_heads, p->key_size, p->unit_eps, 1.0f);
        for (int64_t h = 0; h < p->heads; h++) {
            float fading = expf(softplus(decay[h] + p->decay_bias[h]) * p->decay_rate[h]);
            float *made = out + i * values + h * p->value_size;
            recur(p->key_size, p->value_size, mixed + h / sharing * p->key_size,
                  mixed + keys + h / sharing * p->key_size, mixed + 2 * keys + h * p->value_size, fading,
                  sigmoid((vector){0} + rate[h])[0], matrix + row * matrix_step + h * p->key_size * p->value_size, made);
            normalise(made, p->norm_weight, p->norm_eps, p->value_size, made);
            const float *opened = gate + h * p->value_size;
            for (int64_t v = 0; v < p->value_size; v += LANES) {
                int64_t left = p->value_size - v;
                put(made + v, taken(made + v, left) * silu(taken(opened + v, left)), left);
            }
        }
    }
}
