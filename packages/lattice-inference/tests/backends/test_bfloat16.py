"""Linears and attention over rows rounded to bfloat16: right to the last sum, and the same bits in any company."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_inference.backends import reference
from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.errors import NonFiniteError
from lattice_inference.graph.builder import GraphBuilder

from .programs import EMULATED, Tensors, batch_of, one_op, random_batch, random_bert, sequence_of

BODIES = [(isa, products) for isa in _cpu.available_isas() for products in _cpu.bfloat16_products(isa)]
TILES = [(isa, products) for isa, products in BODIES if products == "tiles"]
LENGTHS = [1, 2, 3, 5, 8, 13, 14, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 100, 128, 129]
if EMULATED:
    LENGTHS = [1, 2, 3, 8, 13, 15, 16, 17, 31, 33, 49]
# heads of 32, whose attention is by tiles, and sizes that are a multiple of nothing
SHAPES = {"tiles": {"hidden": 128, "inner": 160}, "odd": {"hidden": 36, "inner": 75}}


def rounded(x):
    """``x`` rounded to bfloat16, to nearest, ties to even; as float32."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def backend(body, **options):
    isa, products = body
    return CpuBackend(isa=isa, precision="bfloat16", bfloat16_products=products, **options)


@pytest.fixture(params=SHAPES)
def bert(request):
    return random_bert(np.random.default_rng(11), **SHAPES[request.param])


@pytest.fixture
def threads():
    before = _cpu.get_num_threads()
    yield _cpu.set_num_threads
    _cpu.set_num_threads(before)


def linear(x, weight, *, bias=None, activation=None, residual=None):
    """The program of a linear over the rows of ``x``, exact in a table of bfloat16 only if ``x`` is."""

    def write(g, views):
        vector = None if bias is None else g.weight("b", bias.shape, use="vector")
        y = g.linear(views["x"], g.weight("w", weight.shape), vector)
        if activation is not None:
            y = getattr(g, activation)(y)
        return y if residual is None else g.add(y, views["residual"])

    inputs = {"x": x} | ({} if residual is None else {"residual": residual})
    program, tensors = one_op(inputs, write)
    return program, tensors | {"w": weight} | ({} if bias is None else {"b": bias})


@pytest.mark.parametrize(("columns", "depth"), [(1, 1), (16, 2), (17, 31), (45, 32), (64, 33), (52, 161)])
def test_linear_is_the_sum_of_rounded_products(columns, depth):
    rng = np.random.default_rng(depth)
    weight = rng.standard_normal((columns, depth), np.float32)
    bias = rng.standard_normal(columns, np.float32)
    for rows in (1, 2, 3, 5, 12, 13, 15, 16, 17, 24, 31, 32, 33, 48, 49, 64, 65, 200):
        x = rounded(rng.standard_normal((rows, depth), np.float32))
        residual = rounded(rng.standard_normal((rows, columns), np.float32))
        program, tensors = linear(x, weight, bias=bias, residual=residual)
        exact = x.astype(np.float64) @ rounded(weight).astype(np.float64).T + bias + residual
        terms = (
            np.abs(x).astype(np.float64) @ np.abs(rounded(weight)).astype(np.float64).T
            + np.abs(bias)
            + np.abs(residual)
        )
        for body in BODIES:
            got = backend(body).compile(program, Tensors(tensors)).run(batch_of([rows]))["y"]
            assert (np.abs(got - exact) <= terms * (depth + 4) * 2.0**-24).all(), (rows, body)


