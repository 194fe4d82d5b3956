"""Int8: exactly the definition of the kernels' headers, the same bits on every level, alone and in any batch."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.backends.cpu.weight_forms import WeightForms
from lattice_inference.backends.cpu.weights import ResidentWeights
from lattice_inference.checkpoint.int8_weights import quantize_matrix
from lattice_inference.errors import CheckpointError, NonFiniteError, UnsupportedError
from lattice_inference.graph.compile import compile_program

from .programs import Tensors, batch_of, one_op, random_batch, random_bert, sequence_of

LENGTHS = [1, 2, 3, 5, 8, 13, 14, 15, 16, 17, 31, 47, 48, 49, 64, 100]

# every body of every level that this CPU and this build can run
BODIES = (
    [{"isa": isa, "dot": False} for isa in _cpu.available_isas()]
    + [{"isa": isa, "dot": True, "tiles": False} for isa in _cpu.available_isas() if _cpu.has_dot_products(isa)]
    + [{"isa": isa, "dot": True, "tiles": True} for isa in _cpu.available_isas() if _cpu.has_amx(isa)]
)
FMA_BODIES = [body for body in BODIES if body["isa"] != "baseline"]


def name_of(body):
    return "-".join([body["isa"], *(part for part in ("dot", "tiles") if body.get(part))])


every_body = pytest.mark.parametrize("body", BODIES, ids=name_of)


def rounded_rows(x):
    """Rows as integers, by the definition: (integers, zeros, scales)."""
    low, high = np.minimum(x.min(axis=1), 0), np.maximum(x.max(axis=1), 0)
    extent = high - low
    flat = ~(extent >= np.float32(2.0**-100))
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(flat, np.float32(0), np.float32(255) / extent)
    zeros = np.rint(-low * inverse)
    moved = np.rint(x * inverse[:, None]) + zeros[:, None]
    scales = np.where(flat, np.float32(0), extent / np.float32(255))
    return np.clip(moved, 0, 255).astype(np.int64), zeros.astype(np.int64), scales


def linear_by_definition(x, weight, bias=None):
    """The int8 linear in NumPy: exact integer sums, then one float32 operation after another."""
    scales_w = np.abs(weight).max(axis=1) / np.float32(127)
    with np.errstate(divide="ignore", invalid="ignore"):
        integers_w = np.where(scales_w[:, None] > 0, np.rint(weight / scales_w[:, None]), 0).astype(np.int64)
    integers, zeros, scales = rounded_rows(x)
    sums = (integers - zeros[:, None]) @ integers_w.T
    y = (sums.astype(np.float32) * scales_w) * scales[:, None]
    return y if bias is None else y + bias


def run_linear(x, weight, bias, body, **options):
    tensors = {"w": weight, "b": bias}

    def write(g, views):
        b = None if bias is None else g.weight("b", bias.shape, use="vector")
        return g.linear(views["x"], g.weight("w", weight.shape), b)

    program, inputs = one_op({"x": x}, write)
    tensors |= inputs
    backend = CpuBackend(**body, precision="int8", **options)
    # an embedding brings the rows in: its own rounding to float16 is part of what the linear sees
    return backend.compile(program, Tensors(tensors)).run(batch_of([len(x)]))["y"], x.astype(np.float16).astype(
        np.float32
    )


def assert_every_body_gives_the_definition(x, weight, bias, **options):
    """The definition takes NumPy, which has no fast integer product, longer than all bodies."""
    want = linear_by_definition(x.astype(np.float16).astype(np.float32), weight, bias).tobytes()
    for body in BODIES:
        assert run_linear(x, weight, bias, body, **options)[0].tobytes() == want, (len(x), name_of(body))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 15, 16, 17, 37, 64, 80, 127, 128, 384])
def test_a_linear_is_its_definition_bit_for_bit(depth):
    rng = np.random.default_rng(depth)
    weight = rng.standard_normal((45, depth), np.float32)
    bias = rng.standard_normal(45, np.float32)
    for rows in (1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 16, 17, 25, 31, 32, 33, 60, 97, 140):
        x = rng.standard_normal((rows, depth), np.float32) + np.float32(rng.uniform(-2, 2))
        assert_every_body_gives_the_definition(x, weight, bias)


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 63, 64, 65, 100, 128, 160])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_linear_of_any_width_is_its_definition_bit_for_bit(columns, threads):
    rng = np.random.default_rng(columns)
    weight = rng.standard_normal((columns, 96), np.float32)
    for rows in (1, 9, 16, 30, 70):
        x = rng.standard_normal((rows, 96), np.float32)
        assert_every_body_gives_the_definition(x, weight, None, threads=threads)


@every_body
def test_the_largest_integers_do_not_saturate(body):
    """Every product at its largest, both signs: a sum of two in 16 bits would be cut off."""
    for sign in (1, -1):
        x = np.full((7, 256), sign, np.float32)
        x[:, 0] = 0
        weight = np.full((20, 256), 3, np.float32)
        weight[::2] *= -1
        got, x = run_linear(x, weight, None, body)
        assert got.tobytes() == linear_by_definition(x, weight).tobytes()
        assert np.abs(got[0, 1] - sign * 3 * 255) < 0.01


@every_body
def test_rows_of_every_size_keep_their_meaning(body):
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [
            np.zeros((1, 64), np.float32),
            np.full((1, 64), 5, np.float32),
            np.full((1, 64), -5, np.float32),
            rng.standard_normal((1, 64), np.float32) * np.float32(6e-8),
            rng.standard_normal((1, 64), np.float32) * np.float32(1e4),
            rng.standard_normal((1, 64), np.float32) * np.float32(1e-5),
        ]
    )
    weight = rng.standard_normal((17, 64), np.float32)
    weight[3] = 0
    got, x = run_linear(x, weight, None, body)
    assert got.tobytes() == linear_by_definition(x, weight).tobytes()
    exact = x.astype(np.float64) @ weight.T
    assert (np.abs(got - exact) <= 0.03 * np.abs(x).max(axis=1, keepdims=True) * 64**0.5 + 1e-37).all()


@every_body
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_activations_that_are_not_finite_are_refused(body, poison):
    x = np.full((3, 40), 1e-3, np.float32)
    x[1, 7] = 2.0

    def overflow(g, views):
        scale, shift = (g.weight(name, (40,), use="vector") for name in ("scale", "shift"))
        return g.linear(g.layer_norm(views["x"], scale, shift, epsilon=1e-12), g.weight("w", (20, 40)))

    program, tensors = one_op({"x": x}, overflow)
    tensors |= {"w": np.ones((20, 40), np.float32), "shift": np.zeros(40, np.float32)}
    tensors["scale"] = np.full(40, poison, np.float32)
    with pytest.raises(NonFiniteError) as error:
        CpuBackend(**body, precision="int8").compile(program, Tensors(tensors)).run(batch_of([3]))
    assert 1 in error.value.rows


@every_body
def test_a_table_that_is_a_linear_too_reads_its_panels(body):
    rng = np.random.default_rng(2)
    for width in (1, 7, 16, 33):
        table = rng.standard_normal((37, width), np.float32)

        def write(g, views, table=table):
            return g.linear(views["x"], g.weight("x", table.shape))

        program, tensors = one_op({"x": table}, write)
        stored = quantize_matrix(table, "x").float32()
        got = CpuBackend(**body, precision="int8").compile(program, Tensors(tensors)).run(batch_of([37]))
        assert got["y"].tobytes() == linear_by_definition(stored, table).tobytes()


@pytest.fixture(scope="module")
def bert():
    return random_bert(np.random.default_rng(11))


@every_body
def test_vector_is_the_same_alone_in_any_batch_fused_or_not(body, bert):
    program, tensors = bert
    ready = CpuBackend(**body, precision="int8").compile(program, Tensors(tensors))
    batch = random_batch(np.random.default_rng(5), LENGTHS)
    together = ready.run(batch)
    for index in range(batch.sequences):
        alone = ready.run(sequence_of(batch, index))["normalized"][0]
        assert (alone == together["normalized"][index]).all(), LENGTHS[index]
    plain = CpuBackend(**body, precision="int8", fused=False).compile(program, Tensors(tensors)).run(batch)
    assert all(together[name].tobytes() == plain[name].tobytes() for name in program.outputs)


def test_levels_with_fma_agree_bit_for_bit_on_any_number_of_threads(bert):
    program, tensors = bert
    batch = random_batch(np.random.default_rng(9), LENGTHS * 3)
    results = {}
    for body in FMA_BODIES:
        for threads in (1, 2, 3):
            backend = CpuBackend(**body, precision="int8", threads=threads)
            results[name_of(body), threads] = (
                backend.compile(program, Tensors(tensors)).run(batch)["normalized"].tobytes()
            )
    assert len(set(results.values())) <= 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_child_and_a_new_thread_may_use_every_body(bert):
    """The system's permission to use tile registers is the process's, and its children's."""
    program, tensors = bert
    batch = random_batch(np.random.default_rng(12), LENGTHS)
    for body in BODIES:
        ready = CpuBackend(**body, precision="int8", threads=2).compile(program, Tensors(tensors))
        want = ready.run(batch)["normalized"].tobytes()
        child = os.fork()
        if child == 0:
            same = False
            try:
                same = ready.run(batch)["normalized"].tobytes() == want
            finally:
                os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, body
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(ready.run, batch).result()["normalized"].tobytes() == want, body


