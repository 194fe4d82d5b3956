"""The promise: a text's vector is the same bits in any company, on any number of threads, on every level with FMA."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from lattice_inference.backends import reference
from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.compile import compile_program

from .programs import EMULATED, Tensors, batch_of, one_op, random_batch, random_bert, sequence_of

FMA_ISAS = [isa for isa in _cpu.available_isas() if isa != "baseline"]
LENGTHS = [1, 2, 3, 5, 8, 13, 14, 15, 16, 17, 31, 47, 48, 49, 64, 100]


@pytest.fixture(scope="module")
def bert():
    return random_bert(np.random.default_rng(11))


@pytest.fixture
def threads():
    before = _cpu.get_num_threads()
    yield _cpu.set_num_threads
    _cpu.set_num_threads(before)


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@pytest.mark.parametrize("isa", _cpu.available_isas())
def test_vector_is_the_same_alone_and_in_any_batch(isa, bert):
    program, tensors = bert
    ready = CpuBackend(isa=isa).compile(program, Tensors(tensors))
    rng = np.random.default_rng(5)
    batch = random_batch(rng, LENGTHS)
    together = ready.run(batch)["normalized"]
    for index in range(batch.sequences):
        assert (ready.run(sequence_of(batch, index))["normalized"][0] == together[index]).all(), LENGTHS[index]


@pytest.mark.slow
@pytest.mark.parametrize("isa", _cpu.available_isas())
def test_vector_does_not_depend_on_the_number_of_threads(isa, bert, threads):
    program, tensors = bert
    ready = CpuBackend(isa=isa).compile(program, Tensors(tensors))
    batch = random_batch(np.random.default_rng(6), LENGTHS if EMULATED else LENGTHS * 4)
    results = set()
    for count in (1, 3) if EMULATED else (1, 2, 3, 7):
        threads(count)
        results |= {digest(ready.run(batch)["normalized"]) for _ in range(1 if EMULATED else 5)}
    assert len(results) == 1


@pytest.mark.parametrize("spread", [1.0, 40.0], ids=["scores side by side", "scores beyond the range of exp"])
@pytest.mark.parametrize("head_dim", [1, 5, 16, 32, 50])
def test_attention_is_the_same_bits_on_every_level(head_dim, spread):
    """Levels differ in whether queries or keys lie in the lanes of a vector, and in how they cut both."""
    lengths = [1, 7, 14, 15, 16, 17, 33, 64, 129, 600]
    rng = np.random.default_rng(head_dim)
    inputs = {name: rng.standard_normal((sum(lengths), 2 * head_dim), np.float32) for name in "qkv"}
    inputs["q"] *= np.float32(spread)
    program, tensors = one_op(
        inputs,
        lambda g, v: g.attention(v["q"], v["k"], v["v"], heads=2, kv_heads=2, head_dim=head_dim, scale=0.5),
    )
    batch = batch_of(lengths)
    results = {isa: CpuBackend(isa=isa).compile(program, Tensors(tensors)).run(batch)["y"] for isa in FMA_ISAS}
    assert len({digest(y) for y in results.values()}) == 1


@pytest.mark.parametrize("isa", _cpu.available_isas())
def test_fusion_changes_no_bit(isa, bert):
    program, tensors = bert
    batch = random_batch(np.random.default_rng(8), LENGTHS)
    fused, plain = (
        CpuBackend(isa=isa, fused=fused).compile(program, Tensors(tensors)).run(batch) for fused in (True, False)
    )
    for name in program.outputs:
        assert fused[name].tobytes() == plain[name].tobytes()


@pytest.mark.parametrize("epilogue", ["none", "bias", "gelu", "residual"])
@pytest.mark.parametrize(("k", "n"), [(3, 400), (37, 386), (64, 208), (130, 791)])
def test_row_of_a_wide_linear_is_the_same_in_any_company(k, n, epilogue, threads):
    """Many rows by many columns may go through other tiles, copies and blocks than one row does."""
    rng = np.random.default_rng(k)
    rows = [1, 7, 14, 15, 16, 29, 43] if EMULATED else [1, 2, 7, 14, 15, 16, 27, 28, 29, 43, 64, 150]
    shapes = {"x": (max(rows), k), "residual": (max(rows), n), "w": (n, k), "b": (n,)}
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}

    g = GraphBuilder()
    x = g.embed_rows(g.weight("x", shapes["x"], use="rows"), ids="token_ids")
    bias = None if epilogue == "none" else g.weight("b", (n,), use="vector")
    y = g.linear(x, g.weight("w", (n, k)), bias)
    if epilogue == "gelu":
        y = g.gelu(y)
    if epilogue == "residual":
        y = g.add(y, g.embed_rows(g.weight("residual", shapes["residual"], use="rows"), ids="token_ids"))
    program = g.build({"y": y})

    exact = reference.run(program, tensors, batch_of([max(rows)]))["y"]
    digests = set()
    for isa in _cpu.available_isas():
        ready = CpuBackend(isa=isa).compile(program, Tensors(tensors))
        threads(1)
        alone = np.concatenate(
            [ready.run(Batch(np.array([row], np.int32), np.array([0, 1], np.int32)))["y"] for row in range(max(rows))]
        )
        np.testing.assert_allclose(alone, exact, rtol=1e-4, atol=1e-4)
        for count in (1, 2):
            threads(count)
            for here in rows:
                assert (ready.run(batch_of([here]))["y"] == alone[:here]).all(), (isa, here, count)
        if isa != "baseline":
            digests.add(digest(alone))
    assert len(digests) <= 1


def test_levels_with_fma_agree_bit_for_bit(bert):
    if len(FMA_ISAS) < 2:
        pytest.skip("this CPU has one level with FMA: the emulated sessions compare the others with it")
    program, tensors = bert
    batch = random_batch(np.random.default_rng(9), LENGTHS)
    results = {
        isa: digest(CpuBackend(isa=isa).compile(program, Tensors(tensors)).run(batch)["normalized"]) for isa in FMA_ISAS
    }
    assert len(set(results.values())) == 1, results


def test_recorded_bits_have_not_moved(recorded_bits):
    """Hashes made on one machine hold on every other one; a change here must raise NUMERICS_VERSION."""
    if not FMA_ISAS:
        pytest.skip("the promise of equal bits is for levels with FMA")
    for isa in FMA_ISAS:
        program, tensors = random_bert(np.random.default_rng(2024), layers=3, hidden=64, heads=4, inner=112)
        rng = np.random.default_rng(2025)
        ready = CpuBackend(isa=isa).compile(program, Tensors(tensors))
        batch = random_batch(rng, [1, 4, 9, 16, 25, 36, 49, 64, 81, 100, 600])
        vectors = ready.run(batch)["normalized"]
        assert [digest(vector)[:16] for vector in vectors] == recorded_bits["vectors"], isa


def test_baseline_is_close_to_the_levels_with_fma(bert):
    program, tensors = bert
    batch = random_batch(np.random.default_rng(10), LENGTHS)
    plain = CpuBackend(isa="baseline").compile(program, Tensors(tensors)).run(batch)["normalized"]
    exact = reference.run(program, tensors, batch)["normalized"]
    assert np.abs(plain - exact).max() <= 2e-6
    for isa in FMA_ISAS:
        other = CpuBackend(isa=isa).compile(program, Tensors(tensors)).run(batch)["normalized"]
        assert np.abs(plain - other).max() <= 2e-6


def test_fused_program_has_fewer_passes(bert):
    """Guards the tests above: the program that they call fused really is."""
    from lattice_inference.graph.fusion import BIT_NEUTRAL_RULES

    program, _ = bert
    fused = compile_program(program, rules=BIT_NEUTRAL_RULES).program
    kinds = {op.kind for op in fused.ops}
    assert {"linear_gelu", "linear_add", "embed_rows_add"} <= kinds
    assert len(fused.ops) < 0.7 * len(program.ops)
