/* Linear layers of few rows on weights in blocks, shared among threads. */
#ifndef TENONRY_PRODUCT_H
#define TENONRY_PRODUCT_H

#include "low_bit.h"
#include "tiles.h"

#define FEW_CHUNKS 16  /* less than what can be shared well */
#define PREPARED_ROWS 8 /* of a chunk */
#define TILED_FROM 2     /* rows; one alone is as quick to multiply as its weights are to read */
#if defined(__AMX_BF16__)
#define MOST_ROWS TILED_ROWS
#define ROOM_ROWS (4 * TILED_ROWS) /* whose sums are kept at once */
#else
#define MOST_ROWS BLOCK_ROWS
#define ROOM_ROWS BLOCK_ROWS
#endif
#define LARGE_GROUP 256 /* rows whose inputs stay near while all weights pass by */

/* Bytes of one prepared row of inputs: rounded for a quantised weight, widened for one in bfloat16; 0
 * where it is multiplied unchanged. */
INLINE int64_t prepared_bytes(const blocked *w) {
    if (w->bits != HALF_BITS) return rounded_bytes(w);
    return WIDENS ? (4 * w->inputs + 63) / 64 * 64 : 0;
}

int64_t KERNEL(prepared_bytes)(const blocked *w) { return prepared_bytes(w); }

/* out [rows, 64] floats += the biases of a block. */
INLINE void add_bias(int64_t rows, const blocked *w, int64_t block, float *out) {
    if (!w->bias) return;
    int64_t left = w->outputs - block * BLOCK;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < BLOCK && c < left; c++) out[r * BLOCK + c] += w->bias[block * BLOCK + c];
}

/* out [rows, 64] floats = rows of x, `step` bytes apart, times a block. */
INLINE void block_rows(int rows, const blocked *w, int64_t block, const char *x, int64_t step, float *out) {
    if (w->bits == HALF_BITS)
        half_rows(rows, w, block, (const factor *)x, step / (int64_t)sizeof(factor), out);
    else if (w->bits == 8)
        rounded_rows(rows, 8, w, block, x, step, out);
    else
        rounded_rows(rows, 4, w, block, x, step, out);
    add_bias(rows, w, block, out);
}

/* Whether so many rows of inputs are multiplied in tiles. */
INLINE int is_tiled(const blocked *w, int64_t count) {
#if defined(__AMX_BF16__)
    return count >= TILED_FROM && w->bits == HALF_BITS && w->inputs % TILE_INPUTS == 0;
#else
    (void)w, (void)count;
    return 0;
#endif
}

INLINE void begin_product(const blocked *w, int64_t count) {
#if defined(__AMX_BF16__)
    if (is_tiled(w, count)) shape_tiles(TILED_ROWS);
#endif
    (void)w, (void)count;
}

INLINE void end_product(const blocked *w, int64_t count) {
#if defined(__AMX_BF16__)
    if (is_tiled(w, count)) _tile_release();
#endif
    (void)w, (void)count;
}

/* As above, of 1 to BLOCK_ROWS rows, or in tiles to MOST_ROWS or multiples of that. */
static void few_block_rows(int64_t rows, const blocked *w, int64_t block, const char *x, int64_t step, float *out) {
#if defined(__AMX_BF16__)
    if (is_tiled(w, rows)) {
        if (rows % TILED_ROWS == 0 && rows > TILED_ROWS)
            tiled_squares(rows, w, block, x, step, out);
        else
            tiled_rows(rows, w, block, x, step, out);
        add_bias(rows, w, block, out);
        return;
    }
#endif
    switch (rows) {
        case 1: block_rows(1, w, block, x, step, out); break;
        case 2: block_rows(2, w, block, x, step, out); break;
#if BLOCK_ROWS > 2
        case 3: block_rows(3, w, block, x, step, out); break;
#endif
#if BLOCK_ROWS > 3
        case 4: block_rows(4, w, block, x, step, out); break;
        case 5: block_rows(5, w, block, x, step, out); break;
        case 6: block_rows(6, w, block, x, step, out); break;
#endif
    }
}

/* What becomes of a product: floats or halves, to which `others` of the same type are added where there are some, or
 * with `is_gated` of [gate, up] the half silu(gate) * up. Rows of results are `step` elements apart.
 * `x`: rows of halves, or floats where the inputs are floats, `x_step` elements apart. `prepared`: room for `count` rows of
 * `prepared_bytes`; anything where that is 0. */
typedef struct {
    const blocked *weight;
    const void *x;
    int64_t has_floats; /* in x */
    int64_t count, x_step, group; /* rows; how many of them are a chunk */
    char *prepared;
    float *floats;
    uint16_t *halves;
    const void *others;
    int64_t step;
    int64_t is_gated;
} product_job;

/* Of `rows` rows from r on: what becomes of their products with a block, `made`, and with the one of its ups. */
INLINE void finish_rows(const product_job *job, int64_t block, int64_t r, int64_t rows, const float *made,
                        const float *ups) {
    int64_t first = block * BLOCK;
    int64_t outputs = job->is_gated ? job->weight->outputs / 2 : job->weight->outputs;
    int is_half = job->floats == NULL;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < BLOCK && first + c < outputs; c += LANES) {
            int64_t left = outputs - first - c;
            int64_t place = (r + i) * job->step + first + c;
            vector values = *(const vector *)(made + i * BLOCK + c);
            if (job->is_gated) values = silu(values) * *(const vector *)(ups + i * BLOCK + c);
            if (job->others) values += load(at(job->others, place, is_half), left, is_half);
            if (job->floats)
                put(job->floats + place, values, left);
            else
                put_half(job->halves + place, values, left);
        }
}

