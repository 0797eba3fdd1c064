/* The largest logit of each row among those that a mask allows. */
#include "vectors.h"

#define WORD_BITS 32

/* The largest allowed element and the first place of it, lane by lane; whether any element, allowed or not, is NaN. */
typedef struct {
    vector top;
    integers place;
    integers is_nan;
} champions;

INLINE champions champions_of(int64_t words, const void *logits, const int32_t *mask, int is_half) {
    champions c = {(vector){0} - INFINITY, {0}, {0}};
    integers lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int64_t w = 0; w < words; w++)
        for (int v = 0; v < WORD_BITS; v += LANES) {
            int64_t first = w * WORD_BITS + v;
            vector x = load(at(logits, first, is_half), LANES, is_half);
            c.is_nan |= x != x;
            if (!mask[w]) continue;
            integers is_allowed = ((mask[w] >> v) & ((integers){0} + 1) << lane) != 0;
            integers is_better = is_allowed & (x > c.top);
            c.top = either(is_better, x, c.top);
            c.place = (is_better & (lane + (int32_t)first)) | (~is_better & c.place);
        }
    return c;
}

INLINE void best_of_row(int64_t words, const void *logits, const int32_t *mask, int64_t *id, float *best, int is_half) {
    champions c = champions_of(words, logits, mask, is_half);
    *best = c.top[0];
    *id = c.place[0];
    for (int i = 1; i < LANES; i++)
        if (c.top[i] > *best || (c.top[i] == *best && c.place[i] < *id)) {
            *best = c.top[i];
            *id = c.place[i];
        }
    for (int i = 0; i < LANES; i++)
        if (c.is_nan[i]) *best = NAN;
}

/* `logits` [rows, words * 32], bfloat16 where `is_half`, else float32; `masks` [rows, words], the lowest bit for the first
 * token of a word. Of each row: `id` of the first largest allowed logit, and that logit in `best`; minus infinity where the
 * row allows none that is larger, NaN where it holds one. */
void KERNEL(best_allowed)(int64_t rows, int64_t words, const void *logits, const int32_t *masks, int64_t is_half, int64_t *id,
                          float *best) {
    for (int64_t r = 0; r < rows; r++) {
        const void *of_row = at(logits, r * words * WORD_BITS, is_half);
        const int32_t *mask = masks + r * words;
        if (is_half)
            best_of_row(words, of_row, mask, id + r, best + r, 1);
        else
            best_of_row(words, of_row, mask, id + r, best + r, 0);
    }
}
