/* Vectors of K/V in 8 bits: whole numbers, and behind them, on an even byte, their scale in bfloat16. The product of
 * both is what attention sees, rounded to bfloat16 or not: see `PagedKeys` in tenonry_torch_base.step_kernels. */
#ifndef TENONRY_ROUNDED_H
#define TENONRY_ROUNDED_H

#include "blocked.h"

#define LARGEST 127.0f
#define SMALLEST_SCALE 1.17549435e-38f /* so that zeros have a quotient */

/* Bytes of a vector of `size` numbers. */
INLINE int64_t rounded_width(int64_t size) { return size + size % 2 + 2; }

typedef int8_t byte_vector __attribute__((vector_size(LANES), aligned(1), may_alias));

/* `left` numbers, and zeros behind them. Compilers take a byte at a time where they are not given the instruction. */
INLINE vector take_bytes(const int8_t *x, int64_t left) {
    byte_vector bytes = {0};
    if (left >= LANES)
        bytes = *(const byte_vector *)x;
    else
        for (int64_t i = 0; i < left; i++) bytes[i] = x[i];
#if defined(__AVX512F__)
    return (vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)bytes));
#elif defined(__AVX2__)
    int64_t lanes;
    __builtin_memcpy(&lanes, &bytes, sizeof lanes);
    return (vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(lanes)));
#else
    return __builtin_convertvector(__builtin_convertvector(bytes, integers), vector);
#endif
}

INLINE float scale_of(const int8_t *numbers, int64_t size) {
    return widened(*(const uint16_t *)(numbers + rounded_width(size) - 2));
}

/* out [size] in bfloat16. */
INLINE void unpack(const void *kept, int64_t size, uint16_t *out) {
    const int8_t *numbers = kept;
    float scale = scale_of(numbers, size);
    for (int64_t c = 0; c < size; c += LANES) put_half(out + c, take_bytes(numbers + c, size - c) * scale, size - c);
}

/* x [size] in bfloat16, to the nearest numbers, to even where two are as near. What is no finite number makes the scale
 * none, and with it the whole vector. */
INLINE void pack(const uint16_t *x, int64_t size, void *kept) {
    int8_t *numbers = kept;
    float largest = 0.0f, nothing = 0.0f;
    for (int64_t c = 0; c < size; c++) {
        float value = widened(x[c]);
        largest = fabsf(value) > largest ? fabsf(value) : largest;
        nothing += value * 0.0f;
    }
    uint16_t halves[LANES];
    put_half(halves, (vector){0} + (largest / LARGEST + nothing), LANES);
    float scale = widened(halves[0]);
    if (scale < SMALLEST_SCALE) {
        scale = SMALLEST_SCALE;
        halves[0] = 0x0080; /* the same number */
    }
    for (int64_t c = 0; c < size; c++) numbers[c] = nothing == 0.0f ? (int8_t)rintf(widened(x[c]) / scale) : 0;
    *(uint16_t *)(numbers + rounded_width(size) - 2) = halves[0];
}

#endif
