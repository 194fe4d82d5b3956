"""The figures of lattice-embed's DESIGN.md: rendered from a record, compared with their limits."""

from __future__ import annotations

import design_baselines
from harness.record import describe_run


def test_design_baselines_are_rendered_and_compared_with_their_limits() -> None:
    record = {
        **describe_run("design_baselines"),
        "model": "m",
        "texts": {"cold": [0.4, 0.5, 9.0], "cached": [1e-4, 2e-4, 9.0]},
        "cosine": {str(n): {"Lattice": [1e-7], "NumPy": [6e-7]} for n in design_baselines.DIMENSIONS},
        "import": [0.03, 0.04, 0.9],
    }
    text = design_baselines.render(record)
    for part in (
        "cold, 1 thread (m) | 500 ms",
        "cached | 200 us",
        "over NumPy | 40 ms",
        "cosine, 768 float32 | 100 ns | 600 ns",
    ):
        assert part in text
    assert "cosine, 384" in text
    assert "cosine, 1024" in text
    assert design_baselines.misses(record) == []
    slow = {**record, "texts": {"cold": [1.0], "cached": [1.0]}, "import": [1.0]}
    assert len(design_baselines.misses(slow)) == 2
