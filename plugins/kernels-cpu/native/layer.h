/* A decoder layer of the Llama kind in one call, for rows of one new token each, in bfloat16, with weights in bfloat16 or
 * quantised: norm, query, key and value, attention over K/V in blocks, output and residual, norm, gated feed-forward
 * and residual. Its parts are also callable alone. */
#ifndef TENONRY_LAYER_H
#define TENONRY_LAYER_H

#include "between.h"

#define MAX_SHARING 16 /* query heads of a key head */

/* See `LayerParts` in tenonry_torch_base.step_kernels; of `attention`, norm_weight is in float32. */
typedef struct {
    int64_t hidden, inner;
    const attention *attention;
    const float *norm, *second_norm; /* [hidden] */
    float norm_eps, second_norm_eps;
    blocked projection, out, gate_up, down;
} layer;

/* Projected queries, keys and values of all rows, or `query` alone, whose keys are written already. */
typedef struct {
    const attention *parts;
    const paged *at;
    int64_t count;
    const float *projected; /* [rows, columns] or NULL */
    const uint16_t *query;  /* [rows, heads, size], `query_step` elements from row to row */
    int64_t query_step;
    const uint16_t *cos, *sin; /* [rows, rotated] */
    int64_t rotated;
    uint16_t *out; /* [rows, heads, size] */
    const int64_t *order, *token; /* which rows of `at` these are, and where each of `at` is in `query` and `out`; or NULL */
} attend_job;

/* x [size], rounded to bfloat16, to its place. */
INLINE void put_vector(const paged *at, char *kept, const float *x, int64_t size) {
    uint16_t halves[MAX_SIZE];
    uint16_t *out = at->is_rounded ? halves : (uint16_t *)kept;
    for (int64_t c = 0; c < size; c += LANES) put_half(out + c, taken(x + c, size - c), size - c);
    if (at->is_rounded) pack(halves, size, kept);
}

/* A row's new key and value of one head, to their places. */
INLINE void write_new(const attend_job *job, int64_t row, int64_t h, const float *cos, const float *sin) {
    const attention *p = job->parts;
    const paged *at = job->at;
    int64_t size = p->size;
    const float *key = job->projected + (row * (p->heads + 2 * p->kv_heads) + p->heads + h) * size;
    const float *value = key + p->kv_heads * size;
    char *kept = key_at(at, row, h, at->length[row] - 1, size);
    float normed[MAX_SIZE], turned[MAX_SIZE];
    const float *weight = p->norm_weight ? p->norm_weight + (p->heads + h) * size : NULL;
    turn(key, weight, p->norm_eps, cos, sin, job->rotated, size, normed, turned);
    put_vector(at, kept, turned, size);
    put_vector(at, kept + values_behind(at, size), value, size);
}

INLINE void take_turns(const attend_job *job, int64_t row, float *cos, float *sin) {
    for (int64_t c = 0; c < job->rotated; c++) {
        cos[c] = widened(job->cos[row * job->rotated + c]);
        sin[c] = widened(job->sin[row * job->rotated + c]);
    }
}

static void write_chunk(const void *context, int64_t chunk) {
    const attend_job *job = context;
    int64_t row = chunk / job->parts->kv_heads;
    float cos[MAX_SIZE], sin[MAX_SIZE];
    take_turns(job, row, cos, sin);
    write_new(job, row, chunk % job->parts->kv_heads, cos, sin);
}

static void attend_chunk(const void *context, int64_t chunk) {
    const attend_job *job = context;
    const attention *p = job->parts;
    int64_t row = job->order ? job->order[chunk / p->kv_heads] : chunk / p->kv_heads;
    int64_t place = job->token ? job->token[row] : row;
    int64_t h = chunk % p->kv_heads;
    int64_t size = p->size;
    int64_t sharing = p->heads / p->kv_heads;
    asked queries[MAX_SHARING];
    float cos[MAX_SIZE], sin[MAX_SIZE], normed[MAX_SIZE];
    if (job->projected) {
        take_turns(job, row, cos, sin);
        if (!job->at->is_dependent) write_new(job, row, h, cos, sin);
    }
    for (int64_t g = 0; g < sharing; g++) {
        int64_t head = h * sharing + g;
        asked *q = queries + g;
        if (job->projected) {
            const float *x = job->projected + (row * (p->heads + 2 * p->kv_heads) + head) * size;
            const float *weight = p->norm_weight ? p->norm_weight + head * size : NULL;
            turn(x, weight, p->norm_eps, cos, sin, job->rotated, size, normed, q->values);
        } else {
            const uint16_t *x = job->query + place * job->query_step + head * size;
            for (int64_t c = 0; c < size; c += LANES) put(q->values + c, take_half(x + c, size - c), size - c);
        }
        begin_query(q, size, p->scaling);
    }
    attend(job->at, row, h, sharing, size, p->scaling, queries, job->out + (place * p->heads + h * sharing) * size);
}

/* Nanoseconds that attention takes one thread, roughly. */
INLINE int64_t attend_ns(const attention *p, const paged *at, int64_t count) {
    int64_t keys = 0;
    for (int64_t i = 0; i < count; i++)
        keys += at->window && at->length[i] > at->window ? at->window : at->length[i];
    return keys * p->heads * p->size / 8;
}

static void attend_body(const void *context) {
    const attend_job *job = context;
    int64_t chunks = job->count * job->parts->kv_heads;
    if (job->projected && job->at->is_dependent) tenonry_share(write_chunk, job, chunks);
    tenonry_share(attend_chunk, job, chunks);
}