@pytest.mark.parametrize("body", BODIES, ids="-".join)
def test_a_row_is_the_same_bits_among_any_number_of_rows(body):
    """Instructions that take two rows at once round as those that take one."""
    rng = np.random.default_rng(12)
    x, weight = (
        rng.standard_normal(shape, np.float32) * 2.0 ** rng.integers(-9, 9, shape) for shape in ((13, 70), (40, 70))
    )
    x = rounded(x.astype(np.float32))

    def run(rows):
        program, tensors = linear(rows, weight.astype(np.float32))
        return backend(body).compile(program, Tensors(tensors)).run(batch_of([len(rows)]))["y"]

    alone = np.concatenate([run(x[index : index + 1]) for index in range(len(x))])
    for count in range(2, len(x) + 1):
        assert run(x[:count]).tobytes() == alone[:count].tobytes(), count


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu", "tanh"])
def test_what_follows_a_linear_is_done_to_its_sums(activation):
    rng = np.random.default_rng(3)
    x, weight = rounded(rng.standard_normal((37, 40), np.float32)), rng.standard_normal((50, 40), np.float32)
    program, tensors = linear(x, weight, activation=activation)
    exact = reference.run(program, tensors | {"w": rounded(weight)}, batch_of([37]))["y"]
    for body in BODIES:
        got = backend(body).compile(program, Tensors(tensors)).run(batch_of([37]))["y"]
        np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5, err_msg=str(body))


@pytest.mark.parametrize("body", BODIES, ids="-".join)
def test_rows_are_rounded_to_nearest_even(body):
    """A linear of the identity gives its rows back as they were rounded. They come from a sum, which is float32."""
    rng = np.random.default_rng(8)
    bits = rng.integers(0x20000000, 0x5F000000, (300, 48), dtype=np.uint32)
    bits[::3] = bits[::3] & 0xFFFF0000 | 0x8000  # ties
    x = bits.view(np.float32) * np.where(rng.random((300, 48)) < 0.5, np.float32(-1), np.float32(1))
    high = rounded(x)
    # what is left after two roundings to bfloat16 is exact in bfloat16, too
    parts = {"x": high, "y": rounded(x - high)}
    parts["z"] = (x - parts["x"]) - parts["y"]
    assert ((parts["x"] + parts["y"]) + parts["z"] == x).all()
    identity = np.eye(48, dtype=np.float32)

    def write(g, views):
        return g.linear(g.add(g.add(views["x"], views["y"]), views["z"]), g.weight("w", identity.shape))

    program, tensors = one_op(parts, write)
    got = backend(body).compile(program, Tensors(tensors | {"w": identity})).run(batch_of([300]))["y"]
    assert got.tobytes() == (rounded(x) + np.float32(0)).tobytes()


@pytest.mark.parametrize("body", BODIES, ids="-".join)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(body, poison):
    x = np.ones((20, 64), np.float32)
    x[17, 3] = poison
    program, tensors = linear(x, np.ones((20, 64), np.float32))
    with pytest.raises(NonFiniteError) as error:
        backend(body).compile(program, Tensors(tensors)).run(batch_of([20]))
    assert error.value.rows == (17,)


@pytest.mark.parametrize("body", BODIES, ids="-".join)
def test_vector_is_the_same_alone_and_in_any_batch(body, bert):
    program, tensors = bert
    ready = backend(body).compile(program, Tensors(tensors))
    batch = random_batch(np.random.default_rng(5), LENGTHS)
    together = ready.run(batch)["normalized"]
    for index in range(batch.sequences):
        assert (ready.run(sequence_of(batch, index))["normalized"][0] == together[index]).all(), LENGTHS[index]


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES, ids="-".join)
def test_vector_does_not_depend_on_the_number_of_threads(body, bert, threads):
    program, tensors = bert
    ready = backend(body).compile(program, Tensors(tensors))
    batch = random_batch(np.random.default_rng(6), LENGTHS if EMULATED else LENGTHS * 2)
    results = set()
    for count in (1, 3) if EMULATED else (1, 2, 3, 7):
        threads(count)
        results |= {ready.run(batch)["normalized"].tobytes() for _ in range(1 if EMULATED else 3)}
    assert len(results) == 1


@pytest.mark.parametrize("body", BODIES, ids="-".join)
def test_fusion_changes_no_bit(body, bert):
    program, tensors = bert
    batch = random_batch(np.random.default_rng(8), LENGTHS)
    fused, plain = (backend(body, fused=fused).compile(program, Tensors(tensors)).run(batch) for fused in (True, False))
    assert all(fused[name].tobytes() == plain[name].tobytes() for name in program.outputs)


