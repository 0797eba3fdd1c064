/* What low-rank adapters add to the outputs of a linear layer (arXiv:2106.09685): out += x A B, per token with the A and B of
 * its slot. Tokens of one slot are computed together, so that weights are read once per few tokens. Each sum is one chain over
 * its inputs in their order, however many tokens there are. */
#ifndef TENONRY_LOW_RANK_H
#define TENONRY_LOW_RANK_H

#include "vectors.h"

#if defined(__AVX512F__)
#define FEW_ROWS 8
#define FEW_VECTORS 2
#else
#define FEW_ROWS 4
#define FEW_VECTORS 2
#endif

/* See `LowRankParts` in tenonry_torch_base.step_kernels. Elements are bfloat16 where `is_half`, else float32. */
typedef struct {
    const void *up; /* [slots, rank, size] */
    int64_t begin, size;
} low_rank_part;

typedef struct {
    int64_t inputs, width, rank, parts, is_half;
    const void *down; /* [slots, inputs, width] */
    const low_rank_part *part;
} low_rank;

/* Rounded to the nearest, to even where two are; NaN stays NaN. */
INLINE void store(void *place, vector values, int64_t left, int is_half) {
    if (is_half) {
        bits_vector bits = (bits_vector)values;
        bits_vector rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        bits_vector is_nan = (bits_vector)(values != values);
        bits_vector kept = (rounded & ~is_nan) | (((bits >> 16) | 0x40) & is_nan);
        half_vector halves = __builtin_convertvector(kept, half_vector);
        if (left >= LANES)
            *(half_vector *)place = halves;
        else
            for (int64_t i = 0; i < left; i++) ((uint16_t *)place)[i] = halves[i];
        return;
    }
    if (left >= LANES)
        *(vector *)place = values;
    else
        for (int64_t i = 0; i < left; i++) ((float *)place)[i] = values[i];
}

/* sums = x [rows, inner] times weight [inner, vectors * LANES], of which `left` columns are there. */
INLINE void few(int rows, int vectors, int64_t inner, const float *x, int64_t x_step, const void *weight, int64_t weight_step,
                int64_t left, int is_half, vector sums[FEW_ROWS][FEW_VECTORS]) {
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = (vector){0};
    for (int64_t k = 0; k < inner; k++) {
        const void *line = at(weight, k * weight_step, is_half);
        for (int v = 0; v < vectors; v++) {
            vector column = load(at(line, v * LANES, is_half), left - v * LANES, is_half);
            for (int r = 0; r < rows; r++) sums[r][v] += x[r * x_step + k] * column;
        }
    }
}

/* The columns of one tile of A: x of few tokens, `x_step` floats apart, becomes `inner`. */
INLINE void narrow(int rows, int vectors, const low_rank *p, const float *x, int64_t x_step, const void *down, int64_t column,
                   float *inner, int is_half) {
    vector sums[FEW_ROWS][FEW_VECTORS];
    few(rows, vectors, p->inputs, x, x_step, at(down, column, is_half), p->width, vectors * LANES, is_half, sums);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) *(vector *)(inner + r * p->width + column + v * LANES) = sums[r][v];
}

/* The columns of one tile of B: what `inner` makes is added to the outputs of few tokens, which are halves with `to_half`. */
INLINE void widen(int rows, int vectors, int64_t left, const low_rank *p, const float *inner, const void *up, int64_t size,
                  void *const *out, int64_t column, int is_half, int to_half) {
    vector sums[FEW_ROWS][FEW_VECTORS];
    few(rows, vectors, p->rank, inner, p->width, up, size, left, is_half, sums);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            void *place = (void *)at(out[r], column + v * LANES, to_half);
            int64_t rest = left - v * LANES;
            store(place, load(place, rest, to_half) + sums[r][v], rest, to_half);
        }
}

