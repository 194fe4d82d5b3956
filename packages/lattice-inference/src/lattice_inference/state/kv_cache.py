"""The key-value cache: pages and slots for sessions, batches and remembered prefixes."""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lattice_inference.argument_checks import check_count, check_path, check_provides, checked_flag
from lattice_inference.backends.protocol import PageStorage
from lattice_inference.errors import CacheFullError, InvalidInputError
from lattice_inference.state.hidden_rows import HiddenRows
from lattice_inference.state.page_pool import PagePool
from lattice_inference.state.prefix_file import read_prefix, write_prefix
from lattice_inference.state.prefix_tree import PrefixTree
from lattice_inference.state.recurrent_slots import SequenceSlots, SlotPool
from lattice_inference.token_ids import as_token_id, checked_token_ids
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    from lattice_inference.lora.attached_adapter import AttachedAdapter

__all__ = ["CachedSequence", "KvCache", "Room"]

Int32Array = npt.NDArray[np.int32]


class KvCache:
    """Keys and values of any number of sequences, in pages; recurrent state in slots.

    It is made by ``CausalLanguageModel.open_cache``. Memory is allocated page by page as sequences grow, and pages are
    shared. A fork costs nothing until one side is extended. Every sequence that starts with a remembered prefix
    (:meth:`remember`) uses its pages.

    Several threads may use sequences of one cache, but each sequence is for one thread at a time. A context manager;
    :meth:`close` ends all of its sequences.

    Args:
        storage: the backend's pages.
        prefix_bytes: the most bytes of remembered prefixes; 0 remembers nothing. Sequences in use have priority: a full
            cache forgets remembered pages before it raises an error.
        identity: returns text that identifies the model. A saved prefix is restored only if its identity is equal. It is
            called when it is first needed.
        adapter_named: returns the model's adapter of a name.
        sequences: how many sequences are generated at once, at most, for a model with recurrent layers.

    Attributes:
        slots: the slots of recurrent layers, or None.
        most_sequences: how many sequences should be generated at once, at most, or None for any number.
    """

    def __init__(
        self,
        storage: PageStorage,
        *,
        prefix_bytes: int = 0,
        identity: Callable[[], str] = str,
        adapter_named: Callable[[str | AttachedAdapter], AttachedAdapter] | None = None,
        sequences: int | None = None,
    ) -> None:
        self.storage = storage
        self._identity = identity
        self._adapter_named = adapter_named
        self._pool = PagePool(storage.pages)
        self._lock = threading.RLock()
        self.slots: SlotPool | None = None
        self.most_sequences: int | None = None
        pages, slot_pages = min(storage.pages, prefix_bytes // storage.page_bytes), 0
        self._marks = 0
        if storage.recurrent is not None:
            self.slots = SlotPool(
                storage.recurrent, self._lock, lambda: self._prefixes.evict_state(), sequences=sequences or 0
            )
            self.most_sequences = sequences
            slot_pages = -(-storage.recurrent.slot_bytes // storage.page_bytes)
            pages = prefix_bytes // storage.page_bytes
            self._marks = pages // slot_pages
        self._prefixes = PrefixTree(
            self._pool, page_tokens=storage.page_tokens, max_pages=pages, slots=self.slots, slot_pages=slot_pages
        )
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory and end the cache's sequences; closing twice is harmless."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self.storage.close()

    @property
    def page_tokens(self) -> int:
        """Tokens in a page."""
        return self.storage.page_tokens

    @property
    def capacity(self) -> int:
        """The most tokens that fit, over all sequences."""
        return self.storage.pages * self.storage.page_tokens

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages and slots that sequences or remembered prefixes hold."""
        return self.used_pages * self.storage.page_bytes + self.state_bytes

    @property
    def used_pages(self) -> int:
        """The pages that sequences or remembered prefixes hold."""
        return self.storage.pages - self._pool.free

    @property
    def free_pages(self) -> int:
        """The pages that nothing holds."""
        return self._pool.free

    @property
    def state_bytes(self) -> int:
        """Bytes of the slots of recurrent layers that sequences or remembered prefixes hold."""
        return 0 if self.slots is None else self.slots.used * self.slots.storage.slot_bytes

    @property
    def remembered_bytes(self) -> int:
        """Bytes of the pages and slots that remembered prefixes hold, shared or not."""
        states = 0 if self.slots is None else self._prefixes.states * self.slots.storage.slot_bytes
        return self.remembered_pages * self.storage.page_bytes + states

    @property
    def remembered_pages(self) -> int:
        """The pages that remembered prefixes hold, shared or not."""
        return len(self._prefixes)

    @property
    def forgettable_pages(self) -> int:
        """The pages that remembered prefixes hold and no sequence does."""
        return self._pool.idle

    def sequence(self, *, adapter: str | AttachedAdapter | None = None) -> CachedSequence:
        """Return an empty sequence; it keeps ``adapter`` until it is closed.

        Raises:
            InvalidInputError: the cache is closed, or the model has no such adapter.
        """
        self._check_open()
        return CachedSequence(self, adapter=self._adapter(adapter))

    def start(self, token_ids: Sequence[int], *, adapter: str | AttachedAdapter | None = None) -> CachedSequence:
        """Return a sequence that already holds the longest remembered prefix of ``token_ids``.

        ``sequence.length`` is the length of the prefix. It is less than that of ``token_ids``, so that the last token
        remains to be run for its logits. A model with recurrent layers also needs the state at the prefix's end, which is
        remembered at some block boundaries. Only prefixes that were computed with the same adapter are found. Adapters are
        compared by their content.

        Raises:
            InvalidInputError: the cache is closed, ``token_ids`` are no token ids, or the model has no such adapter.
        """
        token_ids = checked_token_ids(token_ids, "token_ids")
        found = self._adapter(adapter)
        with self._lock:
            self._check_open()
            beginning = token_ids[: max(0, len(token_ids) - 1)]
            pages, length = self._prefixes.find(beginning, _digest(found))
            state = None
            if self.slots is not None:
                state = self._prefixes.find_state(beginning, _digest(found))
                length = 0 if state is None else state[1]
                pages = pages[: -(-length // self.page_tokens)]
            shared = [self._pool.share(page) for page in pages]
            sequence = CachedSequence(self, shared, token_ids[:length], adapter=found)
            if state is not None and sequence.slots is not None and self.slots is not None:
                sequence.slots.start(self.slots.share(state[0]), state[1])
            return sequence

    def remember(self, sequence: CachedSequence, *, whole_pages: bool = False) -> None:
        """Keep the content of ``sequence`` as a prefix for later ones, within ``prefix_bytes``.

        With ``whole_pages`` a last page that is partly filled is left out, so that the sequence goes on in it.
        """
        check_provides("sequence", sequence, "check_open", "a CachedSequence")
        whole_pages = checked_flag("whole_pages", whole_pages)
        with self._lock:
            sequence.check_open()
            if self._prefixes.max_pages:
                token_ids, pages = sequence.token_ids, sequence.pages[: -(-sequence.length // self.page_tokens)]
                if whole_pages:
                    pages = pages[: sequence.length // self.page_tokens]
                    token_ids = token_ids[: len(pages) * self.page_tokens]
                states = () if sequence.slots is None else sequence.slots.snapshots()
                self._prefixes.insert(token_ids, pages, _digest(sequence.adapter), states)

    def forget(self, pages: int | None = None) -> None:
        """Drop remembered prefixes: all, or until ``pages`` further pages are free.

        Sequences that use one keep it.
        """
        if pages is not None:
            pages = check_count("pages", pages, least=0, most=2**62)
        with self._lock:
            if pages is None:
                self._prefixes.clear()
            else:
                wanted = self._pool.free + pages
                while self._pool.free < wanted and self._prefixes.evict():
                    pass

    def save(self, path: str | os.PathLike[str], sequence: CachedSequence) -> None:
        """Write the content of ``sequence`` to a file, so that another process can continue from it.

        The file is written completely or not at all. Its size is about ``storage.page_bytes`` per page.

        Raises:
            WriteError: the file cannot be written.
        """
        check_path("path", path)
        if not Path(path).name:
            raise InvalidInputError(f"path is {value_text(path)}; expected the path of a file")
        check_provides("sequence", sequence, "check_open", "a CachedSequence")
        sequence.check_open()
        identity, adapter = self._identity(), _digest(sequence.adapter)
        held = None if sequence.slots is None else sequence.slots.held
        write_prefix(
            Path(path),
            self.storage,
            sequence.token_ids,
            sequence.pages,
            identity=identity,
            adapter=adapter,
            state=None if held is None else (held[0], held[2]),
        )

    def restore(self, path: str | os.PathLike[str], *, adapter: str | AttachedAdapter | None = None) -> CachedSequence:
        """Return a sequence with the content that :meth:`save` wrote.

        ``adapter`` must have the content of the saved sequence's adapter.

        Raises:
            ModelNotFoundError: there is no such file.
            CheckpointError: the file is damaged, or was written by another model, adapter, precision or kind of cache.
            CacheFullError: the sequence does not fit.
            InvalidInputError: the model has no such adapter.
        """
        check_path("path", path)
        self._check_open()
        found = self._adapter(adapter)
        with read_prefix(Path(path), self.storage, identity=self._identity(), adapter=_digest(found)) as prefix:
            sequence = self.sequence(adapter=found)
            try:
                sequence.extend(prefix.token_ids)
                for page, content in zip(sequence.pages, prefix.pages(), strict=True):
                    self.storage.import_(page, content)
                if prefix.state_tokens and sequence.slots is not None:
                    sequence.slots.restore(prefix.state(), prefix.state_tokens)
            except BaseException:
                sequence.close()
                raise
            return sequence

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInputError("this cache is closed: open another one")

    def _adapter(self, adapter: str | AttachedAdapter | None) -> AttachedAdapter | None:
        if adapter is None:
            return None
        if self._adapter_named is None:
            raise InvalidInputError("this cache belongs to no model that has adapters: use model.open_cache()")
        return self._adapter_named(adapter)

    def _needs_copy(self, page: int, missing: int) -> bool:
        """Whether a shared page has to be copied before a sequence writes to it.

        The sequence also takes ``missing`` further pages. If there is room for all but the copy, and only a remembered
        prefix holds the page too, the prefix is forgotten.
        """
        while self._pool.free <= missing and self._prefixes.evict():
            pass
        return not (self._pool.free == missing and self._pool.holders(page) == 2 and self._prefixes.drop(page))

    def _take(self, count: int) -> list[int]:
        """Return ``count`` pages; forget remembered pages if too few are free."""
        with self._lock:
            while self._pool.free < count and self._prefixes.evict():
                pass
            if self._pool.free < count:
                raise CacheFullError(
                    f"the cache has {self._pool.free} free pages of {self.page_tokens} tokens and {count} are needed: "
                    f"close sequences, or open a cache for more than {self.capacity} tokens"
                )
            return [self._pool.take() for _ in range(count)]


def _digest(adapter: AttachedAdapter | None) -> str:
    return "" if adapter is None else adapter.sha256


class Room(NamedTuple):
    """Where the keys and values of a sequence's new tokens are written.

    Attributes:
        position: the position of the first new token, which is the number of tokens before it.
        pages: int32, the sequence's pages in order; an array that must not be changed.
    """

    position: int
    pages: Int32Array


class CachedSequence:
    """The cached keys and values of one sequence of tokens.

    It is made by :meth:`KvCache.sequence`, :meth:`KvCache.start` or :meth:`fork`, and extended by
    ``CausalLanguageModel.forward``. A context manager; :meth:`close` returns its pages to the cache.

    Attributes:
        page_tokens: tokens in a page.
        slots: the state of recurrent layers, or None.
        adapter: the adapter that its tokens are run with, or None. It never changes.
        hidden: collects the model's last rows of its tokens, if a layer for further tokens reads them; else None.
    """

    def __init__(
        self,
        cache: KvCache,
        pages: Sequence[int] = (),
        token_ids: Sequence[int] = (),
        *,
        adapter: AttachedAdapter | None = None,
    ) -> None:
        self.cache = cache
        self.adapter = adapter
        self._pages = list(pages)
        self._token_ids = array("i", token_ids)
        self._table: Int32Array | None = None
        self._closed = False
        self.page_tokens: int = cache.storage.page_tokens
        self.hidden: HiddenRows | None = None
        self.slots: SequenceSlots | None = None
        if cache.slots is not None:
            self.slots = SequenceSlots(cache.slots, marks=cache._marks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<CachedSequence length={self.length} pages={len(self._pages)}>"

    @property
    def length(self) -> int:
        """The number of tokens whose keys and values are cached."""
        return len(self._token_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens."""
        return tuple(self._token_ids)

    @property
    def pages(self) -> tuple[int, ...]:
        """The pages of the sequence, in order; the last ones may still be empty."""
        return tuple(self._pages)

    @property
    def block_table(self) -> Int32Array:
        """:attr:`pages` as an array that must not be changed."""
        if self._table is None:
            self._table = np.array(self._pages, np.int32)
        return self._table

    def fork(self) -> CachedSequence:
        """Return another sequence with the same content and adapter.

        The two share their pages until one of them is extended.
        """
        with self.cache._lock:
            self.check_open()
            pages = self._pages[: self._pages_for(self.length)]
            shared = [self.cache._pool.share(page) for page in pages]
            other = CachedSequence(self.cache, shared, self._token_ids, adapter=self.adapter)
            if self.slots is not None:
                other.slots = self.slots.fork()
            return other

    def rewind(self, length: int) -> None:
        """Drop all tokens from position ``length`` on.

        The state of recurrent layers may not be held for that position. Then the next call of the model runs the tokens from
        the nearest state on again.

        Raises:
            InvalidInputError: ``length`` is not from 0 to the present length.
        """
        self.check_open()
        kept = as_token_id(length)
        if kept is None or not 0 <= kept <= self.length:
            raise InvalidInputError(f"a sequence of {self.length} tokens cannot be rewound to {value_text(length)}")
        del self._token_ids[kept:]
        self._drop_pages(self._pages_for(kept))
        if self.slots is not None:
            self._cut_state(kept)

    def _cut_state(self, length: int) -> None:
        """Go back to the nearest state: the sequence's own, or a remembered one."""
        slots, pool = self.slots, self.cache.slots
        assert slots is not None
        assert pool is not None
        slots.cut(length)
        if slots.length < length:
            with self.cache._lock:
                found = self.cache._prefixes.find_state(self._token_ids[:length], _digest(self.adapter))
                if found is not None and found[1] > slots.length:
                    slots.start(pool.share(found[0]), found[1])

    def close(self) -> None:
        """Return the pages to the cache; closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._drop_pages(0)
            if self.slots is not None:
                self.slots.close()

    def check_open(self) -> None:
        """Raise InvalidInputError if the sequence or its cache is closed."""
        self.cache._check_open()
        if self._closed:
            raise InvalidInputError("this sequence is closed: start another one")

    def extend(self, token_ids: Sequence[int] | Int32Array) -> Room:
        """Append ``token_ids`` and return where their keys and values go; for callers of backends.

        The caller has the backend write them before anything reads them, or rewinds to ``Room.position``. An error
        changes nothing.

        Raises:
            InvalidInputError: the sequence is closed, or ``token_ids`` are no token ids. The ids of an int32 array are not
                checked.
            CacheFullError: there is no room.
        """
        if self._closed or self.cache._closed:
            self.check_open()
        if not (type(token_ids) is np.ndarray and token_ids.dtype == np.int32 and token_ids.ndim == 1):
            token_ids = np.array(checked_token_ids(token_ids, "token_ids"), np.int32)
        held, pages = len(self._token_ids), self._pages
        try:
            self._token_ids.frombytes(token_ids.tobytes())
            missing = -(-len(self._token_ids) // self.page_tokens) - len(pages)
            first = held // self.page_tokens  # the page of the first new token
            is_shared = first < len(pages) and self.cache._pool.holders(pages[first]) > 1
            if missing > 0 or is_shared:
                self._take_pages(max(0, missing), first if is_shared else None)
        except BaseException:
            del self._token_ids[held:]
            raise
        return Room(held, self.block_table)

    def pages_wanted(self, tokens: int) -> int:
        """Return how many free pages ``tokens`` further tokens take."""
        held, pages = len(self._token_ids), self._pages
        wanted = max(0, -(-(held + tokens) // self.page_tokens) - len(pages))
        first = held // self.page_tokens
        if tokens and first < len(pages) and self.cache._pool.holders(pages[first]) > 1:
            wanted += 1
        return wanted

    def reserve(self, first: int, end: int) -> Int32Array:
        """Return pages with room for positions up to ``end``.

        Those from ``first`` on are for this sequence alone. It keeps its length. This is for layers that write at other
        positions than the model.

        Raises:
            InvalidInputError: the sequence is closed.
            CacheFullError: there is no room.
        """
        self.check_open()
        missing = self._pages_for(end) - len(self._pages)
        for index in range(first // self.page_tokens, min(self._pages_for(end), len(self._pages))):
            if self.cache._pool.holders(self._pages[index]) > 1:
                self._take_pages(0, index)
        if missing > 0:
            self._take_pages(missing, None)
        return self.block_table

    def _take_pages(self, missing: int, shared: int | None) -> None:
        """Append ``missing`` pages, and replace the page at index ``shared`` by a copy."""
        with self.cache._lock:
            if shared is not None and not self.cache._needs_copy(self._pages[shared], missing):
                shared = None
            fresh = self.cache._take(missing + (shared is not None))
            if shared is not None:
                # the page's first tokens belong to this sequence too, and other holders need the page unchanged
                try:
                    self.cache.storage.copy_page(self._pages[shared], fresh[-1])
                except BaseException:
                    self.cache._pool.release(fresh)
                    raise
                copied, self._pages[shared] = self._pages[shared], fresh.pop()
                self.cache._pool.release([copied])
            self._pages += fresh
            self._table = None

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def _drop_pages(self, keep: int) -> None:
        if keep < len(self._pages):
            gone = self._pages[keep:]
            del self._pages[keep:]  # first: an interrupt in between must not let pages be released twice
            self._table = None
            with self.cache._lock:
                self.cache._pool.release(gone)
