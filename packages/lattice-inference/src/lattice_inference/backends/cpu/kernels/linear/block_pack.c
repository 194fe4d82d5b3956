/* ggml's blocks -> the panels of block_format.h. Compiled once: it moves bits and computes nothing. */
#include "linear/block_pack.h"

#include <string.h>

typedef struct {
    uint16_t scale, offset;        /* d, m as they are stored */
    uint8_t scales[8], offsets[8]; /* s, o of each block; of Q6_K s of the halves */
    uint8_t q[256];
} unpacked_record;

/* Two nibbles of a byte belong to elements 16 apart. */
static void unpack_nibbles(const uint8_t *bytes, uint8_t *q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = bytes[i] & 15;
        q[i + 16] = bytes[i] >> 4;
    }
}

static void add_fifth_bits(const uint8_t *bits, uint8_t *q)
{
    for (int i = 0; i < 32; i++)
        q[i] |= (uint8_t)((bits[i / 8] >> i % 8 & 1) << 4);
}

/* The twelve bytes of eight 6-bit scales and eight 6-bit offsets. */
static void unpack_six_bits(const uint8_t *bytes, unpacked_record *record)
{
    for (int j = 0; j < 4; j++) {
        record->scales[j] = bytes[j] & 63;
        record->offsets[j] = bytes[j + 4] & 63;
        record->scales[j + 4] = (uint8_t)((bytes[j + 8] & 15) | bytes[j] >> 6 << 4);
        record->offsets[j + 4] = (uint8_t)(bytes[j + 8] >> 4 | bytes[j + 4] >> 6 << 4);
    }
}

