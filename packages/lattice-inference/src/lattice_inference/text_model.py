"""What every model of texts shares: where it came from, its tokenizer, closing, and pickling."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, Self

from lattice_inference.hub import ModelFiles
from lattice_inference.model_fingerprint import ModelSnapshot
from lattice_inference.precision import Precision
from lattice_inference.text_program import TextProgram
from lattice_inference.tokenizer import Tokenizer

__all__ = ["TextModel"]


class TextModel:
    """A loaded model that owns its program. A context manager; pickling stores how to load it, not its weights."""

    def __init__(
        self,
        *,
        files: ModelFiles,
        snapshot: ModelSnapshot,
        tokenizer: Tokenizer,
        program: TextProgram,
        precision: Precision,
        reload: partial[Any],
    ) -> None:
        self.source = files.source
        self.directory = files.directory
        self._name = files.repo_id or str(files.directory)
        self.tokenizer = tokenizer
        self.precision: Precision = precision
        self._program = program
        self._reload = reload
        self._snapshot = snapshot
        self._fingerprint: str | None = None

    def close(self) -> None:
        """Give the weights back. Further use raises InvalidInputError; closing twice is harmless."""
        self._program.close()

    def trim(self) -> None:
        """Give the working memory of earlier calls back to the operating system; weights stay, and so does every result.

        Worth a call after a burst of long texts in a process that lives on; the next call asks for memory again.
        """
        self._program.trim()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reload, ()
