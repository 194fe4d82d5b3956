"""Finds the ranges that the inputs of linears have on real texts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self, get_args

from lattice_inference.argument_checks import as_number, check_callable, check_choice, check_count
from lattice_inference.backends.opening import open_backend
from lattice_inference.backends.protocol import Backend, BackendProgram, PageStorage
from lattice_inference.calibration import Calibration
from lattice_inference.checkpoint.read_once import reading_once
from lattice_inference.errors import InvalidInputError
from lattice_inference.files.hub import find_model
from lattice_inference.graph.program import Program, Rows, View
from lattice_inference.quantize.model_program import PAGE_TOKENS, WINDOW, open_model_program
from lattice_inference.quantize.observers import (
    CalibrationMethod,
    EmaObserver,
    MaxAbsObserver,
    Observer,
    PercentileObserver,
)
from lattice_inference.text_lists import check_text_list
from lattice_inference.thread_count import check_thread_count
from lattice_inference.turn import Turn
from lattice_inference.value_text import value_text

__all__ = ["Calibrator"]

_MOST_OBSERVED = 384  # inputs of one run: each has a slot of the step


class Calibrator:
    """Runs a model over texts and watches the inputs of its linears.

    >>> with Calibrator("model-directory", method="percentile", percentile=99.99) as calibrator:      # doctest: +SKIP
    ...     calibrator.observe([text])
    ...     quantize_int8("model-directory", "model-int8", calibration=calibrator.calibration())

    The model runs as its files have it, with float activations. A decoder reads windows of 256 tokens of a text,
    other models the text up to the longest input. A cross-encoder reads each text with the one after it.

    For one call at a time: one beside another raises :class:`BusyError`. A context manager; :meth:`close` gives the weights
    back.

    Args:
        path_or_name: the directory, GGUF file or name of an encoder, cross-encoder or decoder.
        method: ``"max-abs"``: the largest magnitudes seen; ``"ema"``: the moving average of each step's;
            ``"percentile"``: what holds so many percent of all inputs.
        percentile: for that method only, above 50 and at most 100; by default 99.99.
        momentum: for the moving average only, what it keeps of its past at each step; by default 0.9.
        threads: the most threads that a step may use.

    Raises:
        InvalidInputError: an argument is out of range, or the method does not use it.
        ModelNotFoundError, CheckpointError, ModelConfigError, UnsupportedError: as the loaders do.
    """

    @reading_once()
    def __init__(
        self,
        path_or_name: str | os.PathLike[str],
        *,
        method: CalibrationMethod = "percentile",
        percentile: float | None = None,
        momentum: float | None = None,
        threads: int | None = None,
    ) -> None:
        threads = None if threads is None else check_thread_count(threads)
        self._method, observer = _observer(method, percentile, momentum)
        self._tokens = 0
        self._turn = Turn("this calibrator", "wait for it, or observe all texts in one thread")
        self._programs: list[_ObservedProgram] | None = []
        with contextlib.ExitStack() as stack:
            self._model = open_model_program(Path(find_model(path_or_name).directory), stack)
            inputs = _linear_inputs(self._model.program)
            self._observers: dict[View, Observer] = {view: observer() for view in inputs}
            self._weights = inputs
            backend = open_backend(precision="stored", activations="float32", threads=threads)
            for start in range(0, len(inputs), _MOST_OBSERVED):
                views = list(inputs)[start : start + _MOST_OBSERVED]
                outputs = {f"input.{index}": view for index, view in enumerate(views)}
                watched = replace(self._model.program, outputs={**self._model.program.outputs, **outputs})
                self._programs.append(
                    _ObservedProgram(backend.compile(watched, self._model.tensors), outputs, _state(backend, watched))
                )

    @property
    def reads_windows(self) -> bool:
        """Whether the model takes a long text in windows, as decoders do, and does not cut it off."""
        return bool(self._model.program.kv_specs)

    @property
    def tokens(self) -> int:
        """How many tokens were seen so far."""
        return self._tokens

    def observe(
        self,
        texts: str | Sequence[str],
        *,
        max_tokens: int | None = None,
        on_step: Callable[[int], object] | None = None,
    ) -> None:
        """Have the model see ``texts``.

        Args:
            texts: one text or several.
            max_tokens: end after the step that reaches so many tokens, at least 1.
            on_step: told of each step's tokens.

        Raises:
            InvalidInputError: it was closed, there is nothing to see, or a text is no str or holds a lone surrogate.
            NonFiniteError: the model computes NaN or infinity.
            BusyError: another call runs.
        """
        if max_tokens is not None:
            check_count("max_tokens", max_tokens, least=1, most=2**63)
        check_callable("on_step", on_step)
        given = [texts] if isinstance(texts, str) else list(check_text_list(texts))
        for text in given:
            if not isinstance(text, str):
                raise InvalidInputError(f"a text is of type {type(text).__name__}; expected str")
        with self._turn:
            self._see(given, max_tokens, on_step)

    def _see(self, given: Sequence[str], max_tokens: int | None, on_step: Callable[[int], object] | None) -> None:
        programs = self._programs
        if programs is None:
            raise InvalidInputError("this calibrator is closed")
        seen = 0
        for batch in self._model.batches([text for text in given if text.strip()]):
            for program in programs:
                results = program.program.run(batch, outputs=program.outputs, state=program.state)
                for name, view in program.outputs.items():
                    self._observers[view].observe(results[name])
            seen += batch.tokens
            if on_step is not None:
                on_step(batch.tokens)
            if max_tokens is not None and seen >= max_tokens:
                break
        if not seen:
            raise InvalidInputError("there is no text to calibrate with")
        self._tokens += seen

    def calibration(self) -> Calibration:
        """Return the ranges of what was seen so far.

        Raises:
            InvalidInputError: nothing was.
            BusyError: a call of :meth:`observe` runs.
        """
        with self._turn:
            if not self._tokens:
                raise InvalidInputError("nothing was observed yet")
            ranges = {
                weight: observer.range() for view, observer in self._observers.items() for weight in self._weights[view]
            }
            return Calibration(self._method, self._tokens, ranges)

    def close(self) -> None:
        """Give the weights back; twice is harmless."""
        self._programs = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class _ObservedProgram:
    """A program that hands out the inputs of some of its linears."""

    program: BackendProgram
    outputs: Mapping[str, View]
    state: PageStorage | None


def _observer(
    method: str, given_percentile: float | None, given_momentum: float | None
) -> tuple[str, Callable[[], Observer]]:
    """Return a method in words, and what makes its observers."""
    check_choice("method", method, get_args(CalibrationMethod))
    for name, value, user in (("percentile", given_percentile, "percentile"), ("momentum", given_momentum, "ema")):
        if value is None:
            continue
        if as_number(value) is None:
            raise InvalidInputError(f"{name} must be a number, not {value_text(value)}")
        if method != user:
            raise InvalidInputError(f"{name} is for method {user!r}, and the method is {method!r}: leave it out")
    percentile = 99.99 if given_percentile is None else float(given_percentile)
    momentum = 0.9 if given_momentum is None else float(given_momentum)
    made: dict[str, tuple[str, Callable[[], Observer]]] = {
        "max-abs": ("max-abs", MaxAbsObserver),
        "ema": (f"ema {momentum:g}", lambda: EmaObserver(momentum)),
        "percentile": (f"percentile {percentile:g}", lambda: PercentileObserver(percentile)),
    }
    made[method][1]()  # checks its argument
    return made[method]


def _linear_inputs(program: Program) -> dict[View, list[str]]:
    """Return the weights that multiply each input of the linears over tokens."""
    inputs: dict[View, list[str]] = {}
    for op in program.ops:
        if op.kind == "linear" and op.outputs[0].rows is not Rows.SEQUENCES:
            inputs.setdefault(op.inputs[0], []).extend(op.weights["weight"].sources)
    return inputs


def _state(backend: Backend, program: Program) -> PageStorage | None:
    if not program.kv_specs:
        return None
    return backend.open_state(
        program.kv_specs,
        page_tokens=PAGE_TOKENS,
        pages=-(-WINDOW // PAGE_TOKENS),
        recurrent_specs=program.recurrent_specs,
        slots=2,
    )
