/* All kernels, for the instruction set TENONRY_SET. */
#include "best_allowed.h"
#include "chunks.h"
#include "experts.h"
#include "half.h"
#include "invariant_layer.h"
#include "layer.h"
#include "low_rank.h"
#include "norm.h"
