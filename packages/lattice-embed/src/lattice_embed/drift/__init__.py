"""The drift gate: does this release give the vectors that an earlier one gave?

    from lattice_embed import DriftBaseline, NativeEmbeddingService, check_drift

    with NativeEmbeddingService("all-minilm-l6-v2") as service:
        DriftBaseline.of(service, ["first text", "second text"]).save("minilm.json")  # once
        check_drift(service, DriftBaseline.load("minilm.json")).raise_for_drift()  # at every release

Drift of a corpus, as against that of a model's vectors, is lattice_transport's subject.
"""

from __future__ import annotations

from lattice_embed.drift.baseline import DriftBaseline, DriftBaselineError, DriftTolerance
from lattice_embed.drift.comparison import DriftError, DriftReport, check_drift

__all__ = ["DriftBaseline", "DriftBaselineError", "DriftError", "DriftReport", "DriftTolerance", "check_drift"]