/* Few tokens of a slot, whose outputs are at `out`. `inner`: room for rows * width. */
INLINE void add_few(int rows, const low_rank *p, int64_t slot, const float *x, int64_t x_step, void *const *out, float *inner,
                    int is_half, int to_half) {
    const void *down = at(p->down, slot * p->inputs * p->width, is_half);
    int64_t column = 0;
    for (; column + FEW_VECTORS * LANES <= p->width; column += FEW_VECTORS * LANES)
        narrow(rows, FEW_VECTORS, p, x, x_step, down, column, inner, is_half);
    for (; column < p->width; column += LANES) narrow(rows, 1, p, x, x_step, down, column, inner, is_half);
    for (int64_t n = 0; n < p->parts; n++) {
        const low_rank_part *part = p->part + n;
        const void *up = at(part->up, slot * p->rank * part->size, is_half);
        const float *of_part = inner + n * p->rank;
        int64_t c = 0;
        for (; c + FEW_VECTORS * LANES <= part->size; c += FEW_VECTORS * LANES)
            widen(rows, FEW_VECTORS, FEW_VECTORS * LANES, p, of_part, at(up, c, is_half), part->size, out, part->begin + c,
                  is_half, to_half);
        for (; c + LANES <= part->size; c += LANES)
            widen(rows, 1, LANES, p, of_part, at(up, c, is_half), part->size, out, part->begin + c, is_half, to_half);
        if (c < part->size)
            widen(rows, 1, part->size - c, p, of_part, at(up, c, is_half), part->size, out, part->begin + c, is_half, to_half);
    }
}

INLINE void few_tokens(int rows, const low_rank *p, int64_t slot, const int64_t *tokens, const void *x, int64_t x_step,
                       void *out, int64_t out_step, float *scratch, int is_half) {
    float *given = scratch;
    float *inner = given + rows * p->inputs;
    void *targets[FEW_ROWS];
    for (int r = 0; r < rows; r++) {
        const void *from = at(x, tokens[r] * x_step, is_half);
        targets[r] = (void *)at(out, tokens[r] * out_step, is_half);
        float *to = given + r * p->inputs;
        int64_t k = 0;
        for (; k + LANES <= p->inputs; k += LANES) *(vector *)(to + k) = load(at(from, k, is_half), LANES, is_half);
        if (k < p->inputs) store(to + k, load(at(from, k, is_half), p->inputs - k, is_half), p->inputs - k, 0);
    }
    add_few(rows, p, slot, given, p->inputs, targets, inner, is_half, is_half);
}

INLINE void all_tokens(const low_rank *p, const int64_t *tokens, const int64_t *ends, int64_t slots, const void *x,
                       int64_t x_step, void *out, int64_t out_step, float *scratch, int is_half) {
    int64_t t = 0;
    for (int64_t slot = 0; slot < slots; slot++) {
        for (; t + FEW_ROWS <= ends[slot]; t += FEW_ROWS)
            few_tokens(FEW_ROWS, p, slot, tokens + t, x, x_step, out, out_step, scratch, is_half);
        for (; t + 2 <= ends[slot]; t += 2)
            few_tokens(2, p, slot, tokens + t, x, x_step, out, out_step, scratch, is_half);
        for (; t < ends[slot]; t++) few_tokens(1, p, slot, tokens + t, x, x_step, out, out_step, scratch, is_half);
    }
}

/* `x` [T, inputs] and `out` [T, …] with `x_step` and `out_step` elements from one token to the next; out is changed.
 * `tokens` i64: those of slot 0 first, then those of slot 1, …; `ends` i64[slots]: where the tokens of each slot end.
 * `scratch` floats: 8 * (inputs + width). */
void KERNEL(low_rank)(const low_rank *p, const int64_t *tokens, const int64_t *ends, int64_t slots, const void *x,
                      int64_t x_step, void *out, int64_t out_step, float *scratch) {
    if (p->is_half)
        all_tokens(p, tokens, ends, slots, x, x_step, out, out_step, scratch, 1);
    else
        all_tokens(p, tokens, ends, slots, x, x_step, out, out_step, scratch, 0);
}

#endif
