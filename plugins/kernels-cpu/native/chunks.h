/* Attention of chunks of prompts over K/V in blocks, in bfloat16: many queries of a row at once, each of which sees the
 * keys up to its own. Keys pass by in tiles, and the softmax goes along with them (arXiv:2205.14135). */
#ifndef TENONRY_CHUNKS_H
#define TENONRY_CHUNKS_H

#include "columns.h"
#include "paged.h"
#include "product.h"

#define CHUNK_QUERIES (2 * BLOCK) /* of a key head, whose keys are laid out once for all of them */

/* Where the queries of rows are, in PagedKeys' order of rows: `begin` and `count` [rows]. The last of them is that of the
 * row's newest token. */
typedef struct {
    const attention *parts;
    const paged *at;
    int64_t rows;
    const int64_t *begin, *count;
    const int64_t *order;  /* which `rows` of them these are; NULL: the first ones */
    const uint16_t *query; /* [tokens, heads, size], `query_step` elements from token to token */
    int64_t query_step;
    uint16_t *out; /* [tokens, heads, size] */
} chunk_job;

INLINE int64_t row_at(const int64_t *order, int64_t n) { return order ? order[n] : n; }

#define ALIGNED _Alignas(64) /* lines that tiles load from what was just stored do not wait for each other */

/* So many queries of a key head while keys pass by: query n is head n % sharing of token n / sharing. */
typedef struct {
    ALIGNED factor queries[CHUNK_QUERIES * MAX_SIZE];
    ALIGNED float sums[CHUNK_QUERIES * MAX_SIZE];
    float largest[CHUNK_QUERIES];
    ALIGNED float weight[CHUNK_QUERIES * LANES]; /* its lanes add up to that of the query */
    ALIGNED uint16_t keys[BLOCK * MAX_SIZE];   /* a tile of them: [pairs of elements][keys][2]; in tiles [keys][elements] */
    ALIGNED uint16_t values[BLOCK * MAX_SIZE]; /* [vectors of elements][pairs of keys][elements][2] */
    ALIGNED factor weights[MOST_ROWS * BLOCK];
    ALIGNED float scores[MOST_ROWS * BLOCK];
#if defined(__AMX_BF16__)
    ALIGNED uint16_t turned[CHUNK_QUERIES * MAX_SIZE]; /* queries in blocks */
    column columns[CHUNK_QUERIES / TILE_SIDE]; /* in place of `largest` and `weight` */
#endif
} chunk_state;

/* Whether tiles are filled by the elements of vectors. */
INLINE int in_tiles(int64_t size) {
#if defined(__AMX_BF16__)
    return size % TILE_INPUTS == 0;
#endif
    (void)size;
    return 0;
}

INLINE int64_t queries_at_once(int64_t size) { return in_tiles(size) ? MOST_ROWS : BLOCK_ROWS; }

/* Whose queries are together: as many as are filled up to a number at once. */
INLINE int64_t tokens_together(const attention *p) {
    int64_t rows = queries_at_once(p->size);
    return CHUNK_QUERIES / rows * rows / (p->heads / p->kv_heads);
}

INLINE void end_tiles(int64_t size) {
#if defined(__AMX_BF16__)
    if (in_tiles(size)) _tile_release();
#endif
    (void)size;
}

/* A vector in bfloat16: where it is, or in `room` [size]. */
INLINE const uint16_t *halves_of(const paged *at, const char *kept, int64_t size, uint16_t *room) {
    if (!at->is_rounded) return (const uint16_t *)kept;
    unpack(kept, size, room);
    return room;
}

/* Keys of a pair of tokens, the first of which is token t of a tile. */
INLINE void lay_keys(chunk_state *s, const uint16_t *even, const uint16_t *odd, int64_t t, int64_t size) {
    if (in_tiles(size)) {
        if (even) __builtin_memcpy(s->keys + t * size, even, 2 * size);
        if (odd) __builtin_memcpy(s->keys + (t + 1) * size, odd, 2 * size);
        return;
    }
    uint32_t *keys = (uint32_t *)s->keys;
    for (int64_t k = 0; k < size / 2; k++) {
        uint32_t both[2] = {0, 0};
        if (even) __builtin_memcpy(both, even + 2 * k, 4);
        if (odd) __builtin_memcpy(both + 1, odd + 2 * k, 4);
        __builtin_memcpy(keys + k * BLOCK + t, both, 8);
    }
}

