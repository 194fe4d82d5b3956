// Rows of activations in eights, as weights are read.

constant constexpr uint SPAN_OF_EIGHTS = 256u; // of k, for the threads of a simdgroup

// Eight of a row of `depth` floats from k on; those after its end are 0.
inline void row8(device const float *x, uint k, uint depth, thread float *v) {
    for (uint i = 0u; i < 8u; i++) {
        v[i] = k + i < depth ? x[k + i] : 0.0f;
    }
}
