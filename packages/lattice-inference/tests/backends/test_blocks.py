"""Block-quantized weights: exactly the definition of kernels/linear/block_tiles.h over ggml's own bytes, on every level."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.backends.cpu.weight_forms import WeightForms
from lattice_inference.backends.cpu.weights import ResidentWeights
from lattice_inference.backends.weight_reading import RepackedWeightsWarning
from lattice_inference.checkpoint.blocks import BLOCK_FORMATS
from lattice_inference.checkpoint.mapped_tensors import TensorInfo
from lattice_inference.errors import CheckpointError, NonFiniteError, UnsupportedError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.compile import compile_program
from lattice_inference.graph.program import KvSpec

from .programs import batch_of

BODIES = [(isa, False) for isa in _cpu.available_isas()] + [
    (isa, True) for isa in _cpu.available_isas() if _cpu.has_dot_products(isa)
]
FORMATS = _cpu.BLOCK_FORMATS
DEPTH = 512
COLUMNS = 45


class StoredTensors:
    """A source of tensors by name: float32 arrays, or (ggml's name of a block format, blocks)."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.dropped = []

    def __contains__(self, name):
        return name in self.tensors

    def info(self, name):
        tensor = self.tensors[name]
        if not isinstance(tensor, tuple):
            return TensorInfo("F32", tensor.shape, Path(), 0, tensor.nbytes)
        format = BLOCK_FORMATS[tensor[0]]
        return TensorInfo(
            tensor[0], (len(tensor[1]), tensor[1].shape[1] * format.elements), Path(), 0, tensor[1].nbytes
        )

    def array(self, name):
        tensor = self.tensors[name]
        return tensor[1] if isinstance(tensor, tuple) else tensor

    def float32(self, name):
        tensor = self.tensors[name]
        return dequantized(tensor) if isinstance(tensor, tuple) else np.ascontiguousarray(tensor, np.float32)

    def drop_pages(self, name):
        self.dropped.append(name)


def dequantized(tensor):
    """ggml's own values of blocks, by the gguf package."""
    name, blocks = tensor
    kind = getattr(gguf.GGMLQuantizationType, name)
    return gguf.quants.dequantize(blocks.view(np.uint8).reshape(len(blocks), -1), kind).astype(np.float32)


def drawn_blocks(name, rows=COLUMNS, depth=DEPTH, seed=0):
    """Random bytes, with scales that are numbers."""
    format = BLOCK_FORMATS[name]
    rng = np.random.default_rng([seed, *name.encode()])
    shape = rows, depth // format.elements
    blocks = (
        np.frombuffer(rng.bytes(rows * depth // format.elements * format.nbytes), format.layout).reshape(shape).copy()
    )
    for field in {"scale", "offset", "minimum"} & set(format.layout.names):
        blocks[field] = rng.standard_normal(shape) * 0.01
    if name == "MXFP4":
        blocks["exponent"] = rng.integers(118, 128, shape)
    return name, blocks


def rounded_rows(x):
    """Activations by the definition of block_rows.h: integers (rows, blocks, 32) and scales."""
    x = x.reshape(len(x), -1, 32)
    largest = np.abs(x).max(axis=2)
    flat = ~(largest >= np.float32(2.0**-100))
    with np.errstate(divide="ignore"):
        inverse = np.where(flat, np.float32(0), np.float32(127) / largest)
    scales = np.where(flat, np.float32(0), largest / np.float32(127))
    return np.rint(np.clip(x * inverse[:, :, None], -127, 127)).astype(np.int64), scales


def fma(a, b, c, isa):
    """``a * b + c`` in float32, rounded once but on the baseline.

    The product is exact in float64. Its sum with ``c`` is rounded to odd there, which a second rounding does not see
    (S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums", IEEE Transactions on Computers 57, 2008).
    """
    if isa == "baseline":
        return a * b + c
    product, c = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + c
    part = total - product
    lost = (product - (total - part)) + (c - part)
    inexact_and_even = (lost != 0) & (total.view(np.int64) & 1 == 0)
    odd = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
    return np.where(inexact_and_even, odd, total).astype(np.float32)


def parts_of(name, blocks):
    """What block_tiles.h multiplies: scales (n, blocks of 32), integer factors of halves, offsets, their factors, q."""
    unpacked = BLOCK_FORMATS[name].unpack(np.ascontiguousarray(blocks).reshape(-1))
    n = len(blocks)
    q = unpacked.quants.reshape(n, -1, 32).astype(np.int64)
    count = q.shape[1]
    d = np.repeat(blocks["scale"].astype(np.float32).reshape(n, -1), count // blocks.shape[1], axis=1)
    ones = np.ones((n, count, 2), np.int64)
    if name == "Q6_K":
        return d, blocks["scales"].reshape(n, count, 2).astype(np.int64), None, None, q
    if name in ("Q4_K", "Q5_K"):
        m = np.repeat(blocks["minimum"].astype(np.float32).reshape(n, -1), 8, axis=1)
        flat = blocks.reshape(-1)
        scales = np.rint(unpacked.scales / flat["scale"].astype(np.float32)[:, None]).astype(np.int64)
        minima = np.rint(-unpacked.offsets / flat["minimum"].astype(np.float32)[:, None]).astype(np.int64)
        return d, np.repeat(scales.reshape(n, count, 1), 2, axis=2), -m, minima.reshape(n, count), q
    if "offset" in blocks.dtype.names:
        return d, ones, blocks["offset"].astype(np.float32).reshape(n, -1), ones[:, :, 0], q
    return d, ones, None, None, q


def linear_by_definition(x, tensor, isa):
    d, factors, offsets, offset_factors, q = parts_of(*tensor)
    integers, scales = rounded_rows(x)
    y = np.zeros((len(x), len(d)), np.float32)
    for b in range(q.shape[1]):
        halves = [integers[:, b, h : h + 16] @ q[:, b, h : h + 16].T for h in (0, 16)]
        total = halves[0] * factors[:, b, 0] + halves[1] * factors[:, b, 1]
        y = fma(total.astype(np.float32), d[:, b] * scales[:, b, None], y, isa)
        if offsets is not None:
            sums = integers[:, b].sum(axis=1)[:, None] * offset_factors[:, b]
            y = fma(sums.astype(np.float32), offsets[:, b] * scales[:, b, None], y, isa)
    return y


def program_of(x, columns=COLUMNS, depth=DEPTH, *, bias=False):
    g = GraphBuilder()
    rows = g.embed_rows(g.weight("x", x.shape, use="rows"), ids="token_ids")
    b = g.weight("b", (columns,), use="vector") if bias else None
    return g.build({"y": g.linear(rows, g.weight("w", (columns, depth)), b)})


def run(program, tensors, rows, body=(None, None), **options):
    backend = CpuBackend(isa=body[0], dot=body[1], **({"precision": "stored"} | options))
    return backend.compile(program, StoredTensors(tensors)).run(batch_of([rows]))["y"]


def rows_of(count, depth=DEPTH, seed=7):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, depth), np.float32) * np.exp(rng.standard_normal((count, 1), np.float32))
    x[:, 64:96] = 0
    return x


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", FORMATS)
def test_a_linear_is_its_definition_bit_for_bit(name, body):
    tensor = drawn_blocks(name)
    for count in (1, 2, 3, 4, 5, 7, 9, 16, 37):
        x = rows_of(count)
        got = run(program_of(x), {"x": x, "w": tensor}, count, body)
        assert got.tobytes() == linear_by_definition(x, tensor, body[0]).tobytes(), count


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("rows", [1, 2, 4, 7])
@pytest.mark.parametrize("name", FORMATS)
def test_few_rows_by_many_columns_are_the_definition_bit_for_bit(name, rows, body):
    """More panels than go side by side, and some that are left over."""
    x = rows_of(rows)
    tensor = drawn_blocks(name, rows=299)
    got = run(program_of(x, 299), {"x": x, "w": tensor}, rows, body)
    assert got.tobytes() == linear_by_definition(x, tensor, body[0]).tobytes()
    alone = run(program_of(x, 299), {"x": x, "w": tensor}, rows, body, threads=1)
    assert got.tobytes() == alone.tobytes()


@pytest.mark.parametrize("isa", [isa for isa in _cpu.available_isas() if _cpu.has_amx(isa)])
@pytest.mark.parametrize("depth", [256, 288, 1824, 1792])
@pytest.mark.parametrize("name", FORMATS)
def test_matrix_tiles_change_no_bit(name, depth, isa):
    """Whole and partial tiles of rows, blocks in groups and those left over, several blocks of rows, a bias."""
    if depth % BLOCK_FORMATS[name].elements:
        pytest.skip("no whole blocks")
    tensor = drawn_blocks(name, rows=299, depth=depth)
    for count in (9, 15, 16, 17, 41, 600):
        x = rows_of(count, depth)
        program, tensors = program_of(x, 299, depth, bias=True), {"x": x, "w": tensor, "b": rows_of(1, 299)[0]}
        with_tiles = run(program, tensors, count, (isa, True), tiles=True)
        without = run(program, tensors, count, (isa, True), tiles=False)
        assert with_tiles.tobytes() == without.tobytes(), count


@pytest.mark.parametrize("isa", [isa for isa in _cpu.available_isas() if _cpu.has_amx(isa)])
@pytest.mark.parametrize("columns", [2064, 2080, 2090])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_output_larger_than_a_cache_is_the_same_bits(threads, columns, isa):
    """Stored past the caches: panels side by side and one left over, no whole tile of rows, no whole lines of memory."""
    count, depth = 521, 64
    x, tensor = rows_of(count, depth), drawn_blocks("Q4_0", rows=columns, depth=depth)
    program = program_of(x, columns, depth)
    results = [
        run(program, {"x": x, "w": tensor}, count, (isa, True), tiles=tiles, threads=threads) for tiles in (True, False)
    ]
    assert results[0].nbytes > 4 << 20
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("isa", [isa for isa in _cpu.available_isas() if _cpu.has_amx(isa)])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_laid_out_for_tiles_are_those_of_this_run_and_linear(threads, isa):
    """What a thread's scratch holds of an earlier task is used again within one linear of one run, and never beyond."""
    depth, count = 1792, 600
    tensors = {"x": rows_of(count, depth), "w": drawn_blocks("Q8_0", rows=299, depth=depth)}
    tensors["v"] = drawn_blocks("Q8_0", rows=299, depth=depth, seed=1)
    g = GraphBuilder()
    rows = g.embed_rows(g.weight("x", (count, depth), use="rows"), ids="token_ids")
    outputs = {name: g.linear(rows, g.weight(name, (299, depth))) for name in ("w", "v")}
    program = g.build(outputs)
    batches = [batch_of([count])]
    batches.append(replace(batches[0], token_ids=batches[0].token_ids[::-1].copy()))
    options = {"isa": isa, "dot": True, "precision": "stored", "threads": threads}
    source = StoredTensors(tensors)
    compiled = [CpuBackend(tiles=tiles, **options).compile(program, source) for tiles in (True, False)]
    for batch in (*batches, *batches):
        with_tiles, without = (each.run(batch) for each in compiled)
        assert all(with_tiles[name].tobytes() == without[name].tobytes() for name in outputs)


@pytest.mark.parametrize("name", FORMATS)
def test_a_linear_is_the_product_of_ggmls_values(name):
    tensor, x = drawn_blocks(name, seed=3), rows_of(6)
    integers, scales = rounded_rows(x)
    exact = (integers * scales[:, :, None].astype(np.float64)).reshape(6, -1) @ dequantized(tensor).T.astype(np.float64)
    got = run(program_of(x), {"x": x, "w": tensor}, 6)
    assert np.abs(got - exact).max() <= 2e-6 * np.abs(exact).max() * DEPTH**0.5


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", FORMATS)
def test_float_activations_see_ggmls_values_bit_for_bit(name, body):
    """As a float32 model does whose weights are the dequantized ones."""
    tensor, bias = drawn_blocks(name, seed=1), np.random.default_rng(0).standard_normal(COLUMNS).astype(np.float32)
    for count in (1, 3, 14):
        x = rows_of(count)
        tensors = {"x": x, "w": tensor, "b": bias}
        got = run(program_of(x, bias=True), tensors, count, body, activations="float32")
        want = run(program_of(x, bias=True), tensors, count, body, precision="float32")
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("body", BODIES)
def test_int8_weights_with_float_activations(body):
    x = rows_of(5)
    weight = np.random.default_rng(1).standard_normal((COLUMNS, DEPTH)).astype(np.float32)
    scale = np.abs(weight).max(axis=1, keepdims=True) / np.float32(127)
    x16 = x.astype(np.float16).astype(np.float32)
    got = run(program_of(x), {"x": x, "w": weight}, 5, body, precision="int8", activations="float32")
    want = run(program_of(x), {"x": x16, "w": np.rint(weight / scale) * scale}, 5, body, precision="float32")
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_a_table_are_ggmls_values(name, body):
    table = drawn_blocks(name, rows=37, seed=2)
    g = GraphBuilder()
    looked_up = g.embed_rows(g.weight("x", (37, DEPTH), use="rows"), ids="token_ids")
    alone = run(g.build({"y": looked_up}), {"x": table}, 37, body)
    assert alone.tobytes() == dequantized(table).tobytes()
    doubled = run(g.build({"y": g.add(looked_up, looked_up)}), {"x": table}, 37, body)
    assert (doubled == 2 * dequantized(table)).all()


@pytest.mark.parametrize("name", FORMATS)
def test_a_table_may_be_added_to_rows_in_place(name):
    words, places = drawn_blocks(name, rows=9, seed=2), drawn_blocks(name, rows=9, seed=4)
    g = GraphBuilder()
    first, second = (g.embed_rows(g.weight(n, (9, DEPTH), use="rows"), ids="token_ids") for n in ("x", "p"))
    program = g.build({"y": g.add(first, second)})
    for fused in (True, False):
        got = run(program, {"x": words, "p": places}, 9, fused=fused)
        assert got.tobytes() == (dequantized(words) + dequantized(places)).tobytes()


def test_a_tied_table_is_in_memory_once():
    table = drawn_blocks("Q4_0", rows=48)
    g = GraphBuilder()
    x = g.embed_rows(g.weight("x", (48, DEPTH), use="rows"), ids="token_ids")
    program = g.build({"y": g.linear(x, g.weight("x", (48, DEPTH)))})
    source = StoredTensors({"x": table})
    forms = WeightForms("stored", source)
    resident = ResidentWeights(forms.choose(program), source, forms)
    assert resident.memory.nbytes == table[1].nbytes
    values = dequantized(table)
    got = run(program, {"x": table}, 48)
    assert got.tobytes() == linear_by_definition(values, table, _cpu.select_isa()).tobytes()


@pytest.mark.parametrize("name", FORMATS)
def test_packed_weights_take_what_the_file_takes(name):
    program = program_of(rows_of(1), columns=64)
    tensor = drawn_blocks(name, rows=64)
    source = StoredTensors({"x": rows_of(1), "w": tensor})
    forms = WeightForms("stored", source)
    resident = ResidentWeights(compile_program(forms.choose(program)).program, source, forms)
    assert resident.memory.nbytes <= 1.03 * tensor[1].nbytes
    assert "w" in source.dropped


@pytest.mark.parametrize("name", sorted(set(BLOCK_FORMATS) - set(FORMATS)))
def test_other_formats_are_kept_as_q8_0_with_a_notice(name):
    tensor, x = drawn_blocks(name), rows_of(4)
    with pytest.warns(RepackedWeightsWarning, match=f"weights in {name} .* are kept as Q8_0"):
        got = run(program_of(x), {"x": x, "w": tensor}, 4)
    kind = gguf.GGMLQuantizationType.Q8_0
    repacked = gguf.quants.quantize(dequantized(tensor), kind).view(BLOCK_FORMATS["Q8_0"].layout)
    assert (
        got.tobytes() == linear_by_definition(x, ("Q8_0", repacked.reshape(COLUMNS, -1)), _cpu.select_isa()).tobytes()
    )


@pytest.mark.parametrize("activations", ["int8", "float32"])
def test_projections_of_several_formats_are_laid_side_by_side(activations):
    """Of a file in Q4_K_M the values' projection has another format than the others: fused or not, the bits are the same."""
    x = rows_of(6, 256)
    tensors = {
        "x": x,
        **{n: drawn_blocks(f, 32, 256, seed=i) for i, (n, f) in enumerate(zip("qkv", FORMATS[4:7], strict=True))},
    }
    g = GraphBuilder()
    h = g.embed_rows(g.weight("x", x.shape, use="rows"), ids="token_ids")
    q, k, v = (g.linear(h, g.weight(name, (32, 256))) for name in "qkv")
    program = g.build({"y": g.attention(q, k, v, heads=2, kv_heads=2, head_dim=16, scale=0.25)})
    results = {
        fused: run(program, tensors, 6, fused=fused, activations=activations).tobytes() for fused in (True, False)
    }
    assert results[True] == results[False]
    same = tensors | {"v": drawn_blocks(FORMATS[4], 32, 256, seed=9), "k": drawn_blocks(FORMATS[4], 32, 256, seed=8)}
    assert (
        run(program, same, 6, fused=True, activations=activations).tobytes()
        == run(program, same, 6, fused=False, activations=activations).tobytes()
    )


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K"])
def test_a_row_is_the_same_in_any_company_and_on_any_number_of_threads(name):
    x = rows_of(133)
    tensors = {"x": x, "w": drawn_blocks(name, 301)}
    results = [run(program_of(x, 301), tensors, 133, threads=threads) for threads in (1, 2, 3)]
    assert len({result.tobytes() for result in results}) == 1
    for row in range(0, 133, 11):
        part = x[row : row + 1]
        alone = run(program_of(part, 301), tensors | {"x": part}, 1)
        assert alone.tobytes() == results[0][row : row + 1].tobytes()


def test_levels_with_fma_agree_bit_for_bit():
    x = rows_of(5)
    for name in FORMATS:
        tensors = {"x": x, "w": drawn_blocks(name)}
        results = {body: run(program_of(x), tensors, 5, body).tobytes() for body in BODIES if body[0] != "baseline"}
        assert len(set(results.values())) <= 1, name


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_scale_that_is_not_finite_is_refused_by_name(name, poison):
    tensor = drawn_blocks(name)
    tensor[1]["scale"][17, 1] = poison
    with pytest.raises(CheckpointError, match="w has a scale that is NaN or infinite"):
        run(program_of(rows_of(1)), {"x": rows_of(1), "w": tensor}, 1)


@pytest.mark.parametrize("body", BODIES)
def test_activations_that_are_not_finite_are_not_hidden(body):
    for poison in (np.nan, np.inf, -np.inf):
        x = rows_of(3)
        x[1, 100] = poison
        with pytest.raises(NonFiniteError) as error:
            run(program_of(x), {"x": x, "w": drawn_blocks("Q4_0")}, 3, body)
        assert error.value.rows == (1,)


def test_unknown_activations_are_refused():
    with pytest.raises(UnsupportedError, match="activations must be one of int8, float32, not 'int4'"):
        CpuBackend(activations="int4")


def test_shapes_are_checked():
    x = rows_of(1)
    with pytest.raises(CheckpointError, match=r"needs a tensor of shape \(45, 512\), the checkpoint has w \(40, 512\)"):
        run(program_of(x), {"x": x, "w": drawn_blocks("Q5_0", 40)}, 1)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_multiplied_by_what_rounding_left_out_too(name, body):
    """Bit for bit the sum of the definition over rows and over their remainders; for any rows that are wanted."""
    isa, dot = body
    x, tensor = rows_of(3), drawn_blocks(name)
    g = GraphBuilder()
    key = g.embed_rows(g.weight("k", (3, 16), use="rows"), ids="token_ids")
    g.kv_write(key, key, layer=0, kv_heads=1, head_dim=16)
    rows = g.gather_rows(g.embed_rows(g.weight("x", x.shape, use="rows"), ids="token_ids"))
    spec = KvSpec(0, 1, 16, "float16")
    program = g.build({"y": g.linear(rows, g.weight("w", (COLUMNS, DEPTH)))}, kv_specs=[spec])
    backend = CpuBackend(isa=isa, dot=dot, precision="stored")
    ready = backend.compile(program, StoredTensors({"x": x, "w": tensor, "k": np.zeros((3, 16), np.float32)}))
    integers, scales = rounded_rows(x)
    rest = x - (scales[:, :, None] * integers.astype(np.float32)).reshape(x.shape)
    want = linear_by_definition(x, tensor, isa) + linear_by_definition(rest, tensor, isa)
    for wanted in ([2, 0], [], [1], [0, 1, 2, 2]):
        batch = Batch(
            np.arange(3, dtype=np.int32),
            np.array([0, 3], np.int32),
            context_lengths=np.zeros(1, np.int32),
            block_table=(np.zeros(1, np.int32),),
            logit_rows=np.array(wanted, np.int32),
        )
        got = ready.run(batch, state=backend.open_state([spec], page_tokens=16, pages=1))["y"]
        assert got.tobytes() == want[wanted].tobytes(), wanted
    exact = x.astype(np.float64) @ dequantized(tensor).astype(np.float64).T
    once = np.abs(linear_by_definition(x, tensor, isa) - exact).max()
    assert np.abs(want - exact).max() < 0.05 * once + 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", ["Q8_0", "Q4_1", "Q6_K"])
def test_values_of_attention_are_multiplied_by_what_rounding_left_out_too(name, body, fused):
    """The first token of a sequence sees itself only, so attention gives its value: queries and keys are rounded once."""
    isa, dot = body
    x = rows_of(3)
    tensors = {part: drawn_blocks(name) for part in "qkv"}
    g = GraphBuilder()
    rows = g.embed_rows(g.weight("x", x.shape, use="rows"), ids="token_ids")
    query, key, value = (g.linear(rows, g.weight(part, (COLUMNS, DEPTH))) for part in tensors)
    g.kv_write(key, value, layer=0, kv_heads=1, head_dim=COLUMNS)
    seen = g.paged_attention(query, layer=0, heads=1, kv_heads=1, head_dim=COLUMNS, scale=1.0)
    spec = KvSpec(0, 1, COLUMNS, "float32")
    program = g.build({"y": seen, "key": key}, kv_specs=[spec])
    backend = CpuBackend(isa=isa, dot=dot, precision="stored", fused=fused)
    ready = backend.compile(program, StoredTensors({"x": x, **tensors}))
    integers, scales = rounded_rows(x)
    rest = x - (scales[:, :, None] * integers.astype(np.float32)).reshape(x.shape)
    once = linear_by_definition(x, tensors["v"], isa)
    want = once + linear_by_definition(rest, tensors["v"], isa)
    batch = Batch(
        np.arange(3, dtype=np.int32),
        np.arange(4, dtype=np.int32),
        context_lengths=np.zeros(3, np.int32),
        block_table=tuple(np.array([page], np.int32) for page in range(3)),
    )
    got = ready.run(batch, state=backend.open_state([spec], page_tokens=16, pages=3))
    assert got["y"].tobytes() == want.tobytes()
    assert got["key"].tobytes() == linear_by_definition(x, tensors["k"], isa).tobytes()
    assert (want != once).any()
