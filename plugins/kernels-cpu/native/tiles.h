/* Products of rows with weights in bfloat16 on the tiles of AMX: a tile is 16 rows of 64 bytes, and one instruction
 * multiplies 16 rows of 32 inputs by 32 inputs of 16 outputs.
 *
 * A tile of a weight is 16 lines of a block, 16 outputs wide. Of the eight tiles four hold sums. */
#ifndef TENONRY_TILES_H
#define TENONRY_TILES_H

#include "blocked.h"

#if defined(__AMX_BF16__)
#define TILE_SIDE 16                       /* rows of a tile, and its floats or pairs of halves in a row */
#define TILE_INPUTS (2 * TILE_SIDE)
#define TILED_ROWS (2 * TILE_SIDE)         /* at once */
#define LINE_BYTES (2 * BLOCK * 2)         /* from a pair of inputs to the next one */

/* What `_tile_loadconfig` reads. */
typedef struct {
    uint8_t palette, first_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

/* Sums in tiles 0 to 3, inputs in 4 and, of rows after the 16th, in 5, weights in 6 and 7. */
INLINE void shape_tiles(int64_t rows) {
    int64_t first = rows < TILE_SIDE ? rows : TILE_SIDE;
    int64_t second = rows > TILE_SIDE ? rows - TILE_SIDE : first;
    tile_shapes shapes = {.palette = 1};
    for (int n = 0; n < 8; n++) shapes.row_bytes[n] = 4 * TILE_SIDE;
    shapes.rows[0] = shapes.rows[1] = shapes.rows[4] = (uint8_t)first;
    shapes.rows[2] = shapes.rows[3] = shapes.rows[5] = (uint8_t)second;
    shapes.rows[6] = shapes.rows[7] = TILE_SIDE;
    _tile_loadconfig(&shapes);
}

/* out [rows, 64] floats = up to 16 rows of x, `step` bytes apart, times the 64 outputs of a block's first inputs: 32 times
 * `tiles` of them. */
INLINE void tile_row(int64_t tiles, const uint16_t *weight, const char *x, int64_t step, float *out) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < tiles; k++) {
        const char *lines = (const char *)weight + k * TILE_SIDE * LINE_BYTES;
        _tile_loadd(4, x + k * 4 * TILE_SIDE, step);
        _tile_loadd(6, lines, LINE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, lines + 64, LINE_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(6, lines + 128, LINE_BYTES);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, lines + 192, LINE_BYTES);
        _tile_dpbf16ps(3, 4, 7);
    }
    _tile_stored(0, out, 4 * BLOCK);
    _tile_stored(1, out + TILE_SIDE, 4 * BLOCK);
    _tile_stored(2, out + 2 * TILE_SIDE, 4 * BLOCK);
    _tile_stored(3, out + 3 * TILE_SIDE, 4 * BLOCK);
}

INLINE void load_sums(const float *above, const float *below, int64_t step) {
    _tile_loadd(0, above, 4 * step);
    _tile_loadd(1, above + TILE_SIDE, 4 * step);
    _tile_loadd(2, below, 4 * step);
    _tile_loadd(3, below + TILE_SIDE, 4 * step);
}

INLINE void store_sums(float *above, float *below, int64_t step) {
    _tile_stored(0, above, 4 * step);
    _tile_stored(1, above + TILE_SIDE, 4 * step);
    _tile_stored(2, below, 4 * step);
    _tile_stored(3, below + TILE_SIDE, 4 * step);
}

/* The same of 17 to 32 rows and 32 outputs; `out` has rows `out_step` floats apart, to which `is_added` adds. */
INLINE void tile_square(int64_t tiles, const uint16_t *weight, const char *x, int64_t step, float *out, int64_t out_step,
                        int is_added) {
    float *below = out + TILE_SIDE * out_step;
    if (is_added) {
        load_sums(out, below, out_step);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < tiles; k++) {
        const char *lines = (const char *)weight + k * TILE_SIDE * LINE_BYTES;
        const char *given = x + k * 4 * TILE_SIDE;
        _tile_loadd(6, lines, LINE_BYTES);
        _tile_loadd(4, given, step);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, lines + 64, LINE_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, given + TILE_SIDE * step, step);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    store_sums(out, below, out_step);
}

/* out [rows, 64] floats = 1 to TILED_ROWS rows of x, `step` bytes apart, times a block; of TILE_INPUTS inputs or a
 * multiple. */
static void tiled_rows(int64_t rows, const blocked *w, int64_t block, const char *x, int64_t step, float *out) {
    const uint16_t *weight = block_of(w, block);
    int64_t tiles = w->inputs / TILE_INPUTS;
    shape_tiles(rows);
    if (rows <= TILE_SIDE) {
        tile_row(tiles, weight, x, step, out);
    } else {
        tile_square(tiles, weight, x, step, out, BLOCK, 0);
        tile_square(tiles, weight + 2 * TILED_ROWS, x, step, out + TILED_ROWS, BLOCK, 0);
    }
}

/* The same of a multiple of TILED_ROWS rows, all full tiles: 32 outputs after 32, so that what is read of a weight for the
 * first rows is near for the others. */
static void tiled_squares(int64_t rows, const blocked *w, int64_t block, const char *x, int64_t step, float *out) {
    const uint16_t *weight = block_of(w, block);
    int64_t tiles = w->inputs / TILE_INPUTS;
    for (int64_t c = 0; c < BLOCK; c += TILED_ROWS)
        for (int64_t r = 0; r < rows; r += TILED_ROWS)
            tile_square(tiles, weight + 2 * c, x + r * step, step, out + r * BLOCK + c, BLOCK, 0);
}
#endif

#endif
