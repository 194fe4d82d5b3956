/* See run_step.h. Compiled once, for the baseline. */
#include "run_step.h"

#include <stddef.h>
#include <string.h>

#include "experts/grouped.h"
#include "linear/bfloat16_linear.h"
#include "linear/int8_linear.h"
#include "lattice/cpu.h"

#define SMALL_STEP_TOKENS 32 /* a step of so few tokens does not queue behind another caller's */

#if defined(__x86_64__)
extern const lattice_kernel_table lattice_kernel_table_baseline, lattice_kernel_table_avx2, lattice_kernel_table_avx512;
static const lattice_kernel_table *const tables[LATTICE_ISA_COUNT] = {
    &lattice_kernel_table_baseline, &lattice_kernel_table_avx2, &lattice_kernel_table_avx512, NULL};
#elif defined(__aarch64__)
extern const lattice_kernel_table lattice_kernel_table_baseline, lattice_kernel_table_neon;
static const lattice_kernel_table *const tables[LATTICE_ISA_COUNT] = {&lattice_kernel_table_baseline, NULL, NULL,
                                                                      &lattice_kernel_table_neon};
#else
extern const lattice_kernel_table lattice_kernel_table_baseline;
static const lattice_kernel_table *const tables[LATTICE_ISA_COUNT] = {&lattice_kernel_table_baseline, NULL, NULL, NULL};
#endif

const lattice_kernel_table *lattice_kernels(int isa)
{
    return isa >= 0 && isa < LATTICE_ISA_COUNT ? tables[isa] : NULL;
}

#define TILE_ROW(name, least, most, baseline, avx2, avx512, neon) {#name, least, most, {baseline, avx2, avx512, neon}},
static const lattice_tile_row tile_rows[LATTICE_TILE_COUNT] = {LATTICE_TILE_TABLE(TILE_ROW)};

void lattice_tile_sizes_of(int isa, lattice_tile_sizes *sizes)
{
    for (int i = 0; i < LATTICE_TILE_COUNT; i++)
        ((int64_t *)sizes)[i] = tile_rows[i].isas[isa];
}

const lattice_tile_row *lattice_tile_row_of(int index)
{
    return &tile_rows[index];
}

typedef struct {
    const lattice_op *op;
    const lattice_step *step;
    const lattice_kernel *kernel;
    int64_t tasks;
} op_in_progress;

static void run_task(void *opaque, int64_t task, int thread)
{
    const op_in_progress *current = opaque;
    if (lattice_is_grouped(current->op))
        lattice_run_grouped(current->kernel, current->op, current->step, task, thread);
    else
        current->kernel->run(current->op, current->step, task, current->tasks, thread);
}

void lattice_step_run(const lattice_op *ops, int64_t count, const lattice_step *given, const lattice_kernel_table *table,
                      lattice_pool *pool)
{
    static _Atomic int64_t steps_run;
    lattice_step step = *given;
    step.serial = atomic_fetch_add_explicit(&steps_run, 1, memory_order_relaxed) + 1;
    const int threads = pool->enter(pool, step.threads, step.tokens > SMALL_STEP_TOKENS);
    step.threads = threads > 0 ? threads : 1;
    const uint64_t environment = lattice_float_environment_default();
    for (int64_t i = 0; i < count; i++) {
        if (lattice_rows(&ops[i], &step) == 0) /* no logits are wanted: kernels need not know that there may be nothing */
            continue;
        const lattice_kernel *kernel = &table->kernels[ops[i].kernel];
        const int64_t tasks =
            lattice_is_grouped(&ops[i]) ? lattice_grouped_tasks(kernel, &ops[i], &step) : kernel->tasks(&ops[i], &step);
        op_in_progress current = {&ops[i], &step, kernel, tasks};
        if (step.threads > 1)
            pool->loop(pool, current.tasks, run_task, &current);
        else
            for (int64_t task = 0; task < current.tasks; task++)
                run_task(&current, task, 0);
    }
    lattice_float_environment_restore(environment);
    if (threads > 0)
        pool->leave(pool);
}

void lattice_pack_panels(const void *weight, int64_t n, int64_t k, int64_t element_bytes, void *panels)
{
    for (int64_t column = 0; column < n; column += LATTICE_PANEL) {
        const int64_t here = n - column < LATTICE_PANEL ? n - column : LATTICE_PANEL;
        char *panel = (char *)panels + column * k * element_bytes;
        if (here < LATTICE_PANEL)
            memset(panel, 0, (size_t)(k * LATTICE_PANEL * element_bytes));
        for (int64_t j = 0; j < here; j++) {
            const char *row = (const char *)weight + (column + j) * k * element_bytes;
            if (element_bytes == sizeof(uint16_t))
                for (int64_t i = 0; i < k; i++)
                    ((uint16_t *)panel)[i * LATTICE_PANEL + j] = ((const uint16_t *)row)[i];
            else
                for (int64_t i = 0; i < k; i++)
                    ((float *)panel)[i * LATTICE_PANEL + j] = ((const float *)row)[i];
        }
    }
}

void lattice_pack_bfloat16_panels(const uint16_t *weight, int64_t n, int64_t k, uint16_t *panels)
{
    const int64_t panel_elements = lattice_bfloat16_panel_bytes(k) / 2;
    for (int64_t column = 0; column < n; column += LATTICE_PANEL, panels += panel_elements) {
        const int64_t here = n - column < LATTICE_PANEL ? n - column : LATTICE_PANEL;
        if (here < LATTICE_PANEL || k % LATTICE_BFLOAT16_DEPTH != 0)
            memset(panels, 0, (size_t)panel_elements * sizeof(uint16_t));
        for (int64_t j = 0; j < here; j++) {
            const uint16_t *row = weight + (column + j) * k;
            for (int64_t i = 0; i < k; i++)
                panels[i / 2 * 2 * LATTICE_PANEL + 2 * j + i % 2] = row[i];
        }
    }
}

void lattice_pack_int8_panels(const int8_t *weight, const float *scales, int64_t n, int64_t k, char *panels)
{
    const int64_t panel_bytes = lattice_int8_panel_bytes(k);
    for (int64_t column = 0; column < n; column += LATTICE_PANEL, panels += panel_bytes) {
        memset(panels, 0, (size_t)panel_bytes);
        float *scale = (float *)panels;
        int32_t *sum = (int32_t *)panels + LATTICE_PANEL;
        int8_t *integers = (int8_t *)panels + 2 * LATTICE_PANEL * 4;
        for (int64_t j = 0; j < LATTICE_PANEL && column + j < n; j++) {
            const int8_t *row = weight + (column + j) * k;
            scale[j] = scales[column + j];
            for (int64_t i = 0; i < k; i++) {
                sum[j] += row[i];
                integers[i / 4 * 64 + 4 * j + i % 4] = row[i];
            }
        }
    }
}
