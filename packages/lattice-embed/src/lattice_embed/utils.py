"""Stable alias of :mod:`lattice_embed.vectors`."""

from lattice_embed.vectors import (
    Metric,
    batch_cosine_similarity,
    cosine_similarity,
    dot_product,
    euclidean_distance,
    manhattan_distance,
    many_vs_many,
    normalize,
    one_vs_many,
    squared_euclidean_distance,
    top_k,
)

__all__ = [
    "Metric",
    "batch_cosine_similarity",
    "cosine_similarity",
    "dot_product",
    "euclidean_distance",
    "manhattan_distance",
    "many_vs_many",
    "normalize",
    "one_vs_many",
    "squared_euclidean_distance",
    "top_k",
]
