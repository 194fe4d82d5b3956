/* The kernels over pages of keys and values, and those that share their code, which are compiled apart from the others (paged.c). */
#ifndef LATTICE_PAGED_H
#define LATTICE_PAGED_H

#include "lattice/simd.h"
#include "step.h"

int64_t LATTICE_FN(kv_write_tasks)(const lattice_op *op, const lattice_step *step);
void LATTICE_FN(kv_write_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread);
int64_t LATTICE_FN(paged_attention_tasks)(const lattice_op *op, const lattice_step *step);
void LATTICE_FN(paged_attention_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread);
int64_t LATTICE_FN(paged_merge_tasks)(const lattice_op *op, const lattice_step *step);
void LATTICE_FN(paged_merge_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread);
int64_t LATTICE_FN(causal_attention_tasks)(const lattice_op *op, const lattice_step *step);
void LATTICE_FN(causal_attention_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread);

#endif
