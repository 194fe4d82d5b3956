"""Test whether today's texts are still like those that a system was built for.

    python examples/watch_drift.py texts-of-last-year.txt texts-of-today.txt

Both files have one text on each line. Exit status: 0 stable, 1 watch or reindex. The test is calibrated: for texts of
the same distribution, one test in twenty reports drift (``--false-alarm-rate``).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from lattice_embed import NativeEmbeddingService
from lattice_transport import VectorSet, detect_drift


def vectors_of(path: Path, service: NativeEmbeddingService) -> VectorSet:
    """Return the vectors of a file's lines, with the lines as their ids."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return VectorSet(np.asarray(service.encode(lines)), ids=lines)


def main() -> int:
    """Read the command line, print the verdict and return the exit status."""
    parser = argparse.ArgumentParser(description="Tell whether texts have drifted.")
    parser.add_argument("reference", type=Path)
    parser.add_argument("current", type=Path)
    parser.add_argument("--model", default="all-minilm-l6-v2")
    parser.add_argument("--false-alarm-rate", type=float, default=0.05)
    arguments = parser.parse_args()
    with NativeEmbeddingService(arguments.model) as service:
        reference, current = (vectors_of(path, service) for path in (arguments.reference, arguments.current))
    report = detect_drift(reference, current, false_alarm_rate=arguments.false_alarm_rate)
    print(f"{report.verdict.decision}: p = {report.p_value:.3f}, effect = {report.effect_size:.2f}")
    for reason in report.verdict.reasons:
        print(f"  {reason}")
    return 0 if report.verdict.decision == "stable" else 1


if __name__ == "__main__":
    sys.exit(main())
