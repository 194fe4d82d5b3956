// What every kernel sees: the arena of activations, the inputs of the step, and its own parameter record.
//
// All slots of the memory plan lie in `arena`, and records hold offsets into it, counted in floats. WebGPU forbids a buffer to be
// read and written through two bindings of one dispatch, so there is one binding, read and write, and ops may work in place.
// `step` begins with a header of offsets of its parts (backends/gpu/step_inputs.py); the constants STEP_* name its entries.

@group(0) @binding(0) var<storage, read_write> arena: array<f32>;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<uniform> r: Record;

// Workgroups are counted over a grid of two dimensions: one has at most 65,535 of them.
fn group_index(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.x + group.y * groups.x;
}

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
