/* Products of few rows with weights of 4 or 8 bits, in blocks of 64 outputs. Rows are rounded to one or two bytes with a
 * scale for each group of inputs, so products are exact sums in 32 bits, and what a row gets depends on no other row.
 * Two bytes are multiplied one after the other: an input is 128 * high + low.
 *
 * Weights are stored without sign, as value + middle of their range: instructions multiply bytes without by bytes with a
 * sign. The middle is taken off by the sum of the inputs, by which minimums of groups are added as well. */
#ifndef TENONRY_LOW_BIT_H
#define TENONRY_LOW_BIT_H

#include "blocked.h"

#define LINE 256 /* bytes: four inputs, or with 4 bits eight, of 64 outputs */
#define LARGEST 127.0f
#define LARGEST_OF_TWO 16256.0f /* 127 * 128 */
#define TINY 1e-30f

typedef int8_t small_vector __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef int32_t sums_vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* Inputs that one line has. */
INLINE int64_t inputs_of_line(const blocked *w) { return 32 / w->bits; }

INLINE int64_t lines_of(const blocked *w) { return (w->inputs + inputs_of_line(w) - 1) / inputs_of_line(w); }

/* A rounded row: the scales and then the sums of its groups, and behind these, aligned, a byte per input, filled up with
 * zeros; of two bytes the high ones of all inputs, and then the low ones. */
INLINE int64_t values_begin(const blocked *w) { return (8 * w->groups + 63) / 64 * 64; }

INLINE int64_t filled_inputs(const blocked *w) { return (w->inputs + 63) / 64 * 64; }

INLINE int64_t rounded_bytes(const blocked *w) { return values_begin(w) + w->input_bytes * filled_inputs(w); }

/* Elements of x from `begin` up to `end`, of which there are `size`, to bytes, and where `low` is not NULL to the low ones
 * of two; returns their scale. What is no number makes a scale that is none. */
INLINE float round_group(const void *x, int is_half, int64_t begin, int64_t end, int64_t size, int8_t *bytes,
                         int8_t *low, int32_t *sum) {
    float most = low ? LARGEST_OF_TWO : LARGEST;
    vector largest = {0}, odd = {0};
    for (int64_t i = begin; i < end && i < size; i += LANES) {
        vector values = load(at(x, i, is_half), size - i, is_half);
        vector positive = either(values < 0.0f, -values, values);
        largest = either(positive > largest, positive, largest);
        odd += values * 0.0f;
    }
    float reach = largest_lane(largest);
    if (reach < TINY) reach = TINY;
    float none = total(odd);
    float times = none == 0.0f ? most / reach : 0.0f;
    integers all = {0};
    for (int64_t i = begin; i < end; i += LANES) {
        vector values = {0};
        if (i < size && none == 0.0f) values = load(at(x, i, is_half), size - i, is_half);
        integers whole = (integers)(values * times + TO_UNITS) - 0x4b400000;
        all += whole;
        if (low) {
            integers high = (whole + 64) >> 7;
            *(small_vector *)(low + i) = __builtin_convertvector(whole - (high << 7), small_vector);
            whole = high;
        }
        *(small_vector *)(bytes + i) = __builtin_convertvector(whole, small_vector);
    }
    *sum = 0;
    for (int i = 0; i < LANES; i++) *sum += all[i];
    return reach / most + none;
}

/* `x`: halves or floats. */
INLINE void round_row(const blocked *w, const void *x, int is_half, char *out) {
    int64_t size = w->inputs;
    float *scales = (float *)out;
    int32_t *sums = (int32_t *)out + w->groups;
    int8_t *bytes = (int8_t *)out + values_begin(w);
    int64_t filled = filled_inputs(w);
    int8_t *low = w->input_bytes > 1 ? bytes + filled : NULL;
    int64_t wide = w->groups == 1 ? filled : size / w->groups;
    for (int64_t g = 0; g < w->groups; g++)
        scales[g] = round_group(x, is_half, g * wide, (g + 1) * wide, size, bytes, low, sums + g);
    for (int64_t i = w->groups * wide; i < filled; i++) bytes[i] = 0;
    for (int64_t i = w->groups * wide; low && i < filled; i++) low[i] = 0;
}

/* The same instructions, on registers of either width. */
#if defined(__AVX512BW__)
#define WIDE(name) _mm512_##name
typedef __m512i wide;
#elif defined(__AVX2__)
#define WIDE(name) _mm256_##name
typedef __m256i wide;
#endif

/* Bytes of 8 bits are multiplied with their sign, by the only product of bytes that AVX2 has: of |w| and sign(w) · x. Two
 * of these fit into 16 bits. */
#if defined(__AVX2__) && !defined(__AVX512BW__)
#define HAS_SIGN 1
#else
#define HAS_SIGN 0
#endif

/* sum + products of four bytes in each lane with the four of `given`; `is_low`: those of `line` are below 16. */
INLINE integers fours(integers sum, integers line, int32_t given, int is_low) {
#if defined(__AVX512VNNI__)
    (void)is_low;
    return (integers)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)line, _mm512_set1_epi32(given));
#elif defined(WIDE)
    wide x = WIDE(set1_epi32)(given);
    if (is_low)
        return sum + (integers)WIDE(madd_epi16)(WIDE(maddubs_epi16)((wide)line, x), WIDE(set1_epi16)(1));
