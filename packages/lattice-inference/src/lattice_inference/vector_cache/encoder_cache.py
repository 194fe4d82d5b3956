"""Puts the cache on disk between a tokenizer and a model's program."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import InvalidInputError, NonFiniteError
from lattice_inference.tokenizer import PackedEncoding
from lattice_inference.vector_cache._journal import TextDigests
from lattice_inference.vector_cache.database import VectorCache
from lattice_inference.vector_cache.keys import TokenKeys

__all__ = ["EncoderCache", "open_cache"]

_MOST_KINDS = 64  # of keys that are remembered: outputs by adapters

Float32Array = npt.NDArray[np.float32]


def check_cache(cache: object) -> None:
    """Raise InvalidInputError if an argument names no cache; nothing is opened."""
    if isinstance(cache, VectorCache) or cache is True:
        return
    if not isinstance(cache, (str, os.PathLike)) or not os.fspath(cache):
        raise InvalidInputError(f"cache is {cache!r}; pass a VectorCache, a folder, or True for the default folder")


def open_cache(cache: VectorCache | str | os.PathLike[str] | bool) -> VectorCache:
    """Return the cache of an argument: a cache, a folder, or ``True`` for the default folder.

    Raises:
        InvalidInputError: it is none of these.
    """
    check_cache(cache)
    if isinstance(cache, VectorCache):
        return cache
    return VectorCache(None if isinstance(cache, bool) else cache)


class EncoderCache:
    """Looks the vectors of one encoder up before they are computed, and keeps those that were.

    Thread-safe as its parts are.

    Args:
        cache: where the vectors are.
        fingerprint: what they depend on besides the tokens.
        name: what the vectors are filed under, for people.
        dimension: length of a vector.
    """

    def __init__(self, cache: VectorCache, fingerprint: str, *, name: str, dimension: int) -> None:
        self._cache = cache
        self._fingerprint = fingerprint
        self._name = name
        self._space = name.encode()
        self._dimension = dimension
        self._digests: dict[tuple[str, str], TextDigests] = {}

    def run(
        self,
        packed: PackedEncoding,
        output: str,
        compute: Callable[[PackedEncoding, str], Float32Array],
        adapter: str = "",
    ) -> Float32Array:
        """Return the vectors of texts, calling ``compute`` only for those that are not in the cache.

        Texts with the same tokens are computed once. ``adapter`` is the digest of the adapter's content that
        ``compute`` has; vectors are told apart by it.

        Raises:
            NonFiniteError: as ``compute`` raises it, with the rows of this call. No such vector is kept.
        """
        digests = self._keys(output, f":lora{adapter}" if adapter else "")
        keys = digests.of(packed.token_ids, packed.type_ids, packed.cu_seqlens)
        size = 4 * self._dimension
        if len(keys) == 1:
            # Straight to the memory of the journal where it answers: see blake2b.h for what each step costs here.
            mapped = self._cache.mapped
            (vector,) = (None if mapped is None else mapped.find(keys)) or self._cache.look_up(keys)
            if vector is not None and len(vector) == size:
                return np.frombuffer(bytearray(vector), np.float32).reshape(1, -1)
            made = compute(packed, output)
            mapped = self._cache.mapped
            if mapped is None or not mapped.append(((keys[0], made),), self._space, False):
                self._cache.put_many([(keys[0], made.tobytes())], space=self._name)
            return made
        wanted = list(dict.fromkeys(keys))
        looked_up = zip(wanted, self._cache.get_many(wanted), strict=True)
        found = {key: vector for key, vector in looked_up if vector is not None and len(vector) == size}
        if len(found) < len(wanted):
            places: dict[bytes, int] = {}
            for place, key in enumerate(keys):
                if key not in found:
                    places.setdefault(key, place)
            rows = list(places.values())
            try:
                computed = compute(packed if len(rows) == len(keys) else packed.select(rows), output)
            except NonFiniteError as error:
                bad = tuple(rows[row] for row in error.rows)
                raise NonFiniteError(str(error).replace(f"text {error.rows[0]} ", f"text {bad[0]} ", 1), bad) from error
            entries = [(key, vector.tobytes()) for key, vector in zip(places, computed, strict=True)]
            self._cache.put_many(entries, space=self._name)
            if len(entries) == len(keys):
                return computed
            found.update(entries)
        data = bytearray().join([found[key] for key in keys])
        return np.frombuffer(data, np.float32).reshape(len(keys), self._dimension)

    def _keys(self, output: str, adapter: str) -> TextDigests:
        digests = self._digests.get((output, adapter))
        if digests is None:
            if len(self._digests) >= _MOST_KINDS:  # a trainer attaches one content after the other
                self._digests.clear()
            fingerprint = self._fingerprint + adapter
            digests = self._digests[output, adapter] = TokenKeys(fingerprint, output, self._dimension).digests
        return digests
