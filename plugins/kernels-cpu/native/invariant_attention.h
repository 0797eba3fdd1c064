/* Attention over K/V in blocks, which are in float32 or bfloat16, of any queries of a step. What a query gets depends on its
 * sequence alone: keys take part one block after the other from the first one that it sees, whatever is computed beside
 * it. */
#ifndef TENONRY_INVARIANT_ATTENTION_H
#define TENONRY_INVARIANT_ATTENTION_H

#include "attention.h"
#include "paged.h"
#include "product.h"

#define PIECE_KEYS 64  /* of a block whose scores are computed together, from its beginning on */
#define MOST_QUERIES 32 /* that pass over a block together, heads counted one by one */
#define WRITTEN_TOKENS 8 /* of a chunk */

/* See `StepKeys` in tenonry_torch_base.invariant. */
typedef struct {
    void *blocks; /* [blocks, 2 * kv_heads, block_size, size] */
    int64_t block_size, is_half;
    const int64_t *slot; /* [tokens] */
    const int32_t *table;
    int64_t width;
    const int64_t *position; /* [queries] */
    const int64_t *begin, *count, *line; /* [groups] */
    int64_t groups;
    int64_t window; /* so many of the last tokens are seen; 0: all */
} step_keys;

/* A query while keys pass by: what they weigh so far, relative to the largest score. */
typedef struct {
    float values[MAX_SIZE];
    float sums[MAX_SIZE];
    float largest, weight;
    int64_t position;
} passing;

/* out = x / sqrt(mean(x * x) + eps) * weight, with an order of the sum that nothing but the size decides. */
static void normalise_row(const float *x, const float *weight, float eps, int64_t size, float *out) {
    vector squares = {0};
    for (int64_t c = 0; c < size; c += LANES) {
        vector values = taken(x + c, size - c);
        squares += values * values;
    }
    float scale = 1.0f / sqrtf(total(squares) / (float)size + eps);
    for (int64_t c = 0; c < size; c += LANES)
        put(out + c, taken(x + c, size - c) * scale * taken(weight + c, size - c), size - c);
}

/* As `turn` in attention.h. */
static void turn_head(const attention *p, int64_t head, const float *x, const float *cos, const float *sin,
                      int64_t rotated, float *out) {
    float normed[MAX_SIZE];
    if (p->norm_weight) {
        normalise_row(x, p->norm_weight + head * p->size, p->norm_eps, p->size, normed);
        x = normed;
    }
    int64_t half = rotated / 2;
    int64_t rest = rotated - half;
    for (int64_t c = 0; c < half; c += LANES)
        put(out + c, taken(x + c, half - c) * taken(cos + c, half - c) + taken(x + c + rest, half - c) * taken(sin + c, half - c),
            half - c);
    for (int64_t c = half; c < rotated; c += LANES)
        put(out + c,
            taken(x + c, rotated - c) * taken(cos + c, rotated - c) + taken(x + c - half, rotated - c) * taken(sin + c, rotated - c),
            rotated - c);
    for (int64_t c = rotated; c < p->size; c++) out[c] = x[c];
}

/* scores [count] = query times each of `count` keys, times scaling. */
static void score_piece(int64_t count, int64_t size, const float *query, const float *keys, float scaling, float *scores) {
    int64_t t = 0;
    for (; t + 4 <= count; t += 4) dot_four(query, keys + t * size, size, scores + t);
    for (; t < count; t++) {
        vector sums = {0};
        for (int64_t c = 0; c < size; c += LANES) sums += taken(query + c, size - c) * taken(keys + t * size + c, size - c);
        scores[t] = total(sums);
    }
    for (t = 0; t < count; t += LANES) put(scores + t, taken(scores + t, count - t) * scaling, count - t);
}

