/* Layers one after another in a step whose rows have any number of new tokens, as those of prompts have.
 *
 * All but attention goes through a layer in groups of tokens: what stands between two products of a group stays near,
 * while the weights pass by once for each. */
#ifndef TENONRY_PROMPTS_H
#define TENONRY_PROMPTS_H

#include "chunks.h"
#include "layer.h"

/* Where in a row a token of the step is. */
typedef struct {
    int32_t row, position;
} token_place;

/* The step, and of a layer what changes from one to the next: `parts`, the blocks and the window in `at`. */
typedef struct {
    const layer *parts;
    paged at;
    int64_t rows, tokens;
    const int64_t *begin, *count; /* [rows]: the tokens of each */
    int64_t singles, several;     /* rows of one token, and of more */
    int64_t *single, *more;       /* which these are */
    token_place *places;          /* [tokens] */
    const int64_t *last; /* [lasts]: tokens that go on behind the last layer, each the last of its row */
    int64_t lasts;       /* below 0: all do */
    int64_t *end; /* [rows]: such a token of each row that has one */
    const uint16_t *cos, *sin;    /* [tokens, rotated] */
    int64_t rotated;
    uint16_t *hidden;    /* [tokens, hidden]: goes in, and comes out */
    uint16_t *projected; /* [tokens, heads + 2 * kv_heads, size] */
    uint16_t *made;      /* [tokens, heads, size] */
    uint16_t *normed, *middle, *inner; /* of a group */
    char *prepared;
    int64_t group; /* its first token */
} prompt_job;

/* Rows of one token and others, and where tokens are. */
static void sort_rows(prompt_job *job) {
    for (int64_t r = 0; r < job->rows; r++) {
        if (job->count[r] == 1)
            job->single[job->singles++] = r;
        else if (job->count[r])
            job->more[job->several++] = r;
        int64_t first = job->at.length[r] - job->count[r];
        for (int64_t n = 0; n < job->count[r]; n++)
            job->places[job->begin[r] + n] = (token_place){(int32_t)r, (int32_t)(first + n)};
    }
}

INLINE int64_t tokens_of_group(const prompt_job *job) {
    int64_t left = job->tokens - job->group;
    return left < LARGE_GROUP ? left : LARGE_GROUP;
}

INLINE void put_kept(const paged *at, const uint16_t *x, int64_t size, char *kept) {
    if (at->is_rounded)
        pack(x, size, kept);
    else
        __builtin_memcpy(kept, x, 2 * size);
}

/* Some tokens of a group: queries and keys are turned, keys and values put to their places. */
static void keep_chunk(const void *context, int64_t chunk) {
    const prompt_job *job = context;
    const attention *p = job->parts->attention;
    int64_t size = p->size;
    turn_job turning = {p, job->tokens, job->projected, job->cos, job->sin, job->rotated};
    int64_t end = job->group + end_of_chunk(chunk, tokens_of_group(job));
    for (int64_t token = job->group + chunk * BETWEEN_ROWS; token < end; token++) {
        turn_token(&turning, token);
        token_place place = job->places[token];
        const uint16_t *key = job->projected + (token * (p->heads + 2 * p->kv_heads) + p->heads) * size;
        for (int64_t h = 0; h < p->kv_heads; h++) {
            char *kept = key_at(&job->at, place.row, h, place.position, size);
            put_kept(&job->at, key + h * size, size, kept);
            put_kept(&job->at, key + (p->kv_heads + h) * size, size, kept + values_behind(&job->at, size));
        }
    }
}

/* From hidden states to queries, keys and values. */
static void project_group(const prompt_job *job) {
    const layer *p = job->parts;
    int64_t count = tokens_of_group(job), size = p->hidden, columns = p->projection.outputs;
    norm_rows((norm_job){job->hidden + job->group * size, p->norm, p->norm_eps, count, size, job->normed});
    product_job project = {.weight = &p->projection, .x = job->normed, .count = count, .x_step = size,
                           .prepared = job->prepared, .halves = job->projected + job->group * columns, .step = columns};
    blocked_product(&project);
    tenonry_share(keep_chunk, job, chunks_of_rows(count));
}

static void attend_all(const prompt_job *job) {
    const attention *p = job->parts->attention;
    int64_t columns = job->parts->projection.outputs;
    chunk_job chunks = {.parts = p, .at = &job->at, .rows = job->several, .begin = job->begin, .count = job->count,
                        .order = job->more, .query = job->projected, .query_step = columns, .out = job->made};
    chunk_body(&chunks);
    attend_job singles = {.parts = p, .at = &job->at, .count = job->singles, .query = job->projected,
                          .query_step = columns, .out = job->made, .order = job->single, .token = job->begin};
    attend_body(&singles);
}