/* How many of `left` rows are multiplied at once. */
INLINE int64_t rows_at_once(const blocked *w, int64_t count, int64_t left) {
    if (!is_tiled(w, count)) return left < BLOCK_ROWS ? left : BLOCK_ROWS;
    if (left < 2 * MOST_ROWS) return left < MOST_ROWS ? left : MOST_ROWS;
    return left < ROOM_ROWS ? left / MOST_ROWS * MOST_ROWS : ROOM_ROWS;
}

/* Chunks of the same rows follow each other. */
static void product_chunk(const void *context, int64_t chunk) {
    const product_job *job = context;
    const blocked *w = job->weight;
    int64_t blocks = blocks_of(w) / (job->is_gated ? 2 : 1);
    int64_t block = chunk % blocks;
    int64_t begin = chunk / blocks * job->group;
    int64_t end = begin + job->group < job->count ? begin + job->group : job->count;
    const char *x = prepared_bytes(w) ? job->prepared : job->x;
    int64_t x_step = prepared_bytes(w) ? prepared_bytes(w) : 2 * job->x_step;
    _Alignas(64) float made[ROOM_ROWS * BLOCK], ups[ROOM_ROWS * BLOCK];
    begin_product(w, job->count);
    for (int64_t r = begin, rows; r < end; r += rows) {
        rows = rows_at_once(w, job->count, end - r);
        few_block_rows(rows, w, block, x + r * x_step, x_step, made);
        if (job->is_gated) few_block_rows(rows, w, block + blocks, x + r * x_step, x_step, ups);
        finish_rows(job, block, r, rows, made, ups);
    }
    end_product(w, job->count);
}

static void prepare_chunk(const void *context, int64_t chunk) {
    const product_job *job = context;
    const blocked *w = job->weight;
    int is_half = !job->has_floats;
    int64_t end = (chunk + 1) * PREPARED_ROWS < job->count ? (chunk + 1) * PREPARED_ROWS : job->count;
    for (int64_t r = chunk * PREPARED_ROWS; r < end; r++) {
        const void *x = at(job->x, r * job->x_step, is_half);
        char *out = job->prepared + r * prepared_bytes(w);
        if (w->bits == HALF_BITS)
            take_factors(x, w->inputs, (factor *)out);
        else
            round_row(w, x, is_half, out);
    }
}

/* Chunks are blocks, or where these are few or rows are many, some rows of them. */
static void blocked_product(product_job *job) {
    if (!job->count) return; /* as of a head, in a step in which no row samples */
    if (prepared_bytes(job->weight))
        tenonry_share(prepare_chunk, job, (job->count + PREPARED_ROWS - 1) / PREPARED_ROWS);
    int64_t blocks = blocks_of(job->weight);
    if (job->is_gated) blocks /= 2;
    int64_t groups = (FEW_CHUNKS + blocks - 1) / blocks;
    int64_t least = is_tiled(job->weight, job->count) ? MOST_ROWS / 2 : BLOCK_ROWS;
    int64_t parts = (job->count + least - 1) / least;
    if (groups > parts) groups = parts;
    job->group = (parts + groups - 1) / groups * least;
    if (job->group > LARGE_GROUP) job->group = LARGE_GROUP;
    groups = (job->count + job->group - 1) / job->group;
    tenonry_share(product_chunk, job, blocks * groups);
}

/* Nanoseconds that a product takes one thread, roughly. */
INLINE int64_t product_ns(const blocked *w, int64_t count) {
    int64_t read = 4 * w->bits / HALF_BITS, bytes = w->bits == HALF_BITS ? 1 : w->input_bytes;
    return w->inputs * w->outputs * (read + bytes * count) / 120;
}

static void linear_body(const void *context) { blocked_product((product_job *)context); }

/* out [count, outputs] = x [count, inputs] times the weight, and `others` where there are some; all in bfloat16. */
void KERNEL(blocked_linear)(const blocked *w, int64_t threads, int64_t count, const uint16_t *x, int64_t x_step,
                            const uint16_t *others, uint16_t *out, char *prepared) {
    product_job job = {.weight = w, .x = x, .count = count, .x_step = x_step, .prepared = prepared, .halves = out,
                       .others = others, .step = w->outputs};
    tenonry_together(tenonry_threads_for(threads, product_ns(w, count)), linear_body, &job);
}

/* The same with quantised weights, all in bfloat16 or, with `has_floats`, in float32. */
void KERNEL(low_bit_linear)(const blocked *w, int64_t threads, int64_t count, const void *x, int64_t has_floats,
                             const void *others, void *out, char *prepared) {
    product_job job = {.weight = w, .x = x, .has_floats = has_floats, .count = count, .x_step = w->inputs,
                       .prepared = prepared, .others = others, .step = w->outputs};
    if (has_floats)
        job.floats = out;
    else
        job.halves = out;
    tenonry_together(tenonry_threads_for(threads, product_ns(w, count)), linear_body, &job);
}

#endif
