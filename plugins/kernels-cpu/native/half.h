/* The first half of a decoder layer around a part of it: norm, projection, the part, output projection, residual. */
#include "attention.h"
#include "delta_rule.h"

/* See `HalfParts` in tenonry_torch_base.step_kernels. Weights are transposed, [inputs, outputs], the outputs filled up. */
typedef struct {
    int64_t hidden, columns, made; /* sizes: of a token, of its projection, of what the part makes */
    const float *norm_weight;      /* [hidden] */
    const float *projection;       /* [hidden, columns] */
    const float *out;              /* [made, hidden] */
    float norm_eps;
} half;

/* projected [count, columns] of hidden [count, hidden]; `normed`: room for the latter. */
INLINE void project(const half *h, int64_t count, const float *hidden, float *normed, float *projected) {
    for (int64_t i = 0; i < count; i++)
        normalise(hidden + i * h->hidden, h->norm_weight, h->norm_eps, h->hidden, normed + i * h->hidden);
    product(count, h->columns, h->hidden, normed, h->hidden, h->projection, filled_up(h->columns), projected, h->columns);
}

/* out [count, hidden] = hidden + what the part made [count, made], projected. */
INLINE void finish(const half *h, int64_t count, const float *hidden, const float *made, float *out) {
    product(count, h->hidden, h->made, made, h->made, h->out, filled_up(h->hidden), out, h->hidden);
#pragma omp simd
    for (int64_t i = 0; i < count * h->hidden; i++) out[i] += hidden[i];
}

/* As KERNEL(delta_rule), of hidden [count, hidden] into out [count, hidden]. `scratch`: count * (hidden + columns + made)
 * floats, and behind them those of the part. */
void KERNEL(delta_rule_half)(const half *h, const delta_rule *p, int64_t count, const float *hidden, float *window,
                             int64_t window_step, int64_t tap_step, float *matrix, int64_t matrix_step,
                             const int64_t *rows, float *out, float *scratch) {
    float *projected = scratch + count * h->hidden;
    float *made = projected + count * h->columns;
    project(h, count, hidden, scratch, projected);
    KERNEL(delta_rule)
    (p, count, projected, h->columns, window, window_step, tap_step, matrix, matrix_step, rows, made,
     made + count * h->made);
    finish(h, count, hidden, made, out);
}

/* As KERNEL(attention), otherwise as the above. */
void KERNEL(attention_half)(const half *h, const attention *p, int64_t count, const float *hidden, const float *cos,
                            const float *sin, int64_t rotated, const held *at, float *out, float *scratch) {
    float *projected = scratch + count * h->hidden;
    float *made = projected + count * h->columns;
    project(h, count, hidden, scratch, projected);
    KERNEL(attention)(p, count, projected, h->columns, cos, sin, rotated, at, made, made + count * h->made);
    finish(h, count, hidden, made, out);
}
