# What Python's side of the CPU backend uses of C: declarations of the headers in kernels/, and checks of arrays.

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
cimport numpy as cnp

cdef extern from "sys/mman.h" nogil:
    void *mmap(void *address, size_t length, int protection, int flags, int descriptor, long offset)
    int munmap(void *address, size_t length)
    int madvise(void *address, size_t length, int advice)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS
    void *MAP_FAILED

cdef extern from *:
    """
    #include <sys/mman.h>
    #ifndef MADV_HUGEPAGE
    #define MADV_HUGEPAGE (-1) /* not Linux: the advice is refused, which is harmless */
    #endif
    """
    int MADV_HUGEPAGE

cdef extern from *:
    """
    #include <stdlib.h>
    #ifdef __GLIBC__
    #include <malloc.h>
    #define LATTICE_TRIM_HEAP() ((void)malloc_trim(0))
    #else
    #define LATTICE_TRIM_HEAP() ((void)0) /* other C libraries give free memory back by themselves */
    #endif
    #ifdef LATTICE_EMULATE_AVX512
    #define EMULATED 1
    #else
    #define EMULATED 0
    #endif
    """
    void trim_heap_now "LATTICE_TRIM_HEAP"() nogil
    int EMULATED

cdef extern from "lattice/cpu.h":
    uint32_t lattice_cpu_features()

cdef extern from "tile_table.h" nogil:
    int LATTICE_TILE_COUNT
    ctypedef struct lattice_tile_sizes:
        int64_t step_tokens
    ctypedef struct lattice_tile_row:
        const char *name
        int64_t least, most

