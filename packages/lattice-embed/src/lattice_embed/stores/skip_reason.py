"""Why a document has no vectors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lattice_embed.argument_checks import check_kind, check_word
from lattice_embed.errors import InvalidInputError, InvalidTextError, NonFiniteVectorError, TextTooLongError

__all__ = ["SkipKind", "SkipReason"]


class SkipKind(Enum):
    """The kinds of reasons. A member's value is what stores and journals hold."""

    CONTENT_TOO_LARGE = "content_too_large"
    """Over the service's limit of characters, or, where it does not cut, of tokens."""

    INVALID_ENCODING = "invalid_encoding"
    """No text: bytes that are no UTF-8, a lone surrogate."""

    NON_FINITE_VECTOR = "non_finite_vector"
    """The model gave NaN or infinity for it."""

    CONTENT_DELETED = "content_deleted"
    """It was deleted before it was embedded."""

    PERMANENT_API_ERROR = "permanent_api_error"
    """A provider refuses it for good; said by the caller."""

    MANUAL_SKIP = "manual_skip"
    """Somebody asked for it."""


@dataclass(frozen=True)
class SkipReason:
    """A kind and the details for people.

    ``str()`` gives what is stored, :meth:`parse` reads it.
    """

    kind: SkipKind
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}" if self.detail else self.kind.value

    @classmethod
    def parse(cls, stored: str) -> SkipReason:
        """Return the reason of its stored form.

        Raises:
            InvalidInputError: there is no such kind.
        """
        kind, _, detail = check_word("stored", stored).partition(": ")
        try:
            return cls(SkipKind(kind), detail)
        except ValueError:
            known = ", ".join(member.value for member in SkipKind)
            raise InvalidInputError(f"{kind!r} is no kind of reason; there are {known}") from None

    @classmethod
    def of(cls, error: InvalidTextError | NonFiniteVectorError) -> SkipReason:
        """Return the reason that an error of one document amounts to."""
        if isinstance(error, TextTooLongError):
            return cls(SkipKind.CONTENT_TOO_LARGE, f"{error.length} {error.unit}, the limit is {error.limit}")
        if isinstance(error, NonFiniteVectorError):
            return cls(SkipKind.NON_FINITE_VECTOR, error.model)
        check_kind("error", error, InvalidTextError)
        return cls(SkipKind.INVALID_ENCODING, error.reason)
