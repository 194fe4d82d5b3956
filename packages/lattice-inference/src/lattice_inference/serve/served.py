"""What a server serves, by the names that requests use."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from lattice_inference.argument_checks import check_provides
from lattice_inference.errors import InvalidInputError
from lattice_inference.serve.api_errors import ApiError
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    from lattice_inference.generate.engine import Engine

__all__ = ["Kind", "PairScorer", "Served", "TextEncoder", "Vectors", "roles_of"]

Kind = Literal["model", "embedding", "reranker"]

_ROUTES = {"model": "/v1/chat/completions", "embedding": "/v1/embeddings", "reranker": "/v1/rerank"}


class Vectors(Protocol):
    """The vectors of some texts."""

    @property
    def vectors(self) -> npt.NDArray[np.float32]:
        """(n, dimension) float32."""


class TextEncoder(Protocol):
    """What embeds texts: an :class:`Encoder`, or what has these members.

    More is used if it is there. ``encode`` takes ``adapter=`` for requests by an adapter's name. ``encode_tokens`` takes
    lists of token ids. ``roles`` lists what a request's ``input_type`` may be; ``encode`` and ``count_tokens`` then take it
    as ``role=``. ``fingerprint_of(role)`` is told in the answer, to tell vectors apart that must not be mixed.
    """

    @property
    def dimension(self) -> int:
        """The length of a vector."""

    @property
    def max_tokens(self) -> int:
        """The most tokens of a text."""

    def count_tokens(self, texts: Sequence[str]) -> npt.NDArray[np.int32]:
        """Return each text's number of tokens."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return the texts' vectors; each has the same bits whatever else is in the call."""


class PairScorer(Protocol):
    """What scores queries with documents: a :class:`CrossEncoder`, or what has its members.

    ``score_pairs`` takes ``adapter=`` for requests by an adapter's name.
    """

    @property
    def max_tokens(self) -> int:
        """The most tokens of a pair."""

    @property
    def label_count(self) -> int:
        """How many scores a pair has; 1 is served."""

    def count_tokens(self, pairs: Sequence[tuple[str, str]]) -> npt.NDArray[np.int32]:
        """Return each pair's number of tokens."""

    def score_pairs(self, pairs: Sequence[tuple[str, str]]) -> npt.NDArray[np.float32]:
        """Return (n,) float32; each score has the same bits whatever else is in the call."""


def roles_of(encoder: TextEncoder) -> tuple[str, ...]:
    """Return what ``input_type`` may be for an encoder; nothing for one without roles."""
    return tuple(getattr(encoder, "roles", ()))


@dataclass(frozen=True)
class _Entry:
    kind: Kind
    base: str
    adapter: str | None


class Served:
    """Models by name.

    Args:
        models: engines, for chat and completions.
        embeddings: encoders.
        rerankers: scorers of pairs.
        adapters: for a further name, the name of its model and that of an adapter which is attached there.

    Raises:
        InvalidInputError: a name is not usable or is given twice, an adapter's model is not there, or a value is of a wrong
            type.
    """

    def __init__(
        self,
        models: Mapping[str, Engine],
        embeddings: Mapping[str, TextEncoder],
        rerankers: Mapping[str, PairScorer],
        adapters: Mapping[str, tuple[str, str]],
    ) -> None:
        self.models = dict(models)
        self.embeddings = dict(embeddings)
        self.rerankers = dict(rerankers)
        self.created = int(time.time())
        self._entries: dict[str, _Entry] = {}
        for engine in self.models.values():
            check_provides("a model", engine, "submit_choices", "an Engine")
        for encoder in self.embeddings.values():
            check_provides("an embedding", encoder, "encode", "an Encoder")
        for scorer in self.rerankers.values():
            check_provides("a reranker", scorer, "score_pairs", "a CrossEncoder")
            if scorer.label_count != 1:
                raise InvalidInputError(f"a reranker has {scorer.label_count} scores for a pair; one is served")
        groups: tuple[tuple[Kind, Mapping[str, object]], ...] = (
            ("model", models),
            ("embedding", embeddings),
            ("reranker", rerankers),
        )
        for kind, group in groups:
            for name in group:
                self._add(name, _Entry(kind, name, None))
        for name, (base, adapter) in adapters.items():
            found = self._entries.get(base)
            if found is None or found.adapter is not None:
                raise InvalidInputError(f"the adapter {name!r} is for the model {base!r}, which is not served")
            self._add(name, _Entry(found.kind, base, adapter))
        if not self._entries:
            raise InvalidInputError("there is no model to serve")

    def _add(self, name: str, entry: _Entry) -> None:
        if not isinstance(name, str) or not name or len(name) > 200 or not name.isprintable():
            raise InvalidInputError(f"the name of a model is {value_text(name)}; expected a short printable text")
        if name in self._entries:
            raise InvalidInputError(f"two models have the name {name!r}")
        self._entries[name] = entry

    def find(self, name: str, kind: Kind | None = None) -> tuple[str, str | None]:
        """Return the name of the model itself, and its adapter.

        Args:
            name: a request's ``model``.
            kind: what the route needs.

        Raises:
            ApiError: 404 for an unknown name, 400 for a model of another kind.
        """
        entry = self._entries.get(name)
        if entry is None:
            known = ", ".join(self._entries)
            raise ApiError(
                404, "model_not_found", f"there is no model {value_text(name)} here; there are {known}", "model"
            )
        if kind is not None and entry.kind != kind:
            raise ApiError(
                400, "wrong_kind_of_model", f"the model {name!r} is for {_ROUTES[entry.kind]}, not this route", "model"
            )
        return entry.base, entry.adapter

    def listing(self) -> list[dict[str, object]]:
        """Return the entries of ``/v1/models``."""
        return [self.listed(name) for name in self._entries]

    def listed(self, name: str) -> dict[str, object]:
        """Return one entry."""
        self.find(name)
        entry = self._entries[name]
        told: dict[str, object] = {"id": name, "object": "model", "created": self.created, "owned_by": "lattice"}
        told["kind"] = entry.kind
        if entry.adapter is not None:
            told["parent"] = entry.base
        if entry.kind == "model":
            told["max_model_len"] = self.models[entry.base].max_tokens
        elif entry.kind == "embedding":
            encoder = self.embeddings[entry.base]
            told |= {"max_model_len": encoder.max_tokens, "dimension": encoder.dimension}
            if roles := roles_of(encoder):
                told["input_types"] = list(roles)
        else:
            told["max_model_len"] = self.rerankers[entry.base].max_tokens
        return told
