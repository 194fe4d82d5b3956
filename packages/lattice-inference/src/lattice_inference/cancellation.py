"""Ends a thread's work at its next step when its asyncio task is cancelled.

What the work asks is found by the thread's context, so that nothing between the task and the step need hand it on. Work
whose result others wait for, too, goes on until none of them wants it any more: :func:`shared`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

__all__ = ["StepsCancelled", "cancellation", "check_cancelled", "in_thread", "shared"]

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

Asked = Callable[[], bool]
"""Whether the result is no longer wanted."""

_asked: ContextVar[Asked | None] = ContextVar("lattice_cancellation", default=None)


class StepsCancelled(BaseException):
    """No caller waits for the result any more.

    Error handlers should not take it for a failure of the work.
    """


def cancellation() -> Asked | None:
    """Return what this context's work asks before a step; ``None`` where nothing can cancel it."""
    return _asked.get()


def check_cancelled() -> None:
    """End the work here if no caller waits for its result.

    Raises:
        StepsCancelled: no caller waits.
    """
    asked = _asked.get()
    if asked is not None and asked():
        raise StepsCancelled


@contextlib.contextmanager
def shared(is_wanted: Callable[[], bool]) -> Iterator[None]:
    """Mark work here that must go on when the task that began it is cancelled.

    Other callers want its result.
    """
    asked = _asked.get()
    if asked is None:
        yield
        return
    token = _asked.set(lambda: asked() and not is_wanted())
    try:
        yield
    finally:
        _asked.reset(token)


async def in_thread(
    function: Callable[Arguments, Returned], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Returned:
    """Run ``function`` in a worker thread and wait for it without blocking the event loop.

    Where the waiting is cancelled, the work ends at the next :func:`check_cancelled`.
    """
    import asyncio  # 30 ms that only callers from asyncio, who have paid it already, should meet

    flag = threading.Event()
    outer = _asked.get()

    def work() -> Returned:
        _asked.set(flag.is_set if outer is None else lambda: flag.is_set() or outer())  # in the thread's own context
        return function(*args, **kwargs)

    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        flag.set()
        raise
