"""What is to be migrated where, and how."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from lattice_embed.argument_checks import check_flag, check_number
from lattice_embed.errors import InvalidInputError
from lattice_embed.stores.space import VectorSpace
from lattice_embed.stores.vector_store import VectorStore
from lattice_embed.validation import check_limit, check_threads

__all__ = ["BackfillConfig", "MigrationPlan"]


@dataclass(frozen=True, kw_only=True)
class BackfillConfig:
    """How a backfill works.

    Args:
        batch_size: documents that are embedded and committed together: what a kill may cost.
        max_concurrent: batches that one :meth:`BackfillCoordinator.run` works on at once, each in a thread; 1 to 256.
            More than one helps where the service waits for a network; a model in this process uses all processors by
            itself.
        dual_write: write new documents to both stores while the backfill runs. Without it they go to the source, and
            are embedded by the backfill later.
        target_query_threshold: share of the documents that can be embedded from which the target answers queries,
            before the backfill is complete. At 1, the default, it answers when it has everything; below, queries miss
            what is not there yet. Needs ``dual_write``.
        rollback_window_secs: seconds by the clock on the wall, from completion on, in which writes go to both stores
            and :meth:`MigrationController.rollback` is possible.

    Raises:
        InvalidInputError: a value is out of range.
    """

    batch_size: int = 100
    max_concurrent: int = 1
    dual_write: bool = True
    target_query_threshold: float = 1.0
    rollback_window_secs: float = 86_400.0

    def __post_init__(self) -> None:
        check_limit("batch_size", self.batch_size)
        object.__setattr__(self, "max_concurrent", check_threads(self.max_concurrent, "max_concurrent"))
        check_flag("dual_write", self.dual_write)
        for name in ("target_query_threshold", "rollback_window_secs"):
            check_number(name, getattr(self, name))
        if not 0.0 < self.target_query_threshold <= 1.0:
            raise InvalidInputError(f"target_query_threshold is {self.target_query_threshold}; it must be in (0, 1]")
        if self.target_query_threshold < 1.0 and not self.dual_write:
            raise InvalidInputError(
                f"target_query_threshold={self.target_query_threshold} needs dual_write: the target cannot answer "
                "queries while writes pass it by"
            )
        if not 0.0 <= self.rollback_window_secs < math.inf:
            raise InvalidInputError(f"rollback_window_secs is {self.rollback_window_secs}; it must be 0 or more")


@dataclass(frozen=True, kw_only=True)
class MigrationPlan:
    """Which store is migrated to which.

    Attributes:
        id: 128 random bits, in hex.
        source, target: the embedding spaces of the two stores.
        source_path, target_path: where the stores lie, for those that say so (``path``); else empty.
        total_embeddings: documents in the source when the plan was made; those written later are counted as they come.
        created_at: when, in ISO 8601 with the offset of UTC.
    """

    id: str
    source: VectorSpace
    target: VectorSpace
    source_path: str
    target_path: str
    total_embeddings: int
    created_at: str

    @classmethod
    def between(cls, source: VectorStore, target: VectorStore, *, at: float) -> MigrationPlan:
        """Return a new plan. ``at`` is the time in seconds since 1970.

        Raises:
            InvalidInputError: source and target are one store, or the target holds texts only.
        """
        source_path, target_path = str(getattr(source, "path", "")), str(getattr(target, "path", ""))
        if source is target or (source_path and source_path == target_path):
            raise InvalidInputError("source and target are the same store: the old vectors must stay until the end")
        if not target.space.holds_vectors:
            raise InvalidInputError("the target is a store of texts only: create it with VectorSpace.of(service)")
        return cls(
            id=secrets.token_hex(16),
            source=source.space,
            target=target.space,
            source_path=source_path,
            target_path=target_path,
            total_embeddings=len(source),
            created_at=datetime.fromtimestamp(at, UTC).isoformat(),
        )

    @property
    def source_model(self) -> str:
        """Name of the model that is left; empty where the source has no vectors."""
        return self.source.model

    @property
    def target_model(self) -> str:
        """Name of the model that is migrated to."""
        return self.target.model

    def to_fields(self) -> dict[str, Any]:
        """Return what JSON can hold of it: everything."""
        return {**asdict(self), "source": self.source.to_fields(), "target": self.target.to_fields()}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> MigrationPlan:
        """Return the plan of :meth:`to_fields`.

        Raises:
            ValueError, TypeError, KeyError: a field is missing or of a wrong kind.
        """
        spaces = {name: VectorSpace.from_fields(fields[name]) for name in ("source", "target")}
        plan = cls(**{**fields, **spaces})
        if not all(isinstance(getattr(plan, name), str) for name in ("id", "source_path", "target_path", "created_at")):
            raise TypeError("a text is no text")
        check_limit("total_embeddings", plan.total_embeddings, lowest=0)
        return plan
