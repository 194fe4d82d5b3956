"""A small decoder with recurrent layers and attention, whose weights are drawn, for tests of the state."""

from __future__ import annotations

from typing import Any

import numpy as np

from lattice_inference.generate.decoder_program import DecoderProgram
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import KvSpec, Program
from lattice_inference.graph.recurrent_ops import recurrent_spec
from lattice_inference.state import KvCache

VOCABULARY, WIDTH, KEY_HEADS, VALUE_HEADS, DIM, TAPS = 50, 32, 1, 2, 16, 4


class Tensors(dict[str, Any]):
    def float32(self, name: str) -> Any:
        return self[name]

    def drop_pages(self, name: str) -> None:
        pass


def hybrid(seed: int = 0) -> tuple[Program, Tensors]:
    """Return a program of a recurrent layer, one with attention, and another recurrent layer; and its weights."""
    g, random, tensors = GraphBuilder(), np.random.default_rng(seed), Tensors()

    def drawn(name: str, shape: tuple[int, ...], scale: float = 0.3) -> str:
        tensors[name] = (random.standard_normal(shape) * scale).astype(np.float32)
        return name

    def linear(x: Any, name: str, rows: int) -> Any:
        return g.linear(x, g.weight(drawn(name, (rows, x.width)), (rows, x.width)))

    def recurrent(x: Any, layer: int) -> Any:
        wide = 2 * KEY_HEADS * DIM + VALUE_HEADS * DIM
        conv = g.weight(drawn(f"{layer}.conv", (wide, 1, TAPS)), (wide, 1, TAPS), use="vector")
        mixed = g.silu(g.short_conv(linear(x, f"{layer}.in", wide), conv, layer=layer, taps=TAPS))
        tensors[f"{layer}.decay"] = -np.exp(random.uniform(-4, 1, VALUE_HEADS)).astype(np.float32)
        y = g.gated_delta_rule(
            mixed,
            linear(x, f"{layer}.a", VALUE_HEADS),
            linear(x, f"{layer}.b", VALUE_HEADS),
            dt_bias=g.weight(drawn(f"{layer}.bias", (VALUE_HEADS,)), (VALUE_HEADS,), use="vector"),
            decay=g.weight(f"{layer}.decay", (VALUE_HEADS,), use="vector"),
            layer=layer,
            key_heads=KEY_HEADS,
            value_heads=VALUE_HEADS,
            key_dim=DIM,
            value_dim=DIM,
        )
        return g.add(x, linear(y, f"{layer}.out", WIDTH))

    x = g.embed_rows(
        g.weight(drawn("words", (VOCABULARY, WIDTH), 1.0), (VOCABULARY, WIDTH), use="rows"), ids="token_ids"
    )
    x = recurrent(x, 0)
    query, key, value = (linear(x, name, 16) for name in ("q", "k", "v"))
    g.kv_write(key, value, layer=0, kv_heads=1, head_dim=16)
    seen = g.paged_attention(query, layer=0, heads=1, kv_heads=1, head_dim=16, scale=0.25)
    x = recurrent(g.add(x, linear(seen, "o", WIDTH)), 1)
    logits = linear(g.gather_rows(x), "head", VOCABULARY)
    specs = [spec for op in g._ops if (spec := recurrent_spec(op)) is not None]
    return g.build({"logits": logits}, kv_specs=[KvSpec(0, 1, 16, "float32")], recurrent_specs=specs), tensors


def decoder(backend: Any = "cpu", **options: Any) -> DecoderProgram:
    """Return the program ready to run."""
    program, tensors = hybrid()
    return DecoderProgram(program, tensors, precision="float32", backend=backend, **options)


def cache_of(
    decoder: DecoderProgram, *, tokens: int = 1024, slots: int = 30, page_tokens: int = 16, **options: Any
) -> KvCache:
    """Return a cache for it."""
    storage = decoder.open_state(dtype="float32", page_tokens=page_tokens, pages=tokens // page_tokens, slots=slots)
    return KvCache(storage, **options)
