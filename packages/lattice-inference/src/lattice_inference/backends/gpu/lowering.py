"""Every op as kernel calls, for all GPU devices: one function an op.

What a step decides (which kernel of a pair, how many workgroups) is a function of the row count and the
:class:`~lattice_inference.backends.gpu.step_inputs.StepShape`, made here and asked when a step is submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from lattice_inference.backends.gpu.device import sorted_constants
from lattice_inference.backends.gpu.expert_lowering import EXPERT_LOWERINGS
from lattice_inference.backends.gpu.fusing import GATED_LINEAR, ROTATED_WRITE
from lattice_inference.backends.gpu.kernel_call import NO_PAGES, WORKGROUP, KernelCall, Launch
from lattice_inference.backends.gpu.launches import Choose, Lowering, elements, groups
from lattice_inference.backends.gpu.recurrent_lowering import RECURRENT_LOWERINGS
from lattice_inference.backends.gpu.slots import check_state_dim
from lattice_inference.backends.gpu.step_inputs import FEW_ROWS, HEADER, HEADER_WORDS, StepShape
from lattice_inference.backends.gpu.weights import GpuWeights, WeightPart
from lattice_inference.errors import UnsupportedError
from lattice_inference.graph.fusion import ACTIVATIONS
from lattice_inference.graph.program import Op, Program, Rows, View, WeightRef

__all__ = ["IN_PLACE", "LoweredProgram", "check_ops", "lower"]

IN_PLACE: Mapping[str, int] = {
    **dict.fromkeys(("add", "mul", "silu_mul", "layer_norm", "rms_norm", "l2_normalize", "embed_rows_add"), 0),
    **dict.fromkeys(ACTIVATIONS, 0),
    "linear_add": 1,
}
"""Ops that may write over one of their inputs: they read an element of it only to write the same one."""

MAX_HEAD_DIM = 256
"""Dimensions of a head that attention takes: its tile of queries lies in workgroup memory."""

_PAIRINGS = ("half", "interleaved")  # kernels know them by their place, counted from 1; 0 rotates nothing
_ACTIVATION_NUMBERS = {"gelu_erf": 1, "gelu_tanh": 2, "relu": 3, "silu": 4, "tanh": 5, "sigmoid": 6}
_TILE = 32  # rows and columns of linear_tiled's tiles


@dataclass(frozen=True)
class LoweredProgram:
    """A program as kernel calls.

    Attributes:
        calls: in order.
        angles: for each op of angles, its frequencies and its scale, as the host works them out.
        given: names of the rows of floats that the caller gives; their tables follow those of angles.
        queries: rows of a tile of attention of many rows.
        scratch_width: floats that attention of few rows needs for each row and segment of keys.
    """

    calls: tuple[KernelCall, ...]
    angles: tuple[tuple[WeightRef, float], ...]
    given: tuple[str, ...]
    queries: int
    scratch_width: int


def check_ops(program: Program) -> None:
    """Raise UnsupportedError for an op, or a size of one, that no kernel computes."""
    for op in program.ops:
        if op.kind not in _LOWERINGS:
            raise UnsupportedError(
                f"GPU backends have no kernel for the op {op.kind!r}: load the model with device='cpu'"
            )
        head_dim = op.attributes.get("head_dim", 0)
        if "attention" in op.kind and int(head_dim) > MAX_HEAD_DIM:
            raise UnsupportedError(
                f"GPU backends take heads of attention of at most {MAX_HEAD_DIM} dimensions, not {head_dim}: load the model "
                "with device='cpu'"
            )
        if op.kind == "gated_delta_rule":
            check_state_dim(int(op.attributes["key_dim"]))


def lower(
    program: Program, weights: GpuWeights, *, has_subgroups: bool, is_software: bool, few_columns: int
) -> LoweredProgram:
    """Return the kernel calls of ``program``, for which :func:`check_ops` was called."""
    lowering = Lowering(program, weights, has_subgroups=has_subgroups, is_software=is_software, few_columns=few_columns)
    calls = [call for op in program.ops for call in _LOWERINGS[op.kind](op, lowering)]
    widths = [
        int(op.attributes["heads"]) * (int(op.attributes["head_dim"]) + 2)
        for op in program.ops
        if op.kind == "paged_attention"
    ]
    return LoweredProgram(
        tuple(calls), tuple(lowering.angles), tuple(lowering.given), lowering.queries, max(widths, default=0)
    )


def _embed_rows(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    table, y = op.weights["table"], op.outputs[0]
    weight = lowering.weights[table]
    views = {"y": y, **({"a": op.inputs[0]} if op.inputs else {})}
    width = table.shape[1]
    for part in weight.parts:
        yield KernelCall(
            y.rows,
            views,
            elements("embed_rows", groups(width, 4), ADD=int(bool(op.inputs)), FORMAT=weight.form),
            {"k": width, "n": part.rows, "first": part.first, "section": HEADER[str(op.attributes["ids"]).upper()]},
            (part.buffer, weight.scales, None),
        )


def _linear(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    y = op.outputs[0]
    weight = lowering.weights[op.weights["weight"]]
    bias = lowering.weights.vector(op.weights["bias"]) if "bias" in op.weights else None
    suffix = op.kind.removeprefix("linear").removeprefix("_")
    constants: dict[str, int | str] = {
        "FORMAT": weight.form,
        "BIAS": int(bias is not None),
        "RESIDUAL": int(suffix == "add"),
        "ACTIVATION": _activation(suffix, op) if suffix in ACTIVATIONS else 0,
        "GATED": int(op.kind == GATED_LINEAR),
    }
    if op.kind == GATED_LINEAR:
        (part,) = weight.parts  # join_gates leaves others alone
        yield KernelCall(
            y.rows,
            {"x": op.inputs[0], "y": y},
            _few_or_tiled(2 * y.width, constants, lowering),
            {"k": op.weights["weight"].shape[1], "n": y.width},
            (part.buffer, weight.scales, bias),
        )
        return
    for part in weight.parts:
        views = {"x": op.inputs[0], "y": _columns(y, part)}
        if suffix == "add":
            views["a"] = _columns(op.inputs[1], part)
        yield KernelCall(
            y.rows,
            views,
            _few_or_tiled(part.rows, constants, lowering),
            {"k": op.weights["weight"].shape[1], "n": part.rows, "first": part.first},
            (part.buffer, weight.scales, bias),
        )


def _columns(view: View, part: WeightPart) -> View:
    """Return the columns of a linear's output that a part of its weight gives."""
    return replace(view, column=view.column + part.first, width=part.rows)


