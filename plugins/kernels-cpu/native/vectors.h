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
#define INLINE static inline __attribute__((always_inline))

/* Weights of products have this many columns or a multiple, zero where there is none: see `tenonry_kernels_cpu.weights`. */
#define COLUMN_MULTIPLE 16

typedef float vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* e^x with a relative error of a few units in the last place, within the range of normal numbers. NaN stays NaN.
 * Range reduction by ln 2 in two parts and a polynomial of degree 7, as in the Cephes library's expf. */
INLINE float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float scaled = x * 1.44269504088896341f;
    int32_t power = (int32_t)(scaled + (scaled < 0.0f ? -0.5f : 0.5f));
    float rest = x - (float)power * 0.693359375f;
    rest = rest - (float)power * -2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    union {
        int32_t bits;
        float value;
    } scale = {(power + 127) << 23};
    return sum * scale.value;
}

INLINE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

INLINE float silu(float x) { return x / (1.0f + exponential(-x)); }

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
