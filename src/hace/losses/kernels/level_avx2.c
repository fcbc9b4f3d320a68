/* The loops for processors with AVX2: vectors of eight floats. */

#include "job.h"

#ifdef LEVELS_OF_X86
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,bmi,bmi2")
#endif

#define LEVEL hace_avx2
#define LEVEL_NAME "AVX2"
#define LANES 8
#include "level.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
