"""Makes masks while a model runs: they depend only on tokens that are already chosen.

Masks of some microseconds are made by the step's own thread. To wake another one costs more than they do, for the kernels
use all processors.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable
from queue import SimpleQueue

from lattice_inference.errors import GrammarError
from lattice_inference.grammar.constraint import Constraint

__all__ = ["MasksAhead", "begin_masks"]

LEAST_SECONDS = 2e-4
"""What the masks of a step have to take together; to wake a thread costs about that much of the processor."""


class MasksAhead:
    """Masks of one step, which a thread makes; :meth:`finish` helps it and waits.

    Args:
        constraints: whose masks are needed after the step; until :meth:`finish` has returned, they are this object's.
    """

    def __init__(self, constraints: Iterable[Constraint]) -> None:
        self._left = deque(constraints)
        self._turn = threading.Lock()

    def run(self) -> None:
        """Make the masks that nothing else has begun; for the thread."""
        with self._turn:
            self._make()

    def finish(self) -> None:
        """Return once all masks are made; one that fails is tried again by its text."""
        self._make()
        with self._turn:  # the thread may be at the last one
            pass

    def _make(self) -> None:
        while self._left:
            try:
                constraint = self._left.popleft()
            except IndexError:  # the other side took it
                return
            try:
                constraint.allowed()
            except GrammarError:
                continue  # raised again by the next call, in the text's own turn


def begin_masks(constraints: Iterable[Constraint], *, has_idle_processors: bool = False) -> MasksAhead | None:
    """Let a thread make the masks that are not made yet, and return at once.

    Args:
        constraints: of the texts of one step.
        has_idle_processors: whether the model runs on another device.

    Returns:
        ``None`` if the masks are too quick for a thread.
    """
    left = [constraint for constraint in constraints if not constraint.is_filled]
    least = 0.0 if has_idle_processors else LEAST_SECONDS
    if not left or sum(constraint.mask_seconds for constraint in left) < least:
        return None
    masks = MasksAhead(left)
    _queue().put(masks)
    return masks


_ASKED: list[SimpleQueue[MasksAhead]] = []
_LOCK = threading.Lock()


def _queue() -> SimpleQueue[MasksAhead]:
    """Return the queue of the process's thread, which is started on first use."""
    with _LOCK:
        if not _ASKED:
            asked: SimpleQueue[MasksAhead] = SimpleQueue()
            threading.Thread(target=_serve, args=(asked,), name="lattice-masks", daemon=True).start()
            _ASKED.append(asked)
        return _ASKED[0]


def _serve(asked: SimpleQueue[MasksAhead]) -> None:
    while True:
        asked.get().run()


def _forget_thread() -> None:
    """Start anew in a child of os.fork(), which has no copy of the thread."""
    global _LOCK
    _LOCK = threading.Lock()
    _ASKED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_thread)
