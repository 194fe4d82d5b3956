"""Which process works on a document.

A claim lives as long as its process: the system releases a killed process's locks. Each claimant holds the lock of a
file beside the journal, named after it; claims are ``CLAIMANT/NUMBER``.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import weakref
from pathlib import Path

from lattice_embed.errors import StoreError

__all__ = ["Claimant", "claim_is_alive", "remove_dead_claimants"]

_CLAIM = re.compile(rb"([0-9a-f]{16})/[0-9]{1,20}")

_live: weakref.WeakSet[Claimant] = weakref.WeakSet()


class Claimant:
    """Somebody who works on documents, for as long as the object is open and the process lives.

    Raises:
        StoreError: this system has no locks of files, or the journal's folder cannot be written.
    """

    def __init__(self, journal: Path) -> None:
        self._numbers = itertools.count()
        self._handle: int | None = None
        while self._handle is None:
            self._name = secrets.token_hex(8)
            self._path = _lock_path(journal, self._name)
            try:
                handle = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise StoreError(f"{self._path} cannot be made: {error}") from error
            if _try_lock(handle) and os.fstat(handle).st_nlink:
                self._handle = handle
            else:
                os.close(handle)  # somebody took the file for a dead one's before it was locked: take another name
        _live.add(self)

    @property
    def is_open(self) -> bool:
        """Whether claims may be made.

        They may not after :meth:`close`, nor in a fork of the process that made this.
        """
        return self._handle is not None

    def new_claim(self) -> str:
        """Return a new, unique claim."""
        return f"{self._name}/{next(self._numbers)}"

    def close(self) -> None:
        """End all claims. Calling it twice is allowed."""
        if self._handle is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None

    def _forget_parent(self) -> None:
        if self._handle is not None:
            os.close(self._handle)  # the parent keeps the lock; a child must not hold it beyond the parent's life
            self._handle = None


def claim_is_alive(journal: Path, claim: bytes) -> bool:
    """Return whether the process that made ``claim`` is alive.

    False for anything that is no claim.

    Raises:
        StoreError: that cannot be found out.
    """
    made = _CLAIM.fullmatch(claim)
    return made is not None and _is_alive(_lock_path(journal, made[1].decode()))


def remove_dead_claimants(journal: Path) -> None:
    """Remove the files that killed processes left behind."""
    name = _lock_path(journal, "").name
    try:
        left = [entry.path for entry in os.scandir(journal.parent) if entry.name.startswith(name)]
    except OSError as error:
        raise StoreError(f"{journal.parent} cannot be read: {error}") from error
    for path in left:
        _is_alive(Path(path))


def _is_alive(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{path} cannot be looked at: {error}") from error
    try:
        if not _try_lock(handle):
            return True
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(handle)


def _lock_path(journal: Path, name: str) -> Path:
    return journal.with_name(f"{journal.name}-claims-{name}")


def _try_lock(handle: int) -> bool:
    try:
        import fcntl
    except ImportError:
        raise StoreError("a backfill needs the file locks of Unix") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _forget_parents() -> None:
    for claimant in list(_live):
        claimant._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)
