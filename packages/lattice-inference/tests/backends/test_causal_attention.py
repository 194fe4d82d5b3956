"""Causal attention over packed rows: against the float64 reference, and bit for bit against attention over pages."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from lattice_inference.backends import reference
from lattice_inference.backends.cpu import CpuBackend
from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder

from .bodies import BODIES
from .programs import Tensors, batch_of, one_op
from .test_paged_ops import FMA_ISAS, ISAS, SHAPES, paged_program

Int32 = np.int32


def drawn(rng, rows, *, heads, kv_heads, head_dim):
    return {
        "q": rng.standard_normal((rows, heads * head_dim)).astype(np.float32) * 2,
        "k": rng.standard_normal((rows, kv_heads * head_dim)).astype(np.float32) * 2,
        "v": rng.standard_normal((rows, kv_heads * head_dim)).astype(np.float32),
    }


def packed_program(inputs, *, heads, kv_heads, head_dim, window=0):
    return one_op(
        inputs,
        lambda g, v: g.attention(
            v["q"],
            v["k"],
            v["v"],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            mask="causal",
            window=window,
        ),
    )[0]


def run_packed(program, inputs, batch, *, body=None, **backend):
    opened = CpuBackend(**backend) if body is None else body.backend()
    return opened.compile(program, Tensors(inputs)).run(batch)["y"]


def run_paged(inputs, lengths, sizes, window, cuts, isa=None):
    """The same rows over pages of float32, in steps of each sequence's rows ``cuts[i]`` to ``cuts[i + 1]``."""
    program = paged_program(inputs, **sizes, window=window)
    backend = CpuBackend(isa=isa)
    specs = [dataclasses.replace(spec, dtype="float32") for spec in program.kv_specs]
    pages = sum(-(-length // 16) for length in lengths)
    state = backend.open_state(specs, page_tokens=16, pages=pages)
    ready = backend.compile(program, Tensors(inputs))
    result, first, page = np.empty_like(inputs["q"]), 0, 0
    for length in lengths:
        table = np.arange(page, page + -(-length // 16), dtype=Int32)
        for begin, end in itertools.pairwise([*(cut for cut in cuts if cut < length), length]):
            batch = Batch(
                np.arange(first + begin, first + end, dtype=Int32),
                np.array([0, end - begin], Int32),
                context_lengths=np.array([begin], Int32),
                block_table=(table,),
            )
            result[first + begin : first + end] = ready.run(batch, state=state)["y"]
        first, page = first + length, page + len(table)
    return result


@pytest.mark.parametrize("body", BODIES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_against_the_reference(body, heads, kv_heads, head_dim):
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    lengths = [1, 2, 15, 16, 17, 49, 100, 130]
    inputs = drawn(np.random.default_rng(head_dim), sum(lengths), **sizes)
    batch = batch_of(lengths)
    for window in (0, 1, 20):
        program = packed_program(inputs, **sizes, window=window)
        want = reference.run(program, inputs, batch)["y"]
        assert np.abs(run_packed(program, inputs, batch, body=body) - want).max() <= 1e-5, window


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [0, 1, 7, 100, 511, 512, 600])
def test_over_several_segments_of_keys_as_over_pages_of_float32(isa, window):
    """Whatever the steps are that fill the pages, the bits are those of packed rows, and the reference's values."""
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 20}
    lengths = [1100, 3, 520]
    inputs = drawn(np.random.default_rng(window), sum(lengths), **sizes)
    inputs["k"][:512] *= 2  # the running maximum moves between segments
    program = packed_program(inputs, **sizes, window=window)
    got = run_packed(program, inputs, batch_of(lengths), isa=isa)
    for cuts in ([0], [0, 1, 2, 5, 500, 513, 1024, 1099]):
        assert got.tobytes() == run_paged(inputs, lengths, sizes, window, cuts, isa).tobytes()
    assert np.abs(got - reference.run(program, inputs, batch_of(lengths))["y"]).max() <= 1e-5


def test_company_threads_and_cuts_show_in_no_bit():
    sizes = {"heads": 6, "kv_heads": 2, "head_dim": 24}
    lengths = [700, 1, 30, 129]
    inputs = drawn(np.random.default_rng(3), sum(lengths), **sizes)
    program = packed_program(inputs, **sizes, window=90)
    whole = run_packed(program, inputs, batch_of(lengths))
    for options in (
        {"threads": 1},
        {"fused": False},
        {"tile_sizes": {"query_block_rows": 16}},
        {"tile_sizes": {"query_block_rows": 1000}},
    ):
        assert run_packed(program, inputs, batch_of(lengths), **options).tobytes() == whole.tobytes(), options
    ready = CpuBackend().compile(program, Tensors(inputs))
    for first, end in itertools.pairwise(np.cumsum([0, *lengths])):
        alone = Batch(np.arange(first, end, dtype=Int32), np.array([0, end - first], Int32))
        assert ready.run(alone)["y"].tobytes() == whole[first:end].tobytes()
    for isa in FMA_ISAS:
        assert run_packed(program, inputs, batch_of(lengths), isa=isa).tobytes() == whole.tobytes(), isa


def test_a_row_does_not_see_what_comes_after_it():
    """NaN in later keys and values of the sequence, and in all of another one, reaches no row before."""
    sizes = {"heads": 2, "kv_heads": 1, "head_dim": 16}
    inputs = drawn(np.random.default_rng(5), 60, **sizes)
    program = packed_program(inputs, **sizes)
    g = GraphBuilder()
    views = {
        name: g.embed_rows(g.weight(name, array.shape, use="rows"), ids="token_ids") for name, array in inputs.items()
    }
    context = g.attention(
        **dict(zip(("query", "key", "value"), views.values(), strict=True)), scale=0.25, mask="causal", **sizes
    )
    last = g.build({"y": g.pool(context, mode="cls")})  # rows 0 and 20 of two sequences
    want = run_packed(program, inputs, batch_of([20, 40]))[[0, 20]]
    for name in ("k", "v"):
        inputs[name][1:20] = np.nan
        inputs[name][21:] = np.nan
    got = CpuBackend().compile(last, Tensors(inputs)).run(batch_of([20, 40]))["y"]
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize(("mask", "window"), [("bidirectional", 3), ("causal", -1), ("forward", 0)])
def test_other_masks_are_refused(mask, window):
    inputs = drawn(np.random.default_rng(0), 4, heads=1, kv_heads=1, head_dim=4)
    with pytest.raises(InvalidInputError, match=r"mask|window"):
        one_op(
            inputs,
            lambda g, v: g.attention(
                v["q"], v["k"], v["v"], heads=1, kv_heads=1, head_dim=4, scale=1.0, mask=mask, window=window
            ),
        )


@pytest.mark.parametrize("body", BODIES, ids=str)
@pytest.mark.parametrize(("heads", "width"), [(1, 33), (2, 16), (3, 20), (16, 128), (5, 7)])
@pytest.mark.parametrize("offset", [0, 1])
def test_norms_of_heads(body, heads, width, offset):
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((19, heads * width)) * 3 + 1).astype(np.float32)
    x[4] = 0.0
    weight = rng.standard_normal(width).astype(np.float32)
    program, tensors = one_op(
        {"x": x},
        lambda g, v: g.rms_norm(
            v["x"], g.weight("w", (width,), use="vector"), epsilon=1e-6, heads=heads, offset=offset
        ),
    )
    tensors["w"] = weight
    got = run_packed(program, tensors, batch_of([19]), body=body)
    want = reference.run(program, tensors, batch_of([19]))["y"]
    assert (np.abs(got - want) <= 8 * np.finfo(np.float32).eps * (np.abs(want) + 1e-6)).all()
    # a head is a row for itself, to the bit
    one, tensors = one_op(
        {"x": np.ascontiguousarray(x.reshape(-1, width))},
        lambda g, v: g.rms_norm(v["x"], g.weight("w", (width,), use="vector"), epsilon=1e-6, offset=offset),
    )
    tensors["w"] = weight
    alone = run_packed(one, tensors, batch_of([19 * heads]), body=body)
    assert alone.tobytes() == got.tobytes()


@pytest.mark.parametrize(("heads", "offset"), [(0, 0), (3, 0), (2, 2)])
def test_heads_that_do_not_fit_are_refused(heads, offset):
    with pytest.raises(InvalidInputError, match=r"heads|offset|entries"):
        one_op(
            {"x": np.zeros((2, 16), np.float32)},
            lambda g, v: g.rms_norm(
                v["x"], g.weight("w", (8,), use="vector"), epsilon=1e-6, heads=heads, offset=offset
            ),
        )
