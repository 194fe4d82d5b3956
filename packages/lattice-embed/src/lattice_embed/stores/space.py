"""The embedding space of a store: its model, and how its documents were cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import blake3

from lattice_embed.argument_checks import check_kind, check_word
from lattice_embed.catalogue import Role
from lattice_embed.errors import InvalidInputError, SpaceMismatchError
from lattice_embed.service import EmbeddingService
from lattice_embed.stores.chunking import Chunking, room_for_text
from lattice_embed.validation import check_limit, check_role, is_expressible

__all__ = ["VectorSpace", "checked_space"]

MOST_DIMENSIONS = 2**20
"""The longest vectors that a store holds."""

PROBE = "a text"
"""What a service embeds to show the fingerprint and the dimension of its vectors."""


@dataclass(frozen=True)
class VectorSpace:
    """What the vectors of a store have in common. Vectors of two spaces are never compared.

    Attributes:
        model: name of the model; empty for a store of texts only.
        fingerprint: what the bits of a vector depend on besides the text (:attr:`EmbeddingResult.fingerprint`).
        dimensions: length of a vector.
        role: what documents are embedded as.
        chunking: how long documents are cut; ``None``: one vector a document.
        location: the hub id or directory that loads the model again; empty if it has none.
    """

    model: str = ""
    fingerprint: str = ""
    dimensions: int = 0
    role: Role = Role.PASSAGE
    chunking: Chunking | None = None
    location: str = ""

    def __post_init__(self) -> None:
        for name in ("model", "fingerprint", "location"):
            value = getattr(self, name)
            if not isinstance(value, str) or not is_expressible(value):
                raise InvalidInputError(f"the {name} of a space is {value!r:.80}; it must be UTF-8 text")
        check_limit("dimensions", self.dimensions, lowest=0)
        if self.dimensions > MOST_DIMENSIONS:
            raise InvalidInputError(f"dimensions is {self.dimensions!r:.40}; the limit is {MOST_DIMENSIONS:,}")
        if (self.dimensions == 0) != (self.fingerprint == ""):
            raise InvalidInputError("a space has both dimensions and a fingerprint, or, for texts only, neither")
        if self.chunking is not None:
            check_kind("chunking", self.chunking, Chunking)
        if self.chunking is not None and self.chunking.tokens is None:
            raise InvalidInputError("the chunking of a space says how many tokens: use VectorSpace.of, or fill it in")

    @property
    def holds_vectors(self) -> bool:
        """Whether there are vectors, not texts only."""
        return self.dimensions > 0

    @classmethod
    def of(
        cls, service: EmbeddingService, *, role: Role = Role.PASSAGE, chunking: Chunking | None = None
    ) -> VectorSpace:
        """Return the space that ``service`` embeds documents into.

        It embeds one short text to find out. A service that gives no fingerprint is known by its name, its model and
        the dimension.

        Raises:
            InvalidInputError: chunking, and the service has no tokenizer to cut by.
        """
        check_kind("service", service, EmbeddingService)
        if chunking is not None:
            check_kind("chunking", chunking, Chunking)
        role = check_role(role)
        result = service.embed([PROBE], role=role)
        description = service.model_config().description
        fingerprint = result.fingerprint or blake3.blake3(
            "\0".join((service.name, description.slug, description.key_version, str(result.dimensions))).encode()
        ).hexdigest(16)
        if chunking is not None:
            chunking = chunking.within(room_for_text(service, role))
        return cls(
            model=result.model or description.slug,
            fingerprint=fingerprint,
            dimensions=result.dimensions,
            role=role,
            chunking=chunking,
            location=description.model_id,
        )

    def check_fingerprint(self, fingerprint: str) -> None:
        """Raise SpaceMismatchError unless ``fingerprint`` is this space's."""
        if check_word("fingerprint", fingerprint) != self.fingerprint:
            raise SpaceMismatchError(expected=self.fingerprint, actual=fingerprint)

    def to_fields(self) -> dict[str, Any]:
        """Return what JSON can hold of it: everything."""
        chunking = None if self.chunking is None else {"tokens": self.chunking.tokens, "overlap": self.chunking.overlap}
        return {
            "model": self.model,
            "fingerprint": self.fingerprint,
            "dimensions": self.dimensions,
            "role": self.role.value,
            "chunking": chunking,
            "location": self.location,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> VectorSpace:
        """Return the space of :meth:`to_fields`.

        Raises:
            InvalidInputError: a field is missing or of a wrong kind.
        """
        try:
            chunking = fields["chunking"]
            return cls(
                **{name: fields[name] for name in ("model", "fingerprint", "location")},
                dimensions=fields["dimensions"],
                role=Role(fields["role"]),
                chunking=None if chunking is None else Chunking(chunking["tokens"], chunking["overlap"]),
            )
        except (LookupError, TypeError, ValueError) as error:
            raise InvalidInputError(f"no description of an embedding space: {error!r}") from error


def checked_space(space: VectorSpace | None) -> VectorSpace:
    """Return ``space``, or that of texts only for None.

    Raises:
        InvalidInputError: it is neither.
    """
    if space is None:
        return VectorSpace()
    check_kind("space", space, VectorSpace)
    return space
