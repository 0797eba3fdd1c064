/* What stands between the products of a layer, of any number of tokens, in bfloat16: norm, norm and rotation of heads,
 * gate. */
#ifndef TENONRY_BETWEEN_H
#define TENONRY_BETWEEN_H

#include "paged.h"
#include "product.h"

#define BETWEEN_ROWS 8 /* of a chunk */

/* Nanoseconds that so many numbers take one thread, roughly. */
INLINE int64_t between_ns(int64_t numbers) { return numbers / 4; }

INLINE int64_t chunks_of_rows(int64_t count) { return (count + BETWEEN_ROWS - 1) / BETWEEN_ROWS; }

INLINE int64_t end_of_chunk(int64_t chunk, int64_t count) {
    return (chunk + 1) * BETWEEN_ROWS < count ? (chunk + 1) * BETWEEN_ROWS : count;
}

typedef struct {
    const uint16_t *x;
    const float *weight;
    float eps;
    int64_t count, size;
    uint16_t *out;
} norm_job;

static void norm_chunk(const void *context, int64_t chunk) {
    const norm_job *job = context;
    int64_t end = end_of_chunk(chunk, job->count);
    for (int64_t i = chunk * BETWEEN_ROWS; i < end; i++)
        normalise_half(job->x + i * job->size, job->weight, job->eps, job->size, job->out + i * job->size);
}

static void norm_rows(norm_job job) { tenonry_share(norm_chunk, &job, chunks_of_rows(job.count)); }

static void norm_body(const void *context) { norm_rows(*(const norm_job *)context); }

/* `x`, `out` [count, size]; `weight` [size]. */
void KERNEL(half_norm)(int64_t threads, int64_t count, int64_t size, const uint16_t *x, const float *weight, float eps,
                       uint16_t *out) {
    norm_job job = {x, weight, eps, count, size, out};
    tenonry_together(tenonry_threads_for(threads, between_ns(count * size)), norm_body, &job);
}

typedef struct {
    const attention *parts;
    int64_t count;
    uint16_t *projected; /* [count, heads + 2 * kv_heads, size] */
    const uint16_t *cos, *sin;
    int64_t rotated;
} turn_job;

/* As `turn`, of a head that is rotated whole and whose halves are whole vectors. */
INLINE void turn_whole(uint16_t *x, const float *weight, float eps, const float *cos, const float *sin, int64_t size) {
    int64_t half = size / 2;
    float scale = 1.0f;
    if (weight) {
        vector squares = {0};
        for (int64_t c = 0; c < size; c += LANES) {
            vector values = take_half(x + c, LANES);
            squares += values * values;
        }
        scale = 1.0f / sqrtf(total(squares) / (float)size + eps);
    }
    for (int64_t c = 0; c < half; c += LANES) {
        vector low = take_half(x + c, LANES) * scale;
        vector high = take_half(x + half + c, LANES) * scale;
        if (weight) {
            low *= *(const vector *)(weight + c);
            high *= *(const vector *)(weight + half + c);
        }
        put_half(x + c, low * *(const vector *)(cos + c) + high * *(const vector *)(sin + c), LANES);
        put_half(x + half + c, high * *(const vector *)(cos + half + c) + low * *(const vector *)(sin + half + c), LANES);
    }
}

/* As `turn`, of any head, in bfloat16. */
INLINE void turn_half(uint16_t *x, const float *weight, float eps, const float *cos, const float *sin, int64_t rotated,
                      int64_t size) {
    float values[MAX_SIZE], normed[MAX_SIZE], turned[MAX_SIZE];
    for (int64_t c = 0; c < size; c += LANES) put(values + c, take_half(x + c, size - c), size - c);
    turn(values, weight, eps, cos, sin, rotated, size, normed, turned);
    for (int64_t c = 0; c < size; c += LANES) put_half(x + c, taken(turned + c, size - c), size - c);
}

/* The queries and keys of a token. */
INLINE void turn_token(const turn_job *job, int64_t token) {
    const attention *p = job->parts;
    int64_t size = p->size, rotated = job->rotated;
    int is_whole = rotated == size && size % (2 * LANES) == 0;
    float cos[MAX_SIZE], sin[MAX_SIZE];
    for (int64_t c = 0; c < rotated; c += LANES) {
        put(cos + c, take_half(job->cos + token * rotated + c, rotated - c), rotated - c);
        put(sin + c, take_half(job->sin + token * rotated + c, rotated - c), rotated - c);
    }
    for (int64_t h = 0; h < p->heads + p->kv_heads; h++) {
        uint16_t *x = job->projected + (token * (p->heads + 2 * p->kv_heads) + h) * size;
        const float *weight = p->norm_weight ? p->norm_weight + h * size : NULL;
        if (is_whole)
            turn_whole(x, weight, p->norm_eps, cos, sin, size);
        else
            turn_half(x, weight, p->norm_eps, cos, sin, rotated, size);
    }
}

static void turn_chunk(const void *context, int64_t chunk) {
    const turn_job *job = context;
    int64_t end = end_of_chunk(chunk, job->count);
    for (int64_t token = chunk * BETWEEN_ROWS; token < end; token++) turn_token(job, token);
}

static void turn_body(const void *context) {
    tenonry_share(turn_chunk, context, chunks_of_rows(((const turn_job *)context)->count));
}

/* Queries and keys in place; values stay. `cos`, `sin` [count, rotated]. */
void KERNEL(turn_heads)(const attention *p, int64_t threads, int64_t count, uint16_t *projected, const uint16_t *cos,
                        const uint16_t *sin, int64_t rotated) {
    turn_job job = {p, count, projected, cos, sin, rotated};
    int64_t numbers = count * (p->heads + p->kv_heads) * p->size;
    tenonry_together(tenonry_threads_for(threads, 2 * between_ns(numbers)), turn_body, &job);
}

typedef struct {
    int64_t count, inner;
    const uint16_t *x; /* [count, 2 * inner] */
    uint16_t *out;     /* [count, inner] */
} gate_job;

static void gate_chunk(const void *context, int64_t chunk) {
    const gate_job *job = context;
    int64_t inner = job->inner;
    int64_t end = end_of_chunk(chunk, job->count);
    for (int64_t row = chunk * BETWEEN_ROWS; row < end; row++) {
        const uint16_t *gate = job->x + row * 2 * inner;
        for (int64_t c = 0; c < inner; c += LANES) {
            vector opened = silu_half(take_half(gate + c, inner - c)) * take_half(gate + inner + c, inner - c);
            put_half(job->out + row * inner + c, opened, inner - c);
        }
    }
}

static void gate_body(const void *context) {
    tenonry_share(gate_chunk, context, chunks_of_rows(((const gate_job *)context)->count));
}

/* out = silu(gate) * up, with gate and up one behind the other in `x`. */
void KERNEL(gate)(int64_t threads, int64_t count, int64_t inner, const uint16_t *x, uint16_t *out) {
    gate_job job = {count, inner, x, out};
    tenonry_together(tenonry_threads_for(threads, 2 * between_ns(count * inner)), gate_body, &job);
}

#endif
