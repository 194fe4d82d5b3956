"""Every error that lattice_embed raises on purpose.

One tree under :class:`LatticeEmbedError`, which is itself a ``lattice_inference.LatticeError``; each class also derives
from the builtin that a Python user would catch. Errors that come from reading a model's files (``ModelNotFoundError``,
``CheckpointError``, ...) are lattice_inference's own and pass through unchanged. Those of a server are below it in
:mod:`lattice_embed.remote`.
"""

from __future__ import annotations

from typing import Any, Literal

from lattice_inference import errors as inference_errors

__all__ = [
    "LatticeEmbedError",
    "DimensionMismatchError",
    "EmptyInputError",
    "InvalidInputError",
    "InvalidModelConfigError",
    "InvalidTextError",
    "InvalidTransitionError",
    "ModelConfigError",
    "NonFiniteVectorError",
    "ProvenanceMismatchError",
    "ServiceClosedError",
    "SpaceMismatchError",
    "StoreCorruptError",
    "StoreError",
    "TextTooLongError",
    "TierMismatchError",
    "TooManyTextsError",
    "UnknownModelError",
    "UnsupportedModelError",
    "WrongModelError",
]


class LatticeEmbedError(inference_errors.LatticeError):
    """Base of every error that this package raises on purpose."""


class InvalidInputError(LatticeEmbedError, inference_errors.InvalidInputError):
    """An argument has a value, type or shape that the call cannot take."""


class EmptyInputError(InvalidInputError):
    """A call that needs at least one text was given none."""


class TooManyTextsError(InvalidInputError):
    """A call holds more texts than the service takes at once.

    Attributes:
        limit: the most texts a call may hold.
    """

    def __init__(self, *, limit: int) -> None:
        super().__init__(
            f"more than {limit:,} texts in one call: use encode() or embed_iter(), which split, or raise max_batch_size"
        )
        self.limit = limit

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), {"limit": self.limit}))


class InvalidTextError(InvalidInputError):
    """One text of a call cannot be taken.

    Attributes:
        index: position of the text in the call.
        reason: what is wrong with it.
    """

    def __init__(self, *, index: int, reason: str) -> None:
        super().__init__(f"text {index} {reason}")
        self.index = index
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self._fields()))

    def shifted(self, offset: int) -> InvalidTextError:
        """Return the same error for a text that stands ``offset`` places later."""
        return type(self)(**{**self._fields(), "index": self.index + offset})

    def _fields(self) -> dict[str, Any]:
        return {"index": self.index, "reason": self.reason}


class TextTooLongError(InvalidTextError, inference_errors.TextTooLongError):
    """A text is over a limit.

    Attributes:
        index: position of the text in the call.
        length: how long the text is, in ``unit``.
        limit: the most that is allowed, in ``unit``.
        unit: ``"characters"`` (code points of the caller's text) or ``"tokens"`` (what the model would read, the
            prompt and the special tokens included).
    """

    def __init__(self, *, index: int, length: int, limit: int, unit: Literal["characters", "tokens"]) -> None:
        remedy = "or raise max_text_chars" if unit == "characters" else 'or use truncate="right"'
        super().__init__(index=index, reason=f"has {length:,} {unit}; the limit is {limit:,}: split the text, {remedy}")
        self.length = length
        self.limit = limit
        self.unit = unit

    def _fields(self) -> dict[str, Any]:
        return {"index": self.index, "length": self.length, "limit": self.limit, "unit": self.unit}


class UnknownModelError(InvalidInputError):
    """A name is neither in the catalogue nor the id of a model on the hub nor a directory."""


class UnsupportedModelError(LatticeEmbedError, inference_errors.UnsupportedError):
    """The model is known, but this service or this version cannot run it."""


class WrongModelError(InvalidInputError):
    """A call asks for another model than the one that the service holds.

    Attributes:
        expected: the model that the service holds.
        actual: the model that the call asked for.
    """

    def __init__(self, *, expected: str, actual: str) -> None:
        super().__init__(
            f"this service holds {expected}, the call asks for {actual}: "
            "leave the model out, or make a second service for the other model"
        )
        self.expected = expected
        self.actual = actual

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), {"expected": self.expected, "actual": self.actual}))


class ModelConfigError(LatticeEmbedError, inference_errors.ModelConfigError):
    """A model configuration is contradictory, such as an untrained output dimension."""


class InvalidModelConfigError(ModelConfigError, InvalidInputError):
    """The model does not allow the requested configuration, such as an output dimension."""


