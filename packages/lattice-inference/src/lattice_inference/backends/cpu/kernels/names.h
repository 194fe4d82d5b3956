/* The names of kernels and of what ops choose among, in the order of their numbers, each list ended by NULL. */
#ifndef LATTICE_NAMES_H
#define LATTICE_NAMES_H

extern const char *const lattice_kernel_names[];
extern const char *const lattice_kernel_records[]; /* the record of each kernel in an op */
extern const char *const lattice_row_kind_names[];
extern const char *const lattice_ids_names[];
extern const char *const lattice_activation_names[];
extern const char *const lattice_weight_type_names[];
extern const char *const lattice_bfloat16_products_names[];
extern const char *const lattice_kv_type_names[];
extern const char *const lattice_pairing_names[];
extern const char *const lattice_pool_names[];
extern const char *const lattice_function_names[];
extern const char *const lattice_block_format_names[];

#endif
