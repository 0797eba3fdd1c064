/* Products of which no row depends on the others: each element is one chain of fused multiply-adds over the
 * inputs in their order, however many rows there are and whichever thread computes it. Where a processor has none, each
 * product is rounded before it is added, always. Weights are in float32 or bfloat16, all else is in float32. */
#ifndef TENONRY_INVARIANT_PRODUCT_H
#define TENONRY_INVARIANT_PRODUCT_H

#include "product.h"

#define PANEL 64         /* outputs that lie side by side, as in tenonry_kernels_cpu.invariant */
#define PANEL_INPUTS 512 /* of a panel, 128 KiB: they stay in a processor's cache while rows pass by */
#define CHAIN_ROWS 6
#define GROUP_ROWS 96
#if LANES == 16
#define CHAIN_VECTORS 4
#else
#define CHAIN_VECTORS 2
#endif

/* A weight [outputs, inputs] as `panels` [ceil(outputs / PANEL), inputs, PANEL], zero where there is no output; in bfloat16
 * with `is_half`. */
typedef struct {
    int64_t inputs, outputs, is_half;
    const void *panels;
    const float *bias; /* [outputs] or NULL */
} chained;

INLINE int64_t panels_of(const chained *w) { return (w->outputs + PANEL - 1) / PANEL; }

/* sums [rows, PANEL] go on over `inputs` more, for CHAIN_VECTORS vectors of them. `x`: rows, `x_step` floats apart;
 * `weight` [inputs, PANEL]. */
INLINE void chain_tile(int rows, int is_half, int64_t inputs, const float *x, int64_t x_step, const void *weight, float *sums) {
    vector chains[CHAIN_ROWS][CHAIN_VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < CHAIN_VECTORS; v++) chains[r][v] = *(const vector *)(sums + r * PANEL + v * LANES);
    for (int64_t k = 0; k < inputs; k++) {
        vector line[CHAIN_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < CHAIN_VECTORS; v++) line[v] = load(at(weight, k * PANEL + v * LANES, is_half), LANES, is_half);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
            for (int v = 0; v < CHAIN_VECTORS; v++) chains[r][v] += x[r * x_step + k] * line[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < CHAIN_VECTORS; v++) *(vector *)(sums + r * PANEL + v * LANES) = chains[r][v];
}

/* As above, of 1 to CHAIN_ROWS rows and all outputs of a panel. */
INLINE void chain_rows(int64_t rows, int is_half, int64_t inputs, const float *x, int64_t x_step, const void *weight,
                       float *sums) {
    for (int64_t c = 0; c < PANEL; c += CHAIN_VECTORS * LANES) {
        const void *part = at(weight, c, is_half);
        switch (rows) {
            case 1: chain_tile(1, is_half, inputs, x, x_step, part, sums + c); break;
            case 2: chain_tile(2, is_half, inputs, x, x_step, part, sums + c); break;
            case 3: chain_tile(3, is_half, inputs, x, x_step, part, sums + c); break;
            case 4: chain_tile(4, is_half, inputs, x, x_step, part, sums + c); break;
            case 5: chain_tile(5, is_half, inputs, x, x_step, part, sums + c); break;
            default: chain_tile(6, is_half, inputs, x, x_step, part, sums + c);
        }
    }
}

static void chain_floats(int64_t rows, int64_t inputs, const float *x, int64_t x_step, const void *weight, float *sums) {
    chain_rows(rows, 0, inputs, x, x_step, weight, sums);
}

static void chain_halves(int64_t rows, int64_t inputs, const float *x, int64_t x_step, const void *weight, float *sums) {
    chain_rows(rows, 1, inputs, x, x_step, weight, sums);
}

/* out [count, outputs] = x [count, inputs] times the weight, plus its bias, plus `others` [count, outputs] where there are
 * some; `group`: so many rows are a chunk. */
typedef struct {
    const chained *weight;
    const float *x;
    int64_t count, group;
    const float *others;
    float *out;
} chain_job;

static void chain_chunk(const void *context, int64_t chunk) {
    const chain_job *job = context;
    const chained *w = job->weight;
    int64_t groups = (job->count + job->group - 1) / job->group;
    int64_t panel = chunk / groups;
    int64_t begin = chunk % groups * job->group;
    int64_t rows = job->count - begin < job->group ? job->count - begin : job->group;
    const void *weight = at(w->panels, panel * w->inputs * PANEL, w->is_half);
    const float *x = job->x + begin * w->inputs;
    float sums[GROUP_ROWS * PANEL];
    for (int64_t i = 0; i < rows * PANEL; i++) sums[i] = 0.0f;
    for (int64_t k = 0; k < w->inputs; k += PANEL_INPUTS) {
        int64_t inputs = w->inputs - k < PANEL_INPUTS ? w->inputs - k : PANEL_INPUTS;
        for (int64_t r = 0; r < rows; r += CHAIN_ROWS) {
            int64_t few = rows - r < CHAIN_ROWS ? rows - r : CHAIN_ROWS;
            (w->is_half ? chain_halves : chain_floats)(few, inputs, x + r * w->inputs + k, w->inputs,
                                                       at(weight, k * PANEL, w->is_half), sums + r * PANEL);
        }
    }
    int64_t first = panel * PANEL;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < PANEL && first + c < w->outputs; c += LANES) {
            int64_t left = w->outputs - first - c;
            int64_t place = (begin + r) * w->outputs + first + c;
            vector values = *(vector *)(sums + r * PANEL + c);
            if (w->bias) values += taken(w->bias + first + c, left);
            if (job->others) values += taken(job->others + place, left);
            put(job->out + place, values, left);
        }
}

/* Chunks are panels, for so many rows. */
static void chained_product(chain_job job) {
    if (!job.count) return;
    int64_t panels = panels_of(job.weight);
    int64_t wanted = (FEW_CHUNKS + panels - 1) / panels;
    int64_t group = (job.count + wanted - 1) / wanted;
    group = (group + CHAIN_ROWS - 1) / CHAIN_ROWS * CHAIN_ROWS;
    job.group = group < GROUP_ROWS ? group : GROUP_ROWS;
    tenonry_share(chain_chunk, &job, panels * ((job.count + job.group - 1) / job.group));
}

/* Nanoseconds that a product takes one thread, roughly. */
INLINE int64_t chained_ns(const chained *w, int64_t count) { return w->inputs * w->outputs * (6 + count) / 90; }

static void chained_body(const void *context) { chained_product(*(const chain_job *)context); }

/* See `InvariantLinear` in tenonry_torch_base.invariant. */
void KERNEL(invariant_linear)(const chained *w, int64_t threads, int64_t count, const float *x, const float *others,
                              float *out) {
    chain_job job = {.weight = w, .x = x, .count = count, .others = others, .out = out};
    tenonry_together(tenonry_threads_for(threads, chained_ns(w, count)), chained_body, &job);
}

#endif
