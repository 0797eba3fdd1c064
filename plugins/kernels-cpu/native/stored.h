/* Matrices in the blocks of GGUF files, laid out for the products of low_bit.h; and rows of such a layout as numbers.
 *
 * https://github.com/ggml-org/ggml has the blocks. A number is value * scale + minimum, in the layout as well; where there
 * is no minimum, the layout has the middle of its own range. Scales that a block has in float16 stay so. */
#ifndef TENONRY_STORED_H
#define TENONRY_STORED_H

#include "low_bit.h"

#define OF_BLOCK 256 /* inputs of the largest blocks */
#define MOST_GROUPS 16

/* Kinds, in the order of `KINDS` in tenonry_kernels_cpu.stored. */
enum { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, NUM_KINDS };

/* `middle`: of the range of values without sign. */
static const struct {
    int inputs, bytes, groups, middle, has_minimum;
} kinds[NUM_KINDS] = {
    [Q4_0] = {32, 18, 1, 8, 0},    [Q4_1] = {32, 20, 1, 8, 1},    [Q5_0] = {32, 22, 1, 16, 0},
    [Q5_1] = {32, 24, 1, 16, 1},   [Q8_0] = {32, 34, 1, 128, 0},  [Q4_K] = {256, 144, 8, 8, 1},
    [Q5_K] = {256, 176, 8, 16, 1}, [Q6_K] = {256, 210, 16, 32, 0},
};

/* A block taken apart: values without sign, and per group a scale and a minimum. */
typedef struct {
    uint8_t values[OF_BLOCK];
    float scales[MOST_GROUPS], minimums[MOST_GROUPS];
} parts_of_block;

INLINE float half_at(const uint8_t *place) { return of_half((uint16_t)(place[0] | place[1] << 8)); }

/* `count` bytes to twice as many values: the low halves first. */
INLINE void nibbles(const uint8_t *octets, int count, uint8_t *values) {
    for (int i = 0; i < count; i++) {
        values[i] = octets[i] & 15;
        values[count + i] = octets[i] >> 4;
    }
}

INLINE void add_fifths(const uint8_t *octets, uint8_t *values) {
    for (int i = 0; i < 32; i++) values[i] |= (octets[i / 8] >> (i % 8) & 1) << 4;
}

/* Scales and minimums of 6 bits, in 12 bytes. */
INLINE void six_bits(const uint8_t *block, parts_of_block *to) {
    float scale = half_at(block), minimum = -half_at(block + 2);
    const uint8_t *packed = block + 4;
    for (int g = 0; g < 4; g++) {
        to->scales[g] = (float)(packed[g] & 63) * scale;
        to->minimums[g] = (float)(packed[4 + g] & 63) * minimum;
        to->scales[4 + g] = (float)((packed[8 + g] & 15) | packed[g] >> 6 << 4) * scale;
        to->minimums[4 + g] = (float)(packed[8 + g] >> 4 | packed[4 + g] >> 6 << 4) * minimum;
    }
}

/* Of the kinds of 32 inputs. */
INLINE void take_scales(int kind, const uint8_t *block, parts_of_block *to) {
    to->scales[0] = half_at(block);
    if (kind == Q4_1 || kind == Q5_1) to->minimums[0] = half_at(block + 2);
}

