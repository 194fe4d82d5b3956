"""Slots of recurrent state: who holds them, and where a sequence can be continued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import RLock

from lattice_inference.backends.protocol import SlotStorage
from lattice_inference.errors import CacheFullError
from lattice_inference.graph.recurrent_ops import DELTA_BLOCK
from lattice_inference.state.page_pool import PagePool

__all__ = ["HEADER_TOKENS", "MARK_TOKENS", "SequenceSlots", "SlotPool", "slots_for"]

HEADER_TOKENS = 8
"""The most tokens at a prompt's end that a template may write otherwise in the next turn: the header of the answer."""

MARK_TOKENS = 1024
"""The tokens of a long prompt between two marks that are kept for other sequences."""


def slots_for(sequences: int) -> int:
    """Return the slots of so many sequences, and one more that rests.

    Each has the present slot, the block before, one that is written, and two marks.
    """
    return 5 * (sequences + 1)


class SlotPool:
    """The slots of a cache.

    A slot has holders, and at most one writer: a sequence that may append rows to it. A holder that needs only the state at
    the beginning of the block does not mind rows. A fork needs the rows too, so it freezes the slot.

    Args:
        storage: the backend's slots.
        lock: guards the counts.
        evict: drops a remembered slot, or returns False.
        sequences: the sequences whose slots are never taken for what others may need later.
    """

    def __init__(self, storage: SlotStorage, lock: RLock, evict: Callable[[], bool], *, sequences: int = 0) -> None:
        self.storage = storage
        self._reserve = slots_for(sequences) if sequences else 0
        self._pool = PagePool(storage.slots)
        self._lock = lock
        self._evict = evict
        self._writers: dict[int, SequenceSlots] = {}
        self._frozen: set[int] = set()

    @property
    def used(self) -> int:
        """How many slots are held."""
        return self.storage.slots - self._pool.free

    @property
    def has_spare(self) -> bool:
        """Whether more slots are free than sequences need."""
        return self._pool.free > self._reserve

    def take(self, writer: SequenceSlots) -> int:
        """Return a free slot whose writer is ``writer``; forget remembered ones if there is none.

        Raises:
            CacheFullError: all slots are held by sequences.
        """
        with self._lock:
            while not self._pool.free and self._evict():
                pass
            if not self._pool.free:
                raise CacheFullError(
                    f"all {self.storage.slots} slots of recurrent state are in use: close sequences, or open a cache for "
                    "more of them (sequences=)"
                )
            slot = self._pool.take()
            self._frozen.discard(slot)
            self._writers[slot] = writer
            return slot

    def share(self, slot: int) -> int:
        """Add a holder and return the slot."""
        with self._lock:
            return self._pool.share(slot)

    def release(self, slot: int, holder: SequenceSlots | None = None) -> None:
        """Remove a holder; ``holder`` also stops writing."""
        with self._lock:
            if holder is not None and self._writers.get(slot) is holder:
                del self._writers[slot]
            self._pool.release([slot])

    def freeze(self, slot: int) -> None:
        """Keep all sequences from appending to the slot while it has several holders."""
        with self._lock:
            self._writers.pop(slot, None)
            self._frozen.add(slot)

    def may_write(self, slot: int, sequence: SequenceSlots) -> bool:
        """Whether ``sequence``, a holder, may append to the slot; it is its writer then."""
        with self._lock:
            if self._pool.holders(slot) == 1:
                self._frozen.discard(slot)
                self._writers[slot] = sequence
            if slot in self._frozen:
                return False
            return self._writers.setdefault(slot, sequence) is sequence


@dataclass(frozen=True)
class _Held:
    """A slot that a sequence holds: the state at ``base``, and rows up to ``length``."""

    slot: int
    base: int
    length: int


