"""What every model of texts shares: it is closed once, works in a ``with`` block, and is pickled by where it came from."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, Self

from lattice_inference.text_program import TextProgram

__all__ = ["TextModel"]


class TextModel:
    """A loaded model that owns its program. A context manager; pickling stores how to load it, not its weights."""

    def __init__(self, *, program: TextProgram, reload: partial[Any]) -> None:
        self._program = program
        self._reload = reload

    def close(self) -> None:
        """Give the weights back. Further use raises InvalidInputError; closing twice is harmless."""
        self._program.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reload, ()
