"""Compares what a service gives now with what is frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lattice_embed.argument_checks import check_kind
from lattice_embed.drift.baseline import DriftBaseline
from lattice_embed.errors import LatticeEmbedError
from lattice_embed.result import Float32Array
from lattice_embed.service import EmbeddingService
from lattice_inference import NUMERICS_VERSION

__all__ = ["DriftError", "DriftReport", "DriftStatus", "check_drift"]

DriftStatus = Literal["ok", "drift", "mismatch"]


class DriftError(LatticeEmbedError, AssertionError):
    """The vectors of this release are not those of the baseline."""


@dataclass(frozen=True)
class DriftReport:
    """The outcome of a comparison.

    Attributes:
        status: ``"ok"``; ``"drift"``: a vector is over a tolerance; ``"mismatch"``: the vectors cannot be compared.
            They come from other weights or another prompt, or have another length.
        reason: the same in words, with the numbers.
        texts: how many texts were compared.
        max_abs_difference: largest difference of a component; ``None`` where vectors have another length.
        max_cosine_distance: largest 1 - cosine of a text's two vectors; ``None`` as above.
        worst_index: the text that it belongs to; ``None`` as above.
        same_bits: whether all vectors are the same bits.
        same_fingerprint: whether the fingerprints are equal. One that differs is a mismatch, unless the release says
            that its numerics changed (``NUMERICS_VERSION``).
    """

    status: DriftStatus
    reason: str
    texts: int
    max_abs_difference: float | None
    max_cosine_distance: float | None
    worst_index: int | None
    same_bits: bool
    same_fingerprint: bool

    @property
    def ok(self) -> bool:
        """Whether the release passes."""
        return self.status == "ok"

    def raise_for_drift(self) -> None:
        """Raise unless the release passes.

        Raises:
            DriftError: with the reason.
        """
        if not self.ok:
            raise DriftError(self.reason)


def check_drift(service: EmbeddingService, baseline: DriftBaseline) -> DriftReport:
    """Embed the texts of a baseline, and compare.

    Args:
        service: what is checked. It must hold the baseline's model, at the baseline's precision and length.
        baseline: what it is checked against.
    """
    check_kind("service", service, EmbeddingService)
    check_kind("baseline", baseline, DriftBaseline)
    results = list(service.embed_batches(baseline.texts, role=baseline.role))
    vectors = np.concatenate([result.vectors for result in results])
    same_fingerprint = results[0].fingerprint == baseline.fingerprint
    numerics_changed = baseline.numerics_version != NUMERICS_VERSION
    if vectors.shape != baseline.vectors.shape:
        reason = f"vectors have {vectors.shape[1]} dimensions, the baseline's {baseline.vectors.shape[1]}"
        return DriftReport("mismatch", reason, len(vectors), None, None, None, False, same_fingerprint)
    difference = float(np.abs(vectors.astype(np.float64) - baseline.vectors).max())
    distances = _cosine_distances(vectors, baseline.vectors)
    worst = int(np.argmax(distances))
    distance = float(distances[worst])
    measured = f"largest difference {difference:.3g}, largest cosine distance {distance:.3g} (text {worst})"
    tolerance = baseline.tolerance
    status: DriftStatus
    if not same_fingerprint and not numerics_changed:
        status = "mismatch"
        reason = (
            "the fingerprint is not the baseline's: other weights, tokenizer, pooling, prompt, precision or length; "
            f"{measured}"
        )
    elif not (difference <= tolerance.max_abs_difference and distance <= tolerance.max_cosine_distance):
        status = "drift"
        reason = f"{measured}; allowed are {tolerance.max_abs_difference:.3g} and {tolerance.max_cosine_distance:.3g}"
    else:
        status = "ok"
        reason = measured
    if numerics_changed:
        reason += f"; the baseline is of numerics version {baseline.numerics_version}, this is {NUMERICS_VERSION}"
    same_bits = vectors.tobytes() == baseline.vectors.tobytes()
    return DriftReport(status, reason, len(vectors), difference, distance, worst, same_bits, same_fingerprint)


def _cosine_distances(a: Float32Array, b: Float32Array) -> npt.NDArray[np.float64]:
    """Return 1 - cosine of the rows, exactly 0 for equal rows.

    It is computed as half the squared distance of the unit vectors. A row of zeros, of NaN or of infinity has no
    direction: its distance is infinite.
    """
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(wide_a, axis=1, keepdims=True), np.linalg.norm(wide_b, axis=1, keepdims=True)
    directed = np.logical_and(*((length > 0) & np.isfinite(length) for length in lengths))[:, 0]
    distances = np.full(len(a), np.inf)
    apart = wide_a[directed] / lengths[0][directed] - wide_b[directed] / lengths[1][directed]
    distances[directed] = 0.5 * (apart**2).sum(axis=1)
    return distances
