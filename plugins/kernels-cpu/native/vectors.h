/* What the kernels share: vectors, exponentials, products of small matrices. Compiled once per instruction set.
 *
 * Everything is static or carries the name of the instruction set, and no header of a library brings inline code: two
 * objects of one library that were compiled for different processors must have no symbol in common, since the linker keeps
 * one of each.
 */
#ifndef TENONRY_VECTORS_H
#define TENONRY_VECTORS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef TENONRY_SET
#define TENONRY_SET baseline
#endif
#define TENONRY_JOIN_(name, set) name##_##set
#define TENONRY_JOIN(name, set) TENONRY_JOIN_(name, set)
#define KERNEL(name) TENONRY_JOIN(tenonry_##name, TENONRY_SET)

#if defined(__AVX512F__)
#define LANES 16
#define TILE_VECTORS 4
#elif defined(__AVX2__)
#define LANES 8
#define TILE_VECTORS 2
#else
#define LANES 4
#define TILE_VECTORS 2
#endif
#define TILE_ROWS 4
#define LOG2_E 1.44269504088896341f
#define INLINE static inline __attribute__((always_inline))

/* Weights of products have this many columns or a multiple, zero where there is none: see `tenonry_kernels_cpu.weights`. */
#define COLUMN_MULTIPLE 16
INLINE int64_t filled_up(int64_t columns) { return (columns + COLUMN_MULTIPLE - 1) / COLUMN_MULTIPLE * COLUMN_MULTIPLE; }

typedef float vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

typedef int32_t integers __attribute__((vector_size(LANES * 4)));
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t places __attribute__((vector_size(16)));
#if defined(__clang__)
#define MIX(x, y, a, b, c, d) __builtin_shufflevector(x, y, a, b, c, d)
#else
#define MIX(x, y, a, b, c, d) __builtin_shuffle(x, y, (places){a, b, c, d})
#endif

/* The lanes of a vector added up to four sums. */
INLINE four folded(vector x) {
    float lanes[LANES];
    *(vector *)lanes = x;
    four sums = *(four *)lanes;
    for (int i = 4; i < LANES; i += 4) sums += *(four *)(lanes + i);
    return sums;
}

INLINE float total(vector x) {
    four sums = folded(x);
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

/* The four lanes of each of four vectors added up. */
INLINE four totals(four a, four b, four c, four d) {
    four ab = MIX(a, b, 0, 4, 1, 5) + MIX(a, b, 2, 6, 3, 7);
    four cd = MIX(c, d, 0, 4, 1, 5) + MIX(c, d, 2, 6, 3, 7);
    return MIX(ab, cd, 0, 1, 4, 5) + MIX(ab, cd, 2, 3, 6, 7);
}

INLINE four larger(four x, four y) {
    places mask = (places)(x > y);
    return (four)(((places)x & mask) | ((places)y & ~mask));
}

/* Of lanes of which none is NaN. */
INLINE float largest_lane(vector x) {
    float lanes[LANES];
    *(vector *)lanes = x;
    four most = *(four *)lanes;
    for (int i = 4; i < LANES; i += 4) most = larger(*(four *)(lanes + i), most);
    most = larger(most, MIX(most, most, 2, 3, 0, 1));
    most = larger(most, MIX(most, most, 1, 0, 3, 2));
    return most[0];
}

/* `left` floats, zeros behind them; a whole vector where there are as many. */
INLINE vector taken(const float *x, int64_t left) {
    if (left >= LANES) return *(const vector *)x;
    vector part = {0};
    for (int64_t i = 0; i < left; i++) part[i] = x[i];
    return part;
}

/* The first `left` lanes, or all. */
INLINE void put(float *x, vector lanes, int64_t left) {
    if (left >= LANES)
        *(vector *)x = lanes;
    else
        for (int64_t i = 0; i < left; i++) x[i] = lanes[i];
}

INLINE vector either(integers mask, vector yes, vector no) { return (vector)(((integers)yes & mask) | ((integers)no & ~mask)); }

/* The larger lanes; those of y where one is no number. */
INLINE vector greatest(vector x, vector y) {
#if defined(__AVX512F__)
    return (vector)_mm512_max_ps((__m512)x, (__m512)y);
#elif defined(__AVX2__)
    return (vector)_mm256_max_ps((__m256)x, (__m256)y);
#else
    return either(x > y, x, y);
#endif
}

/* The smaller lanes; those of y where one is no number. */
INLINE vector least(vector x, vector y) {
#if defined(__AVX512F__)
    return (vector)_mm512_min_ps((__m512)x, (__m512)y);
#elif defined(__AVX2__)
    return (vector)_mm256_min_ps((__m256)x, (__m256)y);
#else
    return either(x < y, x, y);
#endif
}

#define TO_UNITS 12582912.0f /* 1.5 * 2^23: what is added to it is rounded to a whole number, in its low bits */

/* x times two to the power that was added to TO_UNITS. */
INLINE vector times_power(vector x, vector shifted) {
#if defined(__AVX512F__)
    return (vector)_mm512_scalef_ps((__m512)x, (__m512)(shifted - TO_UNITS));
#else
    return x * (vector)(((integers)shifted + 127) << 23);
#endif
}

typedef uint16_t half_vector __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef uint32_t bits_vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* Of elements that are bfloat16 where `is_half`, else float32. */
INLINE const void *at(const void *base, int64_t element, int is_half) {
    return (const char *)base + element * (is_half ? 2 : 4);
}

/* Of bfloat16. Compilers take the lanes apart where they are not given the instruction. */
INLINE vector widened_vector(const void *halves) {
#if defined(__AVX512F__)
    return (vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(halves)), 16);
#elif defined(__AVX2__)
    return (vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(halves)), 16);
