"""Runs the snippets of one page: ``python tools/checks/snippets.py docs/embedding.md``.

All ``python`` blocks of the page run from top to bottom in one namespace; a block whose fence says ``python no-run`` is only
compiled. Tracebacks name the page and its line. Network connections are refused, whatever a snippet asks for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "blocks_of", "commands_of", "run_page"]

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
_COMMAND = re.compile(r"(^|\|\s*)lattice(-embed|-fann|-transport|-tune)? ")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        info: what stands after the opening fence, stripped: ``"python"``, ``"python no-run"``, ``"console"``, ``""``, ...
        code: the lines between the fences, without the indentation of the fence.
        line: the number, from 1, of the first of those lines in the page.
    """

    info: str
    code: str
    line: int

    @property
    def is_python(self) -> bool:
        """Whether the block is Python, run or not."""
        return self.info.split()[:1] == ["python"]

    @property
    def runs(self) -> bool:
        """Whether the block is Python to be run."""
        return self.is_python and "no-run" not in self.info.split()


def blocks_of(text: str) -> list[Block]:
    """Return the fenced blocks of a page.

    Raises:
        ValueError: a fence is not closed, so that the rest of the page would silently be code.
    """
    blocks: list[Block] = []
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        opening = _FENCE.match(line)
        if opening is None:
            continue
        inside: list[str] = []
        for _, code in lines:
            closing = _FENCE.match(code)
            if closing and closing["fence"].startswith(opening["fence"]) and not closing["info"].strip():
                break
            inside.append(code.removeprefix(opening["indent"]))
        else:
            raise ValueError(f"the fence of line {number} is not closed")
        blocks.append(Block(opening["info"].strip(), "\n".join(inside) + "\n", number + 1))
    return blocks


def commands_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of our commands in the page's console, bash, text and bare blocks.

    A command that a backslash continues is one text, with the number of its first line.
    """
    for block in blocks_of(text):
        if block.info not in ("", "bash", "console", "text"):
            continue
        lines = enumerate(block.code.splitlines(), block.line)
        for number, line in lines:
            command = line.strip().removeprefix("$ ")
            while command.endswith("\\"):
                command = command[:-1] + next(lines, (0, ""))[1].strip()
            if _COMMAND.search(command):
                yield number, command


def run_page(page: Path, namespace: dict[str, object] | None = None) -> int:
    """Run the page's blocks in this process and return their number.

    They run in ``namespace`` if one is given.
    """
    namespace = {} if namespace is None else namespace
    namespace["__name__"] = "__main__"
    ran = 0
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if not block.is_python:
            continue
        # as many empty lines as stand before the block, so that a traceback's line is the page's
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        if block.runs:
            exec(code, namespace)
            ran += 1
    return ran


def _refuse_connections(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise RuntimeError(f"a snippet tried to open a connection: {arguments[1:] or arguments}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.addaudithook(_refuse_connections)
    print(f"{run_page(Path(sys.argv[1]))} snippets ran", file=sys.stderr)
