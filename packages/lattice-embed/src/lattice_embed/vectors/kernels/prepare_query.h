/* Queries made ready for stored rows: what stored_rows.h says the kernels want. */
#ifndef LATTICE_PREPARE_QUERY_H
#define LATTICE_PREPARE_QUERY_H

#include "stored_rows.h"

/* Bytes that the data of a query takes. */
size_t lattice_query_bytes(int kind, size_t width);

/* A float32 query. For int8 rows that share a step and an offset a component, those are `column_steps` and `column_offsets`
 * (else NULL); for binary rows a bit is x >= threshold. `room` holds lattice_query_bytes. */
void lattice_prepare_floats(int kind, int metric, const float *x, size_t width, const float *column_steps,
                            const float *column_offsets, float threshold, void *room, lattice_query *query);

/* Row `index` of stored rows as a query for rows of the same kind: int8 with steps a row, int4 or binary. */
void lattice_prepare_stored(int metric, const lattice_rows *rows, size_t index, void *room, lattice_query *query);

#endif
