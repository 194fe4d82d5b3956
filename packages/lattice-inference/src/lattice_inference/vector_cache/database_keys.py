"""A filter of the database's keys, which saves look-ups of keys that are not there."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from lattice_inference.vector_cache._journal import MappedJournal

__all__ = ["DatabaseKeys"]

_LEAST_KEYS = 2**13
_ROWS_READ_FOR_A_LOOKUP = 100  # keys that a scan of the database reads while one is looked up
_ROWS_AT_ONCE = 4096


class DatabaseKeys:
    """Keeps the filter of a journal's memory in step with the database.

    Args:
        mapped: the memory that has the filter, at first none.
    """

    def __init__(self, mapped: MappedJournal) -> None:
        self._mapped = mapped
        self._newest = 0  # the filter has every row up to this one
        self._in_vain = 0

    def forget(self) -> None:
        """Do without a filter: its rows are no longer known."""
        self._mapped.make_filter(0)

    def asked_in_vain(self, connection: sqlite3.Connection, count: int, rows: int) -> None:
        """Count look-ups of keys that the database, of about so many rows, does not have.

        Once they have taken as long as making a filter, it is made, with room for as many keys again.
        """
        if self._mapped.filter_room:
            return
        self._in_vain += count
        if self._in_vain * _ROWS_READ_FOR_A_LOOKUP <= rows:
            return
        self._in_vain = 0
        newest, keys = connection.execute("SELECT max(row), count(*) FROM vectors").fetchone()
        self._newest = newest or 0  # what others store from now on is caught up with
        if self._mapped.make_filter(max(2 * keys, _LEAST_KEYS)):
            cursor = connection.execute("SELECT key FROM vectors")
            while some := cursor.fetchmany(_ROWS_AT_ONCE):
                self._mapped.add_to_filter([key for (key,) in some if isinstance(key, bytes)])

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Take in the rows that others have added."""
        if self._mapped.filter_room:
            newer = "SELECT row, key FROM vectors WHERE row > ? ORDER BY row"
            rows = connection.execute(newer, (self._newest,)).fetchall()
            if rows:
                self._mapped.add_to_filter([key for _, key in rows if isinstance(key, bytes)])
                self._newest = rows[-1][0]

    def added(self, keys: Sequence[bytes], *, after: int, newest: int) -> None:
        """Add this process's rows, which lie between the row ``after`` and the row ``newest``."""
        self._mapped.add_to_filter(keys)
        if self._newest == after:  # else there are rows of others before them
            self._newest = newest
