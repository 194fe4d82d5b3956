"""Makes transformers' filtered logits, one step at a time and all in a row.

The logits are drawn; processors and warpers filter them.

``python tools/goldens/sampled_tokens.py`` writes tests/data/generate/sampling.json, ``--check`` makes it again and compares.
Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.generation import logits_process as hf

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "packages" / "lattice-inference" / "tests" / "data" / "generate" / "sampling.json"
VOCABULARY = 320  # more than one selection of the best, and not a multiple of a block

STEPS: dict[str, list[dict[str, float]]] = {
    "temperature": [{"temperature": value} for value in (0.2, 0.7, 1.0, 3.0)],
    "top_k": [{"top_k": value} for value in (1, 3, 50, 319, 320, 1000)],
    "top_p": [{"top_p": value} for value in (0.05, 0.5, 0.9, 0.999)],
    "min_p": [{"min_p": value} for value in (0.01, 0.1, 0.5, 1.0)],
    "typical_p": [{"typical_p": value} for value in (0.2, 0.5, 0.9, 0.99)],
    "repetition_penalty": [{"repetition_penalty": value} for value in (0.5, 1.1, 2.0)],
    "in a row": [
        {"repetition_penalty": 1.1, "temperature": 0.7, "top_k": 50, "top_p": 0.9},
        {"repetition_penalty": 1.3, "temperature": 1.5, "top_k": 40, "typical_p": 0.9, "top_p": 0.95, "min_p": 0.05},
        {"temperature": 0.6, "top_p": 0.95},
        {"temperature": 2.0, "typical_p": 0.8, "min_p": 0.02},
    ],
}


def by_transformers(logits: list[float], prompt: list[int], settings: dict[str, float]) -> list[list[float]]:
    """Return the ids that are left and their probabilities, in our order of the steps."""
    steps: list[Any] = []
    if "repetition_penalty" in settings:
        steps.append(hf.RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]))
    if "temperature" in settings:
        steps.append(hf.TemperatureLogitsWarper(settings["temperature"]))
    if "top_k" in settings:
        steps.append(hf.TopKLogitsWarper(int(settings["top_k"])))
    if "typical_p" in settings:
        steps.append(hf.TypicalLogitsWarper(settings["typical_p"]))
    if "top_p" in settings:
        steps.append(hf.TopPLogitsWarper(settings["top_p"]))
    if "min_p" in settings:
        steps.append(hf.MinPLogitsWarper(settings["min_p"]))
    scores = torch.tensor([logits], dtype=torch.float32).double()
    for step in steps:
        scores = step(torch.tensor([prompt]), scores)
    left = torch.softmax(scores, -1)[0]
    ids = torch.nonzero(left)[:, 0]
    return [ids.tolist(), [round(value, 12) for value in left[ids].tolist()]]


def cases() -> list[dict[str, Any]]:
    rng = np.random.default_rng(7)
    made = []
    for name, many in STEPS.items():
        for index, settings in enumerate(many):
            spread = (1.0, 3.0, 8.0)[index % 3]
            logits = [round(value, 4) for value in rng.normal(0, spread, VOCABULARY).tolist()]
            prompt = rng.integers(0, VOCABULARY, 40).tolist()
            ids, probabilities = by_transformers(logits, prompt, settings)
            made.append(
                {
                    "step": name,
                    "settings": settings,
                    "logits": logits,
                    "prompt": prompt,
                    "ids": ids,
                    "probabilities": probabilities,
                }
            )
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed file instead of writing it")
    made = cases()
    if not parser.parse_args().check:
        content = {
            "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
            "cases": made,
        }
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        TARGET.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
        return 0
    stored = json.loads(TARGET.read_text(encoding="utf-8"))["cases"]
    same = len(stored) == len(made)
    for old, new in zip(stored, made, strict=False):
        same &= all(old[key] == new[key] for key in ("step", "settings", "logits", "prompt", "ids"))
        same &= bool(np.allclose(old["probabilities"], new["probabilities"], atol=1e-9))
    print(f"{len(made)} cases: {'the committed ones' if same else 'DIFFERENT from the committed ones'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
