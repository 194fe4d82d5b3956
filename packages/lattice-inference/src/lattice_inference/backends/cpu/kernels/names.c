/* See names.h. Compiled once. */
#include "names.h"

#include <stddef.h>

#include "linear/block_format.h"
#include "enumerations.h"
#include "kernel_list.h"

#define NAME(id, name, ...) name,
#define RECORD(id, name, record, ...) #record,
#define FORMAT_NAME(format, ...) #format,

const char *const lattice_kernel_names[] = {LATTICE_KERNELS(NAME) NULL};
const char *const lattice_kernel_records[] = {LATTICE_KERNELS(RECORD) NULL};
const char *const lattice_row_kind_names[] = {LATTICE_ROW_KINDS(NAME) NULL};
const char *const lattice_ids_names[] = {LATTICE_IDS(NAME) NULL};
const char *const lattice_activation_names[] = {LATTICE_ACTIVATIONS(NAME) NULL};
const char *const lattice_weight_type_names[] = {LATTICE_WEIGHT_TYPES(NAME) NULL};
const char *const lattice_bfloat16_products_names[] = {LATTICE_BFLOAT16_PRODUCTS(NAME) NULL};
const char *const lattice_kv_type_names[] = {LATTICE_KV_TYPES(NAME) NULL};
const char *const lattice_pairing_names[] = {LATTICE_PAIRINGS(NAME) NULL};
const char *const lattice_pool_names[] = {LATTICE_POOLS(NAME) NULL};
const char *const lattice_function_names[] = {LATTICE_FUNCTIONS(NAME) NULL};
const char *const lattice_block_format_names[] = {LATTICE_BLOCK_FORMATS(FORMAT_NAME) NULL};