class SequenceSlots:
    """The recurrent state of one sequence.

    A call of the model is :meth:`begin`, a :meth:`step` for each of its steps, then :meth:`settle` or :meth:`undo`. Slots
    leave the lists before they are released, so that an interrupt in between lets none be released twice.

    Args:
        pool: the slots of the cache.
        marks: how many states of a long prompt are kept beside those at its end.

    Attributes:
        prompt_end: the position where the prompt ends that is being run. The block boundaries before it are marked: the
            sequence keeps their states, so that the next turn can go on from there.
    """

    def __init__(self, pool: SlotPool, *, marks: int = 0) -> None:
        self._pool = pool
        # a slot is held once, whether it is in one or several of the first three lists
        self._held: list[_Held] = []  # the last one is where the sequence goes on; before it the block before, if any
        self._before: list[_Held] = []  # when the present call began
        self._leaving: list[int] = []  # read by the step that runs
        self._marks: list[_Held] = []  # ascending
        self._more_marks = marks
        self.prompt_end: int | None = None

    @property
    def length(self) -> int:
        """The tokens that the state has seen; later ones have to be run again."""
        return self._held[-1].length if self._held else 0

    @property
    def held(self) -> tuple[int, int, int] | None:
        """The present slot, the beginning of its block, and the length; None before a token."""
        return (self._held[-1].slot, self._held[-1].base, self._held[-1].length) if self._held else None

    def snapshots(self) -> list[tuple[int, int]]:
        """Return (position, slot) of each state at the beginning of a block, ascending."""
        return sorted({(held.base, held.slot) for held in (*self._marks, *self._held) if held.base})

    def fork(self) -> SequenceSlots:
        """Return the same state for another sequence; the first to go on copies it."""
        other = SequenceSlots(self._pool, marks=self._more_marks)
        for held in self._held[-1:]:
            self._pool.freeze(held.slot)
            other._held.append(_Held(self._pool.share(held.slot), held.base, held.length))
        other._marks = [_Held(self._pool.share(mark.slot), mark.base, mark.base) for mark in self._marks]
        return other

    def start(self, slot: int, base: int) -> None:
        """Go on at the beginning of a block, from a slot that was shared or taken for this sequence."""
        gone, self._held = self._held, [_Held(slot, base, base)]
        self._drop(gone)

    def restore(self, content: bytes, length: int) -> None:
        """Go on from the exported content of a slot, with the rows up to ``length``."""
        slot, base = self._pool.take(self), length - length % DELTA_BLOCK
        gone, self._held = self._held, [_Held(slot, base, length)]
        self._drop(gone)
        self._pool.storage.import_(slot, content)

    def cut(self, length: int) -> None:
        """Drop what comes after ``length`` tokens; :attr:`length` may become less than that."""
        self._forget_marks(length)
        self.prompt_end = None
        while self._held and self._held[-1].base > length:
            self._pool.release(self._held.pop().slot, self)
        if self._held:
            self._held[-1] = replace(self._held[-1], length=min(length, self._held[-1].length))
        if self._marks and self._marks[-1].base > self.length:
            self.start(self._pool.share(self._marks[-1].slot), self._marks[-1].base)

    def begin(self) -> None:
        """Begin a call: the sequence is not cut any more into the block before."""
        gone, self._held = self._held[:-1], self._held[-1:]
        self._drop(gone)
        self._before = list(self._held)

    def split(self, position: int, count: int) -> int:
        """Return the tokens of a step from ``position`` on: it ends where a mark is wanted."""
        if self.prompt_end is None:
            return count
        header = self.prompt_end - HEADER_TOKENS
        blocks = [place // DELTA_BLOCK for place in (position, header, position + count)]
        return header - position if blocks[0] < blocks[1] < blocks[2] else count

    def step(self, count: int) -> tuple[int, int]:
        """Return the slots to read and to write for ``count`` more tokens, and count these as seen.

        Raises:
            CacheFullError: no slot is free.
        """
        self._release_leaving()
        if not self._held:
            self._held = [_Held(self._pool.take(self), 0, 0)]
        here = self._held[-1]
        if not self._pool.may_write(here.slot, self):
            own = replace(here, slot=self._pool.take(self))
            try:
                self._pool.storage.copy(here.slot, own.slot)
            except BaseException:
                self._pool.release(own.slot, self)
                raise
            self._held[-1] = own
            self._leave([here])
            here = own
        self._mark(here, here.length, here.length)
        end = here.length + count
        base = end - end % DELTA_BLOCK
        if base == here.base:
            self._held[-1] = replace(here, length=end)
            read, write = here.slot, here.slot
        else:
            fresh = _Held(self._pool.take(self), base, end)
            read, write = here.slot, fresh.slot
            # the block before has all of its rows now, so the sequence can be cut into it
            whole = replace(here, length=here.base + DELTA_BLOCK - 1)
            kept = [whole] if base - DELTA_BLOCK == here.base else []
            gone = [held for held in self._held if held.slot not in [each.slot for each in kept]]
            self._held = [*kept, fresh]
            self._leave(gone)
            self._mark(fresh, here.length, end)
        if self.prompt_end is not None and end >= self.prompt_end:
            self.prompt_end = None
        return read, write

    def settle(self) -> None:
        """End a call that succeeded."""
        self._release_leaving()
        slots = [held.slot for held in self._held]
        gone, self._before = [held for held in self._before if held.slot not in slots], []
        self._drop(gone)

    def undo(self) -> None:
        """End a call that failed: go back to where it began."""
        self._release_leaving()
        slots = [held.slot for held in self._before]
        gone = [held for held in self._held if held.slot not in slots]
        self._held, self._before, self.prompt_end = self._before, [], None
        self._drop(gone)
        self._forget_marks(self.length)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Let steps of one call go on from here, and cut what they appended at the end.

        They are short, so that all that they change can be cut.
        """
        length = self.length
        self.begin()
        try:
            yield
        except BaseException:
            self.undo()
            raise
        self.settle()
        self.cut(length)

    def close(self) -> None:
        """Give all slots back, in whatever state a call was left."""
        self._release_leaving()
        slots = [held.slot for held in self._held]
        gone = [*self._held, *[held for held in self._before if held.slot not in slots], *self._marks]
        self._held, self._before, self._marks = [], [], []
        self._drop(gone)

    def _mark(self, here: _Held, position: int, end: int) -> None:
        """Keep the state at the beginning of a block if a later call may go on from there."""
        if self.prompt_end is None:
            is_wanted = False
        else:
            is_wanted = here.base // DELTA_BLOCK in (
                self.prompt_end // DELTA_BLOCK,
                (self.prompt_end - HEADER_TOKENS) // DELTA_BLOCK,
            )
        if self._more_marks and end // MARK_TOKENS > position // MARK_TOKENS and self._pool.has_spare:
            is_wanted = True
        if not is_wanted or here.base == 0 or any(mark.base == here.base for mark in self._marks):
            return
        self._marks.append(_Held(self._pool.share(here.slot), here.base, here.base))
        if len(self._marks) > 2 + self._more_marks:
            self._pool.release(self._marks.pop(0).slot)

    def _forget_marks(self, length: int) -> None:
        while self._marks and self._marks[-1].base > length:
            self._pool.release(self._marks.pop().slot)

    def _leave(self, gone: list[_Held]) -> None:
        """Give slots back once the step has read them; those of the beginning stay till the end."""
        slots = [held.slot for held in self._before]
        self._leaving += [held.slot for held in gone if held.slot not in slots]

    def _release_leaving(self) -> None:
        while self._leaving:
            self._pool.release(self._leaving.pop(), self)

    def _drop(self, held: list[_Held]) -> None:
        for each in held:
            self._pool.release(each.slot, self)
