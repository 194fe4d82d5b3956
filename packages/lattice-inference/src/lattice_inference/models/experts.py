"""What a configuration says of a mixture of experts, and how sources spell the matrices.

Three spellings are read: a tensor for each matrix, stacks of gates, ups and downs (GGUF files), and stacks in which each
expert's gates stand before its ups, (experts, 2 * inner, in). The last may be stored with their axes swapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.tensor_rows import parse_rows, rows_name
from lattice_inference.errors import CheckpointError
from lattice_inference.models.config_fields import ConfigFields, shown

__all__ = [
    "MAX_EXPERTS",
    "ExpertNames",
    "Experts",
    "Matrices",
    "find_expert_names",
    "find_gguf_experts",
    "read_experts",
    "single_name",
]

#: Most experts of a layer that a configuration may promise.
MAX_EXPERTS = 4_096

_MAX_WIDTH = 2**20


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The mixtures of experts of a decoder.

    Attributes:
        count: experts of a layer.
        chosen: those that a token goes through.
        width: width of an expert's feed-forward block.
        normalized: whether the chosen experts' probabilities are divided by their sum.
        layers: for every layer whether it has experts; the others have one feed-forward block.
    """

    count: int
    chosen: int
    width: int
    normalized: bool
    layers: tuple[bool, ...]

    def of_one_layer(self, *, sparse: bool) -> Self:
        """Return the same for a decoder of one layer, with or without experts."""
        return replace(self, layers=(sparse,))


@dataclass(frozen=True)
class Matrices:
    """How a source spells one matrix of every expert.

    Attributes:
        name: the tensor, with ``{layer}``; with ``{expert}`` where each has its own.
        period: for a stack, rows from one expert's first row to the next one's; 0 where each expert has a tensor.
        first: the row of an expert's rows that the matrix begins with.
        swapped: whether the stack's matrices are stored with their axes swapped.
    """

    name: str
    period: int = 0
    first: int = 0
    swapped: bool = False

    def sources(self, layer: int, experts: int, rows: int) -> list[str]:
        """Return the name of each expert's matrix, which has ``rows`` rows."""
        if not self.period:
            return [self.name.format(layer=layer, expert=expert) for expert in range(experts)]
        tensor = self.name.format(layer=layer)
        starts = range(self.first, self.first + experts * self.period, self.period)
        return [rows_name(tensor, start, rows, swapped=self.swapped) for start in starts]


@dataclass(frozen=True)
class ExpertNames:
    """How a source spells a layer with experts: the router's name, and the experts' matrices."""

    router: str
    gate: Matrices
    up: Matrices
    down: Matrices

    def of_layer(self, layer: str) -> Self:
        """Return the spelling of one layer, without ``{layer}``."""
        parts = {
            part: replace(matrices, name=matrices.name.replace("{layer}", layer))
            for part, matrices in (("gate", self.gate), ("up", self.up), ("down", self.down))
        }
        return replace(self, router=self.router.replace("{layer}", layer), **parts)


def read_experts(fields: ConfigFields, mapping: Mapping[str, object], layers: int) -> Experts:
    """Read the mixtures of a parsed ``config.json`` as transformers' Qwen3-MoE has them.

    Raises:
        ModelConfigError: a field is missing, of the wrong type, out of range, or contradicts another.
    """
    spelled = [name for name in ("num_experts", "num_local_experts") if fields.has(name)] or ["num_experts"]
    count = fields.integer(spelled[0], 1, MAX_EXPERTS)
    if len(spelled) > 1 and fields.integer(spelled[1], 1, MAX_EXPERTS) != count:
        raise fields.error(spelled[1], f"is {shown(mapping[spelled[1]])}, and {spelled[0]} is {count}")
    chosen = fields.integer("num_experts_per_tok", 1, MAX_EXPERTS)
    if chosen > count:
        raise fields.error("num_experts_per_tok", f"{chosen} is more than the {count} experts")
    step = fields.integer("decoder_sparse_step", 1, 2**31 - 1, default=1)
    dense = mapping.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int and 0 <= layer < layers for layer in dense):
        raise fields.error("mlp_only_layers", f"{shown(dense)} is not a list of numbers of the {layers} layers")
    return Experts(
        count=count,
        chosen=chosen,
        width=fields.integer("moe_intermediate_size", 1, _MAX_WIDTH),
        normalized=fields.flag("norm_topk_prob", default=False),
        layers=tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers)),
    )