cdef extern from "step.h" nogil:
    int LATTICE_MAX_SLOTS
    enum:
        LATTICE_FEW_SLOTS
    int LATTICE_MAX_HEAD_DIM
    int LATTICE_PANEL
    int LATTICE_KERNEL_SHORT_CONV, LATTICE_KERNEL_DELTA_RULE, LATTICE_DELTA_BLOCK, LATTICE_MOST_TAPS
    int LATTICE_KERNEL_PAGED_ATTENTION, LATTICE_KERNEL_LOW_RANK, LATTICE_KERNEL_ADD_NOISE
    int LATTICE_KERNEL_LOW_RANK_INNER, LATTICE_KERNEL_LOW_RANK_OUTER, LATTICE_KERNEL_LOW_RANK_INNER_GRAD
    int LATTICE_KERNEL_LOW_RANK_INPUT_GRAD, LATTICE_KERNEL_LOW_RANK_GRAD
    int64_t LATTICE_BLOCK_ROWS
    int LATTICE_ACTIVATION_NONE, LATTICE_WEIGHT_FLOAT32, LATTICE_WEIGHT_BFLOAT16, LATTICE_WEIGHT_BLOCKS
    ctypedef struct lattice_view:
        int32_t slot
        int32_t stride
        int64_t column
    ctypedef struct lattice_embed_record:
        int32_t ids, weight_type, packed
        const void *table
        lattice_view residual
    ctypedef struct lattice_linear_record:
        int32_t weight_type, activation
        const void *weight
        const float *bias
        lattice_view residual
    ctypedef struct lattice_norm_record:
        float epsilon
        int32_t heads
        const float *weight
        const float *bias
        lattice_view quantized
        const float *range
    ctypedef struct lattice_quantize_record:
        const float *range
    ctypedef struct lattice_attention_record:
        int32_t heads, kv_heads, head_dim
        float scale
        lattice_view sums
    ctypedef struct lattice_paged_record:
        int32_t heads, kv_heads, head_dim, layer, window
        float scale
        lattice_view sums
    ctypedef struct lattice_kv_write_record:
        int32_t layer, kv_heads, attention_heads
    ctypedef struct lattice_angles_record:
        const float *frequencies
        float scale
    ctypedef struct lattice_rope_record:
        int32_t heads, head_dim, width, pairing
    ctypedef struct lattice_experts:
        lattice_view table
        int32_t count, chosen, normalized
        int64_t matrix_bytes
    ctypedef struct lattice_low_rank_record:
        int32_t group
    ctypedef struct lattice_short_conv_record:
        int32_t state, taps
        const float *weight
    ctypedef struct lattice_delta_record:
        int32_t state, key_heads, value_heads, key_dim, value_dim, interleaved
        const float *dt_bias
        const float *decay
    ctypedef struct lattice_factors_record:
        int32_t site, number, rank
        float scale
        lattice_view input
    ctypedef struct lattice_attention_grad_record:
        int32_t heads, kv_heads, head_dim, is_causal, window
        float scale
        lattice_view y, sums, dy, dk, dv
    ctypedef struct lattice_loss_record:
        int32_t weight_type
        const void *weight
        int64_t outputs
        lattice_view dx
    ctypedef struct lattice_draws:
        int32_t is_on
        uint64_t seed, step
        uint32_t threshold
        float factor
        double alpha
    ctypedef struct lattice_site:
        const float *a
        const float *b
        float *da
        float *db
    ctypedef struct lattice_training:
        const lattice_site *sites
        const int32_t *targets
        const float *target_weights
        lattice_draws dropout, noise
    ctypedef struct lattice_op:
        int32_t kernel, rows, pairs, each, number
        lattice_experts experts
        lattice_view input[3]
        lattice_view output
        lattice_view rounded
        int64_t k, n
        lattice_embed_record embed
        lattice_linear_record linear
        lattice_norm_record norm
        lattice_quantize_record quantize
        lattice_attention_record attention
        lattice_paged_record paged
        lattice_kv_write_record kv_write
        lattice_angles_record angles
        lattice_rope_record rope
        lattice_low_rank_record low_rank
        lattice_short_conv_record short_conv
        lattice_delta_record delta
        lattice_factors_record factors
        lattice_loss_record loss
        const lattice_attention_grad_record *attention_grad
        int32_t input_rows
        int32_t activation, pool
    ctypedef struct lattice_kv_layer:
        char *keys
        char *values
        char *key_scales
        char *value_scales
        int64_t page_stride
        int32_t type, kv_heads, head_dim, width
    ctypedef struct lattice_low_rank_part:
        const void *b
        int64_t rank, panel, column, columns
        float scale
    ctypedef struct lattice_low_rank_group:
        const void *a
        const lattice_low_rank_part *parts
        int64_t panels, column_panels, work
        int32_t part_count, weight_type
    ctypedef struct lattice_step_adapters:
        int64_t count
        const lattice_low_rank_group *const *groups
        const int32_t *rows[3]
        const int32_t *bounds[3]
    ctypedef struct lattice_step:
        int64_t tokens, sequences, max_seqlen, logit_count
        const int32_t *ids[3]
        const int32_t *cu_seqlens
        const int32_t *cu_query_blocks
        const int32_t *logit_rows
        const lattice_tile_sizes *sizes
        const lattice_kv_layer *kv
        int64_t page_tokens
        const int32_t *context
        const int32_t *pages
        const int32_t *cu_pages
        int64_t *attention_units
        float *partials
        float *const *recurrent
        int64_t slot_floats
        const int32_t *read_slots
        const int32_t *write_slots
        lattice_step_adapters adapters
        const float *const *inputs
        const lattice_training *training
        float **slots
        char *scratch
        int64_t scratch_bytes
        int threads
        int dot
        int amx
        int bfloat16
    ctypedef struct lattice_kernel_table:
        void (*elementwise)(int function, const float *x, float *y, int64_t count)
        uint32_t dot_feature
        uint32_t amx_features
        uint32_t bfloat16_dot_feature, bfloat16_amx_feature
    void lattice_count_query_blocks(lattice_step *step, int32_t *blocks)
    int64_t lattice_scratch_bytes(const lattice_op *op, int64_t max_seqlen, int amx, const lattice_tile_sizes *sizes)
    int64_t lattice_kv_bytes(int type)
    ctypedef struct lattice_delta_layout:
        int64_t floats
    int64_t lattice_short_conv_floats(int64_t columns, int64_t taps)
    lattice_delta_layout lattice_delta_layout_of(int64_t key_dim, int64_t value_dim)
    int64_t lattice_partials(const lattice_op *op, int64_t sequences, const int32_t *cu_seqlens, const int32_t *context)

