/* All kernels, for the instruction set TENONRY_SET. */
#include "attention.h"
#include "delta_rule.h"
#include "experts.h"
#include "low_rank.h"
#include "norm.h"
