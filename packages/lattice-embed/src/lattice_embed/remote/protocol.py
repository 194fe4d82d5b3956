"""The OpenAI embeddings protocol: a request's body, and the checks of an answer.

An answer is taken whole or not at all. Vectors may come as lists of numbers or as base64 of little-endian float32,
whichever was requested: servers differ. They are put back in order by ``index``.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lattice_embed.errors import NonFiniteVectorError
from lattice_embed.remote.errors import (
    RemoteAuthenticationError,
    RemoteRateLimitError,
    RemoteRequestError,
    RemoteResponseError,
    RemoteServiceError,
)
from lattice_embed.remote.retrying import retry_after
from lattice_embed.result import Float32Array

__all__ = ["HttpAnswer", "EncodingFormat", "Vectors", "failure_of", "read_vectors", "request_body", "size_limit"]

EncodingFormat = Literal["base64", "float"]

MAX_UNKNOWN_DIMENSIONS = 16_384
"""Length of vectors that an answer may hold while the model's own is not known yet."""

BYTES_PER_NUMBER = 64
"""JSON of one number, spaces and line ends of a pretty printer included, is shorter."""

BYTES_BESIDES = 1 << 20
BYTES_PER_ITEM = 1 << 10

SHOWN_CHARACTERS = 300
"""Of a server's own words in an error."""

RETRYABLE_STATUSES = frozenset({408, 425, 429})
WRONG_ADDRESS_STATUSES = (404, 405, 407, 502, 503, 504)
"""What an address that is no server's, or a proxy on the way, answers."""

MOST_TOKENS = 2**31 - 1
"""Largest number of tokens that is believed: what a result's token counts can hold."""

SPENT_QUOTA = "insufficient_quota"


