"""Vector operations: similarities, distances, normalizing, nearest rows.

In float32 and at lower precisions. Vectors are 1-D, matrices hold one vector a row. C-contiguous float32 arrays are
read in place. Lists and other real dtypes are converted. Masked values, sparse matrices, complex numbers and numbers
beyond float32 are refused. Scores are float32 values.

Results for pairs and for one vector against many are bit-identical on every CPU with fused multiply-add (AVX2,
AVX-512, NEON). ``one_vs_many(q, M)[i]`` is bit-identical to the pair operation on ``q`` and ``M[i]``.
``many_vs_many`` agrees with them to rounding (1e-6 for unit vectors). NaN or infinity in the input is not an
error: NaN comes out where it went in.

:func:`quantize` stores vectors as bfloat16, float16, int8, int4 or bits; the matrices it gives are taken wherever a float32
matrix is. Integers have no NaN: it is refused there.

Every function may be called from several threads at once; large work is done without the GIL.
"""

from __future__ import annotations

from lattice_embed.vectors._vectors import (
    cosine_similarity,
    cosine_similarity_i8,
    dot_product,
    dot_product_i8_raw,
    euclidean_distance,
    hamming_distance_binary,
    manhattan_distance,
    squared_euclidean_distance,
)
from lattice_embed.vectors.binary_matrix import BinaryMatrix, BinaryVector
from lattice_embed.vectors.half_matrix import BFloat16Matrix, Float16Matrix, HalfMatrix
from lattice_embed.vectors.int4_matrix import Int4Matrix, Int4Vector
from lattice_embed.vectors.int8_calibration import Int8Calibration
from lattice_embed.vectors.int8_matrix import Int8Matrix, QuantizedVector
from lattice_embed.vectors.metric import Metric
from lattice_embed.vectors.nearest import TopK, search, top_k
from lattice_embed.vectors.normalizing import normalize
from lattice_embed.vectors.quantizing import quantize
from lattice_embed.vectors.scores import batch_cosine_similarity, many_vs_many, one_vs_many
from lattice_embed.vectors.stored_matrix import StoredMatrix, StoredVector
from lattice_embed.vectors.stored_pairs import dot_product_i8, dot_product_int4
from lattice_embed.vectors.tier import QuantizationTier

__all__ = [
    "BFloat16Matrix",
    "BinaryMatrix",
    "BinaryVector",
    "Float16Matrix",
    "HalfMatrix",
    "Int4Matrix",
    "Int4Vector",
    "Int8Calibration",
    "Int8Matrix",
    "Metric",
    "QuantizationTier",
    "QuantizedVector",
    "StoredMatrix",
    "StoredVector",
    "TopK",
    "batch_cosine_similarity",
    "cosine_similarity",
    "cosine_similarity_i8",
    "dot_product",
    "dot_product_i8",
    "dot_product_i8_raw",
    "dot_product_int4",
    "euclidean_distance",
    "hamming_distance_binary",
    "manhattan_distance",
    "many_vs_many",
    "normalize",
    "one_vs_many",
    "quantize",
    "search",
    "squared_euclidean_distance",
    "top_k",
]
