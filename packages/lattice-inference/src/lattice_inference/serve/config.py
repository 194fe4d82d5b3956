"""How a server behaves: its limits and its keys."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lattice_inference.argument_checks import as_number, check_integer, checked_flag
from lattice_inference.errors import InvalidInputError
from lattice_inference.value_text import value_text

__all__ = ["ServeConfig"]


_TIMES = ("header_seconds", "body_seconds", "first_token_seconds", "request_seconds", "drain_seconds")


@dataclass(frozen=True)
class ServeConfig:
    """The configuration of a server; see :func:`create_app`.

    Attributes:
        api_keys: the keys that a request may have in ``Authorization: Bearer KEY``. Without any, every request is taken
            whose ``Host`` is this machine, and which no web page of another host has sent.
        lenient: ignore fields that are not known, and list them in the answer's header ``X-Lattice-Ignored``.
        max_body_bytes: the longest body of a request.
        max_inputs: the most texts of an embedding request, documents of a rerank request, and prompts of a completion.
        max_choices: the largest ``n``. 1 to 128.
        max_requests: how many requests are worked on or wait; the next one gets status 429.
        batch_tokens: the most tokens of texts that are embedded or scored in one call of a model.
        max_connections: how many connections may be open; one more closes the one that has been idle for longest.
        header_seconds: how long the headers of a request may take to arrive, and the first byte of a new connection.
        body_seconds: how long the body of a request may take to arrive.
        first_token_seconds: how long a text may wait for its first token.
        request_seconds: how long an answer may take, from the arrival of its request to its end.
        drain_seconds: how long requests may go on after the server was told to end.

    Raises:
        InvalidInputError: a value out of its range.
    """

    api_keys: Collection[str] = ()
    lenient: bool = False
    max_body_bytes: int = 8 * 2**20
    max_inputs: int = 2048
    max_choices: int = 16
    max_requests: int = 256
    max_connections: int = 1000
    batch_tokens: int = 8192
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    first_token_seconds: float = 120.0
    request_seconds: float = 600.0
    drain_seconds: float = 30.0

    def __post_init__(self) -> None:
        if isinstance(self.api_keys, str) or not all(
            isinstance(key, str) and key.strip() == key and key.isascii() and key for key in self.api_keys
        ):
            raise InvalidInputError("api_keys must be texts of ASCII characters without blanks around them")
        object.__setattr__(self, "api_keys", tuple(self.api_keys))
        checked_flag("lenient", self.lenient)
        for name, most in (
            ("max_body_bytes", 2**31),
            ("max_inputs", 2**20),
            ("max_choices", 128),
            ("max_requests", 2**20),
            ("max_connections", 2**20),
            ("batch_tokens", 2**24),
        ):
            if getattr(self, name) is None:
                raise InvalidInputError(f"{name} is None; expected an integer from 1 to {most:,}")
            check_integer(name, getattr(self, name), 1, most)
        for name in _TIMES:
            number = as_number(getattr(self, name))
            if number is None or not 0 < number <= 1e6:
                raise InvalidInputError(
                    f"{name} is {value_text(getattr(self, name))}; expected a positive number of seconds, at most 1e6"
                )
