// What kernels of recurrent layers share: a sequence's state is in its slot to read; if the step crosses the end of a block, the next
// block goes to its slot to write.

inline uint read_slot(Step s, uint sequence) {
    return word_of(s, STEP_READ_SLOTS, sequence);
}

inline uint write_slot(Step s, uint sequence) {
    return word_of(s, STEP_WRITE_SLOTS, sequence);
}
