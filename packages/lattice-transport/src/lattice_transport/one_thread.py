"""Lets one thread at a time work on an object that changes; a second thread is refused."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from lattice_transport.errors import BusyError

__all__ = ["one_thread"]

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
Owner = TypeVar("Owner")

_at_work: dict[int, tuple[int, object]] = {}
"""The thread that works on an object, by the object's id: objects stay picklable that way."""


def one_thread(
    what: str, of: Callable[[Any], object] = lambda owner: owner
) -> Callable[[Callable[Concatenate[Owner, Arguments], Returned]], Callable[Concatenate[Owner, Arguments], Returned]]:
    """Make a method refuse a call while another thread is in a method of the same object.

    Args:
        what: the object, as an error calls it.
        of: the object that is changed; by default the one that has the method.
    """

    def decorate(
        method: Callable[Concatenate[Owner, Arguments], Returned],
    ) -> Callable[Concatenate[Owner, Arguments], Returned]:
        @functools.wraps(method)
        def alone(self: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
            changed = of(self)  # held until the end, so that its id stays its own
            mine = (threading.get_ident(), object())
            holder = _at_work.setdefault(id(changed), mine)  # at once, also among threads
            if holder is mine:
                try:
                    return method(self, *args, **kwargs)
                finally:
                    _at_work.pop(id(changed), None)
            if holder[0] != mine[0]:
                raise BusyError(f"{what} is at work in another thread: wait for it, or use one for each thread")
            return method(self, *args, **kwargs)

        return alone

    return decorate


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_at_work.clear)  # the parent's other threads are not in the child