/* Keys with these scores take part in the softmax of a query. */
static void weigh_piece(passing *q, const float *values, int64_t count, int64_t size, float *scores) {
    float largest = q->largest;
    for (int64_t t = 0; t < count; t++) largest = scores[t] > largest ? scores[t] : largest;
    if (largest > q->largest) {
        float scale = exponential((vector){0} + (q->largest - largest))[0];
        for (int64_t c = 0; c < size; c += LANES) put(q->sums + c, taken(q->sums + c, size - c) * scale, size - c);
        q->weight *= scale;
        q->largest = largest;
    }
    vector weights = {0};
    for (int64_t t = 0; t < count; t += LANES) {
        put(scores + t, exponential(taken(scores + t, count - t) - largest), count - t);
        weights += taken(scores + t, count - t);
    }
    q->weight += total(weights);
    int64_t c = 0;
    for (; c + 4 * LANES <= size; c += 4 * LANES) {
        vector sums[4];
        for (int n = 0; n < 4; n++) sums[n] = *(vector *)(q->sums + c + n * LANES);
        for (int64_t t = 0; t < count; t++)
            for (int n = 0; n < 4; n++) sums[n] += scores[t] * *(const vector *)(values + t * size + c + n * LANES);
        for (int n = 0; n < 4; n++) *(vector *)(q->sums + c + n * LANES) = sums[n];
    }
    for (; c < size; c += LANES) {
        vector sums = taken(q->sums + c, size - c);
        for (int64_t t = 0; t < count; t++) sums += scores[t] * taken(values + t * size + c, size - c);
        put(q->sums + c, sums, size - c);
    }
}

/* Keys [begin, end) of a sequence and their values, for those of `count` queries that see some of them. */
static void pass_piece(passing *queries, int64_t count, int64_t begin, int64_t end, int64_t window, int64_t size,
                       float scaling, const float *keys, const float *values) {
    float scores[PIECE_KEYS];
    for (int64_t i = 0; i < count; i++) {
        passing *q = queries + i;
        int64_t first = window && q->position + 1 > window ? q->position + 1 - window : 0;
        if (first < begin) first = begin;
        int64_t last = q->position + 1 < end ? q->position + 1 : end;
        if (first >= last) continue;
        int64_t unseen = (first - begin) * size;
        score_piece(last - first, size, q->values, keys + unseen, scaling, scores);
        weigh_piece(q, values + unseen, last - first, size, scores);
    }
}

/* `count` of bfloat16 as floats. */
INLINE void as_floats(const void *halves, int64_t count, float *out) {
    for (int64_t i = 0; i < count; i += LANES) put(out + i, load(at(halves, i, 1), count - i, 1), count - i);
}

/* `count` queries of one sequence, in order of their positions, over the keys of head `h`. */
static void pass_keys(const step_keys *from, const attention *p, const int32_t *table, int64_t h, passing *queries,
                      int64_t count) {
    int64_t size = p->size;
    int64_t block_size = from->block_size;
    int64_t window = from->window;
    int64_t end = queries[count - 1].position + 1;
    int64_t first = window && queries[0].position + 1 > window ? queries[0].position + 1 - window : 0;
    int is_half = from->is_half != 0;
    float wide[2][PIECE_KEYS * MAX_SIZE];
    for (int64_t block = first / block_size; block * block_size < end; block++)
        for (int64_t place = 0; place < block_size && block * block_size + place < end; place += PIECE_KEYS) {
            int64_t begin = block * block_size + place;
            int64_t some = block_size - place < PIECE_KEYS ? block_size - place : PIECE_KEYS;
            if (end - begin < some) some = end - begin;
            int64_t line = ((int64_t)table[block] * 2 * p->kv_heads + h) * block_size + place;
            const void *keys = at(from->blocks, line * size, is_half);
            const void *values = at(keys, p->kv_heads * block_size * size, is_half);
            if (is_half) {
                as_floats(keys, some * size, wide[0]);
                as_floats(values, some * size, wide[1]);
                keys = wide[0];
                values = wide[1];
            }
            pass_piece(queries, count, begin, begin + some, window, size, p->scaling, keys, values);
        }
}

/* `projected` [tokens, columns] of all tokens of a step, `cos` and `sin` [tokens, rotated] of them; `token` [queries]: which
 * of them attend, NULL for all in order; `out` [queries, heads, size]. */
typedef struct {
    const attention *parts;
    const step_keys *keys;
    int64_t tokens;
    const float *projected, *cos, *sin;
    int64_t rotated;
    const int64_t *token;
    float *out;
} pass_job;

INLINE int64_t columns_of(const attention *p) { return (p->heads + 2 * p->kv_heads) * p->size; }