#if HAS_SIGN
    wide w = (wide)(line ^ (integers)((bits_vector){0} + 0x80808080u));
    wide pairs = WIDE(maddubs_epi16)(WIDE(abs_epi8)(w), WIDE(sign_epi8)(x, w));
    return sum + (integers)WIDE(madd_epi16)(pairs, WIDE(set1_epi16)(1));
#else
    wide even = (wide)(line & 0x00ff00ff);
    wide odd = WIDE(srli_epi16)((wide)line, 8);
    sum += (integers)WIDE(madd_epi16)(even, WIDE(srai_epi16)(WIDE(slli_epi16)(x, 8), 8));
    return sum + (integers)WIDE(madd_epi16)(odd, WIDE(srai_epi16)(x, 8));
#endif
#else
    (void)is_low;
    for (int i = 0; i < 4; i++) sum += ((line >> (8 * i)) & 255) * (int32_t)(int8_t)((uint32_t)given >> (8 * i));
    return sum;
#endif
}

/* sums += `rows` rows of bytes, `step` apart, times `count` lines of 4 · `vectors` · LANES bytes of each. */
INLINE void lines_tile(int rows, int vectors, int bits, int64_t count, const int8_t *x, int64_t step,
                       const uint8_t *weight, integers sums[BLOCK_ROWS][BLOCK / LANES]) {
    int parts = 8 / bits;
    for (int64_t k = 0; k < count; k++) {
#pragma GCC unroll 8
        for (int begin = 0; begin < vectors; begin += BLOCK_VECTORS) {
            const uint8_t *place = weight + k * LINE + begin * 4 * LANES;
            integers line[BLOCK_VECTORS];
            for (int v = 0; v < BLOCK_VECTORS; v++) line[v] = *(const sums_vector *)(place + v * 4 * LANES);
            for (int part = 0; part < parts; part++) {
                integers taken_from[BLOCK_VECTORS];
                for (int v = 0; v < BLOCK_VECTORS; v++)
                    taken_from[v] = parts == 1 ? line[v] : (line[v] >> (4 * part)) & 0x0f0f0f0f;
                for (int r = 0; r < rows; r++) {
                    int32_t given;
                    __builtin_memcpy(&given, x + r * step + 4 * (parts * k + part), 4);
                    for (int v = 0; v < BLOCK_VECTORS; v++)
                        sums[r][begin + v] = fours(sums[r][begin + v], taken_from[v], given, parts == 2);
                }
            }
        }
    }
}

/* What a group's sums get besides, of a row whose inputs have the sum `all`: zero points are of bytes without a sign. */
INLINE int32_t middle_of(const blocked *w, int bits, int32_t all) {
    int32_t middle = 1 << (bits - 1);
    int32_t start = w->zeros || w->minimums ? 0 : -middle;
    if (HAS_SIGN && bits == 8) start += middle;
    return start * all;
}

/* out [rows, 64] floats = rounded rows, `step` bytes apart, times a block. */
INLINE void rounded_rows(int rows, int bits, const blocked *w, int64_t block, const char *x, int64_t step, float *out) {
    int64_t lines = lines_of(w);
    const uint8_t *weight = (const uint8_t *)w->weight + block * lines * LINE;
    const int8_t *bytes = (const int8_t *)x + values_begin(w);
    int64_t each = lines / w->groups;
    int64_t planes = w->input_bytes, plane = filled_inputs(w);
    int vectors = vectors_at_once(rows); /* one row takes whole lines, in the order of memory */
    for (int c = 0; c < BLOCK; c += vectors * LANES) {
        vector made[BLOCK_ROWS][BLOCK / LANES];
        begin_sums(rows, vectors, made);
        for (int64_t g = 0; g < w->groups; g++) {
            integers sums[BLOCK_ROWS][BLOCK / LANES];
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
                for (int v = 0; v < vectors; v++) sums[r][v] = (integers){0};
            for (int64_t p = 0; p < planes; p++) {
                const int8_t *given = bytes + p * plane + g * each * (32 / bits);
                if (p)
                    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
                        for (int v = 0; v < vectors; v++) sums[r][v] <<= 7;
                lines_tile(rows, vectors, bits, each, given, step, weight + g * each * LINE + 4 * c, sums);
            }
            int64_t place = (block * w->groups + g) * BLOCK + c;
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++) {
                vector scale = scales_at(w, w->scales, place + v * LANES);
                vector zero = {0}, minimum = {0};
                if (w->zeros) zero = scales_at(w, w->zeros, place + v * LANES);
                if (w->minimums) minimum = scales_at(w, w->minimums, place + v * LANES);
                for (int r = 0; r < rows; r++) {
                    int32_t all = ((const int32_t *)(x + r * step))[w->groups + g];
                    vector product = __builtin_convertvector(sums[r][v] + middle_of(w, bits, all), vector);
                    if (w->zeros) product -= zero * (float)all;
                    float times = ((const float *)(x + r * step))[g];
                    made[r][v] += product * (scale * times);
                    if (w->minimums) made[r][v] += minimum * (times * (float)all);
                }
            }
        }
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++) *(vector *)(out + r * BLOCK + c + v * LANES) = made[r][v];
    }
}

#endif
