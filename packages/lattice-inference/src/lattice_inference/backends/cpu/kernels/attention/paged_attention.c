/* The kernels over pages of keys and values, compiled once for each instruction set. */
#include "attention/causal_attention.h"
#include "attention/paged_attention.h"
#include "attention/kv_write.h"
