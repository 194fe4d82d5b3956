"""Makes the tokens that llama.cpp generates from small Qwen3.5 models, dense and of experts.

The models have drawn weights. The directories are those of qwen35_files.py in packages/lattice-inference/tests/models.
gguf-py writes them as F32 files (qwen35_gguf.py). Writes tests/data/qwen35/llama_cpp.json: the ids of a prompt, and the
twenty most likely ids after it. Seeds are those whose two largest probabilities differ clearly at every step.
``--check`` compares. Needs xllamacpp, which is llama.cpp for Python, gguf and safetensors.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from qwen3_llama_cpp import MARGIN, PROMPT, SEEDS, TESTS, generated, name_bytes

TARGET = TESTS / "data" / "qwen35" / "llama_cpp.json"

import qwen35_files as files  # noqa: E402  qwen3_llama_cpp made it visible
from drawn_checkpoints import draw_ids  # noqa: E402
from qwen35_gguf import write_gguf_py  # noqa: E402


def case(name: str, folder: Path) -> dict[str, Any]:
    """Return the first seed whose margins are clear, with its tokens."""
    changes = files.changes_for_llama_cpp(name)
    for number in range(SEEDS):
        seed = f"llama.cpp {number}"
        directory = files.write(folder / f"{name}-{number}", changes, seed=seed)
        path = write_gguf_py(folder / f"{name}-{number}.gguf", name_bytes(directory))
        prompt = draw_ids(seed, PROMPT, 256)
        tokens, margin = generated(path, prompt)
        if margin >= MARGIN and len(set(tokens)) > len(tokens) // 2:
            return {"seed": seed, "prompt": prompt, "tokens": tokens, "margin": round(margin, 4)}
    raise AssertionError(f"no seed of {SEEDS} has clear margins")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    arguments = parser.parse_args()
    import xllamacpp

    with tempfile.TemporaryDirectory() as name:
        cases = {kind: case(kind, Path(name)) for kind in ("double", "triple", "experts", "next")}
    if arguments.check:
        old = json.loads(TARGET.read_text())["cases"]
        assert {kind: found["tokens"] for kind, found in old.items()} == {
            kind: found["tokens"] for kind, found in cases.items()
        }
        return
    content = {"made_with": {"xllamacpp": xllamacpp.__version__}, "cases": cases}
    TARGET.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