#else
    return (vector)(__builtin_convertvector(*(const half_vector *)halves, bits_vector) << 16);
#endif
}

/* `left` elements, and zeros behind them. */
INLINE vector load(const void *place, int64_t left, int is_half) {
    if (is_half) {
        if (left >= LANES) return widened_vector(place);
        uint16_t halves[LANES] = {0};
        for (int64_t i = 0; i < left; i++) halves[i] = ((const uint16_t *)place)[i];
        return widened_vector(halves);
    }
    if (left >= LANES) return *(const vector *)place;
    vector values = {0};
    for (int64_t i = 0; i < left; i++) values[i] = ((const float *)place)[i];
    return values;
}

/* e^x with a relative error of a few units in the last place, within the range of normal numbers. NaN stays NaN.
 * Range reduction by ln 2 in two parts and a polynomial of degree 7, as in the Cephes library's expf. Written for vectors,
 * because compilers leave such a loop scalar where NaN must stay NaN. */
INLINE vector exponential(vector x) {
    const vector lowest = (vector){0} - 87.0f;
    const vector highest = (vector){0} + 88.0f;
    x = least(highest, greatest(lowest, x));
    vector shifted = x * 1.44269504088896341f + TO_UNITS;
    vector power = shifted - TO_UNITS;
    vector rest = x - power * 0.693359375f;
    rest = rest - power * -2.12194440e-4f;
    vector sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    return times_power(sum, shifted);
}

/* 2^x of x <= 126, with a relative error of 5e-5: what is made of it is rounded to bfloat16. NaN stays NaN. The first
 * terms of the power series, of the rest that is left by a whole power. */
INLINE vector power_of_two(vector x) {
    const vector lowest = (vector){0} - 126.0f;
    x = greatest(lowest, x);
    vector shifted = x + TO_UNITS;
    vector rest = x - (shifted - TO_UNITS);
    vector sum = rest * 9.6181291e-3f + 5.5504109e-2f;
    sum = sum * rest + 2.4022651e-1f;
    sum = sum * rest + 6.9314718e-1f;
    sum = sum * rest + 1.0f;
    return times_power(sum, shifted);
}

/* As `silu`, of what is rounded to bfloat16. */
INLINE vector silu_half(vector x) {
    const vector highest = (vector){0} + 126.0f;
    vector power = x * -LOG2_E;
    return x / (1.0f + power_of_two(least(highest, power)));
}

INLINE vector sigmoid(vector x) { return 1.0f / (1.0f + exponential(-x)); }