/* Keys and values of `count` tokens from `first` on, laid out for products; zeros behind values. */
static void lay_out(chunk_state *s, const paged *at, int64_t row, int64_t h, int64_t first, int64_t count, int64_t size) {
    int64_t to_values = values_behind(at, size);
    uint16_t room[4][MAX_SIZE];
    static const uint16_t nothing[MAX_SIZE];
    for (int64_t t = 0; t < BLOCK; t += 2) {
        const char *this = t < count ? key_at(at, row, h, first + t, size) : NULL;
        const char *next = t + 1 < count ? key_at(at, row, h, first + t + 1, size) : NULL;
        const uint16_t *even = this ? halves_of(at, this, size, room[0]) : NULL;
        const uint16_t *odd = next ? halves_of(at, next, size, room[1]) : NULL;
        lay_keys(s, even, odd, t, size);
        const uint16_t *left = this ? halves_of(at, this + to_values, size, room[2]) : nothing;
        const uint16_t *right = next ? halves_of(at, next + to_values, size, room[3]) : nothing;
        for (int64_t c = 0; c < size; c += LANES) {
            uint32_t *out = (uint32_t *)s->values + c / BLOCK * BLOCK * BLOCK / 2 + t / 2 * BLOCK + c % BLOCK;
            bits_vector low = (bits_vector)take_half(left + c, size - c) >> 16;
            bits_vector high = (bits_vector)take_half(right + c, size - c);
            *(bits_vector *)out = low | high;
        }
    }
}

/* Scores of one query with a tile, of which it sees [low, high), become weights; what the others' sums shrink by.
 * `scaling`: to powers of two. */
INLINE float weigh_tile(chunk_state *s, int64_t n, float *scores, int64_t low, int64_t high, float scaling, factor *out) {
    float largest = s->largest[n];
    int is_cut = low > 0 || high < BLOCK;
    if (is_cut)
        for (int64_t t = 0; t < BLOCK; t++)
            if (t < low || t >= high) scores[t] = -INFINITY;
    vector most = *(vector *)scores;
    for (int t = LANES; t < BLOCK; t += LANES) {
        vector more = *(vector *)(scores + t);
        most = greatest(more, most);
    }
    float here = largest_lane(most) * scaling;
    largest = here > largest ? here : largest;
    if (largest == -INFINITY) { /* it has seen none so far */
        for (int t = 0; t < BLOCK; t++) out[t] = 0;
        return 1.0f;
    }
    float shrink = largest == s->largest[n] ? 1.0f : exp2f(s->largest[n] - largest);
    s->largest[n] = largest;
    vector *weight = (vector *)(s->weight + n * LANES);
    vector sum = *weight * shrink;
    for (int t = 0; t < BLOCK; t += LANES) {
        vector given = *(vector *)(scores + t);
        vector weights = power_of_two(given * scaling - largest);
        if (is_cut) weights = either(given == -INFINITY, (vector){0}, weights);
        sum += weights;
        put_factors(out + t, weights, LANES);
    }
    *weight = sum;
    return shrink;
}

/* The sums of BLOCK_ROWS queries from `n` on, shrunk, and what a tile's values add to so many vectors of them. */
INLINE void add_values(chunk_state *s, int64_t n, const float *shrink, int64_t c, int vectors, int64_t step) {
    const uint16_t *values = s->values + c / BLOCK * BLOCK * BLOCK + 2 * (c % BLOCK);
    vector made[BLOCK_ROWS][BLOCK / LANES];
    begin_sums(BLOCK_ROWS, vectors, made);
    block_tile(BLOCK_ROWS, vectors, BLOCK / 2, s->weights, BLOCK, values, made);
    for (int r = 0; r < BLOCK_ROWS; r++)
        for (int v = 0; v < vectors; v++) {
            vector *sums = (vector *)(s->sums + (n + r) * step + c + v * LANES);
            *sums = *sums * shrink[r] + made[r][v];
        }
}

#if defined(__AMX_BF16__)
/* [low, high) of a tile's keys that 16 queries see, the first of which is query n; the tile begins with token `first`. */
INLINE seen_keys seen_from(const chunk_job *job, int64_t n, int64_t position, int64_t first) {
    int64_t sharing = job->parts->heads / job->parts->kv_heads;
    int64_t window = job->at->window;
    int32_t high[TILE_SIDE], low[TILE_SIDE];
    for (int64_t r = 0; r < TILE_SIDE; r++) {
        int64_t seen = position + (n + r) / sharing + 1 - first;
        high[r] = (int32_t)(seen < BLOCK ? seen : BLOCK);
        low[r] = (int32_t)(window && seen > window ? seen - window : 0);
    }
    int is_cut = high[0] < BLOCK || low[TILE_SIDE - 1] > 0;
    return (seen_keys){*(const integers *)low, *(const integers *)high, is_cut};
}

