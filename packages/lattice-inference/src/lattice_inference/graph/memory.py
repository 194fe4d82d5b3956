"""Plans the memory of buffers: those whose lifetimes do not overlap share a slot.

The slots lie one after the other in an arena. A slot has a row for each row of one row symbol, and a width that is fixed
here. Its size and its offset follow from the row counts of a batch, so a step allocates memory once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass

from lattice_inference.graph.program import Buffer, Program, Rows

__all__ = ["ALIGNMENT", "MemoryPlan", "Slot", "pack_memory", "plan_memory"]

ALIGNMENT = 64
"""Slots begin at multiples of this many bytes: a cache line, and the widest vector register."""


@dataclass(frozen=True)
class Slot:
    """A range of the arena with ``width`` floats for each row of ``rows``."""

    rows: Rows
    width: int


@dataclass(frozen=True)
class MemoryPlan:
    """The slot of each buffer."""

    slots: tuple[Slot, ...]
    placement: Mapping[Buffer, int]

    def offsets(self, counts: Mapping[Rows, int]) -> tuple[list[int], int]:
        """Return the byte offset of each slot, and their total size, for these row counts."""
        offsets, total = [], 0
        rows, count = None, 0
        for slot in self.slots:
            offsets.append(total)
            if slot.rows is not rows:  # most slots have the rows of the one before
                rows, count = slot.rows, counts[slot.rows]
            total += -(-4 * slot.width * count // ALIGNMENT) * ALIGNMENT
        return offsets, total


def plan_memory(program: Program, in_place: Mapping[str, int]) -> MemoryPlan:
    """Assign the buffers of ``program`` to slots.

    ``in_place`` maps the kinds of op that may overwrite an input to the index of that input. The output takes over the
    input's slot if three things hold: the op is the input's last reader, no other operand reads it, and both have the same
    rows and width.
    """
    last_use = _last_uses(program)
    slots: list[Slot] = []
    free: list[int] = []
    placement: dict[Buffer, int] = {}
    for index, op in enumerate(program.ops):
        dying = dict.fromkeys([view.buffer for view in op.inputs if last_use[view.buffer] == index])
        if not op.outputs:  # it writes only the program's state
            free += [placement[buffer] for buffer in dying]
            continue
        donor = op.inputs[in_place[op.kind]] if op.kind in in_place else None
        for position, output in enumerate([view.buffer for view in op.outputs]):
            if output not in last_use:
                if len(op.outputs) == 1:
                    raise ValueError(f"nothing reads {output.name}: remove the op that computes it")
                dying[output] = None  # another output of the op is read
            if output in placement:  # another op has written other columns of it
                continue
            if (
                position == 0
                and donor is not None
                and donor.buffer in dying
                and donor.is_whole
                and [view.buffer for view in op.inputs].count(donor.buffer)
                == 1  # nothing else of the op reads it meanwhile
                and (donor.rows, donor.width) == (output.rows, output.width)
            ):
                placement[output] = placement[donor.buffer]
                del dying[donor.buffer]
            else:
                placement[output] = _take(slots, free, output)
        free += [placement[buffer] for buffer in dying]
    return MemoryPlan(tuple(slots), placement)


def pack_memory(program: Program, in_place: Mapping[str, int]) -> MemoryPlan:
    """Assign the buffers of ``program`` to slots, in less memory and more time.

    The result is one of :func:`plan_memory`'s kind. It knows all lifetimes before it begins with the widest buffers, so
    narrow ones fill the gaps that those leave. For programs that keep many buffers for long.
    """
    last_use = _last_uses(program)
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    owner: dict[Buffer, Buffer] = {}  # the buffer whose place another takes over, and so on
    for index, op in enumerate(program.ops):
        for position, view in enumerate(op.outputs):
            buffer = view.buffer
            if buffer in owner:  # changed in place, or other columns of it
                continue
            end = last_use.get(buffer, index)
            donor = op.inputs[in_place[op.kind]] if position == 0 and op.kind in in_place else None
            if (
                donor is not None
                and last_use[donor.buffer] == index
                and donor.is_whole
                and sum(other.buffer is donor.buffer for other in op.inputs) == 1
                and (donor.rows, donor.width) == (view.rows, buffer.width)
            ):
                owner[buffer] = owner[donor.buffer]
                last[owner[buffer]] = end
            else:
                owner[buffer], first[buffer], last[buffer] = buffer, index, end
    kinds: dict[Rows, list[tuple[int, list[tuple[int, int]]]]] = {}  # slots: numbers, and lifetimes in order
    slots: list[Slot] = []
    placement: dict[Buffer, int] = {}
    for buffer in sorted(first, key=lambda each: (-each.width, first[each])):
        lifetime = first[buffer], last[buffer]
        for number, lifetimes in kinds.setdefault(buffer.rows, []):
            place = bisect_left(lifetimes, lifetime)
            if (place == len(lifetimes) or lifetimes[place][0] > lifetime[1]) and (
                place == 0 or lifetimes[place - 1][1] < lifetime[0]
            ):
                insort(lifetimes, lifetime)
                placement[buffer] = number
                break
        else:
            placement[buffer] = len(slots)
            kinds[buffer.rows].append((len(slots), [lifetime]))
            slots.append(Slot(buffer.rows, buffer.width))
    return MemoryPlan(tuple(slots), {buffer: placement[root] for buffer, root in owner.items()})


def _last_uses(program: Program) -> dict[Buffer, int]:
    uses: dict[Buffer, int] = {}
    for index, op in enumerate(program.ops):
        for view in op.inputs:
            uses[view.buffer] = index
    for view in program.outputs.values():
        uses[view.buffer] = len(program.ops)
    return uses


def _take(slots: list[Slot], free: list[int], buffer: Buffer) -> int:
    """Take the free slot that fits best, widened if none is wide enough, or add a new one."""
    candidates = [index for index in free if slots[index].rows is buffer.rows]
    if not candidates:
        slots.append(Slot(buffer.rows, buffer.width))
        return len(slots) - 1
    wide = [index for index in candidates if slots[index].width >= buffer.width]
    chosen = min(wide, key=lambda i: slots[i].width) if wide else max(candidates, key=lambda i: slots[i].width)
    free.remove(chosen)
    slots[chosen] = Slot(buffer.rows, max(slots[chosen].width, buffer.width))
    return chosen
