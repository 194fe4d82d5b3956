"""Writes a GGUF file of architecture llama with drawn weights, in a real model's shape.

It serves to measure speed without the real model. Its text is noise; its time and memory are the real model's.

    python tools/models/random_llama.py --shape qwen3-0.6b --type Q8_0 qwen3-0.6b-q8_0.gguf

The file has no tokenizer: token ids go in and out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lattice_inference.checkpoint.gguf_writer import TensorToWrite, write_gguf
from lattice_inference.checkpoint.rounding import quantize_rows

__all__ = ["SHAPES", "Shape", "write_random_llama"]

TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16", "F32")
CHUNK = 1 << 22  # elements that are drawn of a matrix; what follows repeats their rows in another order


@dataclass(frozen=True)
class Shape:
    """Sizes of a network, named as in Llama's configuration."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    context: int = 40_960


SHAPES = {
    "qwen3-0.6b": Shape(28, 1024, 16, 8, 128, 3072, 151_936, True),
    "llama-2-7b": Shape(32, 4096, 32, 32, 128, 11_008, 32_000, False, 4096),
    "tiny": Shape(2, 64, 4, 2, 32, 96, 320, True, 512),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, metavar="FILE.gguf")
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3-0.6b", help="(default: qwen3-0.6b)")
    parser.add_argument("--type", choices=TYPES, default="Q8_0", help="type of the matrices (default: Q8_0)")
    options = parser.parse_args(arguments)
    write_random_llama(options.output, SHAPES[options.shape], options.type)
    return 0


def write_random_llama(path: Path, shape: Shape, kind: str) -> None:
    """Write the file; every tensor is drawn from a separate seed."""
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    tensors = [_matrix("token_embd.weight", shape.vocabulary, shape.hidden, kind), _ones("output_norm.weight", shape)]
    if not shape.tied:
        tensors.append(_matrix("output.weight", shape.vocabulary, shape.hidden, kind))
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        tensors += [
            _ones(f"{at}attn_norm.weight", shape),
            _ones(f"{at}ffn_norm.weight", shape),
            _matrix(f"{at}attn_q.weight", wide, shape.hidden, kind),
            _matrix(f"{at}attn_k.weight", narrow, shape.hidden, kind),
            _matrix(f"{at}attn_v.weight", narrow, shape.hidden, kind),
            _matrix(f"{at}attn_output.weight", shape.hidden, wide, kind),
            _matrix(f"{at}ffn_gate.weight", shape.intermediate, shape.hidden, kind),
            _matrix(f"{at}ffn_up.weight", shape.intermediate, shape.hidden, kind),
            _matrix(f"{at}ffn_down.weight", shape.hidden, shape.intermediate, kind),
        ]
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "general.name": "drawn weights",
        "llama.block_count": shape.layers,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.hidden,
        "llama.feed_forward_length": shape.intermediate,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.key_length": shape.head_dim,
        "llama.attention.value_length": shape.head_dim,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.rope.freq_base": 1e6,
        "llama.vocab_size": shape.vocabulary,
        "tokenizer.ggml.model": "no_vocab",
    }
    write_gguf(path, metadata, tensors)


def _matrix(name: str, rows: int, columns: int, kind: str) -> TensorToWrite:
    return TensorToWrite(name, (rows, columns), kind, partial(_drawn, name, rows, columns, kind))


def _drawn(name: str, rows: int, columns: int, kind: str) -> Iterator[bytes]:
    draw = np.random.default_rng(list(name.encode()))
    step = min(max(1, CHUNK // columns), rows)
    values = draw.standard_normal((step, columns), np.float32)
    drawn = quantize_rows(values * np.float32(0.7 / columns**0.5), kind)
    for start in range(0, rows, step):
        yield np.roll(drawn, start // step, axis=0)[: rows - start].tobytes()


def _ones(name: str, shape: Shape) -> TensorToWrite:
    return TensorToWrite(name, (shape.hidden,), "F32", lambda: [np.ones(shape.hidden, np.float32).tobytes()])


if __name__ == "__main__":
    sys.exit(main())
