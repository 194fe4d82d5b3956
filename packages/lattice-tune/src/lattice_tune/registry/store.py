"""A registry's folder: the database, contents of files, and locks of running writers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lattice_inference.checkpoint.atomic_file import remove_leftovers, sync_folder, temporary_beside
from lattice_tune.errors import InvalidInputError, ModelNotFoundError, RegistryCorruptError, RegistryError, StorageError
from lattice_tune.registry.blobs import BlobStore, storing
from lattice_tune.registry.database import Database, Row
from lattice_tune.registry.records import RegisteredModel
from lattice_tune.registry.schema import FORMAT, MODEL_COLUMNS, model_of
from lattice_tune.registry.semantic_version import SemanticVersion
from lattice_tune.registry.stored_values import check_name, is_alias

__all__ = ["RegistryStore"]

DATABASE_NAME = "registry.db"


class RegistryStore:
    """What :class:`ModelRegistry` and its helpers share.

    A writer claims contents in a transaction before it checks whether they are there. ``gc`` reads the claims and
    removes files in one, too. So a content that a writer has found is not removed before the writer names it. A claim
    counts as long as its writer's file in ``writers/`` is locked, which ends with the process.

    Args:
        folder: of the registry.
        create: make it if it is not there.
        busy_seconds: how long a call waits for other processes.

    Raises:
        StorageError: it is not there and ``create`` is False, or it cannot be made or opened.
        RegistryCorruptError: its database is damaged, or another program's.
    """

    def __init__(self, folder: Path, *, create: bool, busy_seconds: float) -> None:
        self.folder = folder
        self._writers = folder / "writers"
        path = folder / DATABASE_NAME
        if not path.exists():
            if not create:
                raise StorageError(f"{folder} is no model registry: there is no {DATABASE_NAME} in it")
            self._make(path)
        self.blobs: BlobStore = BlobStore(folder / "blobs")
        self.database: Database = Database(path, FORMAT, busy_seconds=busy_seconds)

    def _make(self, path: Path) -> None:
        with storing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in ("blobs", "writers"):
                (self.folder / name).mkdir(exist_ok=True)
            sync_folder(self.folder)
            sync_folder(self.folder.absolute().parent)
            Database.create(path, FORMAT)  # last: a folder with a database is whole

    @contextmanager
    def claimed(self, digests: Sequence[str]) -> Iterator[str]:
        """Keep ``gc`` from removing contents until the block ends.

        Yields the writer's name for :meth:`release`.
        """
        with storing(self._writers), temporary_beside(self._writers / "writer") as lock:
            writer = lock.name
            with self.database.transaction():
                self.database.execute_many(
                    "INSERT INTO claims VALUES (?, ?)", [(writer, each) for each in set(digests)]
                )
            try:
                yield writer
            except BaseException:
                with contextlib.suppress(RegistryError), self.database.transaction():
                    self.release(writer)
                raise

    def release(self, writer: str) -> None:
        """Give a writer's claims up, in the transaction that names the contents."""
        self.database.execute("DELETE FROM claims WHERE writer = ?", (writer,))

    def drop_dead_claims(self) -> None:
        """Remove the claims of writers that are gone, in a transaction of the caller."""
        remove_leftovers(self._writers)
        for (writer,) in self.database.rows("SELECT DISTINCT writer FROM claims"):
            if not (self._writers / str(writer)).exists():
                self.release(writer)

    def number_of(self, name: str, version: str | SemanticVersion) -> int:
        """Return the row number of a version, given as such or by an alias.

        Raises:
            ModelNotFoundError: there is none.
            InvalidInputError: the name, version or alias is none.
        """
        check_name(name)
        if is_alias(version):
            rows = self.database.rows(
                "SELECT model FROM aliases WHERE name = ? AND alias = ?", (name, version), of=(int,)
            )
        else:
            parsed = version if isinstance(version, SemanticVersion) else SemanticVersion.parse(version)
            rows = self.database.rows(
                "SELECT id FROM models WHERE name = ? AND version = ?", (name, str(parsed)), of=(int,)
            )
        if not rows:
            raise ModelNotFoundError(name, str(version))
        return int(rows[0][0])

    def model(self, number: int) -> RegisteredModel:
        """Return the version of a row number that was just looked up."""
        rows = self.database.rows(f"SELECT {MODEL_COLUMNS} FROM models WHERE id = ?", (number,))
        if len(rows) != 1:
            raise RegistryCorruptError(f"{self.database.path} is damaged: there is no version of row {number}")
        return model_of(self.database, rows[0])

    def live_row(self, name: str) -> Row | None:
        """Return row number, UUID and version of the version in production, if there is one."""
        rows = self.database.rows(
            "SELECT id, uuid, version FROM models WHERE name = ? AND status = 'production'",
            (name,),
            of=(int, str, str),
        )
        return rows[0] if rows else None

    def reference_of(self, reference: object) -> int:
        """Return the row number of what ``name@version`` or ``name@alias`` names.

        Raises:
            InvalidInputError: it is no reference.
            ModelNotFoundError: there is no such version.
        """
        if isinstance(reference, RegisteredModel):
            reference = reference.reference
        if not isinstance(reference, str) or reference.count("@") != 1:
            raise InvalidInputError(f"{reference!r:.80} is no reference: write name@version, such as intent@1.2.0")
        name, _, version = reference.partition("@")
        return self.number_of(name, version)
