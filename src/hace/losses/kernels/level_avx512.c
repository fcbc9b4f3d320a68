/* The loops for processors with AVX-512: vectors of sixteen floats. */

#include "job.h"

#ifdef LEVELS_OF_X86
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi,bmi2")
#endif

#define LEVEL hace_avx512
#define LEVEL_NAME "AVX-512"
#define LANES 16
#include "level.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
