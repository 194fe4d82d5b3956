/* Reads the pieces of a SentencePiece model; see pieces.h. Anything unusual is left to the reader in Python, which is
 * strict and says what is wrong. */
#include <math.h>
#include <string.h>

#include "pieces.h"

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5, HIGHEST_TYPE = 6 };

typedef struct {
    const uint8_t *at, *end;
} reader;

static bool take_varint(reader *r, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 70 && r->at < r->end; shift += 7) {
        uint8_t byte = *r->at++;
        *value |= shift < 64 ? (uint64_t)(byte & 0x7F) << shift : 0;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* Reads a field's key and steps over its value; *value: its bytes, or the number of a VARINT. */
static bool take_field(reader *r, uint64_t *key, reader *value, uint64_t *number) {
    if (!take_varint(r, key))
        return false;
    value->at = r->at;
    uint64_t length = 0;
    switch (*key & 7) {
    case VARINT:
        if (!take_varint(r, number))
            return false;
        break;
    case BYTES:
        if (!take_varint(r, &length))
            return false;
        value->at = r->at;
        break;
    case FIXED32:
        length = 4;
        break;
    case FIXED64:
        length = 8;
        break;
    default:
        return false;
    }
    if (length > (uint64_t)(r->end - r->at))
        return false;
    r->at += length;
    value->end = r->at;
    return true;
}

static bool take_piece(reader message, reader *text, float *score, uint8_t *type) {
    uint64_t key, number = 0;
    reader value;
    *text = (reader){message.end, message.end};
    *score = 0.0f;
    *type = 1;
    while (message.at < message.end) {
        if (!take_field(&message, &key, &value, &number))
            return false;
        if (key == (1 << 3 | BYTES)) {
            *text = value;
        } else if (key == (2 << 3 | FIXED32)) {
            memcpy(score, value.at, sizeof(float));
        } else if (key == (3 << 3 | VARINT)) {
            if (number < 1 || number > HIGHEST_TYPE)
                return false;
            *type = (uint8_t)number;
        } else if (key >> 3 <= 3) {
            return false; /* a known field of another type, or no field */
        }
    }
    return !isnan(*score) && !isinf(*score);
}

bool lt_pieces_read_protobuf(lt_pieces *pieces, const uint8_t *data, size_t size, int32_t max_pieces, uint8_t *types,
                             uint8_t *rest, size_t *rest_size) {
    reader r = {data, data + size};
    uint64_t key, number = 0;
    reader value, text;
    *rest_size = 0;
    while (r.at < r.end) {
        const uint8_t *start = r.at;
        if (!take_field(&r, &key, &value, &number))
            return false;
        if (key == (1 << 3 | BYTES)) {
            float score;
            if (pieces->count == max_pieces || !take_piece(value, &text, &score, &types[pieces->count]) ||
                lt_pieces_push(pieces, text.at, (size_t)(text.end - text.at), score) != LT_OK)
                return false;
        } else if (key >> 3 == 1) {
            return false;
        } else {
            memcpy(rest + *rest_size, start, (size_t)(r.at - start));
            *rest_size += (size_t)(r.at - start);
        }
    }
    return true;
}
