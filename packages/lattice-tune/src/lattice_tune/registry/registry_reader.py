"""Reading a registry: finds versions, loads files, traces lineage, checks everything."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

from lattice_inference.checkpoint.atomic_file import atomic_directory, atomic_file
from lattice_tune.arguments import flag, instance, number, path_of, whole
from lattice_tune.errors import InvalidInputError, ModelNotFoundError, WeightIntegrityError, shown
from lattice_tune.registry import maintenance, version_bundle
from lattice_tune.registry.blobs import copy_verified, storing
from lattice_tune.registry.lineage_graph import dot_text, reachable
from lattice_tune.registry.maintenance import VerifyReport
from lattice_tune.registry.records import ModelKind, ModelQuery, RegisteredModel, RegistryEvent, StoredFile
from lattice_tune.registry.schema import EVENT_COLUMNS, MODEL_COLUMNS, event_of, model_of
from lattice_tune.registry.semantic_version import SemanticVersion
from lattice_tune.registry.statuses import ModelStatus
from lattice_tune.registry.store import RegistryStore
from lattice_tune.registry.stored_values import MOST_COUNT, check_name, check_text

__all__ = ["RegistryReader"]

BUSY_SECONDS = 30.0

_Models = list[RegisteredModel]
_Events = list[RegistryEvent]
_Names = list[str]
_Result = TypeVar("_Result")


class RegistryReader:
    """What :class:`~lattice_tune.ModelRegistry` does without changing anything."""

    def __init__(
        self, path: str | os.PathLike[str], *, create: bool = True, busy_seconds: float = BUSY_SECONDS
    ) -> None:
        self.path: Path = path_of(path, "path")
        self.store: RegistryStore = RegistryStore(
            self.path,
            create=flag(create, "create"),
            busy_seconds=number(busy_seconds, "busy_seconds", least=0.0, most=86_400.0),
        )
        self._database = self.store.database

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database. Calling it twice is allowed."""
        self._database.close()

    def get(self, name: str, version: str | SemanticVersion) -> RegisteredModel:
        """Return a version, given as such or by an alias.

        Raises:
            ModelNotFoundError: there is none.
            InvalidInputError: the name or version is none.
        """
        with self._database.snapshot():
            return self.store.model(self.store.number_of(name, version))

    def get_by_id(self, model_id: str) -> RegisteredModel:
        """Return the version with an ``id``.

        Raises:
            ModelNotFoundError: there is none.
        """
        check_text("model_id", model_id)
        found = self._models("WHERE uuid = ?", (model_id,))
        if not found:
            raise ModelNotFoundError(f"any model with the id {shown(model_id)}")
        return found[0]

    def get_latest(self, name: str, *, prereleases: bool = False, active: bool = False) -> RegisteredModel:
        """Return the version of the highest precedence.

        Of versions that differ in build metadata, the last registered.

        Args:
            name: of the model.
            prereleases: count pre-releases too.
            active: leave archived and deprecated versions out.

        Raises:
            ModelNotFoundError: there is none.
        """
        check_name(name)
        where = "WHERE name = ?"
        where += " AND status NOT IN ('archived', 'deprecated')" if flag(active, "active") else ""
        candidates = [
            *self._highest(f"{where} AND is_prerelease = 0", name),
            *(self._highest(f"{where} AND is_prerelease = 1", name) if flag(prereleases, "prereleases") else ()),
        ]
        if not candidates:
            raise ModelNotFoundError(name, detail="" if prereleases else ", pre-releases left out")
        latest: RegisteredModel = max(candidates, key=lambda model: model.version.precedence)
        return latest

    def _highest(self, where: str, name: str) -> _Models:
        return self._models(f"{where} ORDER BY precedence DESC, id DESC LIMIT 1", (name,))

    def get_production(self, name: str) -> RegisteredModel | None:
        """Return the version in production, or ``None``."""
        found = self._models("WHERE name = ? AND status = 'production'", (check_name(name),))
        return found[0] if found else None

    def names(self) -> _Names:
        """Return the names of all models, in order."""
        return [name for (name,) in self._database.rows("SELECT DISTINCT name FROM models ORDER BY name", of=(str,))]

    def list(self, name: str | None = None) -> _Models:
        """Return all versions, or those of one name, by name and precedence."""
        if name is None:
            return self._models("ORDER BY name, precedence, id")
        return self._models("WHERE name = ? ORDER BY precedence, id", (check_name(name),))

    def query(self, query: ModelQuery) -> _Models:
        """Return the versions that match, by name and precedence."""
        instance(query, "query", ModelQuery)
        asked = {"name": query.name, "status": query.status, "kind": query.kind}
        given = {
            column: value.value if isinstance(value, (ModelStatus, ModelKind)) else value
            for column, value in asked.items()
            if value is not None
        }
        where = "WHERE " + " AND ".join(f"{column} = ?" for column in given) if given else ""
        found = self._models(f"{where} ORDER BY name, precedence, id", tuple(given.values()))
        return [model for model in found if query.matches(model)][: query.limit]

    def events(
        self, name: str | None = None, *, kind: str | None = None, after: int = 0, limit: int | None = None
    ) -> _Events:
        """Return changes in the order in which they happened.

        Args:
            name: only those of this model.
            kind: only those of this kind, such as ``"promoted"``.
            after: only those with a higher number.
            limit: at most so many.
        """
        after = whole(after, "after", most=2**62)
        limit = -1 if limit is None else whole(limit, "limit", most=MOST_COUNT)
        given = {
            "name": None if name is None else check_name(name),
            "kind": None if kind is None else check_text("kind", kind),
        }
        given = {column: value for column, value in given.items() if value is not None}
        where = "".join(f"{column} = ? AND " for column in given)
        rows = self._database.rows(
            f"SELECT {EVENT_COLUMNS} FROM events WHERE {where}id > ? ORDER BY id LIMIT ?",
            (*given.values(), after, limit),
        )
        return [event_of(row, self._database.path) for row in rows]

    def _models(self, clause: str, values: tuple[object, ...] = ()) -> _Models:
        with self._database.snapshot():
            rows = self._database.rows(f"SELECT {MODEL_COLUMNS} FROM models {clause}", values)
            return [model_of(self._database, row) for row in rows]

    # Reading files

    def load_weights_verified(self, model: RegisteredModel, *, path: str | None = None) -> bytes:
        """Return the content of a file, after a comparison with its SHA-256.

        Args:
            model: a version as it was returned. It is read anew: its file and governance count as they are now.
            path: which file, where there are several.

        Raises:
            ModelNotFoundError: the version was deleted, or has no such file.
            AdapterNotApprovedError: it is an adapter that is quarantined or revoked.
            WeightIntegrityError: the file is missing, or is not what was registered, or ``model`` was changed.
        """
        current = self._usable(model)
        if path is None and len(current.files) > 1:
            names = ", ".join(file.path for file in current.files[:5])
            raise InvalidInputError(f"{current.reference} has {len(current.files)} files: pass path, such as {names}")
        wanted = current.files[0].path if path is None else check_text("path", path)
        file = next((file for file in current.files if file.path == wanted), None)
        if file is None:
            raise ModelNotFoundError(current.name, str(current.version), f" with a file {shown(wanted)}")
        return self._of_existing(current, lambda: self.store.blobs.read(file.sha256, file.size))

    def copy_to(self, model: RegisteredModel, target: str | os.PathLike[str]) -> Path:
        """Copy a version's file or folder to ``target``, comparing each file with its SHA-256.

        Returns:
            ``target``. It is whole or not there; a file that was there is replaced.

        Raises:
            InvalidInputError: a folder that holds something is there.
            ModelNotFoundError, AdapterNotApprovedError, WeightIntegrityError: as :meth:`load_weights_verified`.
            StorageError: ``target`` cannot be written.
        """
        current = self._usable(model)
        path = path_of(target, "target")
        with storing(path):
            if path.exists() and (not path.is_dir() if current.is_folder else path.is_dir()):
                raise InvalidInputError(
                    f"{path} is {'a file' if current.is_folder else 'a folder'}: name another place"
                )
            if current.is_folder and path.exists() and any(path.iterdir()):
                raise InvalidInputError(f"{path} is a folder that holds files already: name a new one")
        with storing(path):
            if current.is_folder:
                with atomic_directory(path) as folder:
                    for file in current.files:
                        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
                        self._copy(current, file, folder / file.path)
            else:
                self._copy(current, current.files[0], path)
        return path

    def _copy(self, model: RegisteredModel, file: StoredFile, target: Path) -> None:
        def copy() -> None:
            with self.store.blobs.open(file.sha256) as content, atomic_file(target) as out:
                copy_verified(content, out, file.sha256, f"{model.reference}: {file.path}")

        self._of_existing(model, copy)

    def check_files(self, model: RegisteredModel) -> None:
        """Read every file of a version and compare it with its SHA-256.

        Raises:
            ModelNotFoundError: the version was deleted.
            WeightIntegrityError: a file is missing, or is not what was registered.
        """
        current = self._current(model)
        for file in current.files:
            self._of_existing(current, lambda file=file: self.store.blobs.check(file.sha256, file.size))  # type: ignore[misc]

    # Lineage

    def ancestors(self, model: RegisteredModel) -> _Models:
        """Return the versions that ``model`` comes from, the nearest first, each once.

        Raises:
            ModelNotFoundError: it was deleted.
        """
        return self._related(model, upwards=True)

    def descendants(self, model: RegisteredModel) -> _Models:
        """Return the versions that come from ``model``, the nearest first, each once.

        Raises:
            ModelNotFoundError: it was deleted.
        """
        return self._related(model, upwards=False)

    def lineage_dot(self, model: RegisteredModel) -> str:
        """Return the lineage of a version as a graph in the dot language of Graphviz.

        Raises:
            ModelNotFoundError: it was deleted.
        """
        with self._database.snapshot():
            current = self._current(model)
            related = [*self.ancestors(current)[::-1], current, *self.descendants(current)]
        return dot_text(related, current)

    def _related(self, model: RegisteredModel, *, upwards: bool) -> _Models:
        with self._database.snapshot():
            number = self._number(model)
            return [self.store.model(each) for each in reachable(self.store, number, upwards=upwards)]

    # The whole

    def verify(self, *, contents: bool = True) -> VerifyReport:
        """Check the database, replay every event, and compare every file with its SHA-256.

        Args:
            contents: read the files; without it only their sizes are looked at.
        """
        return maintenance.verify_store(self.store, contents=flag(contents, "contents"))

    def export(self, model: RegisteredModel, path: str | os.PathLike[str]) -> Path:
        """Write a version with its files into one file, which :meth:`ModelRegistry.import_` reads.

        Returns:
            ``path``. A file that was there is replaced, and only when all is well.

        Raises:
            ModelNotFoundError: the version was deleted.
            WeightIntegrityError: a file is missing, or is not what was registered.
            StorageError: ``path`` cannot be written.
        """
        current, target = self._current(model), path_of(path, "path")
        with self._database.snapshot():
            parents = [self.get(*parent.split("@")) for parent in current.parents]
        self._of_existing(current, lambda: version_bundle.write_bundle(self.store.blobs, current, parents, target))
        return target

    # Versions as they are now

    def _number(self, model: RegisteredModel) -> int:
        instance(model, "model", RegisteredModel)
        rows = self._database.rows("SELECT id FROM models WHERE uuid = ?", (check_text("id", model.id),), of=(int,))
        if not rows:
            raise ModelNotFoundError(check_name(model.name), str(model.version), " any more")
        return int(rows[0][0])

    def _current(self, model: RegisteredModel) -> RegisteredModel:
        with self._database.snapshot():
            return self.store.model(self._number(model))

    def _usable(self, model: RegisteredModel) -> RegisteredModel:
        """Return a version as it is now.

        Raises if it does not load, or ``model`` is not what was registered.
        """
        current = self._current(model)
        if (model.digest, model.files) != (current.digest, current.files):
            raise WeightIntegrityError(f"the record of {current.reference}", current.digest, str(model.digest))
        if current.governance is not None:
            current.governance.check_approved(current.reference)
        return current

    def _of_existing(self, model: RegisteredModel, action: Callable[[], _Result]) -> _Result:
        """Read files of a version.

        If the version was deleted meanwhile, a missing file is reported as that.
        """
        try:
            return action()
        except WeightIntegrityError as error:
            if error.actual == "missing":
                self._number(model)
            raise
