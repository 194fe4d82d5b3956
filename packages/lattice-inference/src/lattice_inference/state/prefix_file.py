"""Saves a sequence's pages and recurrent state to a file and reads them again.

The file is little-endian and holds, in this order:

- the eight bytes ``LATTICKV``;
- the length of the header as uint64;
- the header, JSON: what computed the pages, their form and the number of tokens;
- the token ids as int32;
- the pages one after the other;
- for a model with recurrent layers, the slot, if the sequence has one;
- the SHA-256 of everything before it.

The file's size follows from the header, and is checked before its content is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.protocol import PageStorage
from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.checkpoint.model_file import open_model_file
from lattice_inference.errors import CheckpointError
from lattice_inference.graph.recurrent_ops import DELTA_BLOCK

__all__ = ["SavedPrefix", "read_prefix", "write_prefix"]

_MAGIC = b"LATTICKV"
_VERSION = 1
_DIGEST_BYTES = 32
_MAX_HEADER_BYTES = 1 << 20
_BLOCK = 1 << 20


@dataclass(frozen=True)
class SavedPrefix:
    """An open file that has been checked; see :func:`read_prefix`."""

    token_ids: npt.NDArray[np.int32]
    file: BinaryIO
    page_bytes: int
    page_count: int
    state_tokens: int = 0
    slot_bytes: int = 0

    def pages(self) -> Iterator[bytes]:
        """Yield the content of each page."""
        for _ in range(self.page_count):
            yield self.file.read(self.page_bytes)

    def state(self) -> bytes:
        """Return the content of the slot, which has seen ``state_tokens``, at least one.

        All pages must have been read.
        """
        return self.file.read(self.slot_bytes)


def write_prefix(
    path: Path,
    storage: PageStorage,
    token_ids: Sequence[int],
    pages: Sequence[int],
    *,
    identity: str,
    adapter: str = "",
    state: tuple[int, int] | None = None,
) -> None:
    """Write ``token_ids`` and their pages to a file, completely or not at all.

    ``adapter`` is the digest of the adapter that the pages were computed with. ``state`` is the slot of recurrent layers and
    the tokens that it has seen.
    """
    used = -(-len(token_ids) // storage.page_tokens)
    fields = {**_form(storage, identity, adapter), "tokens": len(token_ids)}
    slots: list[bytes] = []
    if storage.recurrent is not None:
        fields["state_tokens"] = 0 if state is None else state[1]
        if state is not None and state[1]:
            slots.append(storage.recurrent.export(state[0]))
    header = json.dumps(fields).encode()
    start = (_MAGIC, len(header).to_bytes(8, "little"), header, np.asarray(token_ids, "<i4").tobytes())
    digest = hashlib.sha256()
    with atomic_file(path) as file:
        for part in itertools.chain(start, map(storage.export, pages[:used]), slots):
            digest.update(part)
            file.write(part)
        file.write(digest.digest())


@contextlib.contextmanager
def read_prefix(path: Path, storage: PageStorage, *, identity: str, adapter: str = "") -> Iterator[SavedPrefix]:
    """Open a file of :func:`write_prefix` and check its form, size and digest.

    Raises:
        ModelNotFoundError: there is no such file.
        CheckpointError: the file is damaged, or holds pages of another model or form.
    """
    descriptor, size = open_model_file(path, error=CheckpointError)
    with os.fdopen(descriptor, "rb") as file:
        start = file.read(16)
        length = int.from_bytes(start[8:], "little")
        if start[:8] != _MAGIC or not 0 < length <= min(_MAX_HEADER_BYTES, size):
            raise CheckpointError(f"{path}: not a saved prefix")
        tokens, seen = _tokens(file.read(length), path, storage, _form(storage, identity, adapter))
        pages = -(-tokens // storage.page_tokens)
        slot_bytes = storage.recurrent.slot_bytes if seen and storage.recurrent is not None else 0
        body = 16 + length + 4 * tokens + pages * storage.page_bytes + slot_bytes
        if size != body + _DIGEST_BYTES:
            raise CheckpointError(
                f"{path}: {size:,} bytes, and {tokens} tokens take {body + _DIGEST_BYTES:,}: the file is damaged"
            )
        file.seek(0)
        digest, left = hashlib.sha256(), body
        while left > 0:
            block = file.read(min(_BLOCK, left))
            if not block:
                raise CheckpointError(f"{path}: it became shorter while it was read")
            digest.update(block)
            left -= len(block)
        if file.read() != digest.digest():
            raise CheckpointError(f"{path}: the content does not have the digest at its end: the file is damaged")
        file.seek(16 + length)
        token_ids = np.frombuffer(file.read(4 * tokens), "<i4").astype(np.int32)
        yield SavedPrefix(token_ids, file, storage.page_bytes, pages, seen, slot_bytes)


def _form(storage: PageStorage, identity: str, adapter: str) -> dict[str, object]:
    """Return the header fields that must be equal in the cache that restores the prefix."""
    form: dict[str, object] = {
        "version": _VERSION,
        "identity": identity,
        "adapter": adapter,
        "page_tokens": storage.page_tokens,
        "page_bytes": storage.page_bytes,
        "layers": [asdict(spec) for spec in storage.specs],
    }
    if storage.recurrent is not None:
        form["block"] = DELTA_BLOCK
        form["recurrent"] = [{**asdict(spec), "shape": list(spec.shape)} for spec in storage.recurrent.specs]
        form["slot_bytes"] = storage.recurrent.slot_bytes
    return form


def _tokens(header: bytes, path: Path, storage: PageStorage, form: dict[str, object]) -> tuple[int, int]:
    """Return the tokens of a header, and those that its recurrent state has seen.

    Its other fields are checked first.
    """
    try:
        stated = json.loads(header)
        tokens = stated.pop("tokens")
        seen = stated.pop("state_tokens", 0)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as cause:
        raise CheckpointError(f"{path}: the header is not the one of a saved prefix") from cause
    stated.setdefault("adapter", "")  # older files have no such field
    for name, here in form.items():
        if stated.get(name) != here:
            raise CheckpointError(
                f"{path}: it was saved with {name} {stated.get(name)!r:.200}, and here it is {here!r:.200}: open a cache of "
                "the same form, or run the prompt again"
            )
    if type(tokens) is not int or not 0 <= tokens <= storage.pages * storage.page_tokens:
        raise CheckpointError(
            f"{path}: it states {tokens!r:.50} tokens, and the cache holds {storage.pages * storage.page_tokens}"
        )
    if type(seen) is not int or not 0 <= seen <= tokens:
        raise CheckpointError(f"{path}: its recurrent state has seen {seen!r:.50} of {tokens} tokens")
    return tokens, seen