def test_recorded_bits_have_not_moved(recorded_bits):
    """Hashes made on one machine hold on every other one; a change here must raise NUMERICS_VERSION."""
    import hashlib

    program, tensors = random_bert(np.random.default_rng(2024), layers=3, hidden=64, heads=4, inner=112)
    batch = random_batch(np.random.default_rng(2025), [1, 4, 9, 16, 25, 36, 49, 64, 81, 100, 600])
    for body in FMA_BODIES:
        ready = CpuBackend(**body, precision="int8").compile(program, Tensors(tensors))
        vectors = ready.run(batch)["normalized"]
        assert [hashlib.sha256(v.tobytes()).hexdigest()[:16] for v in vectors] == recorded_bits["int8"], body


def test_results_are_near_those_of_float32(bert):
    program, tensors = bert
    batch = random_batch(np.random.default_rng(10), LENGTHS)
    got, want = (
        CpuBackend(precision=kind).compile(program, Tensors(tensors)).run(batch)["normalized"]
        for kind in ("int8", "float32")
    )
    cosines = (got.astype(np.float64) * want).sum(axis=1)
    assert cosines.min() >= 0.995
    assert (got != want).any()


def test_weights_take_a_quarter_of_the_memory():
    program, tensors = random_bert(np.random.default_rng(1), hidden=64, inner=256)
    sizes = {}
    for precision in ("int8", "float32"):
        forms = WeightForms(precision, Tensors(tensors))
        resident = ResidentWeights(compile_program(forms.choose(program)).program, Tensors(tensors), forms)
        table = next(ref for op in program.ops for ref in op.weights.values() if ref.sources == ("words",))
        sizes[precision] = resident.memory.nbytes, resident.array(table).nbytes
    assert sizes["int8"][0] <= 0.29 * sizes["float32"][0]  # 64 inputs: scale and sum take an eighth of the integers
    assert sizes["int8"][1] * 2 == sizes["float32"][1]


