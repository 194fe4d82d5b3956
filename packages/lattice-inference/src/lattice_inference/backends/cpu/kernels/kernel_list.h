/* Every kernel, once: its id, the name that Python says, its record in an op (step.h), how many tasks it makes of the op, and
 * the function that runs a task.
 *
 * Enumeration, names, declarations and the table of each level follow from this list, in its order. A new kernel is a row here
 * and the functions that it names, each defined through LATTICE_FN.
 */
#ifndef LATTICE_KERNEL_LIST_H
#define LATTICE_KERNEL_LIST_H

/* clang-format off */
#define LATTICE_KERNELS(KERNEL) \
    /*     id,                   name,                   record,     tasks,                 run */ \
    KERNEL(EMBED_ROWS,           "embed_rows",           embed,      row_tasks,             embed_rows_run) \
    KERNEL(LINEAR,               "linear",               linear,     linear_tasks,          linear_run) \
    KERNEL(ADD,                  "add",                  none,       row_tasks,             add_run) \
    KERNEL(ACTIVATION,           "activation",           activation, row_tasks,             activation_run) \
    KERNEL(LAYER_NORM,           "layer_norm",           norm,       row_tasks,             layer_norm_run) \
    KERNEL(ATTENTION,            "attention",            attention,  attention_tasks,       attention_run) \
    KERNEL(POOL,                 "pool",                 pool,       sequence_tasks,        pool_run) \
    KERNEL(L2_NORMALIZE,         "l2_normalize",         none,       sequence_tasks,        l2_normalize_run) \
    KERNEL(MUL,                  "mul",                  none,       row_tasks,             multiply_run) \
    KERNEL(SILU_MUL,             "silu_mul",             none,       row_tasks,             multiply_run) \
    KERNEL(RMS_NORM,             "rms_norm",             norm,       row_tasks,             rms_norm_run) \
    KERNEL(ROPE_ANGLES,          "rope_angles",          angles,     row_tasks,             rope_angles_run) \
    KERNEL(ROPE,                 "rope",                 rope,       row_tasks,             rope_run) \
    KERNEL(KV_WRITE,             "kv_write",             kv_write,   kv_write_tasks,        kv_write_run) \
    KERNEL(PAGED_ATTENTION,      "paged_attention",      paged,      paged_attention_tasks, paged_attention_run) \
    KERNEL(PAGED_MERGE,          "paged_merge",          paged,      paged_merge_tasks,     paged_merge_run) \
    KERNEL(CAUSAL_ATTENTION,     "causal_attention",     paged,      causal_attention_tasks, causal_attention_run) \
    KERNEL(GATHER_ROWS,          "gather_rows",          none,       row_tasks,             gather_rows_run) \
    KERNEL(QUANTIZE_ROWS,        "quantize_rows",        quantize,   row_tasks,             quantize_rows_run) \
    KERNEL(INT8_LINEAR,          "int8_linear",          linear,     int8_linear_tasks,     int8_linear_run) \
    KERNEL(QUANTIZE_BLOCKS,      "quantize_blocks",      none,       row_tasks,             quantize_blocks_run) \
    KERNEL(BLOCK_LINEAR,         "block_linear",         linear,     block_linear_tasks,    block_linear_run) \
    KERNEL(DEQUANTIZED_LINEAR,   "dequantized_linear",   linear,     block_linear_tasks,    dequantized_linear_run) \
    KERNEL(ROUND_ROWS,           "round_rows",           none,       row_tasks,             round_rows_run) \
    KERNEL(BFLOAT16_LINEAR,      "bfloat16_linear",      linear,     bfloat16_linear_tasks, bfloat16_linear_run) \
    KERNEL(AMX_ATTENTION,        "amx_attention",        attention,  amx_attention_tasks,   amx_attention_run) \
    KERNEL(QUANTIZE_BLOCK_PAIRS, "quantize_block_pairs", none,       row_tasks,             quantize_block_pairs_run) \
    KERNEL(CHOOSE_EXPERTS,       "choose_experts",       none,       row_tasks,             choose_experts_run) \
    KERNEL(GROUP_ROWS,           "group_rows",           none,       one_task,              group_rows_run) \
    KERNEL(SEND_ROWS,            "send_rows",            none,       row_tasks,             send_rows_run) \
    KERNEL(ADD_EXPERTS,          "add_experts",          none,       row_tasks,             add_experts_run) \
    KERNEL(LOW_RANK,             "low_rank",             low_rank,   low_rank_tasks,        low_rank_run) \
    KERNEL(INPUT_ROWS,           "input_rows",           input_rows, row_tasks,             input_rows_run) \
    KERNEL(ADD_NOISE,            "add_noise",            none,       row_tasks,             add_noise_run) \
    KERNEL(LOW_RANK_INNER,       "low_rank_inner",       factors,    factor_row_tasks,      low_rank_inner_run) \
    KERNEL(LOW_RANK_OUTER,       "low_rank_outer",       factors,    factor_row_tasks,      low_rank_outer_run) \
    KERNEL(LOW_RANK_INNER_GRAD,  "low_rank_inner_grad",  factors,    factor_row_tasks,      low_rank_inner_grad_run) \
    KERNEL(LOW_RANK_INPUT_GRAD,  "low_rank_input_grad",  factors,    factor_row_tasks,      low_rank_input_grad_run) \
    KERNEL(LOW_RANK_GRAD,        "low_rank_grad",        factors,    low_rank_grad_tasks,   low_rank_grad_run) \
    KERNEL(LINEAR_INPUT_GRAD,    "linear_input_grad",    linear,     linear_input_grad_tasks, linear_input_grad_run) \
    KERNEL(ATTENTION_GRAD,       "attention_grad",       attention_grad, attention_grad_tasks, attention_grad_run) \
    KERNEL(ATTENTION_KEYS_GRAD,  "attention_keys_grad",  attention_grad, attention_keys_grad_tasks, attention_keys_grad_run) \
    KERNEL(ACTIVATION_GRAD,      "activation_grad",      activation, row_tasks,             activation_grad_run) \
    KERNEL(LAYER_NORM_GRAD,      "layer_norm_grad",      norm,       row_tasks,             layer_norm_grad_run) \
    KERNEL(RMS_NORM_GRAD,        "rms_norm_grad",        norm,       row_tasks,             rms_norm_grad_run) \
    KERNEL(ROPE_GRAD,            "rope_grad",            rope,       row_tasks,             rope_grad_run) \
    KERNEL(POOL_GRAD,            "pool_grad",            pool,       sequence_tasks,        pool_grad_run) \
    KERNEL(L2_NORMALIZE_GRAD,    "l2_normalize_grad",    none,       row_tasks,             l2_normalize_grad_run) \
    KERNEL(SCATTER_ROWS,         "scatter_rows",         none,       row_tasks,             scatter_rows_run) \
    KERNEL(LINEAR_CROSS_ENTROPY, "linear_cross_entropy", loss,       linear_cross_entropy_tasks, linear_cross_entropy_run)
/* clang-format on */

#define LATTICE_KERNEL_ID(id, ...) LATTICE_KERNEL_##id,
typedef enum { LATTICE_KERNELS(LATTICE_KERNEL_ID) LATTICE_KERNEL_COUNT } lattice_kernel_id;
#undef LATTICE_KERNEL_ID

#endif
