/* Root-mean-square normalisation (arXiv:1910.07467). */
#include "vectors.h"

/* `x`, `out` [count, size], one row after another; `weight` [size] or NULL. */
void KERNEL(rms_norm)(int64_t count, int64_t size, const float *x, const float *weight, float eps, float *out) {
    for (int64_t i = 0; i < count; i++) normalise(x + i * size, weight, eps, size, out + i * size);
}
