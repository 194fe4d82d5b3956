"""Qwen3 in GGUF files as llama.cpp's own converter writes them: its headers are stored, and tensors are drawn again.

``tools/goldens/qwen3_converter.py`` has the converter write a file of each case. A header is what lies before the first
tensor: keys, names, types and places. A file that is made of it has the digest of the converter's file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

import qwen3_files
import qwen3_moe_files
from qwen3_gguf import stacked

__all__ = ["CONVERTED", "OPTIONS", "directory_of", "write_converted"]

FOLDER = Path(__file__).parents[1] / "data" / "qwen3"
#: What the converter is given beside a directory; those of Q8_0 have rows of whole blocks.
OPTIONS: dict[str, dict[str, object]] = {
    "tied": {},
    "moe": {},
    "moe-fused": {},
    "embedder": {},
    "qwen3-reranker": {},
    "tied-q8_0": {"ftype": "MOSTLY_Q8_0"},
    "moe-q8_0": {"ftype": "MOSTLY_Q8_0"},
}
CONVERTED = list(OPTIONS)
_WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}


def directory_of(name: str, folder: Path) -> Path:
    """Write the directory that the converter reads."""
    wide = _WIDE if name.endswith("q8_0") else {}
    if name.startswith("moe"):
        spelling: qwen3_moe_files.Spelling = "fused" if name == "moe-fused" else "single"
        width = {"moe_intermediate_size": 32} if wide else {}
        return qwen3_moe_files.write(folder / name, qwen3_moe_files.CASES["moe"] | wide | width, spelling=spelling)
    if name == "embedder":
        return qwen3_files.write(folder / name, qwen3_files.embedding_files(), prefix="")
    content = qwen3_files.reranker_files(qwen3_files.small_tokenizer(ends=False))
    if name.startswith("tied"):
        content["config.json"] |= {"vocab_size": 64, **wide}
    return qwen3_files.write(folder / name, content)


def write_converted(path: Path, name: str, directory: Path) -> Path:
    """Write the converter's file of a case; ``directory`` has one tensor for each matrix of experts."""
    stored = json.loads((FOLDER / "converted.json").read_text())["files"][name]
    with np.load(FOLDER / "converted.npz") as headers:
        header = headers[name].tobytes()
    path.write_bytes(header + bytes(stored["bytes"] - len(header)))
    reader = gguf.GGUFReader(path, "r+")
    tensors = _named(directory, reader)
    for tensor in reader.tensors:
        array = tensors[tensor.name]
        if tensor.tensor_type is gguf.GGMLQuantizationType.F32:
            tensor.data[...] = array
        else:
            tensor.data[...] = gguf.quants.quantize(array, tensor.tensor_type)
    reader.data.flush()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == stored["sha256"], name
    return path


def _named(directory: Path, reader: gguf.GGUFReader) -> dict[str, np.ndarray]:
    """Return the tensors of a directory by llama.cpp's names."""
    config = json.loads((directory / "config.json").read_text())
    is_mixture = config["model_type"] == "qwen3_moe"
    architecture = gguf.MODEL_ARCH.QWEN3MOE if is_mixture else gguf.MODEL_ARCH.QWEN3
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    tensors = {}
    for name, array in stacked(load_file(directory / "model.safetensors"), joined=False).items():
        known = names.get_name(name, (".weight",)) or names.get_name(f"model.{name}", (".weight",))
        assert known is not None, name
        tensors[known] = array
    if any(tensor.name == "cls.output.weight" for tensor in reader.tensors):
        vocabulary = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
        tensors["cls.output.weight"] = tensors["token_embd.weight"][[vocabulary["yes"], vocabulary["no"]]]
    return tensors