/* As `pass_rows`, of 32 queries. */
static void pass_tiles(chunk_state *s, const chunk_job *job, int64_t n, int64_t position, int64_t first) {
    int64_t size = job->parts->size;
    const uint16_t *queries = s->turned + n / BLOCK * BLOCK * size + 2 * (n % BLOCK);
    for (int64_t t = 0; t < BLOCK; t += TILED_ROWS)
        tile_square(size / TILE_INPUTS, queries, (const char *)(s->keys + t * size), 2 * size, s->scores + t * TILED_ROWS,
                    TILED_ROWS, 0);
    float shrink[TILED_ROWS];
    for (int64_t r = 0; r < TILED_ROWS; r += TILE_SIDE) {
        seen_keys seen = seen_from(job, n + r, position, first);
        *(vector *)(shrink + r) = weigh_column(s->columns + (n + r) / TILE_SIDE, s->scores + r, TILED_ROWS, &seen,
                                               job->parts->scaling * LOG2_E, s->weights + r * BLOCK);
    }
    for (int64_t r = 0; r < TILED_ROWS; r++) {
        vector *sums = (vector *)(s->sums + (n + r) * size);
        if (shrink[r] != 1.0f)
            for (int64_t c = 0; c < size / LANES; c++) sums[c] *= shrink[r];
    }
    for (int64_t c = 0; c < size; c += TILED_ROWS) {
        const uint16_t *values = s->values + c / BLOCK * BLOCK * BLOCK + 2 * (c % BLOCK);
        tile_square(BLOCK / TILE_INPUTS, values, (const char *)s->weights, 2 * BLOCK, s->sums + n * size + c, size, 1);
    }
}
#endif

/* A tile of keys from `first` on takes part in the softmax of the queries at once from `n` on. */
static void pass_rows(chunk_state *s, const chunk_job *job, int64_t n, int64_t position, int64_t first, int64_t step) {
    const attention *p = job->parts;
    int64_t size = p->size;
    int64_t sharing = p->heads / p->kv_heads;
    int64_t window = job->at->window;
    blocked keys = {.inputs = size, .outputs = BLOCK, .weight = s->keys, .bits = HALF_BITS};
    half_rows(BLOCK_ROWS, &keys, 0, s->queries + n * size, size, s->scores);
    float shrink[BLOCK_ROWS];
    for (int r = 0; r < BLOCK_ROWS; r++) {
        int64_t seen = position + (n + r) / sharing + 1 - first;
        int64_t low = window ? seen - window : 0;
        float scaling = p->scaling * LOG2_E;
        shrink[r] = weigh_tile(s, n + r, s->scores + r * BLOCK, low, seen, scaling, s->weights + r * BLOCK);
    }
    int64_t c = 0;
    for (; c + BLOCK_VECTORS * LANES <= step; c += BLOCK_VECTORS * LANES)
        add_values(s, n, shrink, c, BLOCK_VECTORS, step);
    for (; c + 2 * LANES <= step; c += 2 * LANES) add_values(s, n, shrink, c, 2, step);
    for (; c < step; c += LANES) add_values(s, n, shrink, c, 1, step);
}

/* As above, of all queries, the first of which is at `position`. */
static void pass_tile(chunk_state *s, const chunk_job *job, int64_t queries, int64_t position, int64_t first, int64_t step) {
    int64_t size = job->parts->size;
    int64_t sharing = job->parts->heads / job->parts->kv_heads;
    int64_t rows = queries_at_once(size);
    for (int64_t n = 0; n < queries; n += rows) {
        int64_t last = position + (n + rows - 1) / sharing; /* what the last of these sees */
        if (last < first) continue;
#if defined(__AMX_BF16__)
        if (in_tiles(size)) {
            pass_tiles(s, job, n, position, first);
            continue;
        }
#endif
        pass_rows(s, job, n, position, first, step);
    }
}

/* Nothing is seen so far. */
static void begin_queries(chunk_state *s, int64_t filled, int64_t size, int64_t step) {
    __builtin_memset(s->sums, 0, filled * step * sizeof *s->sums);
#if defined(__AMX_BF16__)
    if (in_tiles(size)) {
        lay_queries(s->queries, filled, size, s->turned);
        for (int64_t n = 0; n < filled / TILE_SIDE; n++) s->columns[n] = (column){(vector){0} - INFINITY, {0}};
        shape_tiles(TILED_ROWS);
        return;
    }
#endif
    (void)size;
    __builtin_memset(s->weight, 0, filled * LANES * sizeof *s->weight);
    for (int64_t n = 0; n < filled; n++) s->largest[n] = -INFINITY;
}

