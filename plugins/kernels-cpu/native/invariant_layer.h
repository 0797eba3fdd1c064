/* A decoder layer of the Llama kind in one call, in float32, of any tokens of a step, of which none depends on another but
 * through K/V: norm, query, key and value, attention, output and residual, norm, gated feed-forward and residual. */
#ifndef TENONRY_INVARIANT_LAYER_H
#define TENONRY_INVARIANT_LAYER_H

#include "invariant_attention.h"
#include "invariant_product.h"

#define PIECE_ROWS 192 /* whose feed-forward part is held at once */
#define NORMED_ROWS 8  /* of a chunk */

/* See `InvariantLayerParts` in tenonry_torch_base.invariant. */
typedef struct {
    int64_t hidden, inner;
    const attention *attention;
    const float *norm, *second_norm; /* [hidden] */
    float norm_eps, second_norm_eps;
    chained projection, out, gate_up, down;
} invariant_layer;

typedef struct {
    const float *x, *weight;
    float eps;
    int64_t count, size;
    float *out;
} row_job;

static void norm_row_chunk(const void *context, int64_t chunk) {
    const row_job *job = context;
    int64_t end = (chunk + 1) * NORMED_ROWS < job->count ? (chunk + 1) * NORMED_ROWS : job->count;
    for (int64_t i = chunk * NORMED_ROWS; i < end; i++)
        normalise_row(job->x + i * job->size, job->weight, job->eps, job->size, job->out + i * job->size);
}

/* out [count, size] = silu(gate) * up, which lie one behind the other in a row of x. */
static void gate_row_chunk(const void *context, int64_t chunk) {
    const row_job *job = context;
    int64_t end = (chunk + 1) * NORMED_ROWS < job->count ? (chunk + 1) * NORMED_ROWS : job->count;
    for (int64_t i = chunk * NORMED_ROWS; i < end; i++) {
        const float *gate = job->x + i * 2 * job->size;
        const float *up = gate + job->size;
        float *out = job->out + i * job->size;
        for (int64_t c = 0; c < job->size; c += LANES) {
            int64_t left = job->size - c;
            put(out + c, silu(taken(gate + c, left)) * taken(up + c, left), left);
        }
    }
}

static void share_rows(tenonry_work work, row_job job) {
    tenonry_share(work, &job, (job.count + NORMED_ROWS - 1) / NORMED_ROWS);
}

typedef struct {
    const invariant_layer *parts;
    int64_t tokens, queries;
    const float *hidden, *cos, *sin;
    int64_t rotated;
    const int64_t *token;
    const step_keys *at;
    float *out, *scratch;
} invariant_job;

INLINE int64_t fewer(int64_t a, int64_t b) { return a < b ? a : b; }

/* projected [tokens, columns]; `normed`: room for PIECE_ROWS tokens. */
static void project_all(const invariant_job *job, float *normed, float *projected) {
    const invariant_layer *p = job->parts;
    for (int64_t begin = 0; begin < job->tokens; begin += PIECE_ROWS) {
        int64_t count = fewer(job->tokens - begin, PIECE_ROWS);
        share_rows(norm_row_chunk,
                   (row_job){job->hidden + begin * p->hidden, p->norm, p->norm_eps, count, p->hidden, normed});
        chained_product((chain_job){.weight = &p->projection, .x = normed, .count = count,
                                    .out = projected + begin * p->projection.outputs});
    }
}

/* out [queries, hidden] of what attention made [queries, heads * size]; `room`: of PIECE_ROWS * (2 * hidden + 3 * inner). */
static void finish_all(const invariant_job *job, const float *made, float *room) {
    const invariant_layer *p = job->parts;
    float *middle = room;
    float *normed = middle + PIECE_ROWS * p->hidden;
    float *wide = normed + PIECE_ROWS * p->hidden;
    float *inner = wide + PIECE_ROWS * 2 * p->inner;
    for (int64_t begin = 0; begin < job->queries; begin += PIECE_ROWS) {
        int64_t count = fewer(job->queries - begin, PIECE_ROWS);
        const float *residual = job->hidden + begin * p->hidden;
        if (job->token) {
            for (int64_t i = 0; i < count; i++) {
                const float *row = job->hidden + job->token[begin + i] * p->hidden;
                for (int64_t c = 0; c < p->hidden; c++) normed[i * p->hidden + c] = row[c];
            }
            residual = normed;
        }
        chained_product((chain_job){.weight = &p->out, .x = made + begin * p->out.inputs, .count = count,
                                    .others = residual, .out = middle});
        share_rows(norm_row_chunk, (row_job){middle, p->second_norm, p->second_norm_eps, count, p->hidden, normed});
        chained_product((chain_job){.weight = &p->gate_up, .x = normed, .count = count, .out = wide});
        share_rows(gate_row_chunk, (row_job){.x = wide, .count = count, .size = p->inner, .out = inner});
        chained_product((chain_job){.weight = &p->down, .x = inner, .count = count, .others = middle,
                                    .out = job->out + begin * p->hidden});
    }
}

static void invariant_body(const void *context) {
    const invariant_job *job = context;
    const invariant_layer *p = job->parts;
    float *projected = job->scratch;
    float *made = projected + job->tokens * p->projection.outputs;
    float *room = made + job->queries * p->out.inputs;
    project_all(job, room, projected);
    pass_all((pass_job){p->attention, job->at, job->tokens, projected, job->cos, job->sin, job->rotated, job->token, made});
    finish_all(job, made, room);
}

/* `hidden` [tokens, hidden] → `out` [queries, hidden]; `token` [queries]: which tokens go on, NULL for all. `scratch`: floats,
 * tokens * columns + queries * heads * size + PIECE_ROWS * (2 * hidden + 3 * inner). */
void KERNEL(invariant_layer)(const invariant_layer *p, int64_t threads, int64_t tokens, int64_t queries, const float *hidden,
                             const float *cos, const float *sin, int64_t rotated, const int64_t *token,
                             const step_keys *at, float *out, float *scratch) {
    invariant_job job = {p, tokens, queries, hidden, cos, sin, rotated, token, at, out, scratch};
    int64_t work = pass_ns(p->attention, at, queries) + chained_ns(&p->projection, tokens);
    const chained *weights[] = {&p->out, &p->gate_up, &p->down};
    for (int n = 0; n < 3; n++) work += chained_ns(weights[n], queries);
    tenonry_together(tenonry_threads_for(threads, work), invariant_body, &job);
}

/* `x`, `out` [count, size]. */
void KERNEL(invariant_norm)(int64_t count, int64_t size, const float *x, const float *weight, float eps, float *out) {
    for (int64_t i = 0; i < count; i++) normalise_row(x + i * size, weight, eps, size, out + i * size);
}

#endif
