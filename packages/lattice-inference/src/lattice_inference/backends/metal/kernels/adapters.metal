// A matrix of an adapter as the file has it: FORM 0 float32, 1 bfloat16, 2 float16. `scales`: its number, its rank, its scale. The batch
// names the adapter of each sequence; ROWS_OF says what a row is: 0 a token, 1 a sequence, 2 a token whose logits are wanted.

inline float factor_element(device const uchar *matrix, uint index) {
    if (FORM == 0u) {
        return ((device const float *)matrix)[index];
    }
    const uint bits = ((device const ushort *)matrix)[index];
    return FORM == 1u ? as_type<float>(bits << 16u) : half_value(bits);
}

inline bool has_adapter(Step s, device const float *scales, uint row) {
    uint sequence = row;
    if (ROWS_OF != 1u) {
        const uint token = ROWS_OF == 2u ? word_of(s, STEP_LOGIT_ROWS, row) : row;
        sequence = word_of(s, STEP_SEQUENCE_OF_ROW, token);
    }
    return word_of(s, STEP_ADAPTERS, sequence) == uint(scales[0]);
}
