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
    "AdapterNotApprovedError",
    "DuplicateModelError",
    "InvalidTransitionError",
    "LineageError",
    "ModelNotFoundError",
    "PromotionRefusedError",
    "RegistryBusyError",
    "RegistryCorruptError",
    "RegistryError",
    "StorageError",
    "TuneError",
    "WeightIntegrityError",
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
        self.expected: str
        self.actual: str
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
    """A label store cannot be read or written.

    It is damaged, of another program, locked for too long, or the disk is full.

    Attributes:
        report: what was labelled before, a :class:`LabelingReport`, or ``None`` outside of a labelling.
    """

    def __init__(self, message: str, *, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class RegistryError(TuneError):
    """Base of the errors of the model registry."""


class ModelNotFoundError(RegistryError, LookupError):
    """The registry has no such name, version or alias.

    Attributes:
        name: of the model.
        version: the version or alias, or ``None`` where the name has no version at all.
    """

    def __init__(self, name: str, version: str | None = None, detail: str = "") -> None:
        what = f"version {version} of {name}" if version is not None else f"version of {name}"
        super().__init__(f"the registry has no {what}{detail}: `lattice-tune registry list` shows what there is")
        self.version: str | None
        self.name: str
        self.name, self.version = name, version


class DuplicateModelError(RegistryError, ValueError):
    """The name has this version already; what is stored was not touched."""

    def __init__(self, name: str, version: str) -> None:
        super().__init__(f"{name} has a version {version} already: register another version, or delete that one first")
        self.version: str
        self.name: str
        self.name, self.version = name, version


class StorageError(RegistryError, OSError):
    """The registry's files cannot be read or written; what was stored before is there still."""


class RegistryBusyError(StorageError):
    """Other processes held the registry for as long as this one waited; nothing was changed."""


class RegistryCorruptError(RegistryError, ValueError):
    """A registry file is damaged, of another program, or of an unsupported version."""


class WeightIntegrityError(RegistryError, ValueError):
    """A stored file is not what was registered.

    Attributes:
        path: the file.
        expected: the SHA-256 on record, in hex.
        actual: the SHA-256 that was found, or ``"missing"``.
    """

    def __init__(self, path: str, expected: str, actual: str) -> None:
        super().__init__(
            f"{path}: SHA-256 is {actual}, but {expected} is on record: restore the file, or register the model again"
            if actual != "missing"
            else f"{path} is missing ({expected} is on record): restore the file, or register the model again"
        )
        self.path: str
        self.expected: str
        self.actual: str
        self.path, self.expected, self.actual = path, expected, actual


class InvalidTransitionError(RegistryError, ValueError):
    """A version's status does not allow the requested change."""

    def __init__(self, subject: str, status: str, wanted: str, remedy: str) -> None:
        super().__init__(f"{subject} is {status} and cannot become {wanted}: {remedy}")
        self.wanted: str
        self.status: str
        self.status, self.wanted = status, wanted


class LineageError(RegistryError, ValueError):
    """A change would make a version its own ancestor, or leave a child without its parent."""


class PromotionRefusedError(RegistryError, ValueError):
    """A gate did not let a version into production.

    Attributes:
        failed: name and reason of each gate that refused.
    """

    def __init__(self, subject: str, failed: tuple[tuple[str, str], ...]) -> None:
        super().__init__(f"{subject} was not promoted: " + "; ".join(f"{name}: {reason}" for name, reason in failed))
        self.failed = failed


class AdapterNotApprovedError(RegistryError, ValueError):
    """An adapter is quarantined or revoked, and does not load.

    Attributes:
        status: ``"quarantined"`` or ``"revoked"``.
    """

    def __init__(self, adapter: str, status: str) -> None:
        super().__init__(f"adapter {adapter} is {status} and does not load: only approved adapters do")
        self.status = status
