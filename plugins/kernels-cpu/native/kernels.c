/* All kernels, for the instruction set TENONRY_SET. */
#include "experts.h"
#include "half.h"
#include "low_rank.h"
#include "norm.h"
