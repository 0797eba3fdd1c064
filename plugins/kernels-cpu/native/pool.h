/* Kernels on several threads: see pool.c. */
#ifndef TENONRY_POOL_H
#define TENONRY_POOL_H

#include <stdint.h>

typedef void (*tenonry_work)(const void *context, int64_t chunk);

/* As many threads as pay for work that takes one so long. */
int64_t tenonry_threads_for(int64_t threads, int64_t work_ns);

/* Call `body`, whose calls of `tenonry_share` are shared among at most so many threads, the caller's included. */
void tenonry_together(int64_t threads, void (*body)(const void *context), const void *context);

/* Call `work` with each of 0 … chunks - 1; returns when all are done. */
void tenonry_share(tenonry_work work, const void *context, int64_t chunks);

#endif
