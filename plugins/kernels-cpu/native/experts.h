/* The feed-forward half of a decoder layer with few small experts: norm, router, experts, shared expert, residual. */
#include "vectors.h"

/* See `ExpertParts` in tenonry_torch_base.kernels. Weights are transposed, [inputs, outputs], the outputs filled up. */
typedef struct {
    int64_t hidden, experts, chosen, inner, shared;
    int64_t is_normalised; /* the weights of the chosen experts sum to 1 */
    const float *norm_weight;  /* [hidden] */
    const float *router;       /* [hidden, experts] */
    const float *gate_up;      /* [experts, hidden, 2 * inner] */
    const float *down;         /* [experts, inner, hidden] */
    const float *shared_gate_up; /* [hidden, 2 * shared] or NULL */
    const float *shared_down;    /* [shared, hidden] or NULL */
    const float *shared_gate;    /* [hidden] or NULL */
    float norm_eps;
} experts;

/* probabilities [count] become the weights of the chosen ones, and 0 of the others. */
INLINE void choose(const experts *p, float *scores) {
    float largest = scores[0];
    for (int64_t e = 1; e < p->experts; e++) largest = scores[e] > largest ? scores[e] : largest;
    float sum = 0.0f;
    for (int64_t e = 0; e < p->experts; e += LANES)
        put(scores + e, exponential(taken(scores + e, p->experts - e) - largest), p->experts - e);
    for (int64_t e = 0; e < p->experts; e++) sum += scores[e];
    for (int64_t e = 0; e < p->experts; e++) scores[e] /= sum;
    float kept = 0.0f;
    for (int64_t n = 0; n < p->chosen; n++) {
        int64_t best = -1;
        for (int64_t e = 0; e < p->experts; e++)
            if (scores[e] >= 0.0f && (best < 0 || scores[e] > scores[best])) best = e;
        if (best < 0) break;
        kept += scores[best];
        scores[best] = -1.0f - scores[best]; /* below zero: taken */
    }
    float scale = p->is_normalised ? 1.0f / kept : 1.0f;
    for (int64_t e = 0; e < p->experts; e++) scores[e] = scores[e] < 0.0f ? (-1.0f - scores[e]) * scale : 0.0f;
}

INLINE void gated(const float *gate, const float *up, float scale, int64_t size, float *out) {
    for (int64_t i = 0; i < size; i += LANES)
        put(out + i, silu(taken(gate + i, size - i)) * taken(up + i, size - i) * scale, size - i);
}

/* `hidden`, `out` [count, hidden]; out may not be hidden. `scratch` floats: count * (3 * hidden + filled experts +
 * 2 * widest + widest), the widest of inner and shared filled up; `tokens` i64[count]. */
void KERNEL(experts)(const experts *p, int64_t count, const float *hidden, float *out, float *scratch, int64_t *tokens) {
    int64_t size = p->hidden;
    int64_t padded = filled_up(size);
    int64_t scores_step = filled_up(p->experts);
    int64_t widest = p->inner > p->shared ? p->inner : p->shared;
    int64_t both_step = filled_up(2 * widest);
    float *normed = scratch;
    float *gathered = normed + count * size;
    float *made = gathered + count * size;
    float *scores = made + count * size;
    float *both = scores + count * scores_step;
    float *inner = both + count * both_step;
    for (int64_t i = 0; i < count; i++)
        normalise(hidden + i * size, p->norm_weight, p->norm_eps, size, normed + i * size);
    product(count, p->experts, size, normed, size, p->router, scores_step, scores, scores_step);
    for (int64_t i = 0; i < count; i++) choose(p, scores + i * scores_step);
    for (int64_t i = 0; i < count * size; i++) out[i] = hidden[i];
    int64_t half = filled_up(2 * p->inner);
    for (int64_t e = 0; e < p->experts; e++) {
        int64_t found = 0;
        for (int64_t i = 0; i < count; i++) {
            if (scores[i * scores_step + e] == 0.0f) continue;
            for (int64_t c = 0; c < size; c++) gathered[found * size + c] = normed[i * size + c];
            tokens[found++] = i;
        }
        if (!found) continue;
        product(found, 2 * p->inner, size, gathered, size, p->gate_up + e * size * half, half, both, both_step);
        for (int64_t n = 0; n < found; n++)
            gated(both + n * both_step, both + n * both_step + p->inner, scores[tokens[n] * scores_step + e], p->inner,
                  inner + n * widest);
        product(found, size, p->inner, inner, widest, p->down + e * p->inner * padded, padded, made, size);
        for (int64_t n = 0; n < found; n++) {
            float *target = out + tokens[n] * size;
#pragma omp simd
            for (int64_t c = 0; c < size; c++) target[c] += made[n * size + c];
        }
    }
    if (!p->shared) return;
    product(count, 2 * p->shared, size, normed, size, p->shared_gate_up, filled_up(2 * p->shared), both, both_step);
    for (int64_t i = 0; i < count; i++) {
        float scale = p->shared_gate ? sigmoid((vector){0} + dot(normed + i * size, p->shared_gate, size))[0] : 1.0f;
        gated(both + i * both_step, both + i * both_step + p->shared, scale, p->shared, inner + i * widest);
    }
    product(count, size, p->shared, inner, widest, p->shared_down, padded, made, size);
#pragma omp simd
    for (int64_t i = 0; i < count * size; i++) out[i] += made[i];
}
