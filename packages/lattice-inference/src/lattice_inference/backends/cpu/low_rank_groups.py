"""Joins what adapters add to linears side by side: one op reads their input once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lattice_inference.graph.program import Op, Program

__all__ = ["SitePlace", "join_low_rank"]


@dataclass(frozen=True)
class SitePlace:
    """The columns of a buffer that a site changes."""

    site: str
    column: int
    width: int


def join_low_rank(program: Program) -> tuple[Program, tuple[tuple[SitePlace, ...], ...]]:
    """Return ``program`` with ``low_rank`` ops over one input joined, and the sites of each.

    Each run of them becomes a ``low_rank_group``.
    """
    ops: list[Op] = []
    groups: list[list[SitePlace]] = []
    for op in program.ops:
        if op.kind != "low_rank":
            ops.append(op)
            continue
        (y,), x = op.outputs, op.inputs[1]
        place = SitePlace(str(op.attributes["site"]), y.column, y.width)
        last = ops[-1] if ops else None
        goes_on = (
            last is not None
            and last.kind == "low_rank_group"
            and last.inputs == (x,)
            and last.outputs[-1].buffer == y.buffer
            and last.outputs[-1].column + last.outputs[-1].width <= y.column
        )
        if last is not None and goes_on:
            ops[-1] = replace(last, outputs=(*last.outputs, y))
            groups[-1].append(place)
        else:
            ops.append(Op("low_rank_group", (x,), {}, (y,), {"group": len(groups)}))
            groups.append([place])
    return replace(program, ops=tuple(ops)), tuple(map(tuple, groups))
