"""Calls every public callable with one wrong argument at a time.

Prints each outcome that is no typed error, as JSON lines.

``python -m tools.checks.walk_public_callables PREFIX``, in the folder that the calls read: walks the names that begin with
PREFIX, each in a separate process with a limit of memory and of time.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lattice_fann import FannError
from lattice_inference import LatticeError
from lattice_transport import TransportError
from lattice_tune import TuneError

from .public_calls import CALLS

__all__ = ["WRONG_VALUES", "walk"]

#: What is given for each argument in turn. Some are right for some arguments.
WRONG_VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "10**400": lambda: 10**400,
    "-10**400": lambda: -(10**400),
    "2**63": lambda: 2**63,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "complex": lambda: 1j,
    "text": lambda: "x",
    "empty text": lambda: "",
    "NUL": lambda: "a\0b",
    "surrogate": lambda: "\udc80",
    "long text": lambda: "x" * 5000,
    "bytes": lambda: b"x",
    "object": object,
    "class": lambda: int,
    "function": lambda: lambda *_, **__: None,
    "empty list": list,
    "list of None": lambda: [None],
    "list of numbers": lambda: [1, 2],
    "huge numbers": lambda: [10**400, 1],
    "ragged": lambda: [[1, 2], [3]],
    "ragged deep": lambda: [[[1], [2, 3]], [[4]]],
    "mixed": lambda: ["a", None],
    "dict": lambda: {"a": 1},
    "0-d": lambda: np.array(1.0),
    "empty": lambda: np.empty(0),
    "no rows": lambda: np.empty((0, 3)),
    "nan array": lambda: np.full((4, 3), np.nan),
    "texts": lambda: np.array(["a", "b"]),
    "objects": lambda: np.array([None, object()]),
    "masked": lambda: np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False]),
    "masked matrix": lambda: np.ma.array(np.ones((4, 3)), mask=np.eye(4, 3)),
    "complex array": lambda: np.ones((4, 3), complex),
    "3-d": lambda: np.ones((2, 2, 2)),
}

#: Arguments that are functions of the caller, of which ``int`` is none: what they raise themselves goes through.
CALLERS_FUNCTIONS = {"load", "observer", "on_tensor", "progress", "teacher"}

TYPED = (LatticeError, FannError, TransportError, TuneError, OSError)
SECONDS = 5  # of the processor, in a call
MOST_SECONDS = 60  # of the clock, for a call that waits
MOST_BYTES = 4 << 30
MOST_PIECES = 64


class _TookTooLong(BaseException):
    pass


def walk(prefix: str) -> Iterator[dict[str, str]]:
    """Yield what went wrong, by callable, argument and value."""
    for name in sorted(CALLS):
        if name.startswith(prefix):
            yield from _in_a_child(name)


def _in_a_child(name: str) -> Iterator[dict[str, str]]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        with os.fdopen(writing, "w", encoding="utf-8", buffering=1) as out:
            try:
                _try_all(name, lambda entry: out.write(json.dumps(entry) + "\n"))
            except BaseException as error:
                out.write(json.dumps({"name": name, "outcome": f"the walk itself: {_said(error)}"}) + "\n")
        os._exit(0)
    os.close(writing)
    last = ""
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            entry = json.loads(line)
            if entry["outcome"] == "":
                last = f"{entry['argument']}={entry['value']}"
            else:
                yield entry
    _, status = os.waitpid(child, 0)
    if status != 0:
        yield {"name": name, "argument": last, "value": "", "outcome": f"process ended with {status}"}


def _try_all(name: str, report: Callable[[dict[str, str]], object]) -> None:
    function, given = CALLS[name]()
    warnings.simplefilter("error")
    outcome = _outcome(function, given)
    if outcome:
        report({"name": name, "argument": "", "value": "", "outcome": f"a valid call: {outcome}"})
        return
    for argument in _arguments(function, given):
        function, given = CALLS[name]()
        for value, make in WRONG_VALUES.items():
            if argument in CALLERS_FUNCTIONS and value == "class":
                continue
            wrong = make()
            report({"name": name, "argument": argument, "value": value, "outcome": ""})
            outcome = _outcome(function, given | {argument: wrong})
            if outcome:
                report({"name": name, "argument": argument, "value": value, "outcome": outcome})


def _arguments(function: Callable[..., Any], given: dict[str, Any]) -> list[str]:
    """Return the names of the arguments that can be given one by one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return list(given)
    variable = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    names = [each.name for each in parameters if each.kind not in variable | {inspect.Parameter.POSITIONAL_ONLY}]
    return [*(name for name in given if name.isdigit()), *([] if any(name.isdigit() for name in given) else names)]


def _outcome(function: Callable[..., Any], given: dict[str, Any]) -> str:
    """Return what is wrong with the outcome of a call, or nothing."""
    positional = [given[name] for name in sorted(name for name in given if name.isdigit())]
    named = {name: value for name, value in given.items() if not name.isdigit()}
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, _stop)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", ResourceWarning)
            _consume(function(*positional, **named))
    except TYPED:
        return ""
    except _TookTooLong:
        return f"over {SECONDS} s"
    except BaseException as error:
        return _said(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


def _consume(result: object) -> None:
    """Run what a call has only promised."""
    if inspect.iscoroutine(result):
        asyncio.run(result)
    elif inspect.isgenerator(result) or hasattr(result, "__next__"):
        for _ in itertools.islice(result, MOST_PIECES):  # type: ignore[call-overload]
            pass


def _said(error: BaseException) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f"{os.path.basename(place[0].filename)}:{place[0].name}" if place else ""
    return f"{type(error).__name__}: {str(error)[:160]} ({where})"


def _stop(*_: object) -> None:
    raise _TookTooLong


if __name__ == "__main__":
    for found in walk(sys.argv[1]):
        print(json.dumps(found), flush=True)
