"""A tool call that an answer makes, whole and piece by piece."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from lattice_inference.errors import InvalidInputError

__all__ = ["ToolCall", "ToolCallDelta", "call_id"]

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ID_LENGTH = 9  # what Mistral's templates want


@dataclass(frozen=True)
class ToolCall:
    """A call of a function.

    Attributes:
        id: nine letters and digits, which the result of the call names.
        name: the function.
        arguments_text: the arguments as the model wrote them, a JSON object.
    """

    id: str
    name: str
    arguments_text: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name.

        Raises:
            InvalidInputError: they nest deeper than Python reads.
        """
        try:
            arguments: dict[str, Any] = json.loads(self.arguments_text)
        except RecursionError:
            raise InvalidInputError(f"the arguments of {self.name!r} nest too deeply: read arguments_text") from None
        return arguments

    def to_message(self) -> dict[str, Any]:
        """Return the call as a message of OpenAI's form holds it."""
        function = {"name": self.name, "arguments": self.arguments_text}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class ToolCallDelta:
    """What a piece of an answer adds to its calls.

    Attributes:
        index: which call.
        id: the call's id, in its first piece.
        name: the function, in its first piece.
        arguments: what follows in the text of the arguments.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


def call_id(seed: str, index: int) -> str:
    """Return the id of an answer's call ``index``; the same seed gives the same ids."""
    number = int.from_bytes(hashlib.sha256(f"{seed}/{index}".encode()).digest()[:8])
    letters = []
    for _ in range(_ID_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        letters.append(_DIGITS[digit])
    return "".join(letters)
