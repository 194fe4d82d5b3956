/* Every kernel, once: its id, the name that Python says, how many tasks it makes of an op, and the function that runs a task.
 *
 * Enumeration, names, declarations and the table of each level follow from this list, in its order. A new kernel is a row here
 * and the functions that it names, each defined through LATTICE_FN.
 */
#ifndef LATTICE_KERNEL_LIST_H
#define LATTICE_KERNEL_LIST_H

/* clang-format off */
#define LATTICE_KERNELS(KERNEL) \
    /*     id,                   name,                   tasks,                 run */ \
    KERNEL(EMBED_ROWS,           "embed_rows",           row_tasks,             embed_rows_run) \
    KERNEL(LINEAR,               "linear",               linear_tasks,          linear_run) \
    KERNEL(ADD,                  "add",                  row_tasks,             add_run) \
    KERNEL(ACTIVATION,           "activation",           row_tasks,             activation_run) \
    KERNEL(LAYER_NORM,           "layer_norm",           row_tasks,             layer_norm_run) \
    KERNEL(ATTENTION,            "attention",            attention_tasks,       attention_run) \
    KERNEL(POOL,                 "pool",                 sequence_tasks,        pool_run) \
    KERNEL(L2_NORMALIZE,         "l2_normalize",         sequence_tasks,        l2_normalize_run) \
    KERNEL(MUL,                  "mul",                  row_tasks,             multiply_run) \
    KERNEL(SILU_MUL,             "silu_mul",             row_tasks,             multiply_run) \
    KERNEL(RMS_NORM,             "rms_norm",             row_tasks,             rms_norm_run) \
    KERNEL(ROPE_ANGLES,          "rope_angles",          row_tasks,             rope_angles_run) \
    KERNEL(ROPE,                 "rope",                 row_tasks,             rope_run) \
    KERNEL(KV_WRITE,             "kv_write",             kv_write_tasks,        kv_write_run) \
    KERNEL(PAGED_ATTENTION,      "paged_attention",      paged_attention_tasks, paged_attention_run) \
    KERNEL(PAGED_MERGE,          "paged_merge",          paged_merge_tasks,     paged_merge_run) \
    KERNEL(GATHER_ROWS,          "gather_rows",          row_tasks,             gather_rows_run) \
    KERNEL(QUANTIZE_ROWS,        "quantize_rows",        row_tasks,             quantize_rows_run) \
    KERNEL(INT8_LINEAR,          "int8_linear",          int8_linear_tasks,     int8_linear_run) \
    KERNEL(QUANTIZE_BLOCKS,      "quantize_blocks",      row_tasks,             quantize_blocks_run) \
    KERNEL(BLOCK_LINEAR,         "block_linear",         block_linear_tasks,    block_linear_run) \
    KERNEL(DEQUANTIZED_LINEAR,   "dequantized_linear",   block_linear_tasks,    dequantized_linear_run) \
    KERNEL(ROUND_ROWS,           "round_rows",           row_tasks,             round_rows_run) \
    KERNEL(BFLOAT16_LINEAR,      "bfloat16_linear",      bfloat16_linear_tasks, bfloat16_linear_run) \
    KERNEL(TILE_ATTENTION,       "tile_attention",       tile_attention_tasks,  tile_attention_run) \
    KERNEL(QUANTIZE_BLOCK_PAIRS, "quantize_block_pairs", row_tasks,             quantize_block_pairs_run)
/* clang-format on */

#define LATTICE_KERNEL_ID(id, name, tasks, run) LATTICE_KERNEL_##id,
typedef enum { LATTICE_KERNELS(LATTICE_KERNEL_ID) LATTICE_KERNEL_COUNT } lattice_kernel_id;
#undef LATTICE_KERNEL_ID

#endif