@dataclass(frozen=True)
class HttpAnswer:
    """What a server sent back.

    Attributes:
        status: HTTP status.
        headers: names in lower case.
        body: the whole body of a success; the first part of any other.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Vectors:
    """The vectors of one request.

    Attributes:
        vectors: float32 array of shape (texts, dim), finite, in the order of the texts, as the server sent them.
        prompt_tokens: tokens that the server says it read, or ``None`` if it does not say.
    """

    vectors: Float32Array
    prompt_tokens: int | None


def request_body(texts: Sequence[str], model: str, encoding: EncodingFormat, dimensions: int | None) -> bytes:
    """Return the JSON of a request for the vectors of ``texts``.

    ``dimensions`` requests shorter ones.
    """
    body: dict[str, object] = {"model": model, "input": list(texts), "encoding_format": encoding}
    if dimensions is not None:
        body["dimensions"] = dimensions
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def size_limit(texts: int, dimensions: int | None) -> int:
    """Return the bytes that no sensible answer for so many texts exceeds."""
    numbers = dimensions or MAX_UNKNOWN_DIMENSIONS
    return BYTES_BESIDES + texts * (BYTES_PER_ITEM + numbers * BYTES_PER_NUMBER)


def read_vectors(body: bytes, positions: Sequence[int], dimensions: int | None, server: str) -> Vectors:
    """Read the answer to a request for ``len(positions)`` texts.

    Args:
        body: the answer.
        positions: the place of each text in the caller's list, for messages.
        dimensions: the length that vectors must have; ``None`` takes any, the same for all.
        server: what messages call the server.

    Raises:
        RemoteResponseError: the answer is not JSON, or vectors are missing, doubled, unnumbered, malformed or of another
            length.
        NonFiniteVectorError: a vector holds NaN or infinity.
    """
    document = _parse(body, server)
    data = document.get("data")
    if not isinstance(data, list):
        raise RemoteResponseError(f"{server} answered without vectors: {_shown(body)}")
    if len(data) != len(positions):
        raise RemoteResponseError(f"{server} answered with {len(data):,} vectors for {len(positions):,} texts")
    rows: list[Float32Array | None] = [None] * len(positions)
    for item in data:
        index = item.get("index") if isinstance(item, dict) else None
        if type(index) is not int or not 0 <= index < len(rows):
            raise RemoteResponseError(
                f"{server} answered with a vector of index {index!r:.40}; the indices of {len(rows):,} texts are 0 to "
                f"{len(rows) - 1:,}"
            )
        if rows[index] is not None:
            raise RemoteResponseError(f"{server} answered with two vectors for text {positions[index]}")
        row = _vector(item.get("embedding"), positions[index], server)
        dimensions = dimensions or len(row)
        if len(row) != dimensions:
            raise RemoteResponseError(
                f"{server} answered with a vector of {len(row):,} dimensions for text {positions[index]}; "
                f"{dimensions:,} are expected: it serves another model, or does not know the option `dimensions`"
            )
        if not np.isfinite(row).all():
            raise NonFiniteVectorError(index=positions[index], model=server)
        rows[index] = row
    return Vectors(np.stack([row for row in rows if row is not None]), _prompt_tokens(document))


def failure_of(answer: HttpAnswer, server: str, credential: str, asked: str = "") -> RemoteServiceError:
    """Return the error that an answer other than a success stands for.

    Args:
        answer: the answer.
        server: what messages call the server.
        credential: what to change where the server does not accept the key.
        asked: the whole address, and the proxy on the way; told where it may be the wrong one.
    """
    status, said = answer.status, _message(answer.body)
    wait = retry_after(answer.headers)
    told = f"{server} answered {status}" + (f": {said}" if said else "")
    if asked and status in WRONG_ADDRESS_STATUSES:
        told += f" (the address asked is {asked})"
    if 300 <= status < 400:
        target = answer.headers.get("location", "nowhere")
        return RemoteResponseError(
            f"{server} redirects to {_one_line(target)}: redirects are not followed, set base_url", status=status
        )
    if status in (401, 403):
        return RemoteAuthenticationError(f"{told} (check {credential})", status=status)
    if status == 429:
        spent = SPENT_QUOTA in said or SPENT_QUOTA.encode() in answer.body
        return RemoteRateLimitError(told, status=status, retry_after=wait, retryable=not spent)
    if status in RETRYABLE_STATUSES or status >= 500:
        return RemoteServiceError(told, status=status, retry_after=wait, retryable=True)
    if 400 <= status < 500:
        return RemoteRequestError(told, status=status)
    return RemoteResponseError(told, status=status)


def _parse(body: bytes, server: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        document = json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RemoteResponseError(
            f"{server} answered with {len(body):,} bytes that are no whole JSON ({reason}): {_shown(body)}"
        ) from None
    if not isinstance(document, dict):
        raise RemoteResponseError(f"{server} answered with a JSON {type(document).__name__}, not an object")
    return document


def _vector(embedding: object, position: int, server: str) -> Float32Array:
    where = f"{server} answered with a vector for text {position} that"
    if isinstance(embedding, str):
        try:
            raw = base64.b64decode(embedding, validate=True)
        except (binascii.Error, ValueError):
            raise RemoteResponseError(f"{where} is no base64") from None
        if not raw or len(raw) % 4:
            raise RemoteResponseError(f"{where} has {len(raw)} bytes, not a positive multiple of 4")
        return np.frombuffer(raw, "<f4").astype(np.float32)
    if not isinstance(embedding, list) or not embedding:
        raise RemoteResponseError(f"{where} is neither a list of numbers nor base64")
    if not set(map(type, embedding)) <= {float, int}:
        raise RemoteResponseError(f"{where} holds something else than numbers")
    try:
        with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused as that
            return np.array(embedding, np.float64).astype(np.float32)
    except OverflowError:
        raise RemoteResponseError(f"{where} holds a number that is too large") from None


def _prompt_tokens(document: Mapping[str, Any]) -> int | None:
    usage = document.get("usage")
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return tokens if type(tokens) is int and 0 <= tokens <= MOST_TOKENS else None


def _message(body: bytes) -> str:
    """Return the server's own words, in whichever of the usual places they stand."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return _shown(body)
    if not isinstance(document, dict):
        return _shown(body)
    error = document.get("error", document)
    if isinstance(error, str):
        return _one_line(error)
    if not isinstance(error, dict):
        return _shown(body)
    words = [str(error[name]) for name in ("message", "detail", "code", "type") if error.get(name)]
    return _one_line(" / ".join(words)) if words else _shown(body)


def _shown(body: bytes) -> str:
    return _one_line(body[: 4 * SHOWN_CHARACTERS].decode("utf-8", "replace"))


def _one_line(text: str) -> str:
    line = " ".join(re.sub(r"[^\w\s!-~]", "?", text).split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}..."
