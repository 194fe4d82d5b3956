"""Every error that lattice_tune raises on purpose: one tree under :class:`TuneError`.

Each class is also the builtin that a Python user would catch, and carries what was wrong as attributes.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DatasetError",
    "EncoderMismatchError",
    "InvalidInputError",
    "LabelStoreError",
    "MissingDependencyError",
    "StudentFileError",
    "TeacherAnswerError",
    "TrainingError",
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


class TeacherAnswerError(TuneError, ValueError):
    """A teacher returned something that is no row of probabilities over the label set."""


class TrainingError(TuneError, RuntimeError):
    """A training cannot begin or go on; the message says at which example or epoch."""


class CheckpointError(TuneError, ValueError):
    """A checkpoint cannot be read or written, or is of another training."""


class StudentFileError(TuneError, ValueError):
    """A stored student cannot be read or written."""


class EncoderMismatchError(TuneError, ValueError):
    """Vectors are of another encoder than the one that the student was trained on.

    Attributes:
        expected: the fingerprint of the student's encoder.
        actual: that of the other one.
    """

    def __init__(self, expected: str, actual: str) -> None:
        self.expected, self.actual = expected, actual
        super().__init__(
            f"the student was trained on vectors of the encoder {shown(expected)}, these are of {shown(actual)}: "
            "load that encoder, or train another student"
        )

    def __reduce__(self) -> tuple[type[EncoderMismatchError], tuple[str, str]]:
        return type(self), (self.expected, self.actual)


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
