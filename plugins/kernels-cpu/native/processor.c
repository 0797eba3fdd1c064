/* What the processor can do, asked when the library is loaded, and which kernels this library has. */
#include <stdint.h>
#include <string.h>

/* Changes with every change of a struct or of the parameters of a kernel. */
int64_t tenonry_kernels_version(void) { return 12; }

/* Instruction sets of this library that this processor has, best first, with a space between. */
const char *tenonry_kernels_sets(void) {
#ifdef TENONRY_X86
    __builtin_cpu_init();
    int has_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int has_wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    int has_bytes = has_wide && __builtin_cpu_supports("avx512vnni");
    int has_products = has_bytes && __builtin_cpu_supports("avx512bf16");
    if (has_fma && has_products) return "avx512bf16 avx512vnni avx512 avx2 baseline";
    if (has_fma && has_bytes) return "avx512vnni avx512 avx2 baseline";
    if (has_fma && has_wide) return "avx512 avx2 baseline";
    if (has_fma) return "avx2 baseline";
#endif
    return "baseline";
}