def test_heads_over_whole_texts_stay_in_float32():
    x = np.random.default_rng(3).standard_normal((5, 32)).astype(np.float32)
    weight = np.random.default_rng(4).standard_normal((3, 32)).astype(np.float32)
    program, tensors = one_op({"x": x}, lambda g, v: g.linear(g.pool(v["x"], mode="cls"), g.weight("w", (3, 32))))
    tensors["w"] = weight
    got = CpuBackend(precision="int8").compile(program, Tensors(tensors)).run(batch_of([1, 4]))["y"]
    exact = x.astype(np.float16).astype(np.float32)[[0, 1]] @ weight.T
    assert np.abs(got - exact).max() < 1e-5


def test_more_inputs_than_an_exact_sum_takes_are_refused():
    depth = _cpu.INT8_DEPTH + 16
    x = np.ones((1, depth), np.float32)
    program, tensors = one_op({"x": x}, lambda g, views: g.linear(views["x"], g.weight("w", (1, depth))))
    tensors["w"] = np.ones((1, depth), np.float32)
    with pytest.raises(UnsupportedError, match=f"w has {depth} inputs and int8 sums take at most 65536"):
        CpuBackend(precision="int8").compile(program, Tensors(tensors))


def test_weights_that_are_not_finite_are_refused():
    x = np.ones((2, 8), np.float32)
    program, tensors = one_op({"x": x}, lambda g, views: g.linear(views["x"], g.weight("w", (20, 8))))
    tensors["w"] = np.zeros((20, 8), np.float32)
    tensors["w"][17, 3] = np.nan
    with pytest.raises(CheckpointError, match="w holds NaN or infinity"):
        CpuBackend(precision="int8").compile(program, Tensors(tensors))