def test_vectors_are_close_to_those_of_float32(bert):
    program, tensors = bert
    batch = random_batch(np.random.default_rng(9), LENGTHS)
    exact = reference.run(program, tensors, batch)["normalized"]
    for body in BODIES:
        got = backend(body).compile(program, Tensors(tensors)).run(batch)["normalized"]
        assert ((got * exact).sum(axis=1) >= 0.9999).all(), body


def test_rows_are_rounded_where_they_are_made():
    """Guards the comparison of fused and unfused programs: the fused one has no pass that only rounds."""
    program, tensors = random_bert(np.random.default_rng(11), **SHAPES["tiles"])
    isa, products = BODIES[-1]
    kinds = [
        [op.kind for op in backend((isa, products), fused=fused).compile(program, Tensors(tensors)).program.ops]
        for fused in (True, False)
    ]
    assert "round_rows" not in kinds[0]
    assert "round_rows" in kinds[1]


@pytest.mark.skipif(not TILES, reason="this CPU has no matrix tiles for bfloat16")
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(2, 2, 32), (3, 1, 64), (1, 1, 96)])
@pytest.mark.parametrize("lengths", [[1, 2, 15, 16, 17], [31, 32, 33, 48, 130], [512], [513, 3], [700, 1100]])
def test_attention_by_tiles_is_close_to_attention(heads, kv_heads, head_dim, lengths):
    """Of queries, keys and values that are bfloat16 already: what is left is the rounding of the weights of values."""
    rng = np.random.default_rng(sum(lengths))
    rows, scale = sum(lengths), head_dim**-0.5
    widths = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim}
    g = GraphBuilder()
    tensors = {f"{name}.w": np.eye(width, dtype=np.float32) for name, width in widths.items()}
    views = []
    for name, width in widths.items():
        tensors[name] = rounded(rng.standard_normal((rows, width), np.float32) * 2)
        x = g.embed_rows(g.weight(name, (rows, width), use="rows"), ids="token_ids")
        views.append(g.linear(x, g.weight(f"{name}.w", (width, width))))
    y = g.attention(*views, heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=scale)
    program = g.build({"y": y})
    ready = backend(TILES[0]).compile(program, Tensors(tensors))
    assert ready.program.ops[-1].attributes.get("rounded_width") is None  # an output is float32
    got = ready.run(batch_of(lengths))["y"]
    exact = reference.run(program, tensors, batch_of(lengths))["y"]
    assert np.abs(got - exact).max() <= 2.0**-8 * np.abs(tensors["v"]).max()
    assert np.abs(got - exact).mean() <= 2.0**-10


def test_the_best_products_are_the_default():
    isa = _cpu.available_isas()[-1]
    present = _cpu.bfloat16_products(isa)
    best = present[-1] if len(present) > 1 else "float32"
    assert CpuBackend(isa=isa, precision="bfloat16").bfloat16_products == best
    assert CpuBackend(isa=isa, dot=False).bfloat16_products == "float32"
    assert CpuBackend(isa=isa, tiles=False).bfloat16_products == ("dot" if "dot" in present else "float32")
    assert CpuBackend(isa="baseline").bfloat16_products == "float32"


def test_products_that_a_level_has_not_are_refused():
    with pytest.raises(ValueError, match="baseline multiplies bfloat16 here by widened, not by 'tiles'"):
        CpuBackend(isa="baseline", bfloat16_products="tiles")


@pytest.mark.parametrize("body", BODIES, ids="-".join)
def test_weights_take_half_the_memory(body):
    program, tensors = random_bert(np.random.default_rng(1), hidden=64, inner=256)
    sizes = {size.name: size for size in backend(body).compile(program, Tensors(tensors)).weight_sizes}
    for name in ("0.o.w", "0.up.w", "1.down.w"):
        assert (sizes[name].dtype, sizes[name].nbytes) == ("bfloat16", 2 * tensors[name].size)
