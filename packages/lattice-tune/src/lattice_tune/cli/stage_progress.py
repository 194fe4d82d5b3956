"""How far a pipeline has come, on one line of standard error, if that is a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

__all__ = ["StageProgress"]

_NAMES = {
    "labels": "asking the teacher",
    "vectors": "encoding",
    "test vectors": "encoding the test set",
    "student": "training",
}


class StageProgress:
    """Shows the stage that it is told of. A context manager: the line is taken back at the end."""

    def __init__(self) -> None:
        self._shows, self._shown = sys.stderr is not None and sys.stderr.isatty(), False

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps of a stage are done."""
        if self._shows:
            self._shown = True
            print(f"\r\033[K{_NAMES.get(stage, stage)}: {done:,} of {total:,}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> StageProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