INLINE void take_apart(int kind, const uint8_t *block, parts_of_block *to) {
    uint8_t *values = to->values;
    if (kind < Q4_K) take_scales(kind, block, to);
    if (kind == Q5_0 || kind == Q5_1) {
        int begin = kind == Q5_0 ? 2 : 4;
        nibbles(block + begin + 4, 16, values);
        add_fifths(block + begin, values);
    }
    if (kind == Q8_0)
        for (int i = 0; i < 32; i++) values[i] = block[2 + i] ^ 128;
    if (kind == Q4_K || kind == Q5_K) {
        six_bits(block, to);
        const uint8_t *low = block + (kind == Q4_K ? 16 : 48);
        for (int part = 0; part < 4; part++) nibbles(low + 32 * part, 32, values + 64 * part);
    }
    if (kind == Q5_K)
        for (int i = 0; i < OF_BLOCK; i++) values[i] |= (block[16 + i % 32] >> (i / 32) & 1) << 4;
    if (kind == Q6_K) {
        for (int part = 0; part < 2; part++) nibbles(block + 64 * part, 64, values + 128 * part);
        for (int i = 0; i < OF_BLOCK; i++)
            values[i] |= (block[128 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) << 4;
        for (int g = 0; g < 16; g++) to->scales[g] = (float)(int8_t)block[192 + g] * half_at(block + 208);
    }
}

typedef struct {
    const blocked *weight;
    int64_t kind;
    const uint8_t *octets;
    int64_t is_odd; /* of all chunks: whether a scale or a minimum is not finite */
} stored_job;

/* Values of 4 bits of a block of 32 inputs, into four lines. */
INLINE void put_nibbles(const uint8_t *octets, uint8_t *lines) {
    uint32_t quads[4];
    __builtin_memcpy(quads, octets, 16);
    for (int half = 0; half < 2; half++) {
        uint32_t low = (quads[2 * half] & 0x0f0f0f0f) | (quads[2 * half + 1] & 0x0f0f0f0f) << 4;
        uint32_t high = (quads[2 * half] >> 4 & 0x0f0f0f0f) | (quads[2 * half + 1] & 0xf0f0f0f0);
        __builtin_memcpy(lines + half * LINE, &low, 4);
        __builtin_memcpy(lines + (2 + half) * LINE, &high, 4);
    }
}

/* One row of the file into its place in a block of the layout. */
INLINE int put_row(const stored_job *job, int kind, int64_t row) {
    const blocked *w = job->weight;
    int64_t count = w->inputs / kinds[kind].inputs, place = row % BLOCK, block = row / BLOCK;
    int groups = kinds[kind].groups, inputs = kinds[kind].inputs;
    int has_minimum = kinds[kind].has_minimum, has_halves = kind < Q4_K;
    int above = has_minimum ? 0 : (w->bits == 4 ? 8 : 128) - kinds[kind].middle;
    const uint8_t *from = job->octets + row * count * kinds[kind].bytes;
    uint8_t *lines = (uint8_t *)w->weight + block * lines_of(w) * LINE + 4 * place;
    int64_t first = block * w->groups * BLOCK + place;
    int is_odd = 0;
    for (int64_t b = 0; b < count; b++, from += kinds[kind].bytes) {
        parts_of_block parts;
        int is_whole = kind == Q4_0 || kind == Q4_1; /* bytes need no change of values */
        if (is_whole) {
            take_scales(kind, from, &parts);
        } else {
            take_apart(kind, from, &parts);
        }
        for (int g = 0; g < groups; g++) {
            int64_t to = first + (b * groups + g) * BLOCK;
            float odd = parts.scales[g] * 0.0f;
            if (has_minimum) odd += parts.minimums[g] * 0.0f;
            is_odd |= odd != 0.0f;
            if (has_halves) { /* as the file has them */
                __builtin_memcpy((uint16_t *)w->scales + to, from, 2);
                if (has_minimum) __builtin_memcpy((uint16_t *)w->minimums + to, from + 2, 2);
            } else {
                ((float *)w->scales)[to] = parts.scales[g];
                if (has_minimum) ((float *)w->minimums)[to] = parts.minimums[g];
            }
        }
        if (is_whole) {
            put_nibbles(from + (kind == Q4_0 ? 2 : 4), lines);
            lines += 4 * LINE;
            continue;
        }
        for (int i = 0; i < inputs; i++) parts.values[i] += above;
        for (int i = 0; i < inputs; i += inputs_of_line(w), lines += LINE) {
            uint32_t octets, high;
            __builtin_memcpy(&octets, parts.values + i, 4);
            if (w->bits == 4) {
                __builtin_memcpy(&high, parts.values + i + 4, 4);
                octets |= high << 4;
            }
            __builtin_memcpy(lines, &octets, 4);
        }
    }
    return is_odd;
}

INLINE int put_rows(const stored_job *job, int kind, int64_t begin, int64_t end) {
    int is_odd = 0;
    for (int64_t row = begin; row < end; row++) is_odd |= put_row(job, kind, row);
    return is_odd;
}

static void put_block(const void *context, int64_t block) {
    stored_job *job = (stored_job *)context;
    int64_t begin = block * BLOCK, end = begin + BLOCK < job->weight->outputs ? begin + BLOCK : job->weight->outputs;
    int is_odd = 0;
    switch (job->kind) {
#define OF_KIND(kind) \
    case kind: \
        is_odd = put_rows(job, kind, begin, end); \
        break;
        OF_KIND(Q4_0) OF_KIND(Q4_1) OF_KIND(Q5_0) OF_KIND(Q5_1) OF_KIND(Q8_0) OF_KIND(Q4_K) OF_KIND(Q5_K) OF_KIND(Q6_K)
#undef OF_KIND
    }
    if (is_odd) __atomic_store_n(&job->is_odd, 1, __ATOMIC_RELAXED);
}

static void stored_body(const void *context) {
    tenonry_share(put_block, context, blocks_of(((const stored_job *)context)->weight));
}

/* Fill in `w`, whose scales and minimums are in float16 for kinds of 32 inputs, else floats, from `octets` [outputs, bytes]
 * of a kind. Returns 1 where a scale or a minimum is not finite. */
int64_t KERNEL(lay_out)(const blocked *w, int64_t threads, int64_t kind, const uint8_t *octets) {
    stored_job job = {.weight = w, .kind = kind, .octets = octets};
    tenonry_together(threads, stored_body, &job);
    return job.is_odd;
}

typedef struct {
    const blocked *weight;
    const int64_t *rows;
    int64_t count;
    int64_t is_half;
    void *out;
} rows_job;

#define ROWS_OF_CHUNK 16

#define FEWEST_OF_GROUP 16 /* inputs: groups are multiples, if there are several */

/* Values of a row whose bytes begin at `lines`, to the end of its last line. */
INLINE void values_of(const blocked *w, const uint8_t *lines, uint8_t *values) {
    int64_t count = lines_of(w);
    if (w->bits == 8) {
        for (int64_t l = 0; l < count; l++) __builtin_memcpy(values + 4 * l, lines + l * LINE, 4);
        return;
    }
    for (int64_t l = 0; l < count; l++) {
        uint32_t octets, halves[2];
        __builtin_memcpy(&octets, lines + l * LINE, 4);
        halves[0] = octets & 0x0f0f0f0f;
        halves[1] = octets >> 4 & 0x0f0f0f0f;
        __builtin_memcpy(values + 8 * l, halves, 8);
    }
}

/* One row of the layout as numbers; a row that it does not have is NaN. */
INLINE void numbers_of(const blocked *w, int64_t row, float *out) {
    if (row < 0 || row >= w->outputs) {
        for (int64_t i = 0; i < w->inputs; i++) out[i] = NAN;
        return;
    }
    int64_t place = row % BLOCK, block = row / BLOCK, width = w->inputs / w->groups;
    uint8_t values[lines_of(w) * inputs_of_line(w)];
    values_of(w, (const uint8_t *)w->weight + block * lines_of(w) * LINE + 4 * place, values);
    for (int64_t g = 0; g < w->groups; g++) {
        int64_t at_group = (block * w->groups + g) * BLOCK + place;
        float scale = scale_at(w, w->scales, at_group), minimum = 0.0f;
        float zero = w->minimums ? 0.0f : (float)(1 << (w->bits - 1));
        if (w->zeros) zero = scale_at(w, w->zeros, at_group);
        if (w->minimums) minimum = scale_at(w, w->minimums, at_group);
        int64_t end = (g + 1) * width, i = g * width;
        for (; i + FEWEST_OF_GROUP <= end; i += FEWEST_OF_GROUP)
            for (int e = 0; e < FEWEST_OF_GROUP; e++) out[i + e] = ((float)values[i + e] - zero) * scale + minimum;
        for (; i < end; i++) out[i] = ((float)values[i] - zero) * scale + minimum;
    }
}

static void rows_chunk(const void *context, int64_t chunk) {
    const rows_job *job = context;
    const blocked *w = job->weight;
    int64_t end = (chunk + 1) * ROWS_OF_CHUNK < job->count ? (chunk + 1) * ROWS_OF_CHUNK : job->count;
    for (int64_t r = chunk * ROWS_OF_CHUNK; r < end; r++) {
        int64_t row = job->rows ? job->rows[r] : r;
        if (!job->is_half) {
            numbers_of(w, row, (float *)job->out + r * w->inputs);
            continue;
        }
        float numbers[w->inputs];
        numbers_of(w, row, numbers);
        uint16_t *out = (uint16_t *)job->out + r * w->inputs;
        for (int64_t i = 0; i < w->inputs; i += LANES) {
            int64_t left = w->inputs - i;
            put_half(out + i, load(numbers + i, left, 0), left);
        }
    }
}

static void rows_body(const void *context) {
    tenonry_share(rows_chunk, context, (((const rows_job *)context)->count + ROWS_OF_CHUNK - 1) / ROWS_OF_CHUNK);
}

/* out [count, inputs], bfloat16 where `is_half`, else floats = rows `rows` [count] of the matrix, or where that is NULL
 * all of them. */
void KERNEL(low_bit_rows)(const blocked *w, int64_t threads, int64_t count, const int64_t *rows, int64_t is_half, void *out) {
    rows_job job = {.weight = w, .rows = rows, .count = count, .is_half = is_half, .out = out};
    tenonry_together(tenonry_threads_for(threads, count * w->inputs), rows_body, &job);
}

#endif
