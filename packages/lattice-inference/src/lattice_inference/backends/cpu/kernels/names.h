/* The names of kernels and of what ops choose among, in the order of their numbers, each list ended by NULL. */
#ifndef LATTICE_NAMES_H
#define LATTICE_NAMES_H

extern const char *const lattice_kernel_names[], *const lattice_kernel_records[], *const lattice_row_kind_names[], *const lattice_ids_names[],
    *const lattice_activation_names[], *const lattice_weight_type_names[], *const lattice_bfloat16_products_names[],
    *const lattice_kv_type_names[], *const lattice_pairing_names[], *const lattice_pool_names[],
    *const lattice_function_names[], *const lattice_block_format_names[];

#endif