/* What all weights of a query add up to. */
INLINE float weight_of(const chunk_state *s, int64_t n, int64_t size) {
#if defined(__AMX_BF16__)
    if (in_tiles(size)) return ((const float *)&s->columns[n / TILE_SIDE].weight)[n % TILE_SIDE];
#endif
    (void)size;
    return total(*(const vector *)(s->weight + n * LANES));
}

/* The queries of tokens [begin, end) of a row's chunk and of one key head. */
static void attend_tokens(const chunk_job *job, int64_t row, int64_t h, int64_t begin, int64_t end) {
    const attention *p = job->parts;
    const paged *at = job->at;
    int64_t size = p->size;
    int64_t step = (size + LANES - 1) / LANES * LANES;
    int64_t sharing = p->heads / p->kv_heads;
    int64_t queries = (end - begin) * sharing;
    int64_t position = at->length[row] - job->count[row] + begin;
    chunk_state s;
    int64_t rows = queries_at_once(size);
    int64_t filled = (queries + rows - 1) / rows * rows;
    __builtin_memset(s.queries + queries * size, 0, (filled - queries) * size * sizeof *s.queries);
    int64_t token = job->begin[row] + begin;
    int64_t place = (token * p->heads + h * sharing) * size;
    const uint16_t *asked = job->query + token * job->query_step + h * sharing * size;
    for (int64_t i = 0; i < end - begin; i++)
        take_factors(asked + i * job->query_step, sharing * size, s.queries + i * sharing * size);
    int64_t first = at->window && position + 1 > at->window ? position + 1 - at->window : 0;
    int64_t length = position + end - begin; /* that any of them sees */
    begin_queries(&s, filled, size, step);
    for (; first < length; first += BLOCK) {
        int64_t count = length - first < BLOCK ? length - first : BLOCK;
        lay_out(&s, at, row, h, first, count, size);
        pass_tile(&s, job, queries, position, first, step);
    }
    end_tiles(size);
    for (int64_t n = 0; n < queries; n++) {
        uint16_t *out = job->out + place + (n / sharing * p->heads + n % sharing) * size;
        float scale = 1.0f / weight_of(&s, n, size);
        for (int64_t c = 0; c < size; c += LANES) put_half(out + c, taken(s.sums + n * step + c, size - c) * scale, size - c);
    }
}

static void chunk_piece(const void *context, int64_t piece) {
    const chunk_job *job = context;
    int64_t together = tokens_together(job->parts);
    int64_t h = piece % job->parts->kv_heads;
    int64_t left = piece / job->parts->kv_heads;
    int64_t row;
    for (int64_t n = 0;; n++) {
        row = row_at(job->order, n);
        int64_t pieces = (job->count[row] + together - 1) / together;
        if (left < pieces) break;
        left -= pieces;
    }
    int64_t begin = left * together;
    int64_t end = begin + together < job->count[row] ? begin + together : job->count[row];
    attend_tokens(job, row, h, begin, end);
}

static void chunk_body(const void *context) {
    const chunk_job *job = context;
    int64_t together = tokens_together(job->parts);
    int64_t pieces = 0;
    for (int64_t n = 0; n < job->rows; n++) pieces += (job->count[row_at(job->order, n)] + together - 1) / together;
    tenonry_share(chunk_piece, job, pieces * job->parts->kv_heads);
}

/* Nanoseconds that it takes one thread, roughly. */
INLINE int64_t chunk_ns(const chunk_job *job) {
    int64_t keys = 0;
    for (int64_t r = 0; r < job->rows; r++) keys += job->count[r] * job->at->length[r];
    return keys * job->parts->heads * job->parts->size / 32;
}

/* `query`, `out` [tokens, heads, size]; of them rows have `count` from `begin` on. */
void KERNEL(chunk_attention)(const attention *p, int64_t threads, int64_t rows, const int64_t *begin, const int64_t *count,
                             const uint16_t *query, const paged *at, uint16_t *out) {
    chunk_job job = {.parts = p, .at = at, .rows = rows, .begin = begin, .count = count, .query = query,
                     .query_step = p->heads * p->size, .out = out};
    tenonry_together(tenonry_threads_for(threads, chunk_ns(&job)), chunk_body, &job);
}

#endif
