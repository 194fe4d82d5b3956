"""Whether an adapter may be used, and with which base model and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from lattice_tune.arguments import instance, number, whole
from lattice_tune.errors import AdapterNotApprovedError, InvalidInputError, shown
from lattice_tune.registry.stored_values import check_text, check_texts

__all__ = ["AdapterGovernance", "AdapterStatus"]

MOST_RANK = 65_536


class AdapterStatus(Enum):
    """Whether an adapter loads."""

    APPROVED = "approved"
    QUARANTINED = "quarantined"
    REVOKED = "revoked"

    @classmethod
    def of(cls, value: object) -> AdapterStatus:
        """Return a status, given as itself or by its name.

        Raises:
            InvalidInputError: it is none.
        """
        if isinstance(value, AdapterStatus):
            return value
        if isinstance(value, str) and value in {status.value for status in cls}:
            return cls(value)
        raise InvalidInputError(f"status is {shown(value)}; it must be approved, quarantined or revoked")


@dataclass(frozen=True)
class AdapterGovernance:
    """Who answers for an adapter, what it fits, and whether it may be used.

    Attributes:
        owner: who answers for it.
        base_model_rev: revision of the model that it was trained on.
        tokenizer_rev: revision of that model's tokenizer.
        rank: of its matrices.
        alpha: its scale is alpha / rank.
        target_modules: the modules that it changes, such as ``q_proj``.
        dtype: of its tensors, such as ``"F32"``.
        status: only an approved adapter loads. A name of a status is taken too.

    Raises:
        InvalidInputError: a field is out of range or of another type.
    """

    owner: str = ""
    base_model_rev: str = ""
    tokenizer_rev: str = ""
    rank: int = 1
    alpha: float = 1.0
    target_modules: tuple[str, ...] = ()
    dtype: str = "F32"
    status: AdapterStatus = AdapterStatus.APPROVED

    def __post_init__(self) -> None:
        for name in ("owner", "base_model_rev", "tokenizer_rev", "dtype"):
            check_text(name, getattr(self, name))
        object.__setattr__(self, "rank", whole(self.rank, "rank", least=1, most=MOST_RANK))
        object.__setattr__(self, "alpha", number(self.alpha, "alpha"))
        object.__setattr__(self, "target_modules", check_texts("target_modules", self.target_modules))
        object.__setattr__(self, "status", AdapterStatus.of(self.status))

    def check_approved(self, adapter: str) -> None:
        """Refuse an adapter that may not be used.

        Raises:
            AdapterNotApprovedError: it is quarantined or revoked.
        """
        if self.status is not AdapterStatus.APPROVED:
            raise AdapterNotApprovedError(check_text("adapter", adapter), self.status.value)

    def to_fields(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return asdict(self) | {"status": self.status.value, "target_modules": list(self.target_modules)}

    @classmethod
    def from_fields(cls, fields: object) -> AdapterGovernance:
        """Return what :meth:`to_fields` gave.

        Raises:
            InvalidInputError: it gave something else.
        """
        mapping = dict(instance(fields, "governance", Mapping))  # type: ignore[type-abstract]
        if set(mapping) != set(cls.__dataclass_fields__):
            raise InvalidInputError(
                f"governance has the fields {shown(sorted(map(str, mapping)))}, not those of an adapter"
            )
        return cls(**mapping)
