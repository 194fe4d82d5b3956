"""The origin of a vector: all that its bits depend on besides the text.

It can be stored and compared.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import blake3
import numpy as np

from lattice_embed.errors import InvalidInputError, ProvenanceMismatchError

__all__ = ["VectorProvenance", "length_prefixed"]

_FORMAT = 1
_FINGERPRINT_BYTES = 16
_KINDS: dict[str, type] = {"int": int, "bool": bool}
"""Types by the words of the annotations; any other field is a str."""

MAX_JSON_CHARS = 65_536
"""Longest JSON that is read back: a provenance has a few hundred characters and a prompt."""


def length_prefixed(*fields: str | bytes) -> bytes:
    """Return the fields as bytes, each preceded by its length.

    No two lists of fields give the same bytes.
    """
    parts = []
    for field in fields:
        encoded = field if isinstance(field, bytes) else field.encode("utf-8", "surrogatepass")
        parts += [len(encoded).to_bytes(8, "little"), encoded]
    return b"".join(parts)


@dataclass(frozen=True, kw_only=True)
class VectorProvenance:
    """All that the bits of a vector depend on besides the text.

    Store :meth:`to_json` (or only :attr:`space` and :attr:`fingerprint`) beside vectors, and call
    :meth:`check_comparable` before vectors of two origins are compared.

    Attributes:
        model: what the model is called: slug, hub id or path. A label where ``weights`` is known.
        weights: digest of weights and tokenizer together with how they are read (``Encoder.fingerprint``); empty if
            unknown, as for a provider's model.
        pooling: how token vectors become one vector; empty if unknown.
        prompt: what was put before the text.
        dimensions: length of the vector.
        precision: what the weights are kept in; empty if unknown.
        normalized: whether the vector is scaled to length 1.
        numerics_version: ``lattice_inference.NUMERICS_VERSION``; 0 for vectors that were computed elsewhere.
    """

    model: str
    weights: str = ""
    pooling: str = ""
    prompt: str = ""
    dimensions: int
    precision: str = "float32"
    normalized: bool = True
    numerics_version: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kind = _KINDS.get(str(field.type), str)
            if kind is int and isinstance(value, np.integer):
                value = int(value)
                object.__setattr__(self, field.name, value)
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise InvalidInputError(f"{field.name} of a provenance is {value!r:.80}; it must be {kind.__name__}")

    @cached_property
    def space(self) -> str:
        """32 hex digits that are equal for vectors that may be compared: everything but the prompt.

        A query and a passage have different prompts and are meant to be compared.
        """
        return self._digest(self._space_fields())

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that are equal where equal texts have equal bits on one device."""
        return self._digest([*self._space_fields(), self.prompt])

    def _space_fields(self) -> list[str]:
        return [
            self.weights and "weights",
            self.weights or self.model,  # the name is a label: the same weights may lie in two places
            self.pooling,
            str(self.dimensions),
            self.precision,
            str(self.normalized),
            str(self.numerics_version),
        ]

    @staticmethod
    def _digest(fields: list[str]) -> str:
        return blake3.blake3(length_prefixed(*fields)).hexdigest(length=_FINGERPRINT_BYTES)

    def check_comparable(self, other: VectorProvenance) -> None:
        """Make sure that vectors of this and of the other provenance lie in one space.

        Raises:
            ProvenanceMismatchError: they do not; its ``fields`` say what differs.
            InvalidInputError: ``other`` is no provenance.
        """
        if not isinstance(other, VectorProvenance):
            raise InvalidInputError(f"other is a {type(other).__name__}, not a VectorProvenance")
        if self.space == other.space:
            return
        compared = ["weights" if self.weights and other.weights else "model"]
        compared += ["pooling", "dimensions", "precision", "normalized", "numerics_version"]
        differing = {
            name: (getattr(self, name), getattr(other, name))
            for name in compared
            if getattr(self, name) != getattr(other, name)
        }
        if not differing:  # one side has a digest of its weights and the other has none
            differing = {"weights": (self.weights, other.weights)}
        raise ProvenanceMismatchError(fields=differing)

    def to_json(self) -> str:
        """Return a JSON object that :meth:`from_json` reads back."""
        return json.dumps({"format": _FORMAT, **asdict(self), "space": self.space, "fingerprint": self.fingerprint})

    @classmethod
    def from_json(cls, text: str) -> VectorProvenance:
        """Read what :meth:`to_json` wrote.

        Raises:
            InvalidInputError: it is no such object, or its digests do not follow from its fields.
        """
        if not isinstance(text, str):
            raise InvalidInputError(f"text is a {type(text).__name__}; a provenance is read from a str")
        if len(text) > MAX_JSON_CHARS:
            raise InvalidInputError(f"a provenance of {len(text):,} characters; at most {MAX_JSON_CHARS:,} are read")
        try:
            stored = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"a provenance is a JSON object, and this is none: {error}") from None
        if not isinstance(stored, dict) or stored.get("format") != _FORMAT:
            raise InvalidInputError(f"a provenance of format {_FORMAT} was expected, not {text:.80}")
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = stored.get(field.name)
            kind = _KINDS.get(str(field.type), str)
            if type(value) is not kind:
                raise InvalidInputError(f"a provenance's {field.name} is {value!r:.80}; it must be {kind.__name__}")
            values[field.name] = value
        read = cls(**values)
        if (stored.get("space"), stored.get("fingerprint")) != (read.space, read.fingerprint):
            raise InvalidInputError("a provenance's space and fingerprint do not follow from its fields: it was edited")
        return read