cdef extern from "names.h" nogil:
    const char *const *lattice_kernel_names
    const char *const *lattice_kernel_records
    const char *const *lattice_row_kind_names
    const char *const *lattice_ids_names
    const char *const *lattice_activation_names
    const char *const *lattice_weight_type_names
    const char *const *lattice_bfloat16_products_names
    const char *const *lattice_kv_type_names
    const char *const *lattice_pairing_names
    const char *const *lattice_pool_names
    const char *const *lattice_function_names
    const char *const *lattice_block_format_names

cdef extern from "reverse/scratch.h" nogil:
    int64_t lattice_reverse_scratch_bytes(const lattice_op *op)

cdef extern from "experts/routes.h" nogil:
    int64_t lattice_routes_floats(int64_t experts, int64_t chosen)

cdef extern from "linear/int8_linear.h" nogil:
    int64_t LATTICE_INT8_DEPTH
    int64_t lattice_int8_panel_bytes(int64_t k)
    int64_t lattice_integer_row_floats(int64_t k)

cdef extern from "linear/bfloat16_linear.h" nogil:
    int64_t lattice_bfloat16_panel_bytes(int64_t k)
    int64_t lattice_bfloat16_row_floats(int64_t k)

cdef extern from "linear/block_pack.h" nogil:
    ctypedef struct lattice_block_layout:
        int blocks
        int file_bytes
    lattice_block_layout lattice_block_layout_of(int format)
    int64_t lattice_block_panel_bytes(int format, int64_t k)
    int64_t lattice_block_row_floats(int64_t k)
    int lattice_pack_block_panel(int format, const uint8_t *blocks, int64_t columns, int64_t k, uint8_t *panel)

cdef extern from "run_step.h" nogil:
    const lattice_kernel_table *lattice_kernels(int isa)
    void lattice_tile_sizes_of(int isa, lattice_tile_sizes *sizes)
    const lattice_tile_row *lattice_tile_row_of(int index)
    void lattice_pack_panels(const void *weight, int64_t n, int64_t k, int64_t element_bytes, void *panels)
    void lattice_pack_bfloat16_panels(const uint16_t *weight, int64_t n, int64_t k, uint16_t *panels)
    void lattice_pack_int8_panels(const int8_t *weight, const float *scales, int64_t n, int64_t k, char *panels)


cdef inline dict numbers_of(const char *const *names):
    """The number of each name of a list in kernels/names.h."""
    cdef int number = 0
    numbers = {}
    while names[number] != NULL:
        numbers[names[number].decode()] = number
        number += 1
    return numbers


cdef inline float *float32_data(object array, Py_ssize_t size, str name) except NULL:
    """The data of a C-contiguous float32 array with at least ``size`` elements."""
    cdef cnp.ndarray floats
    if not isinstance(array, cnp.ndarray):
        raise TypeError(f"{name} must be a C-contiguous float32 array")
    floats = array
    if cnp.PyArray_TYPE(floats) != cnp.NPY_FLOAT32 or not cnp.PyArray_IS_C_CONTIGUOUS(floats):
        raise TypeError(f"{name} must be a C-contiguous float32 array")
    if cnp.PyArray_SIZE(floats) < size:
        raise ValueError(f"{name} has {cnp.PyArray_SIZE(floats)} elements, {size} are needed")
    return <float *>cnp.PyArray_DATA(floats)


cdef inline const int32_t *int32_data(cnp.ndarray array, Py_ssize_t size, str name) except NULL:
    if cnp.PyArray_TYPE(array) != cnp.NPY_INT32 or not cnp.PyArray_IS_C_CONTIGUOUS(array):
        raise TypeError(f"{name} must be a C-contiguous int32 array")
    if cnp.PyArray_SIZE(array) != size:
        raise ValueError(f"{name} has {array.size} entries, {size} are needed")
    return <const int32_t *>cnp.PyArray_DATA(array)


cdef inline int64_t round_up(int64_t nbytes) noexcept:
    """The next multiple of a cache line."""
    return (nbytes + 63) // 64 * 64
