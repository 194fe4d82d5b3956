"""A service that remembers: texts that were embedded before cost a look-up."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from lattice_embed._text_cache import TextKeys, find, find_or_claim
from lattice_embed.argument_checks import check_flag
from lattice_embed.catalogue import Role
from lattice_embed.embedding_cache import CachedEmbedding, CachedOrigin, CacheStats, EmbeddingCache
from lattice_embed.errors import (
    InvalidInputError,
    InvalidTextError,
    LatticeEmbedError,
    ModelConfigError,
    NonFiniteVectorError,
    UnsupportedModelError,
)
from lattice_embed.model_config import ModelConfig
from lattice_embed.provenance import VectorProvenance, length_prefixed
from lattice_embed.result import EmbeddingResult, Float32Array
from lattice_embed.service import EmbeddingService, ModelName
from lattice_embed.single_flight import SingleFlight
from lattice_embed.validation import check_role, check_text, check_texts, is_expressible
from lattice_inference.cancellation import cancellation, check_cancelled, shared

__all__ = ["CachedEmbeddingService"]

_KEY_DOMAIN = b"lattice-embed text cache 1"  # no other digest of Lattice begins so: keys of the two layers stay apart


class _Space:
    """What the texts of a call are embedded as: all of a key but the text.

    Two calls have equal keys for a text only if all fields agree that its vector depends on. These are the model, its
    weights' revision, pooling, dimension, precision, numerics version, role, prompt, and normalisation.
    """

    __slots__ = ("keys", "last_origin", "normalize", "provenance", "role")

    def __init__(
        self, config: ModelConfig, provenance: VectorProvenance | None, role: Role, normalize: bool, owner: bytes
    ) -> None:
        self.role = role
        self.normalize = normalize
        self.provenance = provenance
        self.last_origin: CachedOrigin | None = None
        # A service that cannot identify its weights takes no other service's vectors.
        revision = owner if provenance is None else provenance.fingerprint
        key = config.to_embedding_key().canonical_bytes
        self.keys = TextKeys(length_prefixed(_KEY_DOMAIN, key, revision, role.value, str(normalize)))

    def origin(self, result: EmbeddingResult) -> CachedOrigin:
        """Return what the entries of a result share.

        Calls that share it get the same object.
        """
        provenance = self.provenance
        if provenance is None:
            return CachedOrigin(result.model, result.prompt, result.fingerprint, result.provenance)
        known = self.last_origin
        if known is None or (known.model, known.prompt) != (result.model, result.prompt):
            known = CachedOrigin(result.model, result.prompt, provenance.fingerprint, provenance)
            self.last_origin = known
        return known


class _UnknownSpaceError(Exception):
    """A server's model, before its first answer: the call is passed on, and later ones are kept."""


