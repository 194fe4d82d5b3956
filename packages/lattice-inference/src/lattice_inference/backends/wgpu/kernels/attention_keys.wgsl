// Where attention finds keys and values: in pages (kv.wgsl) where PAGED is 1, else in rows of the batch, `a` and `b`.

const FOURS = (HEAD_DIM + 3u) / 4u;
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

// Elements d to d + 3 of a key, d a multiple of 4; those from HEAD_DIM on are 0.
fn key4(place: Place, d: u32) -> vec4<f32> {
    if HEAD_DIM % 4u != 0u && d + 4u > HEAD_DIM {
        var k = vec4<f32>(key_element(place, d), 0.0, 0.0, 0.0);
        if d + 1u < HEAD_DIM { k.y = key_element(place, d + 1u); }
        if d + 2u < HEAD_DIM { k.z = key_element(place, d + 2u); }
        return k;
    }
    if PAGED == 1u && KV_TYPE == 3u {
        let word = keys[place.word + d / 4u];
        return vec4<f32>(element(word, 0u), element(word, 1u), element(word, 2u), element(word, 3u));
    }
    if PAGED == 1u && KV_TYPE != 0u {
        let low = keys[place.word + d / 2u];
        let high = keys[place.word + d / 2u + 1u];
        return vec4<f32>(element(low, 0u), element(low, 1u), element(high, 0u), element(high, 1u));
    }
    return vec4<f32>(
        key_element(place, d), key_element(place, d + 1u), key_element(place, d + 2u), key_element(place, d + 3u));
}

// The sum of four chains, each over every fourth dimension.
fn folded4(chains: vec4<f32>) -> f32 {
    return (chains.x + chains.y) + (chains.z + chains.w);
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
