"""The ops short_conv and gated_delta_rule: near float64, the bits of their definition, in any chunks and company."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.backends.gpu.lowering import check_ops
from lattice_inference.backends.reference_backend import ReferenceBackend
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import KvSpec, RecurrentSpec
from lattice_inference.graph.recurrent_ops import DELTA_BLOCK, MOST_TAPS, recurrent_spec

from .programs import EMULATED, Tensors

ISAS = _cpu.available_isas()
ROWS = 190
CASES = [
    ((1, 1, 8, 8, 2), "blocks"),
    ((2, 4, 8, 16, 4), "blocks"),
    ((2, 4, 8, 16, 4), "interleaved"),
    ((1, 3, 16, 8, 2), "blocks"),
    ((2, 2, 24, 40, 4), "blocks"),
    pytest.param((1, 2, 128, 128, 4), "blocks", marks=pytest.mark.slow),
    pytest.param((3, 6, 33, 17, 16), "interleaved", marks=pytest.mark.slow),
]


@pytest.fixture
def threads():
    before = _cpu.get_num_threads()
    yield _cpu.set_num_threads
    _cpu.set_num_threads(before)


def drawn(sizes, *, seed=0, decays=(-5.0, 3.0), grouping="blocks", with_conv=True):
    """A program of both ops over rows that are looked up by token id, and its tensors."""
    key_heads, value_heads, key_dim, value_dim, taps = sizes
    g, rng = GraphBuilder(), np.random.default_rng(seed)
    width = 2 * key_heads * key_dim + value_heads * value_dim
    tensors = {
        "x": rng.standard_normal((ROWS, width)),
        "a": rng.standard_normal((ROWS, value_heads)),
        "b": rng.standard_normal((ROWS, value_heads)),
        "conv": rng.standard_normal((width, taps)),
        "bias": rng.standard_normal(value_heads),
        "decay": -np.exp(rng.uniform(*decays, value_heads)),
    }
    tensors = {name: array.astype(np.float32) for name, array in tensors.items()}
    rows = {
        name: g.embed_rows(g.weight(name, tensors[name].shape, use="rows"), ids="token_ids") for name in ("x", "a", "b")
    }
    x = rows["x"]
    if with_conv:
        x = g.silu(g.short_conv(x, g.weight("conv", (width, taps), use="vector"), layer=0, taps=taps))
    vectors = {name: g.weight(name, (value_heads,), use="vector") for name in ("bias", "decay")}
    y = g.gated_delta_rule(
        x,
        rows["a"],
        rows["b"],
        dt_bias=vectors["bias"],
        decay=vectors["decay"],
        layer=0,
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        grouping=grouping,
    )
    specs = [spec for op in g._ops if (spec := recurrent_spec(op)) is not None]
    return g.build({"y": y, "x": x}, recurrent_specs=specs), tensors


def run(backend, program, tensors, cuts, ids):
    """The rows of a sequence of ``ids`` that is run in pieces between ``cuts``."""
    ready = backend.compile(program, Tensors(tensors))
    state = backend.open_state([], page_tokens=16, pages=1, recurrent_specs=program.recurrent_specs, slots=2)
    slots, parts = [0, 1], []
    for first, end in pairwise(cuts):
        batch = Batch(
            ids[first:end],
            np.array([0, end - first], np.int32),
            context_lengths=np.array([first], np.int32),
            read_slots=np.array(slots[:1], np.int32),
            write_slots=np.array(slots[1:], np.int32),
        )
        parts.append(ready.run(batch, state=state)["y"])
        if end // DELTA_BLOCK != first // DELTA_BLOCK:
            slots.reverse()
    return np.concatenate(parts)


def test_python_and_c_have_the_same_block():
    assert (_cpu.DELTA_BLOCK, _cpu.MOST_TAPS) == (DELTA_BLOCK, MOST_TAPS)


@pytest.mark.parametrize(("sizes", "grouping"), CASES, ids=str)
def test_every_level_and_cut_is_near_float64_and_has_the_same_bits(sizes, grouping, threads):
    program, tensors = drawn(sizes, grouping=grouping)
    ids = np.random.default_rng(1).permutation(ROWS).astype(np.int32)
    want = run(ReferenceBackend(), program, tensors, [0, ROWS], ids)
    tokens = list(range(ROWS + 1))
    bits = set()
    for isa in ISAS:
        backend = CpuBackend(isa=isa)
        for count in (1, 2) if EMULATED else (1, 2, 7):
            threads(count)
            for cuts in ([0, ROWS], [0, 5, 33, 64, 96, 97, ROWS], tokens if isa == ISAS[-1] else [0, 160, ROWS]):
                got = run(backend, program, tensors, cuts, ids)
                np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), rtol=0)
                bits.add((isa == "baseline", got.tobytes()))
    assert len(bits) <= 2


@pytest.mark.parametrize("isa", ISAS)
def test_strong_and_weak_decays_side_by_side(isa):
    """Decays to -20 a token beside -0.01: the products of factors go to 0, and nothing else goes wrong."""
    program, tensors = drawn((1, 4, 32, 32, 4), seed=3)
    tensors["decay"] = np.array([-20, -0.01, -20, -1e-4], np.float32)
    tensors["bias"] = np.zeros(4, np.float32)
    tensors["a"] = np.random.default_rng(4).choice(np.array([-15, 0, 1, 40], np.float32), (ROWS, 4))
    ids = np.arange(ROWS, dtype=np.int32)
    want = run(ReferenceBackend(), program, tensors, [0, ROWS], ids)
    got = run(CpuBackend(isa=isa), program, tensors, [0, 70, ROWS], ids)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), rtol=0)


def fma(a, b, c):
    """Of float32: the product is exact in float64."""
    return (np.asarray(a, np.float64) * b + c).astype(np.float32)


def chain(pairs, start):
    for a, b in pairs:
        start = fma(a, b, start)
    return start


def fold16(x):
    """The sum of squares as the definition has it."""
    lanes = np.zeros(16, np.float32)
    for start in range(0, len(x), 16):
        part = np.zeros(16, np.float32)
        part[: len(x[start : start + 16])] = x[start : start + 16]
        lanes = fma(part, part, lanes)
    for half in (8, 4, 2, 1):
        lanes = lanes[:half] + lanes[half : 2 * half]
    return lanes[0]


@pytest.mark.slow
@pytest.mark.skipif(len(ISAS) < 2, reason="this CPU has no fused multiply-add")
def test_the_bits_are_those_of_the_definition():
    key_dim, value_dim, isa = 20, 5, ISAS[-1]
    program, tensors = drawn((1, 1, key_dim, value_dim, 2), with_conv=False, decays=(-3.0, 2.0))
    one = np.float32(1)

    def exp(x):
        return _cpu.elementwise("exp", np.atleast_1d(np.float32(x)), isa=isa)[0]

    def flushed(x):
        return np.where(x < np.float32(2.0**-126), np.float32(0), x)

    def softplus(x):
        e = exp(-abs(x))
        s = e / (np.float32(2) + e)
        square, p = s * s, one / np.float32(15)
        for odd in range(13, 2, -2):
            p = fma(p, square, one / np.float32(odd))
        return max(np.float32(0), x) + fma((s + s) * square, p, s + s)

    want, state = [], np.zeros((key_dim, value_dim), np.float32)
    zero_row, zeros = np.zeros(value_dim, np.float32), np.float32(0)
    for token in range(ROWS):
        if token % DELTA_BLOCK == 0:
            keys, rows, d, whole = [], [], np.zeros(0, np.float32), one
        x = tensors["x"][token]
        query, key = (
            part * (one / np.sqrt(fold16(part) + np.float32(1e-6))) for part in (x[:key_dim], x[key_dim : 2 * key_dim])
        )
        query = query * (one / np.sqrt(np.float32(key_dim)))
        alpha = flushed(exp(tensors["decay"][0] * softplus(tensors["a"][token, 0] + tensors["bias"][0])))
        beta = one / (one + exp(-tensors["b"][token, 0]))
        d, whole = np.append(flushed(d * alpha), one), flushed(whole * alpha)
        keys.append(key)
        u = whole * chain(zip(key, state, strict=True), zero_row)
        y = whole * chain(zip(query, state, strict=True), zero_row)
        for j, row in enumerate(rows):
            u = fma(d[j] * chain(zip(keys[j], key, strict=True), zeros), row, u)
            y = fma(d[j] * chain(zip(keys[j], query, strict=True), zeros), row, y)
        rows.append(beta * (x[2 * key_dim :] - u))
        want.append(fma(d[-1] * chain(zip(key, query, strict=True), zeros), rows[-1], y))
        if token % DELTA_BLOCK == DELTA_BLOCK - 1:
            state = whole * state
            for j in range(DELTA_BLOCK):
                state = fma((d[j] * keys[j])[:, None], rows[j][None, :], state)
    got = run(CpuBackend(isa=isa), program, tensors, [0, 50, ROWS], np.arange(ROWS, dtype=np.int32))
    assert np.array_equal(got, np.array(want, np.float32))


@pytest.mark.parametrize("isa", ISAS)
def test_sequences_of_a_step_do_not_see_one_another(isa):
    """Three sequences whose steps begin and end at other places of their blocks, one of them new."""
    program, tensors = drawn((2, 4, 16, 24, 4))
    backend = CpuBackend(isa=isa)
    lengths, starts = [40, 33, 70], [31, 0, 63]
    ids = [np.random.default_rng(seed).integers(0, ROWS, 140).astype(np.int32) for seed in range(3)]
    alone = [run(backend, program, tensors, [0, 140], each) for each in ids]
    ready = backend.compile(program, Tensors(tensors))
    state = backend.open_state([], page_tokens=16, pages=1, recurrent_specs=program.recurrent_specs, slots=9)
    for index in (0, 2):
        batch = Batch(
            ids[index][: starts[index]],
            np.array([0, starts[index]], np.int32),
            context_lengths=np.zeros(1, np.int32),
            read_slots=np.array([8], np.int32),
            write_slots=np.array([index], np.int32),
        )
        if starts[index] < DELTA_BLOCK:
            batch = replace(batch, read_slots=np.array([index], np.int32))
        ready.run(batch, state=state)
    bounds = np.cumsum([0, *lengths]).astype(np.int32)
    batch = Batch(
        np.concatenate([each[a : a + n] for each, a, n in zip(ids, starts, lengths, strict=True)]),
        bounds,
        context_lengths=np.array(starts, np.int32),
        read_slots=np.array([0, 1, 2], np.int32),
        write_slots=np.array([5, 4, 3], np.int32),
    )
    got = ready.run(batch, state=state)["y"]
    for index in range(3):
        part = slice(starts[index], starts[index] + lengths[index])
        assert np.array_equal(got[bounds[index] : bounds[index + 1]], alone[index][part])


@pytest.mark.parametrize("backend", [CpuBackend(), ReferenceBackend()], ids=["cpu", "reference"])
def test_slots_that_cannot_be_are_refused(backend):
    program, tensors = drawn((1, 1, 8, 8, 2))
    ready = backend.compile(program, Tensors(tensors))
    state = backend.open_state([], page_tokens=16, pages=1, recurrent_specs=program.recurrent_specs, slots=3)
    other = backend.open_state(
        [], page_tokens=16, pages=1, recurrent_specs=[RecurrentSpec(0, "short_conv", (24, 3))], slots=3
    )
    none = backend.open_state([KvSpec(0, 1, 16, "float32")], page_tokens=16, pages=1)
    good = Batch(
        np.zeros(40, np.int32),
        np.array([0, 20, 40], np.int32),
        context_lengths=np.array([0, 20], np.int32),
        read_slots=np.array([0, 1], np.int32),
        write_slots=np.array([0, 2], np.int32),
    )
    assert ready.run(good, state=state)["y"].shape == (40, 8)
    for read, write in (([0, 0], [0, 2]), ([0, 1], [0, 1]), ([0, 1], [2, 0]), ([-1, 1], [0, 2]), ([0, 1], [0, 3])):
        bad = replace(good, read_slots=np.array(read, np.int32), write_slots=np.array(write, np.int32))
        with pytest.raises(InvalidInputError, match="slot"):
            ready.run(bad, state=state)
    with pytest.raises(InvalidInputError, match="read_slots must have a slot for each of 2"):
        replace(good, read_slots=np.zeros(1, np.int32))
    for batch, kept in (
        (replace(good, read_slots=None, write_slots=None), state),
        (good, other),
        (good, none),
        (good, None),
    ):
        with pytest.raises(InvalidInputError):
            ready.run(batch, state=kept)


def test_a_slot_is_copied_and_moved_as_bytes():
    program, tensors = drawn((1, 2, 8, 8, 2))
    ids = np.arange(ROWS, dtype=np.int32)
    for backend in (CpuBackend(), ReferenceBackend()):
        want = run(backend, program, tensors, [0, ROWS], ids)
        ready = backend.compile(program, Tensors(tensors))
        state = backend.open_state([], page_tokens=16, pages=1, recurrent_specs=program.recurrent_specs, slots=4)

        def step(first, end, read, write, ready=ready, state=state):
            batch = Batch(
                ids[first:end],
                np.array([0, end - first], np.int32),
                context_lengths=np.array([first], np.int32),
                read_slots=np.array([read], np.int32),
                write_slots=np.array([write], np.int32),
            )
            return ready.run(batch, state=state)["y"]

        step(0, 80, 0, 1)
        state.recurrent.copy(1, 2)
        state.recurrent.import_(3, state.recurrent.export(1))
        assert np.array_equal(step(80, 90, 2, 2), want[80:90])
        assert np.array_equal(step(80, ROWS, 3, 0), want[80:])
        with pytest.raises(InvalidInputError, match="a slot has"):
            state.recurrent.import_(0, b"short")


def test_gpus_refuse_keys_that_are_too_wide():
    program, _ = drawn((1, 1, 264, 8, 2))
    with pytest.raises(UnsupportedError, match="at most 256 dimensions"):
        check_ops(program)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value_heads": 3}, "3 value heads cannot share 2 key heads"),
        ({"key_dim": 9}, "have 64 columns, not 68"),
        ({"grouping": "tiled"}, "grouping must be one of blocks, interleaved"),
        ({"value_dim": 0}, "must be positive"),
        ({"layer": -1}, "layer must not be negative"),
        ({"decay": 3}, "decay must have 2 entries"),
        ({"a": 3}, "a and b must have a column for each of 2 value heads"),
    ],
)
def test_operands_that_do_not_fit_are_refused(changes, message):
    g = GraphBuilder()

    def rows(name, width):
        return g.embed_rows(g.weight(name, (9, width), use="rows"), ids="token_ids")

    sizes = {"layer": 0, "key_heads": 2, "value_heads": 2, "key_dim": 8, "value_dim": 16, "grouping": "blocks"}
    decay, a = changes.pop("decay", 2), changes.pop("a", 2)
    weights = {"dt_bias": g.weight("bias", (2,), use="vector"), "decay": g.weight("decay", (decay,), use="vector")}
    with pytest.raises(InvalidInputError, match=message):
        g.gated_delta_rule(rows("x", 64), rows("a", a), rows("b", 2), **{**sizes, **changes}, **weights)


def test_a_convolution_or_a_state_that_does_not_fit_is_refused():
    g = GraphBuilder()
    x = g.embed_rows(g.weight("x", (9, 8), use="rows"), ids="token_ids")
    for taps, shape in ((1, (8, 1)), (17, (8, 17)), (4, (8, 3)), (4, (7, 4))):
        with pytest.raises(InvalidInputError, match="short_conv"):
            g.short_conv(x, g.weight("w", shape, use="vector"), layer=0, taps=taps)
    y = g.short_conv(x, g.weight("w", (8, 1, 4), use="vector"), layer=0, taps=4)
    with pytest.raises(InvalidInputError, match="is missing"):
        g.build({"y": y})
    with pytest.raises(InvalidInputError, match="kept by none"):
        g.build(
            {"y": y}, recurrent_specs=[RecurrentSpec(0, "short_conv", (8, 4)), RecurrentSpec(1, "short_conv", (8, 4))]
        )
    g.short_conv(x, g.weight("v", (8, 4), use="vector"), layer=0, taps=4)
    with pytest.raises(InvalidInputError, match="the same layer"):
        g.build({"y": y}, recurrent_specs=[RecurrentSpec(0, "short_conv", (8, 4))])
