/* The loops for every processor: vectors of four floats, as SSE2 and NEON have them. */

#include "job.h"

#define LEVEL hace_portable
#define LEVEL_NAME "portable"
#define LANES 4
#include "level.h"
