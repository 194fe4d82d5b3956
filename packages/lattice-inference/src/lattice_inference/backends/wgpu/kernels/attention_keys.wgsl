// Where attention finds keys and values: in pages (kv.wgsl) where PAGED is 1, else in rows of the batch, `a` and `b`.

const LOWEST = -3.4028234e38f;

struct Place {
    page: u32, // or the row of the batch
    word: u32, // or where its vector begins in the arena
    scale: u32,
}

fn place_of(sequence: u32, head: u32, position: u32) -> Place {
    if PAGED == 1u {
        let page = page_of(sequence, position);
        return Place(page, vector_at(page, head, position), scale_word(page, head, position));
    }
    return Place(step[step[STEP_BOUNDS] + sequence] + position, head * r.head_dim, 0u);
}

fn key_element(place: Place, d: u32) -> f32 {
    if PAGED == 1u {
        return element(keys[place.word + word_of(d)], d);
    }
    return arena[r.a + place.page * r.a_stride + place.word + d];
}

fn value_element(place: Place, d: u32) -> f32 {
    if PAGED == 1u {
        return element(values[place.word + word_of(d)], d);
    }
    return arena[r.b + place.page * r.b_stride + place.word + d];
}

fn key_scale(place: Place) -> f32 {
    if PAGED == 1u && KV_TYPE == 3u {
        return bitcast<f32>(keys[place.scale]);
    }
    return 1.0;
}

fn value_scale(place: Place) -> f32 {
    if PAGED == 1u && KV_TYPE == 3u {
        return bitcast<f32>(values[place.scale]);
    }
    return 1.0;
}

// Whether the row at `position` sees a key.
fn sees(position: u32, key: u32) -> bool {
    return CAUSAL == 0u || (key <= position && (r.window == 0u || key + r.window > position));
}
