"""Runs a command line in this process as a shell would; checks and discards its output."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence

__all__ = ["run_command"]


def run_command(main: Callable[[Sequence[str]], int], *arguments: str) -> None:
    """Call a command's ``main``; its status is 0, 1 or 2, and it shows no traceback."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            status: object = main(arguments)
        except SystemExit as error:
            status = error.code
    said.seek(0)
    words = said.read()
    assert status in (0, 1, 2), f"{arguments[0]} ended with status {status!r}: {words[-500:]}"
    assert "Traceback" not in words, words[-2_000:]
    assert len(words) < 20_000, f"{arguments[0]} said {len(words):,} characters"