class CachedEmbeddingService(EmbeddingService):
    """Keeps the vectors of another service in memory and hands out copies of them.

    A text that stands twice in a call is embedded once. So is a text that several threads or tasks need at the same
    time; if the call that works on it fails, the others try again. A changed model, weights, dimension, role,
    precision or normalisation has other keys, so that no stale vector is returned. Texts that the inner service cut
    at its token limit are kept for this service only. Any number of threads may use one; pickling keeps the inner
    service and the limits, not the vectors.

    Args:
        inner: the service that embeds what is not known.
        capacity: most vectors to keep; 4,000 if no limit is given, 0 to keep none and pass every call on.
        max_bytes: most bytes to keep instead.
        cache: a cache that is shared with other services, instead of a private one.

    Raises:
        InvalidInputError: ``inner`` is no service, or the limits make no sense.

    >>> from lattice_embed import NativeEmbeddingService
    >>> service = CachedEmbeddingService(NativeEmbeddingService("all-minilm-l6-v2"), capacity=100)
    >>> first, again = service.embed_one("A cat sleeps."), service.embed_one("A cat sleeps.")
    >>> service.stats().hits, service.stats().misses, bool((first == again).all())
    (1, 1, True)
    """

    _gives_arrays_away = True

    def __init__(
        self,
        inner: EmbeddingService,
        *,
        capacity: int | None = None,
        max_bytes: int | None = None,
        cache: EmbeddingCache | None = None,
    ) -> None:
        if not isinstance(inner, EmbeddingService):
            raise InvalidInputError(f"inner is a {type(inner).__name__}; pass an EmbeddingService")
        if cache is not None and not (capacity is None and max_bytes is None):
            raise InvalidInputError("pass limits or a cache, not both: a cache has its limits already")
        self._inner = inner
        self._cache = EmbeddingCache(capacity, max_bytes=max_bytes) if cache is None else cache
        self._owner = os.urandom(16)
        self._spaces: dict[tuple[str, str, bool], _Space] = {}
        self._last_space: _Space | None = None
        self._flights = SingleFlight()

    # What the service is

    @property
    def inner(self) -> EmbeddingService:
        """The service that embeds what is not known."""
        return self._inner

    @property
    def cache(self) -> EmbeddingCache:
        """Where the vectors are kept."""
        return self._cache

    @property
    def name(self) -> str:
        """``"cached:"`` and the inner service's name."""
        return f"cached:{self._inner.name}"

    @property
    def max_batch_size(self) -> int:
        """That of the inner service."""
        return self._inner.max_batch_size

    @property
    def max_text_chars(self) -> int:
        """That of the inner service."""
        return self._inner.max_text_chars

    def model_config(self, model: ModelName | None = None) -> ModelConfig:
        """Return what the inner service returns."""
        return self._inner.model_config(model)

    def supports_model(self, model: ModelName) -> bool:
        """Return what the inner service returns."""
        return self._inner.supports_model(model)

    def provenance(
        self, model: ModelName | None = None, *, role: Role = Role.GENERIC, normalize: bool = True
    ) -> VectorProvenance | None:
        """Return what the inner service returns."""
        return self._inner.provenance(model, role=role, normalize=normalize)

    def stats(self) -> CacheStats:
        """Return the hits, misses and sizes of the cache."""
        return self._cache.stats()

    def close(self) -> None:
        """Close the inner service if it can be closed.

        A closed service gives no vector, known or not.
        """
        close = getattr(self._inner, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (type(self), self._inner, self._cache)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r}, {self._cache!r})"

    # Embedding

    def embed(
        self,
        texts: Sequence[str],
        model: ModelName | None = None,
        *,
        role: Role = Role.GENERIC,
        normalize: bool = True,
    ) -> EmbeddingResult:
        """Embed the texts of one call: copy the known ones, pass the others to the inner service.

        The result is the one that the inner service would give, and belongs to the caller.

        Raises:
            LatticeEmbedError: the inner service returned another number of vectors than there were texts.
            NonFiniteVectorError: it returned NaN or infinity, which is never kept.
            InvalidInputError, WrongModelError: as the inner service raises them.
        """
        if not self._cache.enabled:
            return self._embed_inner(texts, model, role, normalize)
        checked = texts
        try:
            if type(texts) is list and len(texts) == 1:
                result = self._embed_single(texts[0], model, role, normalize)
                if result is not None:
                    return result
            checked = check_texts(texts, max_texts=self._inner.max_batch_size, max_chars=self._inner.max_text_chars)
            space = self._space(model, check_role(role), normalize)
        except _UnknownSpaceError:
            return self._embed_inner(checked, model, role, normalize)
        keys = space.keys.keys(checked)
        entries = self._known(keys)
        if not entries and len(set(keys)) == len(keys):
            entries, result = self._work_out(checked, keys, keys, entries, space, model)
            if result is not None:
                return self._own(result, space)
        elif len(entries) < len(set(keys)):
            wanted = [key for key in dict.fromkeys(keys) if key not in entries]
            entries, _ = self._work_out(checked, keys, wanted, entries, space, model)
        return self._result([entries[key] for key in keys], space)

    def _embed_single(
        self, text: object, model: ModelName | None, role: object, normalize: bool
    ) -> EmbeddingResult | None:
        """Embed a call's only text, or return None if it needs the general path.

        That path handles wrong texts and texts that other calls work on. A model evicts the processor's caches, and
        then each line of code comes from memory. So this path is short, inline, and checks the usual case first.
        """
        inner = self._inner
        if type(text) is not str or not len(text) <= inner.max_text_chars or not is_expressible(text):
            return None
        if type(role) is not Role:
            role = check_role(role)
        space, provenance = self._last_space, inner.provenance(model, role=role, normalize=normalize)
        if (
            space is None
            or space.provenance is not provenance
            or space.role is not role
            or space.normalize is not normalize
        ):
            space = self._space_of(provenance, model, role, normalize)
        found = find_or_claim(space.keys, text, self._cache._shards, self._owner, self._flights)
        if found is None:
            return None
        if isinstance(found, CachedEmbedding):
            return self._result([found], space)
        try:
            result = inner.embed([text], model, role=role, normalize=normalize)
            if result.vectors.shape[0] != 1:
                self._check_count(result, 1)
            origin = space.last_origin
            if origin is None or origin.model is not result.model or origin.prompt is not result.prompt:
                origin = space.origin(result)
            if not found.keep(result.vectors, result.token_counts, result.truncated, origin, self._owner):
                raise NonFiniteVectorError(index=0, model=result.model or inner.name)
        finally:
            found.give_up()
        return result if inner._gives_arrays_away else self._own(result, space)

    def _result(self, found: Sequence[CachedEmbedding], space: _Space) -> EmbeddingResult:
        """Return known vectors as a result, copied."""
        origin = found[0].origin
        data = bytearray().join([entry.data for entry in found])
        return EmbeddingResult(
            np.frombuffer(data, np.float32).reshape(len(found), -1),
            token_counts=np.array([entry.token_count for entry in found], np.int32),
            truncated=np.array([entry.truncated for entry in found], np.bool_),
            fingerprint=origin.fingerprint,
            provenance=origin.provenance,
            model=origin.model,
            role=space.role,
            prompt=origin.prompt,
        )

    def embed_one(
        self, text: str, model: ModelName | None = None, *, role: Role = Role.GENERIC, normalize: bool = True
    ) -> Float32Array:
        """Embed one text into a float32 vector of shape (dim,), a copy."""
        if not self._cache.enabled or not isinstance(text, str):
            return super().embed_one(text, model, role=role, normalize=normalize)
        if not len(text) <= self._inner.max_text_chars or not is_expressible(text):
            check_text(text, 0, max_chars=self._inner.max_text_chars)
        try:
            space = self._space(model, role if type(role) is Role else check_role(role), normalize)
        except _UnknownSpaceError:
            return super().embed_one(text, model, role=role, normalize=normalize)
        entry = find(space.keys, text, self._cache._shards, self._owner)
        if entry is None:
            vector: Float32Array = self.embed([text], model, role=role, normalize=normalize).vectors[0]
            return vector
        return np.frombuffer(bytearray(entry.data), np.float32)

    def count_tokens(self, texts: Sequence[str], *, role: Role = Role.GENERIC) -> npt.NDArray[np.int32]:
        """Count tokens as the inner service does.

        Raises:
            UnsupportedModelError: the inner service cannot count.
        """
        count = getattr(self._inner, "count_tokens", None)
        if count is None:
            raise UnsupportedModelError(f"{self._inner.name} has no count_tokens()")
        counts: npt.NDArray[np.int32] = count(texts, role=role)
        return counts

    def _space(self, model: ModelName | None, role: Role, normalize: bool) -> _Space:
        """Return the space of a call.

        The inner service is asked each time: it alone knows when its weights change.
        """
        return self._space_of(self._inner.provenance(model, role=role, normalize=normalize), model, role, normalize)

    def _space_of(
        self, provenance: VectorProvenance | None, model: ModelName | None, role: Role, normalize: bool
    ) -> _Space:
        given: object = normalize
        if type(given) is not bool:
            normalize = check_flag("normalize", given)
        if provenance is None:
            try:
                config = self._inner.model_config(model)
            except ModelConfigError:
                raise _UnknownSpaceError from None
            return _Space(config, None, role, normalize, self._owner)
        last = self._last_space
        if last is not None and last.provenance is provenance and last.role is role and last.normalize is normalize:
            return last
        known = self._spaces.get((provenance.fingerprint, role.value, normalize))
        if known is None:
            known = _Space(self._inner.model_config(model), provenance, role, normalize, self._owner)
            self._spaces[provenance.fingerprint, role.value, normalize] = known
        self._last_space = known
        return known

    def _known(self, keys: Sequence[bytes]) -> dict[bytes, CachedEmbedding]:
        """Return the entries of the keys that are in the cache."""
        if len(keys) == 1:
            entry = self._cache.get(keys[0])
            return {keys[0]: entry} if entry is not None and self._is_ours(entry) else {}
        wanted = list(dict.fromkeys(keys))
        looked_up = zip(wanted, self._cache.get_many(wanted), strict=True)
        return {key: entry for key, entry in looked_up if entry is not None and self._is_ours(entry)}

    def _work_out(
        self,
        texts: Sequence[str],
        keys: Sequence[bytes],
        wanted: Sequence[bytes],
        entries: dict[bytes, CachedEmbedding],
        space: _Space,
        model: ModelName | None,
    ) -> tuple[dict[bytes, CachedEmbedding], EmbeddingResult | None]:
        """Add the entries of the ``wanted`` keys to ``entries``.

        Keys that another call is computing are waited for.

        Returns:
            The entries; and what the inner service returned, where that is the answer to the whole call.
        """
        places: dict[bytes, int] | None = None
        while wanted:
            flight, mine, theirs = self._flights.claim(wanted)
            results: dict[bytes, CachedEmbedding] = {}
            try:
                for key in mine:  # another call may have finished between the look-up and the claim
                    entry = self._cache.peek(key)
                    if entry is not None and self._is_ours(entry):
                        results[key] = entry
                missing = [key for key in mine if key not in results] if results else mine
                with shared(partial(self._flights.is_wanted, flight)):
                    if len(missing) == len(keys):  # every text of the call, each once and in its place
                        result = self._compute(range(len(keys)), keys, texts, space, model, results)
                        return results, result
                    if missing:
                        if places is None:
                            places = {}
                            for place, key in enumerate(keys):
                                places.setdefault(key, place)
                        self._compute([places[key] for key in missing], missing, texts, space, model, results)
            finally:
                self._flights.finish(flight, mine, results)
            entries |= results
            for key, other in theirs.items():
                with self._flights.aboard(other):
                    entry = other.wait(key, cancellation())
                check_cancelled()
                if entry is not None:
                    entries[key] = entry
            wanted = [key for key in wanted if key not in entries]  # their leaders failed: now it is our turn
        return entries, None

    def _compute(
        self,
        places: Sequence[int],
        keys: Sequence[bytes],
        texts: Sequence[str],
        space: _Space,
        model: ModelName | None,
        entries: dict[bytes, CachedEmbedding],
    ) -> EmbeddingResult:
        """Embed the texts at some places with the inner service; keep the results.

        They are added to ``entries`` too.
        """
        try:
            result = self._embed_inner([texts[place] for place in places], model, space.role, space.normalize)
        except (InvalidTextError, NonFiniteVectorError) as error:
            _raise_shifted(error, places)
        bad = _first_not_finite(result.vectors)
        if bad is not None:
            raise NonFiniteVectorError(index=places[bad], model=result.model or self._inner.name)
        origin, owner = space.origin(result), self._owner
        counts, truncated = result.token_counts.tolist(), result.truncated.tolist()
        data = result.vectors.tobytes()
        size = len(data) // len(keys)
        made = {}
        for row, key in enumerate(keys):
            vector = data[row * size : (row + 1) * size]
            made[key] = CachedEmbedding(
                vector, token_count=counts[row], truncated=truncated[row], origin=origin, owner=owner
            )
        self._cache.put_many(made.items())
        entries |= made
        return result

    def _own(self, result: EmbeddingResult, space: _Space) -> EmbeddingResult:
        """Return a copy of the inner service's result, with the origin that this service knows."""
        origin = space.origin(result)
        return EmbeddingResult(
            result.vectors.copy(),
            token_counts=result.token_counts.copy(),
            truncated=result.truncated.copy(),
            fingerprint=origin.fingerprint,
            provenance=origin.provenance,
            model=origin.model,
            role=space.role,
            prompt=origin.prompt,
        )

    def _embed_inner(
        self, texts: Sequence[str], model: ModelName | None, role: Role, normalize: bool
    ) -> EmbeddingResult:
        result = self._inner.embed(texts, model, role=role, normalize=normalize)
        self._check_count(result, len(texts))
        return result

    def _check_count(self, result: EmbeddingResult, texts: int) -> None:
        if len(result) != texts:
            raise LatticeEmbedError(f"{self._inner.name}.embed() returned {len(result)} vectors for {texts} texts")

    def _is_ours(self, entry: CachedEmbedding) -> bool:
        """Whether an entry may be used.

        A service that refuses long texts must not be given a truncated one.
        """
        return not entry.truncated or entry.owner == self._owner


def _first_not_finite(vectors: Float32Array) -> int | None:
    """Return the first row that holds NaN or infinity, or None."""
    if math.isfinite(np.vdot(vectors, vectors)):  # the sum of squares of everything: one quick look at good vectors
        return None
    finite = np.isfinite(vectors).all(axis=1)
    return None if finite.all() else int(np.argmin(finite))


def _raise_shifted(error: InvalidTextError | NonFiniteVectorError, places: Sequence[int]) -> NoReturn:
    """Raise an error of the inner service with the index that the text has in the whole call."""
    index = error.index
    moved = error.shifted(places[index] - index) if 0 <= index < len(places) else error
    raise moved from (error.__cause__ if moved is not error else None)


def _remake(
    kind: type[CachedEmbeddingService], inner: EmbeddingService, cache: EmbeddingCache
) -> CachedEmbeddingService:
    return kind(inner, cache=cache)
