"""Every error that lattice_inference raises on purpose.

One tree under :class:`LatticeError`; each class also derives from the builtin that a Python user would catch.
"""

from __future__ import annotations

__all__ = [
    "LatticeError",
    "BusyError",
    "CacheFullError",
    "CheckpointError",
    "ChecksumError",
    "DeviceLostError",
    "DeviceMemoryError",
    "DeviceUnavailableError",
    "DownloadError",
    "GrammarError",
    "InvalidInputError",
    "ModelConfigError",
    "ModelNotFoundError",
    "NonFiniteError",
    "TextTooLongError",
    "TokenizerError",
    "UnsupportedError",
    "VectorCacheError",
    "WriteError",
]


MOST_CHARACTERS = 4_000
"""The longest message: what a file or a caller gives may be quoted in one, and is cut in the middle."""


class LatticeError(Exception):
    """Base of every error raised on purpose."""

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) <= MOST_CHARACTERS:
            return text
        half = MOST_CHARACTERS // 2
        return f"{text[:half]} ... {text[-half:]}"


class InvalidInputError(LatticeError, ValueError):
    """An argument has a value, type or shape that the call cannot take."""


class BusyError(LatticeError, RuntimeError):
    """A session, conversation, stream or calibrator is busy with another call.

    The error says what to do instead.
    """


class TextTooLongError(InvalidInputError):
    """A text exceeds a limit and the caller asked for an error instead of truncation."""


class GrammarError(InvalidInputError):
    """A schema, regular expression or grammar cannot be read, or cannot be enforced.

    Attributes:
        pointer: the JSON pointer of the place in a schema, or ``None``.
    """

    def __init__(self, message: str, pointer: str | None = None) -> None:
        super().__init__(message)
        self.pointer = pointer


class ModelNotFoundError(LatticeError, FileNotFoundError):
    """No place that may be searched holds the model, or a file of it is missing."""


class DownloadError(LatticeError, OSError):
    """The hub could not be reached or refused the request."""


class ChecksumError(LatticeError, ValueError):
    """A file's SHA-256 is not the one on record."""


class CheckpointError(LatticeError, ValueError):
    """A weight file is malformed, truncated, or lacks a tensor that the model needs."""


class ModelConfigError(LatticeError, ValueError):
    """A model's configuration file is malformed, or a field is missing or out of range."""


class TokenizerError(LatticeError, ValueError):
    """A tokenizer file is malformed or names a component that does not exist here."""


class UnsupportedError(LatticeError, ValueError):
    """The request or file is well-formed but asks for something that is not built."""


class CacheFullError(LatticeError, MemoryError):
    """A cache of keys and values has no room for a call's tokens, or for itself.

    Nothing was added.
    """


class DeviceUnavailableError(LatticeError, RuntimeError):
    """A device that a caller names cannot be used here; the error says why, and what would help."""


class DeviceMemoryError(LatticeError, MemoryError):
    """A device has no room for what a call needs; nothing has changed.

    The error says how many bytes were wanted.
    """


class DeviceLostError(LatticeError, RuntimeError):
    """A device was lost or reset. What was loaded on it cannot be used any more: load it again."""


class VectorCacheError(LatticeError, ValueError):
    """A file of cached vectors is damaged, malformed or not one of ours."""


class WriteError(LatticeError, OSError):
    """A file or folder cannot be written; what was there before is there still."""

    @classmethod
    def of(cls, path: object, cause: Exception) -> WriteError:
        """Return the error of writing ``path``, with the system's error number and message."""
        error = cls(f"{path}: cannot be written: {getattr(cause, 'strerror', None) or cause}")
        error.errno = getattr(cause, "errno", None)
        return error


class NonFiniteError(LatticeError, ArithmeticError):
    """A computation produced NaN or infinity.

    Attributes:
        rows: the inputs that it happened for, by their index in the call.
    """

    def __init__(self, message: str, rows: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.rows = rows
