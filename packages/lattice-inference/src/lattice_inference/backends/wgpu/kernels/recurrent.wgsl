// What kernels of recurrent layers are given: the slots of a layer, and its vectors. A sequence's state is in its slot to read; if the
// step crosses the end of a block, the next block goes to its slot to write.

@group(1) @binding(0) var<storage, read_write> slots: array<f32>;
@group(1) @binding(1) var<storage, read> weight: array<f32>;
@group(1) @binding(2) var<storage, read> decay: array<f32>;

fn read_slot(sequence: u32) -> u32 {
    return step[step[STEP_READ_SLOTS] + sequence];
}

fn write_slot(sequence: u32) -> u32 {
    return step[step[STEP_WRITE_SLOTS] + sequence];
}
