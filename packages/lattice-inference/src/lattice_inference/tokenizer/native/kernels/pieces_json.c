/* Reads the pieces of a tokenizer.json: 250,000 pairs of string and number, for which a general JSON reader would make a
 * million objects. */
#include <math.h>
#include <string.h>

#include "pieces.h"

typedef struct {
    const uint8_t *at, *end;
} reader;

static inline void skip_space(reader *r) {
    uint64_t spaces, next;
    memset(&spaces, ' ', sizeof spaces);
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t')) {
        r->at++; /* most of a file is indentation */
        while (r->end - r->at >= (ptrdiff_t)sizeof next && (memcpy(&next, r->at, sizeof next), next == spaces))
            r->at += sizeof next;
    }
}

/* Steps over c, and the white space before it. */
static bool take(reader *r, uint8_t c) {
    skip_space(r);
    if (r->at == r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

/* Steps over a string, from its opening quote; returns false if it does not end. */
static bool skip_string(reader *r) {
    for (r->at++; r->at < r->end; r->at++) {
        if (*r->at == '"') {
            r->at++;
            return true;
        }
        if (*r->at == '\\' && ++r->at == r->end)
            break;
    }
    return false;
}

/* Steps over a value: to the bracket that closes it, or to what ends a word. */
static bool skip_value(reader *r) {
    size_t depth = 0;
    while (r->at < r->end) {
        uint8_t c = *r->at;
        if (c == '"') {
            if (!skip_string(r))
                return false;
        } else if (c == '{' || c == '[') {
            depth++;
            r->at++;
        } else if (c == '}' || c == ']') {
            if (depth == 0)
                return true;
            depth--;
            r->at++;
        } else if (depth == 0 && (c == ',' || c == ' ' || c == '\n' || c == '\r' || c == '\t')) {
            return true;
        } else {
            r->at++;
            continue;
        }
        if (depth == 0)
            return true;
    }
    return false;
}

/* Goes to the value of the next member of an object, behind '{' or the member before. Returns 1, 0 at the object's end, or
 * -1 if there is no member here; *is_wanted: the key is name. */
static int next_member(reader *r, bool is_first, const char *name, bool *is_wanted) {
    if (take(r, '}'))
        return 0;
    if (!is_first && !take(r, ','))
        return -1;
    skip_space(r);
    const uint8_t *key = r->at;
    if (r->at == r->end || *key != '"' || !skip_string(r))
        return -1;
    size_t length = strlen(name);
    *is_wanted = (size_t)(r->at - key) == length + 2 && memcmp(key + 1, name, length) == 0;
    if (!take(r, ':'))
        return -1;
    skip_space(r);
    return 1;
}

static int hex_digit(uint8_t c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Reads the four digits of an escape behind its u; returns -1 if they are not there. */
static int32_t hex_escape(reader *r) {
    int32_t value = 0;
    if (r->end - r->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(*r->at++);
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

static size_t put_utf8(uint32_t c, uint8_t *out) {
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xC0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xE0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
    out[3] = (uint8_t)(0x80 | (c & 0x3F));
    return 4;
}

/* Copies the character behind a backslash. */
static int take_escape(reader *r, uint8_t *out, size_t *written) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (r->at == r->end)
        return LT_PIECES_MALFORMED;
    uint8_t c = *r->at++;
    const char *name = c ? strchr(names, c) : NULL;
    if (name != NULL) {
        out[0] = (uint8_t)values[name - names];
        *written = 1;
        return LT_OK;
    }
    if (c != 'u')
        return LT_PIECES_MALFORMED;
    int32_t unit = hex_escape(r);
    if (unit < 0)
        return LT_PIECES_MALFORMED;
    uint32_t code_point = (uint32_t)unit;
    if (code_point - 0xD800 < 0x800) { /* half of a pair: the other half must follow */
        if (code_point >= 0xDC00 || r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u')
            return LT_PIECES_BAD_TEXT;
        r->at += 2;
        int32_t low = hex_escape(r);
        if (low < 0)
            return LT_PIECES_MALFORMED;
        if ((uint32_t)low - 0xDC00 >= 0x400)
            return LT_PIECES_BAD_TEXT;
        code_point = 0x10000 + ((code_point - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
    }
    *written = put_utf8(code_point, out);
    return LT_OK;
}

/* Returns the length of the UTF-8 sequence at r->at, or 0 if it is not one. */
static int sequence_length(const reader *r) {
    const uint8_t *p = r->at;
    size_t left = (size_t)(r->end - p);
    int length = p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : p[0] < 0xF5 ? 4 : 0;
    if (length == 0 || left < (size_t)length)
        return 0;
    uint8_t low = p[0] == 0xE0 ? 0xA0 : p[0] == 0xF0 ? 0x90 : 0x80;
    uint8_t high = p[0] == 0xED ? 0x9F : p[0] == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < low || p[1] > high)
        return 0;
    for (int i = 2; i < length; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    return length;
}

/* Reads a string into out, which has room for max_bytes and four more. */
static int take_string(reader *r, uint8_t *out, size_t max_bytes, size_t *size) {
    if (!take(r, '"'))
        return LT_PIECES_MALFORMED;
    *size = 0;
    while (r->at < r->end && *size <= max_bytes) {
        uint8_t c = *r->at;
        if (c == '"') {
            r->at++;
            return LT_OK;
        }
        if (c < 0x20)
            return LT_PIECES_MALFORMED;
        if (c == '\\') {
            size_t written = 0;
            r->at++;
            int status = take_escape(r, out + *size, &written);
            if (status != LT_OK)
                return status;
            *size += written;
        } else if (c < 0x80) {
            out[(*size)++] = c;
            r->at++;
        } else {
            int length = sequence_length(r);
            if (length == 0)
                return LT_PIECES_BAD_TEXT;
            for (int i = 0; i < length; i++)
                out[(*size)++] = *r->at++;
        }
    }
    return *size > max_bytes ? LT_PIECES_TOO_LONG : LT_PIECES_MALFORMED;
}

static const double powers_of_ten[309] = {
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19,
    1e20, 1e21, 1e22, 1e23, 1e24, 1e25, 1e26, 1e27, 1e28, 1e29, 1e30, 1e31, 1e32, 1e33, 1e34, 1e35, 1e36, 1e37,
    1e38, 1e39, 1e40, 1e41, 1e42, 1e43, 1e44, 1e45, 1e46, 1e47, 1e48, 1e49, 1e50, 1e51, 1e52, 1e53, 1e54, 1e55,
    1e56, 1e57, 1e58, 1e59, 1e60, 1e61, 1e62, 1e63, 1e64, 1e65, 1e66, 1e67, 1e68, 1e69, 1e70, 1e71, 1e72, 1e73,
    1e74, 1e75, 1e76, 1e77, 1e78, 1e79, 1e80, 1e81, 1e82, 1e83, 1e84, 1e85, 1e86, 1e87, 1e88, 1e89, 1e90, 1e91,
    1e92, 1e93, 1e94, 1e95, 1e96, 1e97, 1e98, 1e99, 1e100, 1e101, 1e102, 1e103, 1e104, 1e105, 1e106, 1e107, 1e108,
    1e109, 1e110, 1e111, 1e112, 1e113, 1e114, 1e115, 1e116, 1e117, 1e118, 1e119, 1e120, 1e121, 1e122, 1e123, 1e124,
    1e125, 1e126, 1e127, 1e128, 1e129, 1e130, 1e131, 1e132, 1e133, 1e134, 1e135, 1e136, 1e137, 1e138, 1e139, 1e140,
    1e141, 1e142, 1e143, 1e144, 1e145, 1e146, 1e147, 1e148, 1e149, 1e150, 1e151, 1e152, 1e153, 1e154, 1e155, 1e156,
    1e157, 1e158, 1e159, 1e160, 1e161, 1e162, 1e163, 1e164, 1e165, 1e166, 1e167, 1e168, 1e169, 1e170, 1e171, 1e172,
    1e173, 1e174, 1e175, 1e176, 1e177, 1e178, 1e179, 1e180, 1e181, 1e182, 1e183, 1e184, 1e185, 1e186, 1e187, 1e188,
    1e189, 1e190, 1e191, 1e192, 1e193, 1e194, 1e195, 1e196, 1e197, 1e198, 1e199, 1e200, 1e201, 1e202, 1e203, 1e204,
    1e205, 1e206, 1e207, 1e208, 1e209, 1e210, 1e211, 1e212, 1e213, 1e214, 1e215, 1e216, 1e217, 1e218, 1e219, 1e220,
    1e221, 1e222, 1e223, 1e224, 1e225, 1e226, 1e227, 1e228, 1e229, 1e230, 1e231, 1e232, 1e233, 1e234, 1e235, 1e236,
    1e237, 1e238, 1e239, 1e240, 1e241, 1e242, 1e243, 1e244, 1e245, 1e246, 1e247, 1e248, 1e249, 1e250, 1e251, 1e252,
    1e253, 1e254, 1e255, 1e256, 1e257, 1e258, 1e259, 1e260, 1e261, 1e262, 1e263, 1e264, 1e265, 1e266, 1e267, 1e268,
    1e269, 1e270, 1e271, 1e272, 1e273, 1e274, 1e275, 1e276, 1e277, 1e278, 1e279, 1e280, 1e281, 1e282, 1e283, 1e284,
    1e285, 1e286, 1e287, 1e288, 1e289, 1e290, 1e291, 1e292, 1e293, 1e294, 1e295, 1e296, 1e297, 1e298, 1e299, 1e300,
    1e301, 1e302, 1e303, 1e304, 1e305, 1e306, 1e307, 1e308
};

static bool is_digit(const reader *r) {
    return r->at < r->end && *r->at >= '0' && *r->at <= '9';
}

/* significand * 10^exponent as serde_json computes it: not always the nearest double, but scores are compared for equality
 * of sums, so they must be its doubles. */
static int scale(bool negative, uint64_t significand, int64_t exponent, double *score) {
    double value = (double)significand;
    while (exponent < -308 && value != 0.0) {
        value /= 1e308;
        exponent += 308;
    }
    if (value == 0.0)
        exponent = 0;
    if (exponent > 308)
        return LT_PIECES_BAD_SCORE;
    if (exponent >= 0)
        value *= powers_of_ten[exponent];
    else
        value /= powers_of_ten[-exponent];
    if (isinf(value))
        return LT_PIECES_BAD_SCORE;
    *score = negative ? -value : value;
    return LT_OK;
}

/* Reads a number. Digits that no longer fit 64 bits are dropped, as serde_json drops them. */
static int take_number(reader *r, double *score) {
    skip_space(r);
    bool negative = r->at < r->end && *r->at == '-';
    r->at += negative;
    uint64_t significand = 0;
    int64_t exponent = 0;
    bool is_full = false;
    if (!is_digit(r))
        return LT_PIECES_MALFORMED;
    if (*r->at == '0') {
        r->at++;
        if (is_digit(r))
            return LT_PIECES_MALFORMED;
    }
    for (; is_digit(r); r->at++) {
        uint64_t digit = (uint64_t)(*r->at - '0');
        is_full = is_full || significand > (UINT64_MAX - digit) / 10;
        if (is_full)
            exponent++;
        else
            significand = significand * 10 + digit;
    }
    if (r->at < r->end && *r->at == '.') {
        r->at++;
        if (!is_digit(r))
            return LT_PIECES_MALFORMED;
        is_full = false; /* a zero still fits behind digits that were dropped, if what is kept is small enough */
        for (; is_digit(r); r->at++) {
            uint64_t digit = (uint64_t)(*r->at - '0');
            is_full = is_full || significand > (UINT64_MAX - digit) / 10;
            if (!is_full) {
                significand = significand * 10 + digit;
                exponent--;
            }
        }
    }
    if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        r->at++;
        bool negative_power = r->at < r->end && *r->at == '-';
        if (r->at < r->end && (*r->at == '-' || *r->at == '+'))
            r->at++;
        if (!is_digit(r))
            return LT_PIECES_MALFORMED;
        int64_t power = 0;
        for (; is_digit(r); r->at++)
            power = power < INT32_MAX ? power * 10 + (*r->at - '0') : power;
        exponent += negative_power ? -power : power;
    }
    return scale(negative, significand, exponent, score);
}

static int take_pair(reader *r, lt_pieces *pieces, uint8_t *text, size_t max_piece_bytes) {
    size_t size;
    double score;
    if (!take(r, '['))
        return LT_PIECES_MALFORMED;
    int status = take_string(r, text, max_piece_bytes, &size);
    if (status != LT_OK)
        return status;
    if (!take(r, ','))
        return LT_PIECES_MALFORMED;
    status = take_number(r, &score);
    if (status != LT_OK)
        return status;
    return take(r, ']') ? lt_pieces_push(pieces, text, size, score) : LT_PIECES_MALFORMED;
}

/* Reads an array of [string, number]. */
static int take_pieces(reader *r, lt_pieces *pieces, size_t max_piece_bytes, size_t max_text_bytes) {
    r->at++;
    if (take(r, ']'))
        return LT_OK;
    uint8_t *text = malloc(max_piece_bytes + 8);
    int status = text == NULL ? LT_NO_MEMORY : LT_OK;
    while (status == LT_OK) {
        pieces->failed_piece = pieces->count;
        status = take_pair(r, pieces, text, max_piece_bytes);
        if (status != LT_OK)
            break;
        if ((size_t)pieces->ends[pieces->count - 1] > max_text_bytes)
            status = LT_PIECES_TOO_MANY;
        else if (take(r, ']'))
            break;
        else if (!take(r, ','))
            status = LT_PIECES_MALFORMED;
    }
    free(text);
    return status;
}

int lt_pieces_read(lt_pieces *pieces, const uint8_t *json, size_t size, size_t max_piece_bytes, size_t max_text_bytes,
                   size_t *start, size_t *end) {
    reader r = {json, json + size};
    int outer = 0, inner = 0;
    bool is_model, is_vocabulary;
    *start = *end = 0;
    if (!take(&r, '{'))
        return LT_OK;
    for (bool first = true; (outer = next_member(&r, first, "model", &is_model)) > 0; first = false) {
        if (!is_model || r.at == r.end || *r.at != '{') {
            if (!skip_value(&r))
                return LT_OK;
            continue;
        }
        r.at++;
        for (bool inner_first = true; (inner = next_member(&r, inner_first, "vocab", &is_vocabulary)) > 0;
             inner_first = false) {
            if (!is_vocabulary || r.at == r.end || *r.at != '[') {
                if (!skip_value(&r))
                    return LT_OK;
                continue;
            }
            if (*end > 0)
                return LT_PIECES_REPEATED;
            *start = (size_t)(r.at - json);
            int status = take_pieces(&r, pieces, max_piece_bytes, max_text_bytes);
            if (status != LT_OK)
                return status;
            *end = (size_t)(r.at - json);
        }
        if (inner < 0)
            break;
    }
    return LT_OK;
}
