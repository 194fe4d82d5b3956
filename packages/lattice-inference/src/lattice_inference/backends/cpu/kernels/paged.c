/* The kernels over pages of keys and values, compiled once for each instruction set. */
#include "paged_attention.h"
#include "kv_write.h"