/* `query` [count, heads, size], rows `query_step` elements apart; `out` [count, heads, size]. */
void KERNEL(paged_attention)(const attention *p, int64_t threads, int64_t count, const uint16_t *query, int64_t query_step,
                             const paged *at, uint16_t *out) {
    attend_job job = {.parts = p, .at = at, .count = count, .query = query, .query_step = query_step, .out = out};
    tenonry_together(tenonry_threads_for(threads, attend_ns(p, at, count)), attend_body, &job);
}

typedef struct {
    const layer *parts;
    int64_t count;
    const uint16_t *hidden, *cos, *sin;
    int64_t rotated;
    const paged *at;
    uint16_t *out;
    char *scratch;
} layer_job;

/* A part of scratch that begins on a line. */
INLINE void *take_room(char **room, int64_t bytes) {
    char *taken_from = *room;
    *room += (bytes + 63) / 64 * 64;
    return taken_from;
}

/* Of a row, for whichever product. */
INLINE int64_t room_to_prepare(const layer *p) {
    const blocked *weights[] = {&p->projection, &p->out, &p->gate_up, &p->down};
    int64_t room = 0;
    for (int n = 0; n < 4; n++) {
        int64_t wanted = prepared_bytes(weights[n]);
        room = wanted > room ? wanted : room;
    }
    return room;
}

static void layer_body(const void *context) {
    const layer_job *job = context;
    const layer *p = job->parts;
    int64_t count = job->count;
    int64_t size = p->hidden;
    int64_t columns = p->projection.outputs;
    int64_t made_size = p->out.inputs;
    char *prepared = job->scratch;
    float *projected = (float *)(prepared + count * room_to_prepare(p));
    uint16_t *normed = (uint16_t *)(projected + count * columns);
    uint16_t *middle = normed + count * size;
    uint16_t *made = middle + count * size;
    uint16_t *inner = made + count * made_size;
    norm_rows((norm_job){job->hidden, p->norm, p->norm_eps, count, size, normed});
    product_job project = {.weight = &p->projection, .x = normed, .count = count, .x_step = size, .prepared = prepared,
                           .floats = projected, .step = columns};
    blocked_product(&project);
    attend_job attending = {.parts = p->attention, .at = job->at, .count = count, .projected = projected,
                            .cos = job->cos, .sin = job->sin, .rotated = job->rotated, .out = made};
    attend_body(&attending);
    product_job finish = {.weight = &p->out, .x = made, .count = count, .x_step = made_size, .prepared = prepared,
                          .halves = middle, .others = job->hidden, .step = size};
    blocked_product(&finish);
    norm_rows((norm_job){middle, p->second_norm, p->second_norm_eps, count, size, normed});
    product_job widen = {.weight = &p->gate_up, .x = normed, .count = count, .x_step = size, .prepared = prepared,
                         .halves = inner, .step = p->inner, .is_gated = 1};
    blocked_product(&widen);
    product_job narrow = {.weight = &p->down, .x = inner, .count = count, .x_step = p->inner, .prepared = prepared,
                          .halves = job->out, .others = middle, .step = size};
    blocked_product(&narrow);
}

/* Nanoseconds that a layer takes one thread, roughly. */
INLINE int64_t layer_ns(const layer_job *job) {
    const layer *p = job->parts;
    int64_t work = attend_ns(p->attention, job->at, job->count);
    const blocked *weights[] = {&p->projection, &p->out, &p->gate_up, &p->down};
    for (int n = 0; n < 4; n++) work += product_ns(weights[n], job->count);
    return work;
}

/* `hidden`, `out` [count, hidden]. `scratch`: count times the largest `prepared_bytes` of a weight, then count *
 * columns floats, and behind them count * (hidden + hidden + made + inner) halves. */
void KERNEL(layer)(const layer *p, int64_t threads, int64_t count, const uint16_t *hidden, const uint16_t *cos,
                   const uint16_t *sin, int64_t rotated, const paged *at, uint16_t *out, char *scratch) {
    layer_job job = {p, count, hidden, cos, sin, rotated, at, out, scratch};
    tenonry_together(tenonry_threads_for(threads, layer_ns(&job)), layer_body, &job);
}

/* Layers one after another: of layer n, `parts`[n], whose K/V are in `blocks`[n] and seen through `window`[n]. `between`
 * [count, hidden]. */
typedef struct {
    layer_job first;
    int64_t count;
    const layer *const *parts;
    char *const *blocks;
    const int64_t *window;
    uint16_t *between;
} stack_job;

static void stack_body(const void *context) {
    const stack_job *stack = context;
    layer_job job = stack->first;
    paged at = *job.at;
    job.at = &at;
    for (int64_t n = 0; n < stack->count; n++) {
        at.blocks = stack->blocks[n];
        at.window = stack->window[n];
        job.parts = stack->parts[n];
        job.out = (stack->count - n) % 2 ? stack->first.out : stack->between; /* the last one to `out` */
        layer_body(&job);
        job.hidden = job.out;
    }
}

/* `layers` of them; `scratch`: as the layer that needs most, and count * hidden halves before that. */
void KERNEL(stack)(const layer *const *parts, int64_t layers, int64_t threads, int64_t count, const uint16_t *hidden,
                   const uint16_t *cos, const uint16_t *sin, int64_t rotated, const paged *at, char *const *blocks,
                   const int64_t *window, uint16_t *out, char *scratch) {
    int64_t between = (count * parts[0]->hidden * 2 + 63) / 64 * 64;
    stack_job job = {.first = {parts[0], count, hidden, cos, sin, rotated, at, out, scratch + between},
                     .count = layers, .parts = parts, .blocks = blocks, .window = window, .between = (uint16_t *)scratch};
    /* As many threads as a layer alone would have: they wait for each other in each of its parts. */
    tenonry_together(tenonry_threads_for(threads, layer_ns(&job.first)), stack_body, &job);
}

#endif
