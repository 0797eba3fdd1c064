/* A decoder layer of the Llama kind in one call, in float32, of any tokens of a step, of which none depends on another but
 * through K/V: norm, query, key and value, attention, output and residual, norm, gated feed-forward and residual. */
#ifndef TENONRY_INVARIANT_LAYER_H
#define TENONRY_INVARIANT_LAYER_H

#include "invariant_attention.h"
#include "invariant_product.h"
#include "low_rank.h"

#define PIECE_ROWS 192 /* whose feed-forward part is held at once */
#define NORMED_ROWS 8  /* of a chunk */
#define ADDED_ROWS 16  /* of a chunk */

/* See `InvariantLayerParts` in tenonry_torch_base.invariant. */
typedef struct {
    int64_t hidden, inner;
    const attention *attention;
    const float *norm, *second_norm; /* [hidden] */
    float norm_eps, second_norm_eps;
    chained projection, out, gate_up, down;
} invariant_layer;

/* What adapters add to, NULL where they add nothing; the slot of each token, and of each query that goes on, -1 for none. See
 * `LayerAdapters` there. */
typedef struct {
    const low_rank *projection, *out, *gate_up, *down;
    const int32_t *slot, *query_slot;
} layer_adapters;

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

INLINE int64_t fewer(int64_t a, int64_t b) { return a < b ? a : b; }

/* `slot` [count]; out [count, outputs] gets what adapters make of x [count, inputs]. */
typedef struct {
    const low_rank *parts;
    const int32_t *slot;
    int64_t count, outputs;
    const float *x;
    float *out;
} added_job;

/* Some rows of one slot, one behind the other. */
INLINE void add_some(int rows, const added_job *job, int64_t row, float *inner, int is_half) {
    const low_rank *p = job->parts;
    void *targets[FEW_ROWS];
    for (int r = 0; r < rows; r++) targets[r] = job->out + (row + r) * job->outputs;
    add_few(rows, p, job->slot[row], job->x + row * p->inputs, p->inputs, targets, inner, is_half, 0);
}

INLINE void add_alike(const added_job *job, int64_t row, int64_t end, int is_half) {
    float inner[FEW_ROWS * job->parts->width];
    for (; row + FEW_ROWS <= end; row += FEW_ROWS) add_some(FEW_ROWS, job, row, inner, is_half);
    for (; row + 2 <= end; row += 2) add_some(2, job, row, inner, is_half);
    for (; row < end; row++) add_some(1, job, row, inner, is_half);
}

static void add_chunk(const void *context, int64_t chunk) {
    const added_job *job = context;
    int64_t end = fewer((chunk + 1) * ADDED_ROWS, job->count);
    for (int64_t row = chunk * ADDED_ROWS, next; row < end; row = next) {
        for (next = row + 1; next < end && job->slot[next] == job->slot[row];) next++;
        if (job->slot[row] < 0) continue;
        if (job->parts->is_half)
            add_alike(job, row, next, 1);
        else
            add_alike(job, row, next, 0);
    }
}

static void add_adapters(added_job job) {
    if (job.parts) tenonry_share(add_chunk, &job, (job.count + ADDED_ROWS - 1) / ADDED_ROWS);
}

typedef struct {
    const invariant_layer *parts;
    const layer_adapters *added; /* or NULL */
    int64_t tokens, queries;
    const float *hidden, *cos, *sin;
    int64_t rotated;
    const int64_t *token;
    const step_keys *at;
    float *out, *scratch;
} invariant_job;

/* projected [tokens, columns]; `normed`: room for PIECE_ROWS tokens. */
static void project_all(const invariant_job *job, float *normed, float *projected) {
    const invariant_layer *p = job->parts;
    const layer_adapters *added = job->added;
    for (int64_t begin = 0; begin < job->tokens; begin += PIECE_ROWS) {
        int64_t count = fewer(job->tokens - begin, PIECE_ROWS);
        share_rows(norm_row_chunk,
                   (row_job){job->hidden + begin * p->hidden, p->norm, p->norm_eps, count, p->hidden, normed});
        float *out = projected + begin * p->projection.outputs;
        chained_product((chain_job){.weight = &p->projection, .x = normed, .count = count, .out = out});
        if (added)
            add_adapters((added_job){added->projection, added->slot + begin, count, p->projection.outputs, normed, out});
    }
}

/* out [queries, hidden] of what attention made [queries, heads * size]; `room`: of PIECE_ROWS * (2 * hidden + 3 * inner). */
static void finish_all(const invariant_job *job, const float *made, float *room) {
    const invariant_layer *p = job->parts;
    float *middle = room;
    float *normed = middle + PIECE_ROWS * p->hidden;
    float *wide = normed + PIECE_ROWS * p->hidden;
    float *inner = wide + PIECE_ROWS * 2 * p->inner;
    const layer_adapters *added = job->added;
    for (int64_t begin = 0; begin < job->queries; begin += PIECE_ROWS) {
        int64_t count = fewer(job->queries - begin, PIECE_ROWS);
        const int32_t *slot = added ? added->query_slot + begin : NULL;
        const float *residual = job->hidden + begin * p->hidden;
        if (job->token) {
            for (int64_t i = 0; i < count; i++) {
                const float *row = job->hidden + job->token[begin + i] * p->hidden;
                for (int64_t c = 0; c < p->hidden; c++) normed[i * p->hidden + c] = row[c];
            }
            residual = normed;
        }
        const float *attended = made + begin * p->out.inputs;
        float *out = job->out + begin * p->hidden;
        chained_product((chain_job){.weight = &p->out, .x = attended, .count = count, .others = residual, .out = middle});
        if (added) add_adapters((added_job){added->out, slot, count, p->hidden, attended, middle});
        share_rows(norm_row_chunk, (row_job){middle, p->second_norm, p->second_norm_eps, count, p->hidden, normed});
        chained_product((chain_job){.weight = &p->gate_up, .x = normed, .count = count, .out = wide});
        if (added) add_adapters((added_job){added->gate_up, slot, count, 2 * p->inner, normed, wide});
        share_rows(gate_row_chunk, (row_job){.x = wide, .count = count, .size = p->inner, .out = inner});
        chained_product((chain_job){.weight = &p->down, .x = inner, .count = count, .others = middle, .out = out});
        if (added) add_adapters((added_job){added->down, slot, count, p->hidden, inner, out});
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

/* `hidden` [tokens, hidden] → `out` [queries, hidden]; `token` [queries]: which tokens go on, NULL for all. `added`: NULL where
 * no token has an adapter. `scratch`: floats, tokens * columns + queries * heads * size + PIECE_ROWS * (2 * hidden + 3 * inner). */
void KERNEL(invariant_layer)(const invariant_layer *p, int64_t threads, int64_t tokens, int64_t queries, const float *hidden,
                             const float *cos, const float *sin, int64_t rotated, const int64_t *token,
                             const step_keys *at, const layer_adapters *added, float *out, float *scratch) {
    invariant_job job = {p, added, tokens, queries, hidden, cos, sin, rotated, token, at, out, scratch};
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