def _few_or_tiled(columns: int, constants: Mapping[str, int | str], lowering: Lowering) -> Choose:
    tiled = sorted_constants(constants)
    few = {
        rows: sorted_constants({**constants, "ROWS": rows, "SUBGROUPS": lowering.subgroups}) for rows in (1, 2, 4, 8)
    }

    def choose(rows: int, shape: StepShape) -> Launch | None:
        if not rows:
            return None
        if lowering.is_encoder or rows > FEW_ROWS:
            return Launch("linear_tiled", tiled, groups(rows, _TILE) * groups(columns, _TILE))
        fitting = 1 << (rows - 1).bit_length()
        return Launch("linear_few", few[fitting], groups(columns, lowering.few_columns))

    return choose


def _activation(kind: str, op: Op) -> int:
    return _ACTIVATION_NUMBERS[f"gelu_{op.attributes['form']}" if kind == "gelu" else kind]


def _elementwise(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    y = op.outputs[0]
    views = {"x": op.inputs[0], "y": y}
    if op.kind in ACTIVATIONS:
        choose = elements("elementwise", y.width, KIND=3, ACTIVATION=_activation(op.kind, op))
    else:
        views["a"] = op.inputs[1]
        choose = elements("elementwise", y.width, KIND=("add", "mul", "silu_mul").index(op.kind), ACTIVATION=0)
    yield KernelCall(y.rows, views, choose, {"n": y.width})


def _norm(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    y = op.outputs[0]
    heads = int(op.attributes.get("heads", 1))
    constants = sorted_constants({"KIND": ("layer_norm", "rms_norm", "l2_normalize").index(op.kind)})
    weight, bias = (
        lowering.weights.vector(op.weights[name]) if name in op.weights else None for name in ("weight", "bias")
    )
    yield KernelCall(
        y.rows,
        {"x": op.inputs[0], "y": y},
        lambda rows, _: Launch("norm", constants, rows * heads) if rows else None,
        {
            "n": y.width // heads,
            "heads": heads,
            "epsilon": float(op.attributes.get("epsilon", 0.0)),
            "offset": float(op.attributes.get("offset", 0.0)),
        },
        (weight, None, bias),
    )


def _rope_angles(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    y = op.outputs[0]
    section = HEADER_WORDS + len(lowering.angles)
    lowering.angles.append((op.weights["frequencies"], float(op.attributes["scale"])))
    yield KernelCall(y.rows, {"y": y}, elements("copy_rows", y.width, FROM_STEP=1), {"n": y.width, "section": section})


def _input_rows(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    y = op.outputs[0]
    if y.rows is not Rows.TOKENS:
        raise UnsupportedError("input_rows: GPUs read one row for each token only")
    section = HEADER_WORDS + lowering.angle_tables + len(lowering.given)
    lowering.given.append(str(op.attributes["name"]))
    yield KernelCall(y.rows, {"y": y}, elements("copy_rows", y.width, FROM_STEP=1), {"n": y.width, "section": section})


def _low_rank(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    y, x = op.inputs
    constants = sorted_constants({"ROWS_OF": (Rows.TOKENS, Rows.SEQUENCES, Rows.LOGIT_ROWS).index(y.rows)})
    yield KernelCall(
        y.rows,
        {"x": x, "y": y},
        lambda rows, _: Launch("low_rank", constants, rows) if rows else None,
        {"k": x.width, "n": y.width},
        site=str(op.attributes["site"]),
    )


def _gather_rows(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    y = op.outputs[0]
    fields = {"n": y.width, "section": HEADER["LOGIT_ROWS"]}
    yield KernelCall(y.rows, {"x": op.inputs[0], "y": y}, elements("copy_rows", y.width, FROM_STEP=0), fields)


def _rope(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    x, angles = op.inputs
    y = op.outputs[0]
    choose = elements("rope", y.width, ROTATION=_PAIRINGS.index(str(op.attributes["pairing"])) + 1)
    fields = {name: int(op.attributes[name]) for name in ("heads", "head_dim")} | {"pairs": angles.width // 2}
    yield KernelCall(y.rows, {"x": x, "a": angles, "y": y}, choose, fields)


def _pool(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    y = op.outputs[0]
    mode = ("cls", "last", "mean").index(str(op.attributes["mode"]))
    yield KernelCall(y.rows, {"x": op.inputs[0], "y": y}, elements("pool", y.width, MODE=mode), {"n": y.width})


def _kv_write(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    layer, kv_heads = int(op.attributes["layer"]), int(op.attributes["kv_heads"])

    rotation = 0 if op.kind == "kv_write" else _PAIRINGS.index(str(op.attributes["pairing"])) + 1

    def choose(rows: int, shape: StepShape) -> Launch:
        constants = sorted_constants({"KV_TYPE": shape.kv_types[layer], "ROTATION": rotation})
        return Launch("kv_write", constants, groups(rows * kv_heads * 2, WORKGROUP))

    views = dict(zip(("x", "a", "b"), op.inputs, strict=False))
    fields = {"kv_heads": kv_heads, "head_dim": int(op.attributes["head_dim"])}
    if rotation:
        fields["pairs"] = op.inputs[2].width // 2
    yield KernelCall(op.inputs[0].rows, views, choose, fields, layer=layer)


def _attention_fields(op: Op) -> dict[str, int | float]:
    fields: dict[str, int | float] = {
        name: int(op.attributes[name]) for name in ("heads", "kv_heads", "head_dim", "window")
    }
    return fields | {"scale": float(op.attributes["scale"])}


def _tiled_constants(op: Op, lowering: Lowering, **more: int) -> dict[str, int]:
    head_dim = int(op.attributes["head_dim"])
    return {"HEAD_DIM": head_dim, "SLOTS": groups(head_dim, WORKGROUP), "QUERIES": lowering.queries, **more}


def _attention(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    query, key, value = op.inputs
    y = op.outputs[0]
    is_causal = int(op.attributes["mask"] == "causal")
    constants = sorted_constants(_tiled_constants(op, lowering, PAGED=0, KV_TYPE=0, CAUSAL=is_causal))
    heads = int(op.attributes["heads"])
    yield KernelCall(
        y.rows,
        {"x": query, "a": key, "b": value, "y": y},
        lambda rows, shape: Launch("attention_tiled", constants, shape.tiles * heads),
        _attention_fields(op),
        layer=NO_PAGES,
    )


def _paged_attention(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    y = op.outputs[0]
    layer, heads, head_dim = (int(op.attributes[name]) for name in ("layer", "heads", "head_dim"))
    many = _tiled_constants(op, lowering, PAGED=1, CAUSAL=1)

    def attend(rows: int, shape: StepShape) -> Launch:
        kv_type = shape.kv_types[layer]
        if shape.is_short:
            known = {"HEAD_DIM": head_dim, "PAGED": 1, "CAUSAL": 1, "KV_TYPE": kv_type}
            constants = sorted_constants({**known, "ALONE": int(shape.segments == 1)})
            return Launch("attention_few", constants, rows * heads * shape.segments)
        return Launch("attention_tiled", sorted_constants({**many, "KV_TYPE": kv_type}), shape.tiles * heads)

    def merge(rows: int, shape: StepShape) -> Launch | None:
        if not shape.is_short or shape.segments == 1:  # one segment is the result
            return None
        constants = sorted_constants({"HEAD_DIM": head_dim})
        return Launch("attention_merge", constants, groups(rows * heads * head_dim, WORKGROUP))

    fields = _attention_fields(op)
    yield KernelCall(y.rows, {"x": op.inputs[0], "y": y}, attend, fields, layer=layer)
    yield KernelCall(y.rows, {"y": y}, merge, fields)


_LOWERINGS: Mapping[str, Callable[[Op, Lowering], Iterator[KernelCall]]] = {
    "embed_rows": _embed_rows,
    "embed_rows_add": _embed_rows,
    "linear": _linear,
    "linear_add": _linear,
    GATED_LINEAR: _linear,
    **{f"linear_{activation}": _linear for activation in ACTIVATIONS},
    **dict.fromkeys((*ACTIVATIONS, "add", "mul", "silu_mul"), _elementwise),
    **dict.fromkeys(("layer_norm", "rms_norm", "l2_normalize"), _norm),
    "rope_angles": _rope_angles,
    "rope": _rope,
    "gather_rows": _gather_rows,
    "pool": _pool,
    "kv_write": _kv_write,
    ROTATED_WRITE: _kv_write,
    "paged_attention": _paged_attention,
    "attention": _attention,
    "input_rows": _input_rows,
    "low_rank": _low_rank,
    **EXPERT_LOWERINGS,
    **RECURRENT_LOWERINGS,
}