class NonFiniteVectorError(LatticeEmbedError, inference_errors.NonFiniteError):
    """The model produced NaN or infinity.

    Attributes:
        index: position of the first text that it happened for.
        model: the model.
        rows: the same position, alone.
    """

    def __init__(self, *, index: int, model: str) -> None:
        super().__init__(
            f"{model} gave NaN or infinity for text {index}: its weights are damaged, or too large for float32",
            (index,),
        )
        self.index = index
        self.model = model

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), {"index": self.index, "model": self.model}))

    def shifted(self, offset: int) -> NonFiniteVectorError:
        """Return the same error for a text that stands ``offset`` places later."""
        return type(self)(index=self.index + offset, model=self.model)


class ProvenanceMismatchError(InvalidInputError):
    """Vectors of two origins were to be compared and do not lie in one space.

    Attributes:
        fields: what differs: the two values by the name of the field.
    """

    def __init__(self, *, fields: dict[str, tuple[object, object]]) -> None:
        self.fields = fields
        super().__init__(
            f"these vectors are not comparable ({self.described}): embed both with one model and one setting"
        )

    @property
    def described(self) -> str:
        """The fields that differ and their values, in words."""
        return ", ".join(f"{name} {first!r} and {second!r}" for name, (first, second) in self.fields.items())

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), {"fields": self.fields}))


class ServiceClosedError(LatticeEmbedError, RuntimeError):
    """The service was closed and does no more work."""


class StoreError(LatticeEmbedError):
    """A vector store or a migration's journal cannot be opened, created or used as asked."""


class StoreCorruptError(StoreError, ValueError):
    """A file of a vector store, or of a migration's journal, is damaged or is no such file."""


class SpaceMismatchError(InvalidInputError):
    """Vectors of two embedding spaces were to be compared, or kept in one store.

    Attributes:
        expected: the fingerprint that the store holds, or that of the first operand.
        actual: the fingerprint that was offered, or that of the other operand.
        compared: whether two operands were to be compared, without a store.
        differing: what differs, in words, where it is known.
    """

    def __init__(self, *, expected: str, actual: str, compared: bool = False, differing: str = "") -> None:
        if compared:
            message = (
                f"vectors of the spaces {expected or '(unknown)'} and {actual or '(unknown)'} are not comparable"
                f"{f' ({differing})' if differing else ''}: embed both with one model and one setting"
            )
        else:
            message = (
                f"the store holds vectors of the space {expected or '(none: texts only)'}, not of {actual or '(none)'}: "
                "use the model that the store names, or migrate the store"
            )
        super().__init__(message)
        self.expected = expected
        self.actual = actual
        self.compared = compared
        self.differing = differing

    def __reduce__(self) -> tuple[object, ...]:
        names = ("expected", "actual", "compared", "differing")
        return (_rebuild, (type(self), {name: getattr(self, name) for name in names}))


class InvalidTransitionError(LatticeEmbedError, RuntimeError):
    """A migration cannot go from the state it is in to the one asked for.

    Attributes:
        state: the state that the migration is in.
        action: what was asked.
    """

    def __init__(self, *, state: str, action: str, remedy: str = "") -> None:
        super().__init__(f"cannot {action}: the migration is {state}" + (f"; {remedy}" if remedy else ""))
        self.state = state
        self.action = action
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), {"state": self.state, "action": self.action, "remedy": self.remedy}))


class DimensionMismatchError(InvalidInputError):
    """Two vectors that belong together have different lengths.

    Attributes:
        expected: length of the first operand.
        actual: length of the second.
    """

    def __init__(self, *, expected: int, actual: int) -> None:
        super().__init__(
            f"vectors of {expected} and of {actual} dimensions do not belong together: embed both with one model"
        )
        self.expected = expected
        self.actual = actual

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), {"expected": self.expected, "actual": self.actual}))


class TierMismatchError(InvalidInputError):
    """Vectors stored at different precisions cannot be compared in one operation.

    Attributes:
        operation: the requested name.
        expected: tier of the first operand.
        actual: tier of the second.
    """

    def __init__(self, *, operation: str, expected: str, actual: str) -> None:
        super().__init__(
            f"{operation} between {expected} and {actual} vectors: bring both to one tier with quantize(), or pass the "
            "query in float32"
        )
        self.operation = operation
        self.expected = expected
        self.actual = actual

    def __reduce__(self) -> tuple[object, ...]:
        return (
            _rebuild,
            (type(self), {"operation": self.operation, "expected": self.expected, "actual": self.actual}),
        )


def _rebuild(kind: type[Exception], fields: dict[str, Any]) -> Exception:
    """Build an error again after pickling: errors cross process boundaries in worker pools."""
    return kind(**fields)
