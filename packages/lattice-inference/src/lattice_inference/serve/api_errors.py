"""Errors as OpenAI's clients know them: a status, and a body that names the fault."""

from __future__ import annotations

import asyncio
from typing import Any

from lattice_inference.errors import (
    CacheFullError,
    GrammarError,
    InvalidInputError,
    LatticeError,
    TextTooLongError,
    UnsupportedError,
)

__all__ = ["ApiError", "refusal_of", "run_error_of"]

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """What a request is answered with instead of a result.

    Args:
        status: of HTTP.
        code: a name that programs compare.
        message: for people.
        param: the field that is wrong.
        headers: further headers of the answer.
    """

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """Return the body in OpenAI's form."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        param = None if self.param is None else _shown(self.param[:200])
        return {"error": {"message": _shown(str(self)), "type": kind, "param": param, "code": self.code}}


def _shown(text: str) -> str:
    """Return a text without lone surrogates, which no body can hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def refusal_of(error: BaseException, param: str | None) -> ApiError:
    """Return the answer to a request that was refused before anything was run.

    Args:
        error: why.
        param: the field that it is about; the place in a schema is put after it.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, GrammarError):
        inside = {"response_format": "response_format/json_schema/schema"}.get(param or "", param or "")
        return ApiError(400, "invalid_grammar", str(error), param if error.pointer is None else inside + error.pointer)
    if isinstance(error, (TextTooLongError, CacheFullError)):
        return ApiError(400, "context_length_exceeded", str(error), param)
    if isinstance(error, UnsupportedError):
        return ApiError(400, "unsupported", str(error), param)
    if isinstance(error, InvalidInputError):
        return ApiError(400, "invalid_value", str(error), param)
    return run_error_of(error)


def run_error_of(error: BaseException) -> ApiError:
    """Return the answer to a request that failed while it ran, without a traceback."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, CacheFullError):
        return ApiError(503, "cache_full", str(error), headers={"Retry-After": "1"})
    if isinstance(error, TimeoutError):
        return ApiError(504, "deadline_exceeded", "the request took longer than this server allows")
    if isinstance(error, LatticeError):
        return ApiError(500, "generation_failed", str(error))
    if isinstance(error, asyncio.CancelledError):
        return ApiError(503, "cancelled", "the server ended this request")
    return ApiError(500, "internal_error", "an unexpected error; the server's log has it")
