"""Makes the tokens that llama.cpp generates from small Qwen3 models, dense and of experts.

The models have drawn weights.

The directories are those of qwen3_files.py and qwen3_moe_files.py in packages/lattice-inference/tests/models. gguf-py
writes them as F32 files (qwen3_gguf.py). Writes tests/data/qwen3/llama_cpp.json: the ids of a prompt, and the twenty most
likely ids after it. Seeds are those whose two largest probabilities differ clearly at every step. ``--check`` compares.
Needs xllamacpp, which is llama.cpp for Python, gguf and safetensors.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "packages" / "lattice-inference" / "tests"
TARGET = TESTS / "data" / "qwen3" / "llama_cpp.json"
TOKENS = 20
PROMPT = 12
#: What the logarithms of the two largest probabilities differ by at least.
MARGIN = 1e-3
SEEDS = 20

sys.path.insert(0, str(TESTS / "models"))
import qwen3_files as files  # noqa: E402
import qwen3_moe_files as moe_files  # noqa: E402
from drawn_checkpoints import draw_ids  # noqa: E402
from qwen3_gguf import write_gguf_py  # noqa: E402


def directory(name: str, seed: str, folder: Path) -> Path:
    """Write the directory of a case."""
    if name == "dense":
        content = files.reranker_files(files.small_tokenizer(ends=False))
        return files.write(folder / f"{name}-{seed}", content, seed=seed)
    changes = moe_files.CASES["moe"] | {"vocab_size": files.SMALL_VOCAB}
    return moe_files.write(folder / f"{name}-{seed}", changes, seed=seed)


def name_bytes(directory: Path) -> Path:
    """Give the bytes that are no characters names.

    llama.cpp's server keeps tokens back that end within a character.
    """
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {
        f"byte{number}" if 128 <= number < 256 else token: number for token, number in vocabulary.items()
    }
    path.write_text(json.dumps(content))
    return directory


def generated(path: Path, prompt: list[int]) -> tuple[list[int], float]:
    """Return the most likely tokens after ``prompt``, and the least margin."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_gpu_layers, params.warmup, params.n_parallel = 256, 0, False, 1
    params.cpuparams.n_threads = 1
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    tokens: list[int] = []
    margin = math.inf
    for _ in range(TOKENS):  # one at a time: the server's answer joins tokens that are one character together
        request = {"prompt": prompt + tokens, "max_tokens": 1, "temperature": 0.0, "ignore_eos": True, "n_probs": 2}
        answer: dict[str, Any] = server.handle_completions(request | {"cache_prompt": False})
        (step,) = answer["choices"][0]["logprobs"]["content"]
        first, second = step["top_logprobs"]
        margin = min(margin, first["logprob"] - second["logprob"])
        tokens.append(first["id"])
    return tokens, margin


def case(name: str, folder: Path) -> dict[str, Any]:
    """Return the first seed whose margins are clear, with its tokens."""
    for number in range(SEEDS):
        seed = f"llama.cpp {number}"
        path = write_gguf_py(folder / f"{name}-{number}.gguf", name_bytes(directory(name, seed, folder)))
        prompt = draw_ids(seed, PROMPT, 256)
        tokens, margin = generated(path, prompt)
        if margin >= MARGIN:
            return {"seed": seed, "prompt": prompt, "tokens": tokens, "margin": round(margin, 4)}
    raise AssertionError(f"no seed of {SEEDS} has clear margins")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    arguments = parser.parse_args()
    import xllamacpp

    with tempfile.TemporaryDirectory() as name:
        cases = {kind: case(kind, Path(name)) for kind in ("dense", "experts")}
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
