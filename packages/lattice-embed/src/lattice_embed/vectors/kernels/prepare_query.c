/* Queries made ready. Some hundreds of plain operations a query, in double precision where they are not exact.
 *
 * A float query meets int8 rows as sixteen-bit integers, fewer only where a sum could leave int32 (from 513 components on:
 * 2^31 / (128 width)), and int4 rows as eight-bit ones: its error is at most 1/16 of the rows' own.
 */
#include "prepare_query.h"

#include <math.h>
#include <string.h>

static size_t padded(size_t count) { return (count + LATTICE_QUERY_PADDING - 1) / LATTICE_QUERY_PADDING * LATTICE_QUERY_PADDING; }

size_t lattice_query_bytes(int kind, size_t width)
{
    switch (kind) {
    case LATTICE_INT8:
        return 4 * padded(width); /* sixteen bits, and their two bytes apart */
    case LATTICE_INT4:
        return 2 * padded((width + 1) / 2);
    case LATTICE_BINARY:
        return (width + 7) / 8;
    default:
        return sizeof(float) * width;
    }
}

static int32_t rounded(double x, int32_t most)
{
    const int32_t whole = (int32_t)(x + (x < 0 ? -0.5 : 0.5));
    return whole > most ? most : whole < -most ? -most : whole;
}

/* Integer k of a query: components of int4 alternate between the two halves. */
static void put(int kind, void *room, size_t width, size_t k, int32_t value)
{
    if (kind == LATTICE_INT8)
        ((int16_t *)room)[k] = (int16_t)value;
    else
        ((int8_t *)room)[k % 2 * padded((width + 1) / 2) + k / 2] = (int8_t)value;
}

/* The bytes of an int8 query's sixteen bits, behind them: what instructions for bytes read. */
static void split_bytes(size_t width, void *room, lattice_query *query)
{
    const int16_t *values = room;
    int8_t *high = (int8_t *)(values + padded(width));
    uint8_t *low = (uint8_t *)(high + padded(width));
    int is_byte = 1;
    uint32_t total = 0;
    for (size_t k = 0; k < width; k++)
        is_byte &= values[k] >= INT8_MIN && values[k] <= INT8_MAX;
    for (size_t k = 0; k < width; k++) {
        high[k] = (int8_t)(is_byte ? values[k] : values[k] >> 8);
        low[k] = (uint8_t)(values[k] & 255);
        total += (uint32_t)(int32_t)high[k];
    }
    query->high = high;
    query->low = low;
    query->is_byte = is_byte;
    query->excess = total * (is_byte ? 128u : 128u * 256u);
}

static void prepare_integers(int kind, const float *x, size_t width, const float *column_steps,
                             const float *column_offsets, void *room, lattice_query *query)
{
    int32_t most = 127;
    if (kind == LATTICE_INT8) {
        const int32_t fitting = (int32_t)(INT32_MAX / (128 * (int64_t)(width ? width : 1)));
        most = fitting < INT16_MAX ? fitting : INT16_MAX;
    }
    double largest = 0, square = 0;
    for (size_t k = 0; k < width; k++) {
        const double magnitude = fabs((double)x[k] * (column_steps ? (double)column_steps[k] : 1.0));
        largest = magnitude > largest ? magnitude : largest;
        square += (double)x[k] * (double)x[k];
    }
    const double step = largest > 0 ? largest / most : 1.0;
    double total = 0, stored_square = 0;
    memset(room, 0, lattice_query_bytes(kind, width));
    for (size_t k = 0; k < width; k++) {
        const double column_step = column_steps ? (double)column_steps[k] : 1.0;
        const int32_t value = rounded((double)x[k] * column_step / step, most);
        const double component = step * value / column_step; /* what the kernel sees of x[k] */
        put(kind, room, width, k, value);
        stored_square += component * component;
        total += component;
        if (column_offsets)
            query->constant += component * (double)column_offsets[k];
    }
    if (kind == LATTICE_INT8)
        split_bytes(width, room, query);
    query->step = step;
    query->total = total;
    query->inverse_norm = square > 0 ? 1.0 / sqrt(square) : 0.0;
    query->square = stored_square;
}

void lattice_prepare_floats(int kind, int metric, const float *x, size_t width, const float *column_steps,
                            const float *column_offsets, float threshold, void *room, lattice_query *query)
{
    *query = (lattice_query){.metric = metric, .data = room};
    if (kind == LATTICE_INT8 || kind == LATTICE_INT4) {
        prepare_integers(kind, x, width, column_steps, column_offsets, room, query);
    } else if (kind == LATTICE_BINARY) {
        memset(room, 0, lattice_query_bytes(kind, width));
        for (size_t k = 0; k < width; k++)
            if (x[k] >= threshold)
                ((uint8_t *)room)[k / 8] |= (uint8_t)(0x80 >> k % 8);
    } else {
        query->data = x;
    }
}

void lattice_prepare_stored(int metric, const lattice_rows *rows, size_t index, void *room, lattice_query *query)
{
    const uint8_t *row = (const uint8_t *)rows->data + index * rows->row_bytes;
    *query = (lattice_query){.metric = metric, .data = room};
    if (rows->kind == LATTICE_BINARY) {
        query->data = row;
        return;
    }
    memset(room, 0, lattice_query_bytes(rows->kind, rows->width));
    if (rows->kind == LATTICE_INT8) {
        for (size_t k = 0; k < rows->width; k++)
            ((int16_t *)room)[k] = ((const int8_t *)row)[k];
        split_bytes(rows->width, room, query);
    } else {
        for (size_t k = 0; k < rows->width; k++)
            put(LATTICE_INT4, room, rows->width, k, k % 2 ? row[k / 2] & 15 : row[k / 2] >> 4);
        query->offset = (double)rows->offsets[index];
        query->total = (double)rows->steps[index] * (double)rows->sums[index] - (double)rows->width * query->offset;
    }
    query->step = (double)rows->steps[index];
    query->inverse_norm = (double)rows->inverse_norms[index];
    query->square = rows->squares ? rows->squares[index] : 0.0; /* there for distances */
}