/* From what was attended to, to hidden states. */
static void finish_group(const prompt_job *job) {
    const layer *p = job->parts;
    int64_t count = tokens_of_group(job), size = p->hidden, made_size = p->out.inputs;
    uint16_t *hidden = job->hidden + job->group * size;
    product_job finish = {.weight = &p->out, .x = job->made + job->group * made_size, .count = count, .x_step = made_size,
                          .prepared = job->prepared, .halves = job->middle, .others = hidden, .step = size};
    blocked_product(&finish);
    norm_rows((norm_job){job->middle, p->second_norm, p->second_norm_eps, count, size, job->normed});
    product_job widen = {.weight = &p->gate_up, .x = job->normed, .count = count, .x_step = size,
                         .prepared = job->prepared, .halves = job->inner, .step = p->inner, .is_gated = 1};
    blocked_product(&widen);
    product_job narrow = {.weight = &p->down, .x = job->inner, .count = count, .x_step = p->inner,
                          .prepared = job->prepared, .halves = hidden, .others = job->middle, .step = size};
    blocked_product(&narrow);
}

/* The tokens that go on attend, and are the first ones then. */
static void keep_last(prompt_job *job) {
    const layer *p = job->parts;
    int64_t size = p->hidden, made_size = p->out.inputs;
    for (int64_t i = 0; i < job->lasts; i++) {
        job->single[i] = job->places[job->last[i]].row;
        job->end[job->single[i]] = job->last[i];
    }
    attend_job attending = {.parts = p->attention, .at = &job->at, .count = job->lasts, .query = job->projected,
                            .query_step = p->projection.outputs, .out = job->made, .order = job->single, .token = job->end};
    attend_body(&attending);
    for (int64_t i = 0; i < job->lasts; i++) {
        __builtin_memmove(job->made + i * made_size, job->made + job->last[i] * made_size, 2 * made_size);
        __builtin_memmove(job->hidden + i * size, job->hidden + job->last[i] * size, 2 * size);
    }
    job->tokens = job->lasts;
}

typedef struct {
    prompt_job *job;
    int64_t layers;
    const layer *const *parts;
    char *const *blocks;
    const int64_t *window;
} prompt_layers;

static void prompts_body(const void *context) {
    const prompt_layers *all = context;
    prompt_job *job = all->job;
    for (int64_t n = 0; n < all->layers; n++) {
        job->parts = all->parts[n];
        job->at.blocks = all->blocks[n];
        job->at.window = all->window[n];
        for (job->group = 0; job->group < job->tokens; job->group += LARGE_GROUP) project_group(job);
        if (job->lasts >= 0 && n == all->layers - 1)
            keep_last(job);
        else
            attend_all(job);
        for (job->group = 0; job->group < job->tokens; job->group += LARGE_GROUP) finish_group(job);
    }
}

/* Where everything is from `room` on; returns what is behind it. */
static char *lay_scratch(prompt_job *job, const layer *const *parts, int64_t layers, char *room) {
    int64_t columns = 0, made = 0, inner = 0, prepared = 0, size = parts[0]->hidden;
    for (int64_t n = 0; n < layers; n++) {
        const layer *p = parts[n];
        columns = p->projection.outputs > columns ? p->projection.outputs : columns;
        made = p->out.inputs > made ? p->out.inputs : made;
        inner = p->inner > inner ? p->inner : inner;
        prepared = room_to_prepare(p) > prepared ? room_to_prepare(p) : prepared;
    }
    job->single = take_room(&room, job->rows * sizeof *job->single);
    job->more = take_room(&room, job->rows * sizeof *job->more);
    job->end = take_room(&room, job->rows * sizeof *job->end);
    job->places = take_room(&room, job->tokens * sizeof *job->places);
    job->projected = take_room(&room, 2 * job->tokens * columns);
    job->made = take_room(&room, 2 * job->tokens * made);
    job->normed = take_room(&room, 2 * LARGE_GROUP * size);
    job->middle = take_room(&room, 2 * LARGE_GROUP * size);
    job->inner = take_room(&room, 2 * LARGE_GROUP * inner);
    job->prepared = take_room(&room, LARGE_GROUP * prepared);
    return room;
}

/* Bytes of scratch for so many rows and tokens. */
int64_t KERNEL(prompts_room)(const layer *const *parts, int64_t layers, int64_t rows, int64_t tokens) {
    prompt_job job = {.rows = rows, .tokens = tokens};
    return lay_scratch(&job, parts, layers, NULL) - (char *)NULL;
}

/* `hidden` [tokens, hidden] in place; with `last` [lasts], in order, these tokens are the first ones of it afterwards, without
 * where `lasts` is below 0. Of the rows of `at`, whose lengths are with the new tokens, each has `count` of them from `begin` on. `scratch`: see `prompts_room`, from a line on. */
void KERNEL(prompts)(const layer *const *parts, int64_t layers, int64_t threads, int64_t tokens, int64_t rows,
                     const int64_t *begin, const int64_t *count, uint16_t *hidden, const uint16_t *cos,
                     const uint16_t *sin, int64_t rotated, const paged *at, char *const *blocks, const int64_t *window,
                     const int64_t *last, int64_t lasts, char *scratch) {
    prompt_job job = {.at = *at, .rows = rows, .tokens = tokens, .begin = begin, .count = count, .cos = cos, .sin = sin,
                      .rotated = rotated, .hidden = hidden, .last = last, .lasts = lasts};
    lay_scratch(&job, parts, layers, scratch);
    sort_rows(&job);
    prompt_layers all = {&job, layers, parts, blocks, window};
    tenonry_together(threads, prompts_body, &all);
}

#endif
