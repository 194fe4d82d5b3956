"""The model that a caller means: catalogue member, added model, hub id, directory or GGUF."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from lattice_embed.added_models import added_model
from lattice_embed.catalogue import EmbeddingModel, ModelDescription
from lattice_embed.errors import InvalidInputError, UnknownModelError

__all__ = ["MODEL_VARIABLE", "QWEN_DIRECTORY_VARIABLE", "ModelSource", "default_model", "resolve_model"]

MODEL_VARIABLE = "LATTICE_EMBED_MODEL"
"""Environment variable that names the model of services made without one."""

QWEN_DIRECTORY_VARIABLE = "LATTICE_QWEN_MODEL_DIR"
"""Environment variable with the directory, or GGUF file, that the catalogue's Qwen3-Embedding models are loaded from."""

_QWEN_MODELS = (EmbeddingModel.QWEN3_EMBEDDING_0_6B, EmbeddingModel.QWEN3_EMBEDDING_4B)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*")


@dataclass(frozen=True)
class ModelSource:
    """A model that has been named, not yet loaded.

    Attributes:
        name: how messages and results call it.
        location: what ``lattice_inference.load_encoder`` is given: a hub id or an absolute directory or GGUF file.
        model: the catalogue member, where it is one.
        added: the description of a model of the caller's, where there is one.
    """

    name: str
    location: str
    model: EmbeddingModel | None = None
    added: ModelDescription | None = None

    @property
    def known(self) -> EmbeddingModel | ModelDescription | None:
        """The model, where more than its place is known."""
        return self.model or self.added

    @property
    def description(self) -> ModelDescription | None:
        """What is known about the model, where more than its place is."""
        return self.added if self.model is None else self.model.description


def default_model() -> str | EmbeddingModel:
    """Return the model of callers that name none.

    ``LATTICE_EMBED_MODEL``, else the catalogue's default.
    """
    return os.environ.get(MODEL_VARIABLE, "").strip() or EmbeddingModel.default()


def resolve_model(model: EmbeddingModel | ModelDescription | str | os.PathLike[str]) -> ModelSource:
    """Find out what ``model`` names. Nothing is opened but the directory entry itself.

    A string is looked up in the catalogue first and among the models that were added, then as a directory or GGUF file, then
    taken for a hub id (``owner/name``). A ``PathLike`` is always a directory or a GGUF file. A description says itself.

    Raises:
        UnknownModelError: it is none of these.
        InvalidInputError: it is no kind of name at all, or names another file; or ``LATTICE_QWEN_MODEL_DIR`` counts for it
            and names nothing.
    """
    if isinstance(model, EmbeddingModel):
        return ModelSource(model.slug, _location(model), model)
    if isinstance(model, ModelDescription):
        return ModelSource(model.slug, _location_of(model), added=model)
    if isinstance(model, str):
        name = model.strip()
        if not name:
            raise InvalidInputError("the model's name is empty: pass a slug, a hub id or a directory")
        try:
            return resolve_model(EmbeddingModel.parse(name))
        except UnknownModelError:
            if (added := added_model(name)) is not None:
                return resolve_model(added)
            path = _as_path(name)
            if not _exists(path):
                if _HUB_ID.fullmatch(name) and not name.startswith("."):
                    return ModelSource(name, name)
                if os.sep not in name:
                    raise
    elif isinstance(model, os.PathLike):
        path = _as_path(model)
    else:
        raise InvalidInputError(
            f"model is a {type(model).__name__}: pass an EmbeddingModel, a slug, a hub id or a directory"
        )
    if not _exists(path):
        raise UnknownModelError(f"no directory {path} and no model of that name: check the spelling")
    # absolute, so that a later change of the working directory, or another process, finds the same files
    target = path.resolve()
    if not path.is_dir():
        _check_gguf(path)
        if target.suffix != path.suffix:  # a link to a blob, whose name tells neither the model nor its other parts
            target = Path(os.path.abspath(path))
    path = target
    return ModelSource(path.name or str(path), str(path))


def _location(model: EmbeddingModel) -> str:
    """Return where a model of the catalogue is: at the hub, or where the environment says."""
    directory = os.environ.get(QWEN_DIRECTORY_VARIABLE, "").strip() if model in _QWEN_MODELS else ""
    if not directory:
        return model.model_id
    path = Path(os.path.abspath(_as_path(directory)))
    if not _exists(path):
        raise InvalidInputError(
            f"{QWEN_DIRECTORY_VARIABLE} names {path}, which does not exist: mend it, or leave it empty"
        )
    return str(path)


def _location_of(model: ModelDescription) -> str:
    """Return where a described model is.

    That is the files of a directory, of a member of the catalogue, or of a hub id.
    """
    name = model.model_id.strip()
    try:
        return resolve_model(EmbeddingModel.parse(name)).location
    except UnknownModelError:
        path = _as_path(name)
    if _exists(path):
        return resolve_model(path).location
    if _HUB_ID.fullmatch(name):
        return name
    raise UnknownModelError(
        f"model_id of {model.slug} is {name!r:.200}: there is no such directory, and it is no hub id"
    )


def _check_gguf(path: Path) -> None:
    from lattice_inference.checkpoint.formats import is_gguf
    from lattice_inference.checkpoint.model_file import content_of

    if not is_gguf(path):
        raise InvalidInputError(
            f"{path} is a file, {content_of(path)}: pass the directory that holds the model's files, or a GGUF file"
        )


def _as_path(name: str | os.PathLike[str]) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # the home of a user that does not exist
        return Path(name)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # such as a name that is too long for the file system
        return False
