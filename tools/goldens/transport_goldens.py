"""Makes tests/data/pot_goldens.npz of lattice-transport: problems and POT's solutions.

Run it with the versions below: ``python tools/goldens/transport_goldens.py``. The default tests compare with the file,
so that they need no POT.
"""

from __future__ import annotations

import json
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

VERSIONS = {"POT": "0.9.7.post1", "numpy": "2.4.6", "scipy": "1.17.1"}
TARGET = Path(__file__).resolve().parents[2] / "packages/lattice-transport/tests/data/pot_goldens.npz"


def main() -> None:
    found = {name: version(name) for name in VERSIONS}
    if found != VERSIONS:
        raise SystemExit(f"these goldens are made with {VERSIONS}, not {found}")
    warnings.simplefilter("ignore")
    import ot

    random = np.random.default_rng(20_261_128)
    arrays: dict[str, np.ndarray] = {}
    cases = []
    for index, (n, m, epsilon) in enumerate(((7, 5, 1.0), (20, 17, 0.1), (25, 30, 0.01), (12, 12, 1e-3))):
        x, y = random.random((n, 3)), random.random((m, 3))
        cost = ((x[:, None] - y[None]) ** 2).sum(-1)
        cost /= cost.max()
        a, b = random.random(n) + 0.05, random.random(m) + 0.05
        a, b = a / a.sum(), b / b.sum()
        plan = ot.sinkhorn(a, b, cost, epsilon, method="sinkhorn_log", numItermax=200_000, stopThr=1e-12)
        case: dict[str, Any] = {"index": index, "epsilon": epsilon, "kinds": ["balanced", "exact"]}
        arrays |= {f"{index}_a": a, f"{index}_b": b, f"{index}_cost": cost, f"{index}_balanced": plan}
        arrays[f"{index}_exact"] = np.array(ot.emd2(a, b, cost))
        if epsilon >= 0.01:
            arrays[f"{index}_unbalanced"] = ot.unbalanced.sinkhorn_unbalanced(
                1.5 * a, b, cost, epsilon, [0.5, 0.8], reg_type="entropy", numItermax=200_000, stopThr=1e-14
            )
            case["kinds"].append("unbalanced")
        cases.append(case)
    grid = np.linspace(0, 1, 40)
    measures = np.stack([np.exp(-(((grid - c) / w) ** 2)) for c, w in ((0.3, 0.08), (0.7, 0.12))])
    measures /= measures.sum(1, keepdims=True)
    cost = (grid[:, None] - grid[None]) ** 2
    arrays |= {"barycenter_measures": measures, "barycenter_cost": cost}
    arrays["barycenter"] = ot.bregman.barycenter(
        measures.T, cost, 0.005, weights=np.array([0.4, 0.6]), method="sinkhorn_log", numItermax=20_000, stopThr=1e-13
    )
    arrays["about"] = np.frombuffer(json.dumps({"versions": VERSIONS, "cases": cases}).encode(), np.uint8)
    TARGET.parent.mkdir(exist_ok=True)
    np.savez_compressed(TARGET, allow_pickle=False, **arrays)
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
