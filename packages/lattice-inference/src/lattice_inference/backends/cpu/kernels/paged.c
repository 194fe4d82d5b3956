/* The kernels over pages of keys and values, compiled once for each instruction set. */
#include "causal_attention.h"
#include "paged_attention.h"
#include "kv_write.h"