static void unpack_record(int format, const uint8_t *source, unpacked_record *record)
{
    memset(record, 0, sizeof *record);
    if (format != LATTICE_Q6_K)
        memcpy(&record->scale, source, 2);
    switch (format) {
    case LATTICE_Q8_0:
        memcpy(record->q, source + 2, 32);
        return;
    case LATTICE_Q4_0:
        unpack_nibbles(source + 2, record->q);
        return;
    case LATTICE_Q4_1:
        memcpy(&record->offset, source + 2, 2);
        unpack_nibbles(source + 4, record->q);
        return;
    case LATTICE_Q5_0:
        unpack_nibbles(source + 6, record->q);
        add_fifth_bits(source + 2, record->q);
        return;
    case LATTICE_Q5_1:
        memcpy(&record->offset, source + 2, 2);
        unpack_nibbles(source + 8, record->q);
        add_fifth_bits(source + 4, record->q);
        return;
    case LATTICE_Q4_K:
    case LATTICE_Q5_K: {
        memcpy(&record->offset, source + 2, 2);
        unpack_six_bits(source + 4, record);
        const uint8_t *high = source + 16, *bytes = format == LATTICE_Q4_K ? source + 16 : source + 48;
        for (int pair = 0; pair < 4; pair++) /* low nibbles of 32 bytes are a block, high ones the next */
            for (int i = 0; i < 32; i++) {
                record->q[64 * pair + i] = bytes[32 * pair + i] & 15;
                record->q[64 * pair + 32 + i] = bytes[32 * pair + i] >> 4;
                if (format == LATTICE_Q5_K) {
                    record->q[64 * pair + i] |= (uint8_t)((high[i] >> (2 * pair) & 1) << 4);
                    record->q[64 * pair + 32 + i] |= (uint8_t)((high[i] >> (2 * pair + 1) & 1) << 4);
                }
            }
        return;
    }
    default: { /* Q6_K */
        const uint8_t *low = source, *high = source + 128, *scales = source + 192;
        memcpy(&record->scale, source + 208, 2);
        for (int half = 0; half < 2; half++, low += 64, high += 32)
            for (int i = 0; i < 32; i++) {
                uint8_t *q = record->q + 128 * half + i;
                q[0] = (uint8_t)((low[i] & 15) | (high[i] & 3) << 4);
                q[32] = (uint8_t)((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4);
                q[64] = (uint8_t)(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
                q[96] = (uint8_t)(low[i + 32] >> 4 | high[i] >> 6 << 4);
            }
        for (int j = 0; j < 8; j++) {
            record->scales[j] = scales[2 * j];
            record->offsets[j] = scales[2 * j + 1];
        }
    }
    }
}

/* One column of a record. */
static void place(int format, const lattice_block_layout *layout, const unpacked_record *unpacked, int column, uint8_t *record)
{
    memcpy(record + 2 * column, &unpacked->scale, 2);
    if (layout->header_bytes == 64)
        memcpy(record + 32 + 2 * column, &unpacked->offset, 2);
    for (int block = 0; block < layout->blocks; block++) {
        uint8_t *target = record + layout->header_bytes + block * layout->block_bytes;
        const uint8_t *q = unpacked->q + LATTICE_BLOCK * block;
        if (layout->scale_bytes > 0) {
            target[column] = unpacked->scales[block];
            target[16 + column] = unpacked->offsets[block];
            target += layout->scale_bytes;
        }
        uint8_t *byte = target + 4 * column;
        for (int i = 0; i < LATTICE_BLOCK; i++) {
            const int group = i / 4, part = i % 4;
            if (format == LATTICE_Q8_0) {
                byte[64 * group + part] = q[i];
                continue;
            }
            byte[64 * (group % 4) + part] |= (uint8_t)((q[i] & 15) << (group < 4 ? 0 : 4));
            if (format == LATTICE_Q6_K)
                byte[256 + 64 * (group / 4) + part] |= (uint8_t)(q[i] >> 4 << 2 * (group % 4));
            else if (format == LATTICE_Q5_0 || format == LATTICE_Q5_1 || format == LATTICE_Q5_K)
                byte[256 + part] |= (uint8_t)(q[i] >> 4 << group);
        }
    }
}

static int is_finite(const uint8_t *half)
{
    return (half[1] & 0x7c) != 0x7c;
}

typedef uint32_t words4 __attribute__((vector_size(16)));

/* Sixteen bytes of each of four columns -> the four bytes of each that belong to one line, line after line. */
static inline void transpose_words(const uint8_t *source, int64_t stride, uint8_t *target)
{
    words4 a, b, c, d;
    memcpy(&a, source, 16);
    memcpy(&b, source + stride, 16);
    memcpy(&c, source + 2 * stride, 16);
    memcpy(&d, source + 3 * stride, 16);
    const words4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const words4 ef = __builtin_shufflevector(a, b, 2, 6, 3, 7), gh = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    const words4 lines[4] = {
        __builtin_shufflevector(ab, cd, 0, 1, 4, 5),
        __builtin_shufflevector(ab, cd, 2, 3, 6, 7),
        __builtin_shufflevector(ef, gh, 0, 1, 4, 5),
        __builtin_shufflevector(ef, gh, 2, 3, 6, 7),
    };
    for (int line = 0; line < 4; line++)
        memcpy(target + 64 * line, &lines[line], 16);
}

/* A whole panel of a format whose lines hold the file's bytes as they are, four of a column after the other. */
static inline __attribute__((always_inline)) int pack_bytes(int scale_bytes, int value_bytes, const uint8_t *blocks,
                                                            int64_t records, uint8_t *panel)
{
    const int64_t file_bytes = scale_bytes + value_bytes, stride = records * file_bytes;
    int finite = 1;
    for (int64_t r = 0; r < records; r++, blocks += file_bytes, panel += LATTICE_PANEL * file_bytes) {
        for (int column = 0; column < LATTICE_PANEL; column++)
            for (int half = 0; half < scale_bytes; half += 2) {
                memcpy(panel + LATTICE_PANEL * half + 2 * column, blocks + column * stride + half, 2);
                finite &= is_finite(blocks + column * stride + half);
            }
        for (int column = 0; column < LATTICE_PANEL; column += 4)
            for (int byte = 0; byte < value_bytes; byte += 16)
                transpose_words(blocks + column * stride + scale_bytes + byte, stride,
                                panel + LATTICE_PANEL * (scale_bytes + byte) + 4 * column);
    }
    return finite;
}

int lattice_pack_block_panel(int format, const uint8_t *blocks, int64_t columns, int64_t k, uint8_t *panel)
{
    const lattice_block_layout layout = lattice_block_layout_of(format);
    const int64_t record_bytes = lattice_block_record_bytes(format), records = k / (LATTICE_BLOCK * layout.blocks);
    unpacked_record unpacked;
    int finite = 1;
    if (columns == LATTICE_PANEL && format == LATTICE_Q8_0)
        return pack_bytes(2, 32, blocks, records, panel);
    if (columns == LATTICE_PANEL && format == LATTICE_Q4_0)
        return pack_bytes(2, 16, blocks, records, panel);
    if (columns == LATTICE_PANEL && format == LATTICE_Q4_1)
        return pack_bytes(4, 16, blocks, records, panel);
    memset(panel, 0, (size_t)(records * record_bytes));
    for (int64_t r = 0; r < records; r++)
        for (int column = 0; column < columns; column++) {
            unpack_record(format, blocks + (column * records + r) * layout.file_bytes, &unpacked);
            finite &= (unpacked.scale & 0x7c00) != 0x7c00 && (unpacked.offset & 0x7c00) != 0x7c00;
            place(format, &layout, &unpacked, column, panel + r * record_bytes);
        }
    return finite;
}
