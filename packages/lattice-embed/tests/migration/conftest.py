"""Fixtures: stores, and files that are not forced to the disk where a test writes thousands of times."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lattice_embed.stores import sqlite_database


@pytest.fixture(scope="module")
def no_sync() -> Iterator[None]:
    """Leave writes to the system. What a test can see of them is the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_database, "SYNCHRONOUS", "OFF")
        patch.setattr(os, "fsync", lambda handle: None)
        yield
