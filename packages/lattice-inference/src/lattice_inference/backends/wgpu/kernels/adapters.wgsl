// A matrix of an adapter as the file has it: FORM 0 float32, 1 bfloat16, 2 float16. `weight_scales`: its number, its rank, its scale.
// The batch names the adapter of each sequence; ROWS_OF says what a row is: 0 a token, 1 a sequence, 2 a token whose logits are wanted.

fn element(index: u32) -> f32 {
    if FORM == 0u {
        return bitcast<f32>(weight_words[index]);
    }
    let bits = half_bits_at(index * 2u);
    if FORM == 1u {
        return bitcast<f32>(bits << 16u);
    }
    return half_value(bits);
}

fn has_adapter(row: u32) -> bool {
    var sequence = row;
    if ROWS_OF != 1u {
        var token = row;
        if ROWS_OF == 2u {
            token = step[step[STEP_LOGIT_ROWS] + row];
        }
        sequence = step[step[STEP_SEQUENCE_OF_ROW] + token];
    }
    return step[step[STEP_ADAPTERS] + sequence] == u32(weight_scales[0]);
}
