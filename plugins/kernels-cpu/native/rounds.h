/* Several passes of a whole model for rows that decode, each with the token that the one before it chose: embedding,
 * layers, norm, head, the largest logit. A row ends with a token that ends it. */
#ifndef TENONRY_ROUNDS_H
#define TENONRY_ROUNDS_H

#include "layer.h"

#define INFINITE_HALF 0x7f80 /* the bits of infinity in bfloat16 */

/* See `RoundParts` in tenonry_torch_base.round_kernel. */
typedef struct {
    const layer *const *parts;
    const int64_t *window;
    int64_t layers, threads;
    const uint16_t *embedding; /* [vocabulary, hidden] */
    const uint16_t *cos, *sin; /* [positions, rotated] */
    int64_t rotated;
    const float *norm; /* [hidden] */
    float norm_eps;
    blocked head;
} round_model;

/* The rows that go on, side by side, and what each pass needs of them. */
typedef struct {
    const round_model *model;
    paged at;
    int64_t count;
    int32_t *table;  /* [rows, width] */
    int64_t *length; /* [rows] */
    int64_t *origin; /* [rows]: which row of the call it is */
    int32_t *token;  /* [rows]: its last one */
    uint16_t *hidden, *made, *normed, *cos, *sin, *logits;
    char *prepared, *scratch;
} round_state;

/* What ends rows, and what becomes of them: `stop` [rows, stops], -1 where there is none; `free` [rows]: so many tokens
 * come before one that may end a row. `tokens` [rows, most]; `made`, `failed` [rows]. */
typedef struct {
    int64_t most, stops;
    const int64_t *stop, *free;
    int32_t *tokens;
    int64_t *made;
    uint8_t *failed;
} round_ends;

/* The first of the largest, or -1 where one is no number. Bits of numbers that are not negative are in their order. */
static int64_t largest_half(const uint16_t *x, int64_t count) {
    int16_t top = INT16_MIN;
    uint16_t bits = 0;
    for (int64_t i = 0; i < count; i++) {
        top = (int16_t)x[i] > top ? (int16_t)x[i] : top;
        bits = x[i] > bits ? x[i] : bits;
    }
    if (top > INFINITE_HALF || bits > (INFINITE_HALF | 0x8000)) return -1;
    if (top < 0) { /* all are negative: the smallest bits, and -0 is among them */
        uint16_t least = 0xffff;
        for (int64_t i = 0; i < count; i++) least = x[i] < least ? x[i] : least;
        top = (int16_t)least;
    }
    int64_t found = 0;
    while (x[found] != (uint16_t)top) found++;
    return found;
}

/* Embeddings and rotations of the rows' last tokens. */
static void enter_pass(const round_state *s) {
    const round_model *m = s->model;
    int64_t size = m->parts[0]->hidden;
    for (int64_t r = 0; r < s->count; r++) {
        int64_t position = s->length[r] - 1;
        __builtin_memcpy(s->hidden + r * size, m->embedding + s->token[r] * size, 2 * size);
        __builtin_memcpy(s->cos + r * m->rotated, m->cos + position * m->rotated, 2 * m->rotated);
        __builtin_memcpy(s->sin + r * m->rotated, m->sin + position * m->rotated, 2 * m->rotated);
    }
}

static void compute_pass(round_state *s, char *const *blocks) {
    const round_model *m = s->model;
    int64_t size = m->parts[0]->hidden;
    enter_pass(s);
    KERNEL(stack)(m->parts, m->layers, m->threads, s->count, s->hidden, s->cos, s->sin, m->rotated, &s->at, blocks,
                  m->window, s->made, s->scratch);
    KERNEL(half_norm)(m->threads, s->count, size, s->made, m->norm, m->norm_eps, s->normed);
    KERNEL(blocked_linear)(&m->head, m->threads, s->count, s->normed, size, NULL, s->logits, s->prepared);
}

/* Whether a row goes on after what its logits say. */
static int take_token(round_state *s, int64_t r, const round_ends *e) {
    int64_t row = s->origin[r];
    int64_t outputs = s->model->head.outputs;
    int64_t token = largest_half(s->logits + r * outputs, outputs);
    if (token < 0) {
        e->failed[row] = 1;
        return 0;
    }
    e->tokens[row * e->most + e->made[row]++] = s->token[r] = (int32_t)token;
    s->length[r]++;
    if (e->made[row] == e->most) return 0;
    if (e->made[row] <= e->free[row]) return 1;
    for (int64_t n = 0; n < e->stops; n++)
        if (e->stop[row * e->stops + n] == token) return 0;
    return 1;
}

/* Rows that go on move together. */
static void keep_rows(round_state *s, const round_ends *e) {
    int64_t width = s->at.width, kept = 0;
    for (int64_t r = 0; r < s->count; r++) {
        if (!take_token(s, r, e)) continue;
        if (kept < r) {
            __builtin_memmove(s->table + kept * width, s->table + r * width, width * sizeof *s->table);
            s->length[kept] = s->length[r];
            s->origin[kept] = s->origin[r];
            s->token[kept] = s->token[r];
        }
        kept++;
    }
    s->count = kept;
}

static char *lay_round(round_state *s, int64_t rows, int64_t width, char *room) {
    const round_model *m = s->model;
    int64_t size = m->parts[0]->hidden, layer_room = 0;
    for (int64_t n = 0; n < m->layers; n++) {
        const layer *p = m->parts[n];
        int64_t wanted = room_to_prepare(p) + 4 * p->projection.outputs + 2 * (2 * size + p->out.inputs + p->inner);
        layer_room = wanted > layer_room ? wanted : layer_room;
    }
    s->table = take_room(&room, rows * width * sizeof *s->table);
    s->length = take_room(&room, rows * sizeof *s->length);
    s->origin = take_room(&room, rows * sizeof *s->origin);
    s->token = take_room(&room, rows * sizeof *s->token);
    s->hidden = take_room(&room, 2 * rows * size);
    s->made = take_room(&room, 2 * rows * size);
    s->normed = take_room(&room, 2 * rows * size);
    s->cos = take_room(&room, 2 * rows * m->rotated);
    s->sin = take_room(&room, 2 * rows * m->rotated);
    s->logits = take_room(&room, 2 * rows * m->head.outputs);
    s->prepared = take_room(&room, rows * prepared_bytes(&m->head));
    s->scratch = take_room(&room, (2 * size + layer_room) * rows + 64);
    return room;
}

/* Bytes of scratch for so many rows, whose tables are so wide. */
int64_t KERNEL(rounds_room)(const round_model *m, int64_t rows, int64_t width) {
    round_state s = {.model = m};
    return lay_round(&s, rows, width, NULL) - (char *)NULL;
}

/* `at`: lengths with the tokens `token` [rows], which are computed first. `scratch`: see `rounds_room`, from a line on. */
void KERNEL(rounds)(const round_model *m, int64_t rows, const int32_t *token, const paged *at, char *const *blocks,
                    const round_ends *ends, char *scratch) {
    round_state s = {.model = m, .at = *at, .count = rows};
    lay_round(&s, rows, at->width, scratch);
    __builtin_memcpy(s.table, at->table, rows * at->width * sizeof *s.table);
    for (int64_t r = 0; r < rows; r++) {
        s.length[r] = at->length[r];
        s.token[r] = token[r];
        s.origin[r] = r;
        ends->made[r] = ends->failed[r] = 0;
    }
    s.at.table = s.table;
    s.at.length = s.length;
    while (s.count) {
        compute_pass(&s, blocks);
        keep_rows(&s, ends);
    }
}

#endif
