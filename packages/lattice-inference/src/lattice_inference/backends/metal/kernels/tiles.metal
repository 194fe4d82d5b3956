// Tiles of 32 rows by 32 columns of a product, by matrices of 8 by 8. Simdgroup g has the rows 16 g to 16 g + 15.
//
//        columns n ->                    x and weight go through threadgroup memory, 32 of k at a time, weights widened:
//      +---+---+---+---+                    x_tile[row][k]
//   t  |8x8|8x8|8x8|8x8|  simdgroup 0       w_tile[k][column]
//      |8x8|8x8|8x8|8x8|                 rows of both are 36 floats apart, so that eight of them lie in different banks
//      +---+---+---+---+
//      |               |  simdgroup 1
//
// Sums are float32. At the end the tile of sums lies where the tiles of x and weight were, and threads finish single results.

constant constexpr uint TILE = 32u;
constant constexpr uint TILE_STRIDE = 36u;
constant constexpr uint TILE_FLOATS = 1152u; // TILE * TILE_STRIDE

struct TileSums {
    simdgroup_float8x8 part[2][4];
};

inline TileSums no_sums() {
    TileSums sums;
    for (uint i = 0u; i < 2u; i++) {
        for (uint j = 0u; j < 4u; j++) {
            sums.part[i][j] = make_filled_simdgroup_matrix<float, 8>(0.0f);
        }
    }
    return sums;
}

// Adds the products of 32 of k.
inline void add_products(
    thread TileSums &sums, threadgroup const float *x_tile, threadgroup const float *w_tile, uint simdgroup) {
    for (uint k = 0u; k < TILE; k += 8u) {
        simdgroup_float8x8 x[2];
        for (uint i = 0u; i < 2u; i++) {
            simdgroup_load(x[i], x_tile + (simdgroup * 16u + i * 8u) * TILE_STRIDE + k, TILE_STRIDE);
        }
        for (uint j = 0u; j < 4u; j++) {
            simdgroup_float8x8 w;
            simdgroup_load(w, w_tile + k * TILE_STRIDE + j * 8u, TILE_STRIDE);
            for (uint i = 0u; i < 2u; i++) {
                simdgroup_multiply_accumulate(sums.part[i][j], x[i], w, sums.part[i][j]);
            }
        }
    }
}

// The sums of a tile to threadgroup memory, for all threads.
inline void put_sums(thread const TileSums &sums, threadgroup float *y_tile, uint simdgroup) {
    threadgroup_barrier(mem_flags::mem_threadgroup); // the tiles that lie there are used up
    for (uint i = 0u; i < 2u; i++) {
        for (uint j = 0u; j < 4u; j++) {
            simdgroup_store(sums.part[i][j], y_tile + (simdgroup * 16u + i * 8u) * TILE_STRIDE + j * 8u, TILE_STRIDE);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Eight of k of a line of x and of one of the weight to their tiles.
inline void put_x8(threadgroup float *x_tile, uint line, uint k, thread const float *v) {
    for (uint i = 0u; i < 8u; i++) {
        x_tile[line * TILE_STRIDE + k + i] = v[i];
    }
}

inline void put_w8(threadgroup float *w_tile, uint line, uint k, thread const float *v) {
    for (uint i = 0u; i < 8u; i++) {
        w_tile[(k + i) * TILE_STRIDE + line] = v[i];
    }
}
