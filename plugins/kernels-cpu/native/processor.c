/* What the processor can do, asked when the library is loaded, and which kernels this library has. */
#include <stdint.h>
#include <string.h>
#ifdef TENONRY_X86
#include <cpuid.h>
#endif
#if defined(TENONRY_HAS_amx) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Changes with every change of a struct or of the parameters of a kernel. */
int64_t tenonry_kernels_version(void) { return 20; }

/* Whether there are tiles and this process may use them: the system keeps their 8 KiB of every thread, and wants to be
 * asked first, once per process. */
static int may_tile(void) {
#if defined(TENONRY_HAS_amx) && defined(__linux__)
    const long ask_permission = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    int has_tiles = d >> 24 & 1, has_halves = d >> 22 & 1;
    return has_tiles && has_halves && syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
#else
    return 0;
#endif
}

#ifdef TENONRY_X86
/* Conversions of float16, which old compilers have no name for. */
static int has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c >> 29 & 1;
}
#endif

static void add(char *names, const char *name) {
    if (*names) strcat(names, " ");
    strcat(names, name);
}

/* Instruction sets of this library that this processor has, best first, with a space between: of each the compiler says
 * with TENONRY_HAS_… whether it knew it. */
const char *tenonry_kernels_sets(void) {
    static char names[64];
    names[0] = 0;
#ifdef TENONRY_X86
    __builtin_cpu_init();
    int has_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    int has_wide = has_fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    int has_bytes = has_wide && __builtin_cpu_supports("avx512vnni");
    (void)has_bytes;
#ifdef TENONRY_HAS_avx512bf16
    int has_products = has_bytes && __builtin_cpu_supports("avx512bf16");
    if (has_products && may_tile()) add(names, "amx");
    if (has_products) add(names, "avx512bf16");
#endif
#ifdef TENONRY_HAS_avx512vnni
    if (has_bytes) add(names, "avx512vnni");
#endif
#ifdef TENONRY_HAS_avx512
    if (has_wide) add(names, "avx512");
#endif
#ifdef TENONRY_HAS_avx2
    if (has_fma) add(names, "avx2");
#endif
#endif
    add(names, "baseline");
    return names;
}
