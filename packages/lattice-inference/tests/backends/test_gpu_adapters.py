"""Adapters on a GPU: against the reference, the same bits in any company, and nothing where there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lattice_inference.backends import reference
from lattice_inference.backends.reference_backend import ReferenceBackend
from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.batch import Batch

from .bodies import GPU_BODIES, gpu_backend
from .programs import Tensors, batch_of, random_bert
from .test_low_rank import LENGTHS, NUMBERS, drawn_factors, drawn_site, low_rank_op

if not GPU_BODIES:
    pytest.skip("no GPU, nor one that is emulated", allow_module_level=True)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bert():
    return random_bert(np.random.default_rng(11))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (37, 100), (130, 47)])
def test_what_adapters_add_is_what_the_reference_says(k, n, kind):
    rng = np.random.default_rng(k)
    inputs = {name: rng.standard_normal((sum(LENGTHS), width), np.float32) for name, width in (("x", k), ("y", n))}
    program, tensors = low_rank_op(inputs)
    factors = [{"s": drawn_site(rng, rank, (n, k), kind)} for rank in (3, 16, 20)]
    batch = replace(batch_of(LENGTHS), adapter=NUMBERS)
    want = reference.run(program, tensors, batch, adapters=factors)["y"]
    ready = gpu_backend().compile(program, Tensors(tensors))
    adapters = [ready.prepare_adapter(each) for each in factors]
    got = ready.run(batch, adapters=adapters)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.sqrt(k))
    assert (got[71:74] == ready.run(batch_of(LENGTHS))["y"][71:74]).all()  # the sequence without an adapter
    assert {adapter.nbytes for adapter in adapters} == {
        rank * (n + k) * (4 if kind == "float32" else 2) for rank in (3, 16, 20)
    }


def test_a_sequence_has_the_same_bits_among_other_adapters_and_alone(bert):
    program, tensors = bert
    rng = np.random.default_rng(3)
    ready = gpu_backend().compile(program, Tensors(tensors))
    adapters = [ready.prepare_adapter(drawn_factors(program, rng, share)) for share in (1.0, 0.4)]
    lengths, numbers = [5, 60, 1, 17], [0, -1, 1, 0]
    ids = [rng.integers(0, 97, length).astype(np.int32) for length in lengths]
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    packed = Batch(np.concatenate(ids), bounds)
    together = ready.run(replace(packed, adapter=np.array(numbers, np.int32)), adapters=adapters)["normalized"]
    for index, (tokens, number) in enumerate(zip(ids, numbers, strict=True)):
        alone = Batch(tokens, np.array([0, len(tokens)], np.int32))
        if number >= 0:
            alone = replace(alone, adapter=np.zeros(1, np.int32))
        own = [adapters[number]] if number >= 0 else []
        assert ready.run(alone, adapters=own)["normalized"].tobytes() == together[index].tobytes(), index
    plain = ready.run(packed)["normalized"]
    assert np.abs(plain[[0, 2, 3]] - together[[0, 2, 3]]).max(axis=1).min() > 1e-3


def test_fusion_changes_no_bit_of_adapted_rows_and_the_reference_agrees(bert):
    program, tensors = bert
    factors = drawn_factors(program, np.random.default_rng(4))
    batch = Batch(np.arange(40, dtype=np.int32), np.array([0, 30, 40], np.int32), adapter=np.array([0, -1], np.int32))
    results = []
    for backend in (gpu_backend(), gpu_backend(fused=False), ReferenceBackend()):
        ready = backend.compile(program, Tensors(tensors))
        results.append(ready.run(batch, adapters=[ready.prepare_adapter(factors)])["normalized"])
    assert results[0].tobytes() == results[1].tobytes()
    assert np.abs(results[0] - results[2]).max() <= 2e-5


def test_adapters_of_other_programs_and_numbers_that_name_none_are_refused(bert):
    program, tensors = bert
    one, other = (gpu_backend().compile(program, Tensors(tensors)) for _ in range(2))
    factors = drawn_factors(program, np.random.default_rng(4))
    adapter = one.prepare_adapter(factors)
    batch = Batch(np.arange(3, dtype=np.int32), np.array([0, 3], np.int32), adapter=np.zeros(1, np.int32))
    other.prepare_adapter(factors)
    with pytest.raises(InvalidInputError, match="another model"):
        other.run(batch, adapters=[adapter])
    with pytest.raises(InvalidInputError, match="from -1 to 0"):
        one.run(replace(batch, adapter=np.array([1], np.int32)), adapters=[adapter])
    with pytest.raises(InvalidInputError, match="which sequence has which"):
        one.run(replace(batch, adapter=None), adapters=[adapter])
    one.close()
    with pytest.raises(InvalidInputError, match="closed"):
        one.run(batch, adapters=[adapter])
    with pytest.raises(InvalidInputError, match="closed"):
        one.prepare_adapter(factors)