/* A key or value of `size` floats, from element `place` of the blocks on. */
INLINE void keep_vector(const step_keys *keys, int64_t place, const float *x, int64_t size) {
    for (int64_t c = 0; c < size; c += LANES) {
        vector values = taken(x + c, size - c);
        if (keys->is_half)
            put_half((uint16_t *)keys->blocks + place + c, values, size - c);
        else
            put((float *)keys->blocks + place + c, values, size - c);
    }
}

/* Keys and values of some tokens, to their places. */
static void place_chunk(const void *context, int64_t chunk) {
    const pass_job *job = context;
    const attention *p = job->parts;
    const step_keys *keys = job->keys;
    int64_t size = p->size;
    int64_t end = (chunk + 1) * WRITTEN_TOKENS < job->tokens ? (chunk + 1) * WRITTEN_TOKENS : job->tokens;
    for (int64_t t = chunk * WRITTEN_TOKENS; t < end; t++)
        for (int64_t h = 0; h < p->kv_heads; h++) {
            const float *key = job->projected + t * columns_of(p) + (p->heads + h) * size;
            const float *value = key + p->kv_heads * size;
            int64_t block = keys->slot[t] / keys->block_size;
            int64_t place = keys->slot[t] % keys->block_size;
            int64_t line = ((block * 2 * p->kv_heads + h) * keys->block_size + place) * size;
            float turned[MAX_SIZE];
            const float *cos = job->cos + t * job->rotated;
            turn_head(p, p->heads + h, key, cos, job->sin + t * job->rotated, job->rotated, turned);
            keep_vector(keys, line, turned, size);
            keep_vector(keys, line + p->kv_heads * keys->block_size * size, value, size);
        }
}

/* The queries of a group, which share a sequence, with one key head. */
static void pass_chunk(const void *context, int64_t chunk) {
    const pass_job *job = context;
    const attention *p = job->parts;
    const step_keys *at = job->keys;
    int64_t group = chunk / p->kv_heads;
    int64_t h = chunk % p->kv_heads;
    int64_t size = p->size;
    int64_t sharing = p->heads / p->kv_heads;
    int64_t most = MOST_QUERIES / sharing;
    int64_t end = at->begin[group] + at->count[group];
    passing queries[MOST_QUERIES];
    for (int64_t begin = at->begin[group]; begin < end; begin += most) {
        int64_t some = end - begin < most ? end - begin : most;
        for (int64_t n = 0; n < some * sharing; n++) {
            int64_t place = begin + n / sharing;
            int64_t t = job->token ? job->token[place] : place;
            int64_t head = h * sharing + n % sharing;
            passing *q = queries + n;
            turn_head(p, head, job->projected + t * columns_of(p) + head * size, job->cos + t * job->rotated,
                      job->sin + t * job->rotated, job->rotated, q->values);
            for (int64_t c = 0; c < size; c++) q->sums[c] = 0.0f;
            q->largest = -INFINITY;
            q->weight = 0.0f;
            q->position = at->position[place];
        }
        pass_keys(at, p, at->table + at->line[group] * at->width, h, queries, some * sharing);
        for (int64_t n = 0; n < some * sharing; n++) {
            float scale = 1.0f / queries[n].weight;
            float *made = job->out + ((begin + n / sharing) * p->heads + h * sharing + n % sharing) * size;
            for (int64_t c = 0; c < size; c += LANES) put(made + c, taken(queries[n].sums + c, size - c) * scale, size - c);
        }
    }
}

/* All keys are written before any is read. */
static void pass_all(pass_job job) {
    tenonry_share(place_chunk, &job, (job.tokens + WRITTEN_TOKENS - 1) / WRITTEN_TOKENS);
    tenonry_share(pass_chunk, &job, job.keys->groups * job.parts->kv_heads);
}

/* Nanoseconds that attention takes one thread, roughly. */
INLINE int64_t pass_ns(const attention *p, const step_keys *at, int64_t queries) {
    int64_t keys = 0;
    for (int64_t i = 0; i < queries; i++)
        keys += at->window && at->position[i] >= at->window ? at->window : at->position[i] + 1;
    return keys * p->heads * p->size / 8;
}

#endif
