"""Makes what model2vec gives for the static models of the tests.

``python tools/goldens/static.py`` writes tests/data/static/vectors.npz, ``--check`` makes it again and compares that, and
what lattice_inference gives. Needs model2vec.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "packages" / "lattice-inference" / "tests"
sys.path.insert(0, str(TESTS / "models"))
from static_models import CASES, TEXTS, write_static  # noqa: E402

TARGET = TESTS / "data" / "static" / "vectors.npz"
ORACLE_LIMIT = 1e-7
LIMIT = 1e-6
FLOAT16_LIMIT = 1e-3  # model2vec rounds the vectors of such models to float16


def main() -> int:
    from model2vec import StaticModel

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed file instead of writing it")
    check = parser.parse_args().check
    made: dict[str, npt.NDArray[Any]] = {}
    apart = {}
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            directory = write_static(Path(folder), name)
            made[name] = StaticModel.from_pretrained(directory).encode(TEXTS).astype(np.float32)
            if check:
                import lattice_inference

                with lattice_inference.load_encoder(directory) as encoder:
                    apart[name] = float(np.abs(encoder.encode(TEXTS).vectors - made[name]).max())
    if not check:
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(TARGET, **made)  # type: ignore[arg-type]
        return 0
    stored = dict(np.load(TARGET))
    drift = (
        max(float(np.abs(stored[name] - made[name]).max()) for name in CASES)
        if stored.keys() == made.keys()
        else np.inf
    )
    print(
        f"the committed file: {drift:.2e} apart; ours: {', '.join(f'{name} {far:.2e}' for name, far in apart.items())}"
    )
    ours = all(far <= (FLOAT16_LIMIT if name == "float16" else LIMIT) for name, far in apart.items())
    return 0 if drift <= ORACLE_LIMIT and ours else 1


if __name__ == "__main__":
    sys.exit(main())
