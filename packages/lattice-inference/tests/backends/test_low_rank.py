"""What adapters add to linears: against the reference, the same bits in any company, and nothing where there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lattice_inference.backends import reference
from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.backends.cpu.low_rank_groups import join_low_rank
from lattice_inference.backends.reference_backend import ReferenceBackend
from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.adapting import add_low_rank, linear_sites
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.fusion import BIT_NEUTRAL_RULES, fuse
from lattice_inference.lora import LoraSite

from .programs import Tensors, batch_of, one_op, random_bert

ISAS = _cpu.available_isas()
LENGTHS = [1, 70, 3, 64, 2]
NUMBERS = np.array([0, 1, -1, 2, 1], np.int32)


@pytest.fixture
def threads():
    before = _cpu.get_num_threads()
    yield _cpu.set_num_threads
    _cpu.set_num_threads(before)


def drawn_site(rng, rank, shape, kind="float32"):
    a, b = (rng.standard_normal(size).astype(np.float32) for size in ((rank, shape[1]), (shape[0], rank)))
    if kind == "bfloat16":
        a, b = ((array.view(np.uint32) & 0xFFFF0000).view(np.float32) for array in (a, b))
    if kind == "float16":
        a, b = (array.astype(np.float16).astype(np.float32) for array in (a, b))
    return LoraSite(a, b, 0.5)


def low_rank_op(inputs):
    return one_op(inputs, lambda g, v: g.add(g.low_rank(g.add(v["y"], v["y"]), v["x"], site="s"), v["y"]))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (37, 100), (64, 16), (130, 47)])
def test_low_rank_on_every_level_and_number_of_threads(k, n, kind, threads):
    rng = np.random.default_rng(k)
    inputs = {
        "x": rng.standard_normal((sum(LENGTHS), k), np.float32),
        "y": rng.standard_normal((sum(LENGTHS), n), np.float32),
    }
    program, tensors = low_rank_op(inputs)
    factors = [{"s": drawn_site(rng, rank, (n, k), kind)} for rank in (3, 16, 20)]
    batch = replace(batch_of(LENGTHS), adapter=NUMBERS)
    want = reference.run(program, tensors, batch, adapters=factors)["y"]
    bits = set()
    for isa in ISAS:
        ready = CpuBackend(isa=isa).compile(program, Tensors(tensors))
        adapters = [ready.prepare_adapter(each) for each in factors]
        assert {adapter.nbytes > 0 for adapter in adapters} == {True}
        for count in (1, 2):
            threads(count)
            got = ready.run(batch, adapters=adapters)["y"]
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.sqrt(k))
            if isa != "baseline":
                bits.add(got.tobytes())
        plain = ready.run(batch_of(LENGTHS))["y"]
        assert (got[71:74] == plain[71:74]).all()  # the sequence without an adapter
    assert len(bits) <= 1
    sizes = [ready.prepare_adapter({"s": drawn_site(rng, 16, (n, k), one)}).nbytes for one in ("float32", "bfloat16")]
    assert sizes[1] < sizes[0]


def test_a_chain_goes_on_from_y_and_the_scale_is_rounded_in_between():
    """The definition down to the order of additions, by NumPy in float64, where a product of float32 is exact."""
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((3, 19), np.float32), rng.standard_normal((3, 33), np.float32)
    site = drawn_site(rng, 5, (33, 19))
    program, tensors = one_op({"x": x, "y": y}, lambda g, v: g.relu(g.low_rank(v["y"], v["x"], site="s")))
    want = y.copy()
    for row in range(3):
        for n in range(33):
            total = y[row, n]
            for j in range(5):
                u = np.float32(0)
                for k in range(19):
                    u = np.float32(np.longdouble(x[row, k]) * np.longdouble(site.a[j, k]) + np.longdouble(u))
                v = u * np.float32(0.5)
                total = np.float32(np.longdouble(v) * np.longdouble(site.b[n, j]) + np.longdouble(total))
            want[row, n] = max(total, np.float32(0))
    batch = replace(batch_of([3]), adapter=np.zeros(1, np.int32))
    for isa in ISAS:
        if isa != "baseline":
            ready = CpuBackend(isa=isa).compile(program, Tensors(tensors))
            assert (ready.run(batch, adapters=[ready.prepare_adapter({"s": site})])["y"] == want).all()


@pytest.fixture(scope="module")
def bert():
    return random_bert(np.random.default_rng(11))


def drawn_factors(program, rng, share=1.0):
    return {
        name: drawn_site(rng, int(rng.integers(1, 20)), shape)
        for name, shape in linear_sites(program).items()
        if rng.random() < share
    }


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_a_sequence_has_the_same_bits_among_other_adapters_and_alone(bert, precision):
    program, tensors = bert
    rng = np.random.default_rng(3)
    ready = CpuBackend(precision=precision).compile(program, Tensors(tensors))
    adapters = [ready.prepare_adapter(drawn_factors(program, rng, share)) for share in (1.0, 0.4)]
    lengths, numbers = [5, 60, 1, 17], [0, -1, 1, 0]
    ids = [rng.integers(0, 97, length).astype(np.int32) for length in lengths]
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    together = ready.run(Batch(np.concatenate(ids), bounds, adapter=np.array(numbers, np.int32)), adapters=adapters)[
        "normalized"
    ]
    results = []
    for tokens, number in zip(ids, numbers, strict=True):
        alone = Batch(tokens, np.array([0, len(tokens)], np.int32))
        if number >= 0:
            alone = replace(alone, adapter=np.zeros(1, np.int32))
        results.append(ready.run(alone, adapters=[adapters[number]] if number >= 0 else [])["normalized"][0])
    assert (np.stack(results) == together).all()
    plain = ready.run(Batch(np.concatenate(ids), bounds))["normalized"]
    assert (plain[1] == together[1]).all()
    assert np.abs(plain[[0, 2, 3]] - together[[0, 2, 3]]).max(axis=1).min() > 1e-3


def test_fusion_changes_no_bit_of_adapted_rows_and_the_reference_agrees(bert):
    program, tensors = bert
    factors = drawn_factors(program, np.random.default_rng(4))
    batch = Batch(np.arange(40, dtype=np.int32), np.array([0, 30, 40], np.int32), adapter=np.array([0, -1], np.int32))
    results = []
    for backend in (CpuBackend(), CpuBackend(fused=False), ReferenceBackend()):
        ready = backend.compile(program, Tensors(tensors))
        assert ready.adapter_sites == linear_sites(program)
        results.append(ready.run(batch, adapters=[ready.prepare_adapter(factors)])["normalized"])
    assert results[0].tobytes() == results[1].tobytes()
    assert np.abs(results[0] - results[2]).max() <= 2e-5


def test_linears_side_by_side_have_a_site_for_each_range_of_columns(bert):
    program, _ = bert
    fused = fuse(program, BIT_NEUTRAL_RULES)
    adapted = add_low_rank(fused, linear_sites(program))
    kinds = [op.kind for op in adapted.ops]
    assert kinds.count("low_rank") == len(linear_sites(program)) == 12
    assert "linear_gelu" not in kinds
    _, groups = join_low_rank(adapted)
    assert [(place.site, place.column, place.width) for place in groups[0]] == [
        ("0.q.w", 0, 48),
        ("0.k.w", 48, 48),
        ("0.v.w", 96, 48),
    ]


def test_single_rows_of_a_matrix_are_no_sites():
    g = GraphBuilder()
    x = g.embed_rows(g.weight("x", (9, 33), use="rows"), ids="token_ids")
    program = g.build({"y": g.linear(x, g.rows_weight("w", (3, 5), 33))})
    assert linear_sites(program) == {}
    assert add_low_rank(program, {}) == program


def test_adapters_of_other_programs_and_numbers_that_name_none_are_refused(bert):
    program, tensors = bert
    one, other = (CpuBackend().compile(program, Tensors(tensors)) for _ in range(2))
    factors = drawn_factors(program, np.random.default_rng(4))
    adapter = one.prepare_adapter(factors)
    tokens, bounds = np.arange(3, dtype=np.int32), np.array([0, 3], np.int32)
    with pytest.raises(InvalidInputError, match="another model"):
        other.run(Batch(tokens, bounds, adapter=np.zeros(1, np.int32)), adapters=[adapter])
    other.prepare_adapter(factors)
    with pytest.raises(InvalidInputError, match="another model"):
        other.run(Batch(tokens, bounds, adapter=np.zeros(1, np.int32)), adapters=[adapter])
    for number in (1, -2):
        with pytest.raises(InvalidInputError, match="from -1 to 0"):
            one.run(Batch(tokens, bounds, adapter=np.array([number], np.int32)), adapters=[adapter])
    with pytest.raises(InvalidInputError, match="which sequence has which"):
        one.run(Batch(tokens, bounds), adapters=[adapter])
    with pytest.raises(InvalidInputError, match="2 entries for 1 sequences"):
        Batch(tokens, bounds, adapter=np.zeros(2, np.int32))
    one.close()
    with pytest.raises(InvalidInputError, match="closed"):
        one.run(Batch(tokens, bounds, adapter=np.zeros(1, np.int32)), adapters=[adapter])
    with pytest.raises(InvalidInputError, match="closed"):
        one.prepare_adapter(factors)


def test_a_native_adapter_that_does_not_lie_in_its_memory_is_refused():
    plan = _cpu.Plan(ISAS[-1])
    plan.append("low_rank", rows="tokens", inputs=[(0, 16, 0)], output=(1, 32, 0), k=16, n=32, group=0)
    memory = _cpu.Memory(4096)
    _cpu.Adapter(plan, memory, [("float32", 0, [(1024, 2, 0, 32, 1.0)])])
    for groups, message in (
        ([], "0 groups are given for the 1"),
        ([("float32", 0, [(4096 - 64, 2, 0, 32, 1.0)])], "are not among 4096"),
        ([("float32", 32, [(1024, 2, 0, 32, 1.0)])], "are not among 4096"),
        ([("float32", 0, [(1024, 2, 16, 32, 1.0)])], "are not among 32"),
        ([("float32", 0, [(1024, 0, 0, 32, 1.0)])], "of rank 0"),
        ([("int8", 0, [(1024, 2, 0, 32, 1.0)])], "not kept in 'int8'"),
    ):
        with pytest.raises(ValueError, match=message):
            _cpu.Adapter(plan, memory, groups)
    with pytest.raises(ValueError, match="group 3 is appended as group 1"):
        plan.append("low_rank", rows="tokens", inputs=[(0, 16, 0)], output=(1, 32, 0), k=16, n=32, group=3)