INLINE vector silu(vector x) { return x / (1.0f + exponential(-x)); }

/* log(1 + e^x), and x itself above 20, as torch computes it. */
INLINE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

INLINE float sum_of_squares(const float *x, int64_t size) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) sum += x[i] * x[i];
    return sum;
}

INLINE float dot(const float *x, const float *y, int64_t size) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) sum += x[i] * y[i];
    return sum;
}

/* out [4] = x [size] times each of four lines of y, which are `size` floats apart. */
INLINE void dot_four(const float *x, const float *y, int64_t size, float *out) {
    vector wide[4] = {{0}, {0}, {0}, {0}};
    int64_t c = 0;
    for (; c + LANES <= size; c += LANES)
        for (int n = 0; n < 4; n++) wide[n] += *(const vector *)(x + c) * *(const vector *)(y + n * size + c);
    four sums[4];
    for (int n = 0; n < 4; n++) sums[n] = folded(wide[n]);
    for (; c + 4 <= size; c += 4)
        for (int n = 0; n < 4; n++) sums[n] += *(const four *)(x + c) * *(const four *)(y + n * size + c);
    four all = totals(sums[0], sums[1], sums[2], sums[3]);
    for (; c < size; c++)
        for (int n = 0; n < 4; n++) all[n] += x[c] * y[n * size + c];
    *(four *)out = all;
}

/* out = x / sqrt(mean(x * x) + eps) * weight; without weight: NULL. */
INLINE void normalise(const float *x, const float *weight, float eps, int64_t size, float *out) {
    float scale = 1.0f / sqrtf(sum_of_squares(x, size) / (float)size + eps);
    if (weight) {
#pragma omp simd
        for (int64_t i = 0; i < size; i++) out[i] = x[i] * scale * weight[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < size; i++) out[i] = x[i] * scale;
    }
}

/* One tile of a product: `rows` rows times `vectors` vectors of columns, of which `columns` are stored. */
INLINE void tile(int rows, int vectors, int64_t inner, const float *x, int64_t x_step, const float *weight,
                 int64_t weight_step, float *out, int64_t out_step, int64_t columns) {
    vector sums[TILE_ROWS][TILE_VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = (vector){0};
    for (int64_t k = 0; k < inner; k++) {
        const float *line = weight + k * weight_step;
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++)
                sums[r][v] += x[r * x_step + k] * *(const vector *)(line + v * LANES);
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            float *place = out + r * out_step + v * LANES;
            int64_t left = columns - v * LANES;
            if (left >= LANES)
                *(vector *)place = sums[r][v];
            else
                for (int64_t i = 0; i < left; i++) place[i] = sums[r][v][i];
        }
}

/* out [rows, columns] = x [rows, inner] times weight [inner, columns], the columns filled up to a multiple of 16. */
INLINE void product(int64_t rows, int64_t columns, int64_t inner, const float *x, int64_t x_step, const float *weight,
                    int64_t weight_step, float *out, int64_t out_step) {
    int64_t wide = TILE_VECTORS * LANES;
    for (int64_t c = 0; c < columns;) {
        int64_t left = columns - c;
        int is_wide = left >= wide;
        const float *part = weight + c;
        float *target = out + c;
        int64_t r = 0;
        if (is_wide) {
            for (; r + TILE_ROWS <= rows; r += TILE_ROWS)
                tile(TILE_ROWS, TILE_VECTORS, inner, x + r * x_step, x_step, part, weight_step, target + r * out_step,
                     out_step, wide);
            for (; r < rows; r++)
                tile(1, TILE_VECTORS, inner, x + r * x_step, x_step, part, weight_step, target + r * out_step, out_step,
                     wide);
            c += wide;
        } else {
            for (; r + TILE_ROWS <= rows; r += TILE_ROWS)
                tile(TILE_ROWS, 1, inner, x + r * x_step, x_step, part, weight_step, target + r * out_step, out_step,
                     left);
            for (; r < rows; r++)
                tile(1, 1, inner, x + r * x_step, x_step, part, weight_step, target + r * out_step, out_step, left);
            c += LANES;
        }
    }
}

#endif
