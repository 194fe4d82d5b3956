"""Mixtures of experts: the reference's results, the bits of plain products, the same bits in any company."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from lattice_inference.backends import reference
from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.errors import InvalidInputError, NonFiniteError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder

from .programs import Tensors, batch_of
from .test_blocks import StoredTensors, drawn_blocks

ISAS = _cpu.available_isas()
#: (precision, options of the backend, block format)
FORMS = {
    "float32": ("float32", {}, None),
    "float16": ("float16", {}, None),
    "bfloat16, widened": ("bfloat16", {"bfloat16_products": "float32"}, None),
    "bfloat16 products": ("bfloat16", {"bfloat16_products": "widened"}, None),
    "int8": ("int8", {}, None),
    "int8, floats": ("int8", {"activations": "float32"}, None),
    "Q8_0": ("stored", {}, "Q8_0"),
    "Q4_K": ("stored", {}, "Q4_K"),
    "Q5_1, floats": ("stored", {"activations": "float32"}, "Q5_1"),
}


@dataclass(frozen=True)
class Mixture:
    """A mixture over drawn rows: its program, and tensors by name."""

    program: object
    tensors: dict
    names: dict


def mixture(rows, *, experts=8, chosen=2, hidden=44, inner=20, normalized=True, shared=0, form=None, ups=None, seed=0):
    """Draw a mixture. ``form``, ``ups``: the block formats of its matrices, and of ups where they have another."""
    rng = np.random.default_rng([seed, experts, hidden, inner])
    tensors = {
        "x": rng.standard_normal((rows, hidden)).astype(np.float32),
        "router": (rng.standard_normal((experts, hidden)) * 0.4).astype(np.float32),
    }

    def draw(name, columns, depth, kind=form):
        if kind is not None:
            tensors[name] = drawn_blocks(kind, columns, depth, seed=len(tensors))
        else:
            tensors[name] = (rng.standard_normal((columns, depth)) * depth**-0.5).astype(np.float32)
        return name

    shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    names = {
        part: [draw(f"{part}.{e}", *shape, ups or form if part == "up" else form) for e in range(experts)]
        for part, shape in shapes.items()
    }
    g = GraphBuilder()
    x = g.embed_rows(g.weight("x", (rows, hidden), use="rows"), ids="token_ids")
    stacks = {part: g.stack(names[part], (experts, *shapes[part])) for part in shapes}
    weights = {}
    if shared:
        sizes = {"gate": (shared, hidden), "up": (shared, hidden), "down": (hidden, shared)}
        weights = {f"shared_{part}": g.weight(draw(f"shared.{part}", *sizes[part]), sizes[part]) for part in sizes}
        tensors["shared.router"] = rng.standard_normal((1, hidden)).astype(np.float32)
        weights["shared_router"] = g.weight("shared.router", (1, hidden))
    y = g.moe(
        x,
        router=g.weight("router", (experts, hidden)),
        **stacks,
        chosen=chosen,
        normalized=normalized,
        shared=weights,
    )
    return Mixture(g.build({"y": y}), tensors, names)


def compiled(drawn, form="float32", **options):
    precision, more, _ = FORMS[form]
    return CpuBackend(precision=precision, **(more | options)).compile(drawn.program, StoredTensors(drawn.tensors))


def row_alone(row):
    return Batch(np.array([row], np.int32), np.array([0, 1], np.int32))


@pytest.mark.parametrize("shared", [0, 12])
@pytest.mark.parametrize(
    ("experts", "chosen", "hidden", "inner", "normalized"),
    [(8, 2, 44, 20, True), (5, 5, 33, 7, False), (1, 1, 16, 16, False), (130, 9, 20, 3, True)],
)
def test_a_mixture_is_what_the_reference_says(experts, chosen, hidden, inner, normalized, shared):
    drawn = mixture(
        61, experts=experts, chosen=chosen, hidden=hidden, inner=inner, normalized=normalized, shared=shared
    )
    for rows in (1, 2, 61):
        want = reference.run(drawn.program, drawn.tensors, batch_of([rows]))["y"]
        for isa in ISAS:
            got = CpuBackend(isa=isa).compile(drawn.program, Tensors(drawn.tensors)).run(batch_of([rows]))["y"]
            assert np.abs(got - want).max() <= 4e-6, (isa, rows)


@pytest.mark.parametrize("form", FORMS)
def test_one_expert_alone_is_the_plain_products_bit_for_bit(form):
    """Its share is p / p = 1, so a row's result is what linear, silu, mul and linear give with that expert's weights."""
    kind = FORMS[form][2]
    drawn = mixture(24, chosen=1, hidden=256, inner=256 if kind == "Q4_K" else 64, form=kind)
    exact = {name: tensor for name, tensor in drawn.tensors.items() if name in ("x", "router")}
    sent = (exact["x"].astype(np.float64) @ exact["router"].T).argmax(axis=1)
    assert len(set(sent)) > 3
    got = compiled(drawn, form).run(batch_of([24]))["y"]
    precision, options, _ = FORMS[form]
    for expert in set(sent):
        g = GraphBuilder()
        x = g.embed_rows(g.weight("x", exact["x"].shape, use="rows"), ids="token_ids")
        inner = 256 if kind == "Q4_K" else 64
        gate, up = (g.linear(x, g.weight(drawn.names[part][expert], (inner, 256))) for part in ("gate", "up"))
        y = g.linear(g.mul(g.silu(gate), up), g.weight(drawn.names["down"][expert], (256, inner)))
        backend = CpuBackend(precision=precision, **options)
        want = backend.compile(g.build({"y": g.add(y, y)}), StoredTensors(drawn.tensors)).run(batch_of([24]))["y"] / 2
        assert got[sent == expert].tobytes() == want[sent == expert].tobytes(), expert


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_row_is_the_same_bits_alone_and_among_512_on_any_number_of_threads(form):
    kind = FORMS[form][2]
    drawn = mixture(512, hidden=256, inner=256 if kind == "Q4_K" else 96, form=kind, shared=32 if kind is None else 0)
    results = {threads: compiled(drawn, form, threads=threads).run(batch_of([512]))["y"] for threads in (1, 2, 3)}
    assert len({result.tobytes() for result in results.values()}) == 1
    ready = compiled(drawn, form, threads=2)
    for row in range(0, 512, 37):
        assert ready.run(row_alone(row))["y"].tobytes() == results[1][row : row + 1].tobytes(), row
    assert compiled(drawn, form, fused=False).run(batch_of([512]))["y"].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("form", [form for form in FORMS if form != "bfloat16 products"])
def test_levels_agree_bit_for_bit(form):
    kind = FORMS[form][2]
    drawn = mixture(40, hidden=256, inner=256 if kind == "Q4_K" else 96, form=kind, normalized=False)
    results = {
        isa: compiled(drawn, form, isa=isa).run(batch_of([40]))["y"].tobytes() for isa in ISAS if isa != "baseline"
    }
    assert len(set(results.values())) <= 1


@pytest.mark.parametrize("isa", [isa for isa in ISAS if _cpu.has_amx(isa)])
def test_matrix_tiles_change_no_bit(isa):
    """Rows that a task lays out for the tiles belong to its expert."""
    drawn = mixture(600, experts=3, hidden=256, inner=320, form="Q4_0")
    results = {
        compiled(drawn, "Q8_0", isa=isa, dot=True, tiles=tiles, threads=threads).run(batch_of([600]))["y"].tobytes()
        for tiles in (True, False)
        for threads in (1, 2)
    }
    assert len(results) == 1


def test_gates_and_ups_of_two_formats_are_multiplied_apart():
    drawn = mixture(9, hidden=64, inner=96, form="Q8_0", ups="Q4_1", chosen=3)
    ready = compiled(drawn, "Q8_0")
    together = ready.run(batch_of([9]))["y"]
    widened = CpuBackend(precision="float32").compile(drawn.program, StoredTensors(drawn.tensors))
    want = widened.run(batch_of([9]))["y"]
    assert 0 < np.abs(together - want).max() < 0.03 * np.abs(want).max()
    for row in range(9):
        assert ready.run(row_alone(row))["y"].tobytes() == together[row : row + 1].tobytes()


@pytest.mark.parametrize("normalized", [True, False])
def test_equal_logits_choose_the_experts_with_the_lowest_numbers(normalized):
    drawn = mixture(7, experts=9, chosen=3, normalized=normalized)
    drawn.tensors["router"][:] = 0
    want = reference.run(drawn.program, drawn.tensors, batch_of([7]))["y"]
    for isa in ISAS:
        got = compiled(drawn, isa=isa).run(batch_of([7]))["y"]
        assert np.abs(got - want).max() <= 2e-6
    drawn.tensors["router"][5] = drawn.tensors["router"][7] = drawn.tensors["x"][0]  # these two, and expert 0
    got, want = compiled(drawn).run(row_alone(0))["y"], reference.run(drawn.program, drawn.tensors, row_alone(0))["y"]
    assert np.abs(got - want).max() <= 4e-6


@pytest.mark.parametrize("rows", [1, 64])
def test_all_rows_to_one_expert_and_none_to_the_others(rows):
    drawn = mixture(64, chosen=1)
    drawn.tensors["x"][:, 0], drawn.tensors["router"][:, 0] = 1, 0
    drawn.tensors["router"][6, 0] = 100
    want = reference.run(drawn.program, drawn.tensors, batch_of([rows]))["y"]
    for isa in ISAS:
        assert np.abs(compiled(drawn, isa=isa).run(batch_of([rows]))["y"] - want).max() <= 4e-6


@pytest.mark.parametrize("form", ["bfloat16, widened", "bfloat16 products", "int8", "float16"])
def test_a_router_is_never_rounded(form):
    """Two experts whose rows differ by less than these types can hold: the larger one is chosen all the same."""
    drawn = mixture(6, chosen=1, hidden=64, inner=32)
    drawn.tensors["router"][:] = -1e-3 * np.abs(drawn.tensors["x"][0])
    drawn.tensors["router"][2:4] = drawn.tensors["x"][0] * np.float32(0.05)
    drawn.tensors["router"][3] *= np.float32(1 + 2**-18)
    ready = compiled(drawn, form)
    assert {size.dtype for size in ready.weight_sizes if size.name == "router"} == {"float32"}
    got = ready.run(row_alone(0))["y"]
    drawn.tensors["router"][2] = 0
    assert compiled(drawn, form).run(row_alone(0))["y"].tobytes() == got.tobytes()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_named_and_leaves_the_others_alone(poison):
    drawn = mixture(5)
    clean = compiled(drawn).run(batch_of([5]))["y"]
    drawn.tensors["x"][3, 7] = poison
    ready = compiled(drawn)
    with pytest.raises(NonFiniteError) as error:
        ready.run(batch_of([5]))
    assert error.value.rows == (3,)
    left = ready.submit(batch_of([5])).outputs["y"]
    assert np.delete(left, 3, axis=0).tobytes() == np.delete(clean, 3, axis=0).tobytes()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"router": (4, 9)}, "cannot take 8 columns"),
        ({"router": (5, 8)}, "not one for each row"),
        ({"up": (4, 7, 8)}, "must be of one shape"),
        ({"down": (4, 6, 8)}, "downs must be of shape"),
        ({"chosen": 5}, "from 1 to the 4 experts"),
        ({"chosen": 0}, "from 1 to the 4 experts"),
        ({"shared": {"shared_gate": (3, 8)}}, "has all of"),
        (
            {"shared": {"shared_router": (1, 8), "shared_gate": (3, 8), "shared_up": (4, 8), "shared_down": (8, 3)}},
            "the shared expert does not fit",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(changes, problem):
    g = GraphBuilder()
    x = g.embed_rows(g.weight("x", (3, 8), use="rows"), ids="token_ids")
    shapes = {"router": (4, 8), "gate": (4, 6, 8), "up": (4, 6, 8), "down": (4, 8, 6), "chosen": 2, "shared": {}}
    shapes |= changes
    chosen = shapes.pop("chosen")
    shared = {name: g.weight(name, shape) for name, shape in shapes.pop("shared").items()}
    weights = {
        name: g.stack([f"{name}.{n}" for n in range(shape[0])], shape) if len(shape) == 3 else g.weight(name, shape)
        for name, shape in shapes.items()
    }
    with pytest.raises(InvalidInputError, match=problem):
        g.moe(x, **weights, chosen=chosen, normalized=True, shared=shared)
