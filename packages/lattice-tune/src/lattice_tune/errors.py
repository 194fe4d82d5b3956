"""Every error that lattice_tune raises on purpose: one tree under :class:`TuneError`.

Each class is also the builtin that a Python user would catch, and carries what was wrong as attributes.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "DatasetError",
    "InvalidInputError",
    "LabelStoreError",
    "MissingDependencyError",
    "TeacherApiError",
    "TeacherTimeoutError",
    "TuneError",
    "shown",
]


def shown(value: object) -> str:
    """Return what an error shows of a value: its repr, unless that is long or fails."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # such as an integer of too many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:60]}... ({type(value).__name__})"


class TuneError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidInputError(TuneError, ValueError):
    """An argument has a value, type or shape that the call cannot take."""


class ConfigError(InvalidInputError):
    """A field of a configuration has a value that makes no sense."""


class DatasetError(TuneError, ValueError):
    """A dataset, or a file of one, cannot be read or used; the message names file and line."""


class MissingDependencyError(TuneError, ImportError):
    """A package that an extra brings is not installed; the message says which extra."""


class TeacherApiError(TuneError, OSError):
    """A teacher cannot be asked: no connection, a refused key, or an answer that cannot be used.

    Attributes:
        status: HTTP status of the last answer, or ``None``.
        report: what was labelled before, a :class:`LabelingReport`, or ``None`` outside of a labelling.
    """

    def __init__(self, message: str, *, status: int | None = None, report: object = None) -> None:
        super().__init__(message)
        self.status = status
        self.report = report


class TeacherTimeoutError(TeacherApiError, TimeoutError):
    """A teacher did not answer within its timeout, after all retries."""


class LabelStoreError(TuneError, OSError):
    """A label store cannot be read or written: damaged, of another program, locked for too long, or the disk is full.

    Attributes:
        report: what was labelled before, a :class:`LabelingReport`, or ``None`` outside of a labelling.
    """

    def __init__(self, message: str, *, report: object = None) -> None:
        super().__init__(message)
        self.report = report
