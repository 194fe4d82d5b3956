/* How block-quantized weights lie in memory once they are packed: panels of 16 output columns, the same for every level.
 *
 * A row of weights is cut into blocks of 32; element k of a block is scale * (q - center) + offset. ggml's formats differ in
 * the bits of q and in how scale and offset are kept, and the packed form keeps every one of their bits:
 *
 *     format   record of        scales                            q            bytes an element and column, as in the file
 *     Q8_0     1 block          d                                 8 bits       34 / 32
 *     Q4_0     1                d                                 4            18 / 32
 *     Q4_1     1                d, m                              4            20 / 32
 *     Q5_0     1                d                                 4 + 1        22 / 32
 *     Q5_1     1                d, m                              4 + 1        24 / 32
 *     Q4_K     8 blocks         d, m; in each block s, o          4            148 / 256 (144 in the file, 6 bits for s and o)
 *     Q5_K     8                d, m; s, o                        4 + 1        180 / 256 (176)
 *     Q6_K     8                d; s for each half of a block     4 + 2        210 / 256
 *
 * d and m are float16, s and o integers of a byte. A record holds for its 16 columns: d [16], m [16], then for each block
 *
 *     s [16], o [16]     bytes; of Q6_K, s of the first half and of the second
 *     lines [4][64]      line j: low nibbles are elements 4j to 4j + 3 of the 16 columns, [16][4]; high nibbles the same of
 *                        elements 16 + 4j to 16 + 4j + 3
 *     high bits          one line: bit g of its byte belongs to elements 4g to 4g + 3; of Q6_K two lines of two bits each,
 *                        the first for elements 0 to 15, bits 2j and 2j + 1 for elements 4j to 4j + 3; the second for 16 to 31
 *
 * and Q8_0 eight lines of int8. A line of 64 bytes is thus four elements of each column, what VNNI and SDOT multiply at once.
 * A panel's records follow one another, so decoding a token reads memory in one direction.
 */
#ifndef LATTICE_BLOCK_FORMAT_H
#define LATTICE_BLOCK_FORMAT_H

#include "step.h"

#define LATTICE_BLOCK 32 /* elements of a block of weights, and of activations */

typedef struct {
    int blocks;       /* in a record */
    int header_bytes; /* of a record: d, m */
    int scale_bytes;  /* of a block: s, o */
    int block_bytes;  /* of a block, s and o included */
    int center;       /* of q; Q8_0's q are signed as they lie */
    int file_bytes;   /* of a record of one column in the file */
} lattice_block_layout;

/* Every format, once, with its layout. */
/* clang-format off */
#define LATTICE_BLOCK_FORMATS(FORMAT) \
    /*     format, blocks, header, scales, block, center, file */ \
    FORMAT(Q8_0,        1,     32,      0,   512,      0,   34) \
    FORMAT(Q4_0,        1,     32,      0,   256,      8,   18) \
    FORMAT(Q4_1,        1,     64,      0,   256,      0,   20) \
    FORMAT(Q5_0,        1,     32,      0,   320,     16,   22) \
    FORMAT(Q5_1,        1,     64,      0,   320,      0,   24) \
    FORMAT(Q4_K,        8,     64,     32,   288,      0,  144) \
    FORMAT(Q5_K,        8,     64,     32,   352,      0,  176) \
    FORMAT(Q6_K,        8,     32,     32,   416,     32,  210)
/* clang-format on */

#define LATTICE_FORMAT_NUMBER(format, ...) LATTICE_##format,
typedef enum { LATTICE_BLOCK_FORMATS(LATTICE_FORMAT_NUMBER) LATTICE_BLOCK_FORMAT_COUNT } lattice_block_format;
#undef LATTICE_FORMAT_NUMBER

static inline lattice_block_layout lattice_block_layout_of(int format)
{
#define LATTICE_LAYOUT(format, ...) {__VA_ARGS__},
    static const lattice_block_layout layouts[] = {LATTICE_BLOCK_FORMATS(LATTICE_LAYOUT)};
#undef LATTICE_LAYOUT
    return layouts[format];
}

static inline int64_t lattice_block_record_bytes(int format)
{
    const lattice_block_layout layout = lattice_block_layout_of(format);
    return layout.header_bytes + (int64_t)layout.blocks * layout.block_bytes;
}

static inline int64_t lattice_block_panel_bytes(int format, int64_t k)
{
    return k / (LATTICE_BLOCK * lattice_block_layout_of(format).blocks) * lattice_block_record_bytes(format);
}

/* Floats that a row of k activations takes in a slot once it is quantized in blocks: a scale and two sums a block (of its
 * halves), then the integers. */
static inline int64_t lattice_block_row_floats(int64_t k)
{
    return lattice_round_up(3 * (k / LATTICE_BLOCK), 16) + k / 4;
}

#endif
