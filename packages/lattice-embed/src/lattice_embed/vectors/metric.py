"""The names of metrics, and their numbers in the kernels."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from lattice_embed.errors import InvalidInputError
from lattice_embed.vectors import _vectors
from lattice_embed.vectors.tier import QuantizationTier

__all__ = ["CODES", "FLOAT_METRICS", "NAMES", "Metric", "code_of"]

Metric = Literal["cosine", "dot", "euclidean", "sqeuclidean", "manhattan", "hamming"]
"""What is measured: ``"cosine"`` and ``"dot"`` are similarities, the others distances. Vectors in float32, bfloat16 and
float16 have all but ``"hamming"``; int8 and int4 have neither that nor ``"manhattan"``; binary ones have ``"hamming"``, the
number of differing bits, and ``"cosine"``, 1 - 2 differing / dimensions."""

FLOAT_METRICS = ("cosine", "dot", "euclidean", "sqeuclidean", "manhattan")

CODES: dict[str, int] = {
    "cosine": _vectors.COSINE,
    "dot": _vectors.DOT,
    "euclidean": _vectors.EUCLIDEAN,
    "sqeuclidean": _vectors.SQUARED_EUCLIDEAN,
    "manhattan": _vectors.MANHATTAN,
    "hamming": _vectors.HAMMING,
}

NAMES = {code: name for name, code in CODES.items()}


def code_of(metric: str, known: Collection[str] = FLOAT_METRICS, tier: QuantizationTier | None = None) -> int:
    """Return the kernels' number of a metric of float vectors, or of those of a tier.

    Raises:
        InvalidInputError: it is not among ``known``.
    """
    if not isinstance(metric, str) or metric not in known:
        what = "float" if tier is None else tier.value
        names = ", ".join(map(repr, known))
        raise InvalidInputError(f"metric is {metric!r}; for {what} vectors it must be one of {names}")
    return CODES[metric]
