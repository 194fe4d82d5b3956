"""Writes a GGUF file of a decoder with drawn weights, in the shape of a real model.

It measures speed where the real one cannot be had. Its text is noise; its time and memory are the real model's.

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
    """Sizes of a network, named as in Llama's configuration.

    Attributes:
        architecture: ``"llama"``; ``"qwen3"``, with norms of heads; ``"qwen3moe"``, which has experts too; ``"qwen35"``, in
            which three of four layers have a gated delta rule.
        experts, chosen, expert_width: of a mixture of experts; each layer is one.
        rule_heads, rule_width: heads of keys and of values of a gated delta rule, and the width of each.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    context: int = 40_960
    architecture: str = "llama"
    experts: int = 0
    chosen: int = 0
    expert_width: int = 0
    rule_heads: int = 0
    rule_width: int = 0

    def has_rule(self, layer: int) -> bool:
        """Whether a layer has a gated delta rule in place of attention."""
        return bool(self.rule_heads and (layer + 1) % 4)


SHAPES = {
    "qwen3-0.6b": Shape(28, 1024, 16, 8, 128, 3072, 151_936, True),
    "qwen3-0.6b-normed": Shape(28, 1024, 16, 8, 128, 3072, 151_936, True, architecture="qwen3"),
    "qwen3-30b-a3b-12-layers": Shape(
        12, 2048, 32, 4, 128, 6144, 151_936, False, architecture="qwen3moe", experts=128, chosen=8, expert_width=768
    ),
    "tiny-moe": Shape(2, 64, 4, 2, 32, 96, 320, False, 512, "qwen3moe", experts=8, chosen=2, expert_width=32),
    "qwen3.5-0.8b": Shape(24, 1024, 8, 2, 256, 3584, 248_320, True, 262_144, "qwen35", rule_heads=16, rule_width=128),
    "tiny-qwen3.5": Shape(4, 64, 4, 2, 32, 96, 320, True, 512, "qwen35", rule_heads=2, rule_width=32),
    "llama-3.2-1b": Shape(16, 2048, 32, 8, 64, 8192, 128_256, True),
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
    tensors = [
        _matrix("token_embd.weight", shape.vocabulary, shape.hidden, kind),
        _ones("output_norm.weight", shape.hidden),
    ]
    if not shape.tied:
        tensors.append(_matrix("output.weight", shape.vocabulary, shape.hidden, kind))
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        is_hybrid = shape.architecture == "qwen35"
        tensors += [
            _ones(f"{at}attn_norm.weight", shape.hidden),
            _ones(f"{at}{'post_attention' if is_hybrid else 'ffn'}_norm.weight", shape.hidden),
        ]
        tensors += _experts(at, shape, kind) if shape.experts else _feed_forward(at, shape, kind)
        if shape.has_rule(layer):
            tensors += _rule(at, shape, kind)
            continue
        tensors += [
            _matrix(f"{at}attn_q.weight", 2 * wide if is_hybrid else wide, shape.hidden, kind),
            _matrix(f"{at}attn_k.weight", narrow, shape.hidden, kind),
            _matrix(f"{at}attn_v.weight", narrow, shape.hidden, kind),
            _matrix(f"{at}attn_output.weight", shape.hidden, wide, kind),
        ]
        if shape.architecture != "llama":
            tensors += [_ones(f"{at}attn_{part}_norm.weight", shape.head_dim) for part in "qk"]
    of_network = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.intermediate,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": shape.head_dim,
        "rope.freq_base": 1e6,
        "vocab_size": shape.vocabulary,
    }
    if shape.experts:
        of_network |= {
            "expert_count": shape.experts,
            "expert_used_count": shape.chosen,
            "expert_feed_forward_length": shape.expert_width,
        }
    if shape.rule_heads:
        of_network |= {
            "rope.dimension_count": shape.head_dim // 4,
            "rope.dimension_sections": [
                shape.head_dim // 8 - 2 * (shape.head_dim // 24),
                *[shape.head_dim // 24] * 2,
                0,
            ],
            "rope.freq_base": 1e7,
            "ssm.conv_kernel": 4,
            "ssm.state_size": shape.rule_width,
            "ssm.group_count": shape.rule_heads,
            "ssm.time_step_rank": shape.rule_heads,
            "ssm.inner_size": shape.rule_heads * shape.rule_width,
            "full_attention_interval": 4,
        }
    metadata: dict[str, object] = {
        "general.architecture": shape.architecture,
        "general.name": "drawn weights",
        **{f"{shape.architecture}.{name}": value for name, value in of_network.items()},
        "tokenizer.ggml.model": "no_vocab",
    }
    write_gguf(path, metadata, tensors)


def _rule(at: str, shape: Shape, kind: str) -> list[TensorToWrite]:
    """Return the tensors of a gated delta rule; decays are from exp(-0.05) to exp(-1) a token."""
    heads, inner = shape.rule_heads, shape.rule_heads * shape.rule_width
    decay = np.linspace(-0.07, -1.4, heads, dtype=np.float32)
    return [
        _matrix(f"{at}attn_qkv.weight", 3 * inner, shape.hidden, kind),
        _matrix(f"{at}attn_gate.weight", inner, shape.hidden, kind),
        _matrix(f"{at}ssm_alpha.weight", heads, shape.hidden, kind),
        _matrix(f"{at}ssm_beta.weight", heads, shape.hidden, kind),
        _matrix(f"{at}ssm_out.weight", shape.hidden, inner, kind),
        _matrix(f"{at}ssm_conv1d.weight", 3 * inner, 4, "F32"),
        TensorToWrite(f"{at}ssm_a", (heads,), "F32", lambda: [decay.tobytes()]),
        TensorToWrite(f"{at}ssm_dt.bias", (heads,), "F32", lambda: [np.zeros(heads, np.float32).tobytes()]),
        _ones(f"{at}ssm_norm.weight", shape.rule_width),
    ]


def _feed_forward(at: str, shape: Shape, kind: str) -> list[TensorToWrite]:
    return [
        _matrix(f"{at}ffn_gate.weight", shape.intermediate, shape.hidden, kind),
        _matrix(f"{at}ffn_up.weight", shape.intermediate, shape.hidden, kind),
        _matrix(f"{at}ffn_down.weight", shape.hidden, shape.intermediate, kind),
    ]


def _experts(at: str, shape: Shape, kind: str) -> list[TensorToWrite]:
    """Return a router, which files keep in F32, and the stacks of experts."""
    count, width = shape.experts, shape.expert_width
    return [
        _matrix(f"{at}ffn_gate_inp.weight", count, shape.hidden, "F32"),
        _matrix(f"{at}ffn_gate_exps.weight", width, shape.hidden, kind, count),
        _matrix(f"{at}ffn_up_exps.weight", width, shape.hidden, kind, count),
        _matrix(f"{at}ffn_down_exps.weight", shape.hidden, width, kind, count),
    ]


def _matrix(name: str, rows: int, columns: int, kind: str, count: int = 0) -> TensorToWrite:
    """Return a matrix, or a stack of ``count`` of them."""
    shape = (count, rows, columns) if count else (rows, columns)
    return TensorToWrite(name, shape, kind, partial(_drawn, name, max(count, 1) * rows, columns, kind))


def _drawn(name: str, rows: int, columns: int, kind: str) -> Iterator[bytes]:
    draw = np.random.default_rng(list(name.encode()))
    step = min(max(1, CHUNK // columns), rows)
    values = draw.standard_normal((step, columns), np.float32)
    drawn = quantize_rows(values * np.float32(0.7 / columns**0.5), kind)
    for start in range(0, rows, step):
        yield np.roll(drawn, start // step, axis=0)[: rows - start].tobytes()


def _ones(name: str, width: int) -> TensorToWrite:
    return TensorToWrite(name, (width,), "F32", lambda: [np.ones(width, np.float32).tobytes()])


if __name__ == "__main__":
    sys.exit(main())
