// Every kernel behind one signature: its buffers by number, and the position of a thread.

#pragma once

namespace emulated {

template <typename Function, Function function>
struct Caller;

// Kernels have the arena, the words and the record first, then their own buffers, then the thread's position.
template <typename A, typename W, typename R, void (*function)(A *, W *, R *, uint, uint, uint, uint)>
struct Caller<void (*)(A *, W *, R *, uint, uint, uint, uint), function> {
    static void call(void *const *b, uint32_t group, uint32_t lane) {
        function(
            static_cast<A *>(b[0]), static_cast<W *>(b[1]), static_cast<R *>(b[2]), group, lane, lane % LANES, lane / LANES);
    }
};

template <
    typename A, typename W, typename R, typename X, typename Y,
    void (*function)(A *, W *, R *, X *, Y *, uint, uint, uint, uint)>
struct Caller<void (*)(A *, W *, R *, X *, Y *, uint, uint, uint, uint), function> {
    static void call(void *const *b, uint32_t group, uint32_t lane) {
        function(
            static_cast<A *>(b[0]), static_cast<W *>(b[1]), static_cast<R *>(b[2]), static_cast<X *>(b[3]),
            static_cast<Y *>(b[4]), group, lane, lane % LANES, lane / LANES);
    }
};

template <
    typename A, typename W, typename R, typename X, typename Y, typename Z,
    void (*function)(A *, W *, R *, X *, Y *, Z *, uint, uint, uint, uint)>
struct Caller<void (*)(A *, W *, R *, X *, Y *, Z *, uint, uint, uint, uint), function> {
    static void call(void *const *b, uint32_t group, uint32_t lane) {
        function(
            static_cast<A *>(b[0]), static_cast<W *>(b[1]), static_cast<R *>(b[2]), static_cast<X *>(b[3]),
            static_cast<Y *>(b[4]), static_cast<Z *>(b[5]), group, lane, lane % LANES, lane / LANES);
    }
};

template <typename Function, Function function>
void called(void *const *buffers, uint32_t group, uint32_t lane) {
    Caller<Function, function>::call(buffers, group, lane);
}

} // namespace emulated