def find_expert_names(checkpoint: Checkpoint, experts: Experts, hidden: int, prefix: str) -> ExpertNames:
    """Return the spelling of a safetensors checkpoint, and check that all layers' stacks fit.

    Args:
        checkpoint: the open checkpoint.
        experts: what the configuration says.
        hidden: width of the experts' input.
        prefix: what stands before ``layers.``.

    Raises:
        CheckpointError: the experts are spelled in two ways, are more than the configuration says, or a stack is missing or
            has another shape.
    """
    at = f"{prefix}layers.{{layer}}.mlp."
    router = f"{at}gate.weight"
    single = re.compile(rf"{re.escape(prefix)}layers\.[0-9]+\.mlp\.experts\.([0-9]{{1,9}})\..*")
    fused = re.compile(rf"{re.escape(prefix)}layers\.[0-9]+\.mlp\.experts\.(?:gate_up_proj|down_proj)")
    names = checkpoint.names()
    singles = [(name, int(found[1])) for name in names if (found := single.fullmatch(name))]
    stacks = [name for name in names if fused.fullmatch(name)]
    if singles and stacks:
        raise _error(checkpoint, f"holds experts in two spellings, {singles[0][0]} and {stacks[0]}")
    if not stacks:
        beyond = [name for name, number in singles if number >= experts.count]
        if beyond:
            raise _error(checkpoint, f"holds {beyond[0]}, and the configuration has {experts.count} experts")
        gate, up, down = (Matrices(f"{at}experts.{{expert}}.{part}_proj.weight") for part in ("gate", "up", "down"))
        return ExpertNames(router, gate, up, down)
    wide, narrow = f"{at}experts.gate_up_proj", f"{at}experts.down_proj"
    swapped = _are_swapped(checkpoint, experts, hidden, wide, narrow)
    period = 2 * experts.width
    return ExpertNames(
        router,
        Matrices(wide, period, 0, swapped),
        Matrices(wide, period, experts.width, swapped),
        Matrices(narrow, hidden, 0, swapped),
    )


def find_gguf_experts(checkpoint: Checkpoint, experts: Experts, hidden: int) -> ExpertNames:
    """Return the spelling of a GGUF file, and check that all layers' stacks fit.

    Raises as :func:`find_expert_names`.
    """
    at = "blk.{layer}.ffn_"
    router, down = f"{at}gate_inp.weight", f"{at}down_exps.weight"
    both, gate, up = (f"{at}{part}_exps.weight" for part in ("gate_up", "gate", "up"))
    width = experts.width
    layers = [layer for layer, sparse in enumerate(experts.layers) if sparse]
    joined = [layer for layer in layers if both.format(layer=layer) in checkpoint]
    for layer in joined:
        for other in (gate, up):
            if other.format(layer=layer) in checkpoint:
                names = f"{both.format(layer=layer)} and {other.format(layer=layer)}"
                raise _error(checkpoint, f"holds experts in two spellings, {names}")
    wanted = {down: (experts.count, hidden, width)}
    inner, parts = (2 * width, (both,)) if joined else (width, (gate, up))
    wanted |= dict.fromkeys(parts, (experts.count, inner, hidden))
    for name, shape in _in_layers(wanted, layers):
        found = _shape(checkpoint, name)
        if found != shape:
            raise _error(checkpoint, f"{name} has the shape {found}; expected {shape}")
    if joined:
        return ExpertNames(router, Matrices(both, 2 * width), Matrices(both, 2 * width, width), Matrices(down, hidden))
    return ExpertNames(router, Matrices(gate, width), Matrices(up, width), Matrices(down, hidden))


def single_name(source: str, part: str, expert: int) -> str:
    """Return the name of an expert's matrix as a tensor by itself, in a safetensors file.

    Args:
        source: its name, or that of its rows in a stack.
        part: ``gate``, ``up`` or ``down``.
        expert: its number.
    """
    rows = parse_rows(source)
    return source if rows is None else f"{rows.tensor.rpartition('.')[0]}.{expert}.{part}_proj.weight"


def _are_swapped(checkpoint: Checkpoint, experts: Experts, hidden: int, wide: str, narrow: str) -> bool:
    """Return whether the axes of fused stacks are swapped; those of all layers must be alike."""
    count, width = experts.count, experts.width
    plain = {wide: (count, 2 * width, hidden), narrow: (count, hidden, width)}
    layers = [layer for layer, sparse in enumerate(experts.layers) if sparse]
    first = narrow.format(layer=layers[0]) if layers else ""
    # of the wide one both orders may be one shape, where hidden is twice the width: then of the narrow one they are not
    swapped = bool(layers) and _shape(checkpoint, first) == (count, width, hidden) != plain[narrow]
    for name, shape in _in_layers(plain, layers):
        expected = (shape[0], shape[2], shape[1]) if swapped else shape
        found = _shape(checkpoint, name)
        if found != expected:
            order = "with axes swapped as those of the first layer" if swapped else "or all with the last two swapped"
            raise _error(checkpoint, f"{name} has the shape {found}; expected {expected}, {order}")
    return swapped


def _in_layers(shapes: Mapping[str, tuple[int, ...]], layers: list[int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for layer in layers:
        for name, shape in shapes.items():
            yield name.format(layer=layer), shape


def _shape(checkpoint: Checkpoint, name: str) -> tuple[int, ...]:
    if name not in checkpoint:
        raise _error(checkpoint, f"holds no tensor {name!r}, and the configuration promises experts")
    return checkpoint.info(name).shape


def _error(checkpoint: Checkpoint, problem: str) -> CheckpointError:
    return CheckpointError(f"{checkpoint.directory}: {problem}")
