"""Models that a program adds to those known by name: for this process, beside the catalogue."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from lattice_embed.catalogue import EmbeddingModel, ModelDescription, fold_name
from lattice_embed.errors import InvalidInputError, UnknownModelError

__all__ = ["add_model", "added_model", "list_models"]

_lock = threading.Lock()
_added: dict[str, ModelDescription] = {}  # by slug
_by_name: dict[str, ModelDescription] = {}


def add_model(description: ModelDescription, *, aliases: Iterable[str] = ()) -> ModelDescription:
    """Make a model of yours known by name, so that services take it like one of the catalogue.

    Prompts, licence and whether vectors may be shortened come from the description. So do pooling and the token
    limit where the model's files do not state them. It counts in this process, and again in processes that a service is
    pickled to. Adding the same description twice is harmless.

    Args:
        description: ``model_id`` is a directory, a GGUF file, or an id on the hub.
        aliases: other names. Names are compared as those of the catalogue: case, ``-``, ``_`` and ``.`` do not count.

    Returns:
        The description as it is kept: a path in ``model_id`` is absolute.

    Raises:
        InvalidInputError: a name is empty or taken, or the model runs at a provider.
    """
    if not isinstance(description, ModelDescription):
        raise InvalidInputError(f"description is a {type(description).__name__}; pass a ModelDescription")
    if description.is_remote:
        raise InvalidInputError(
            f"{description.slug} runs at a provider: give its description to RemoteEmbeddingService instead"
        )
    if isinstance(aliases, str):
        raise InvalidInputError("aliases is one str; pass a list of names")
    try:
        names = [description.slug, *aliases]
    except TypeError:  # it cannot be iterated over
        raise InvalidInputError(f"aliases is a {type(aliases).__name__}; pass a list of names") from None
    if not all(isinstance(name, str) and fold_name(name) for name in names):
        raise InvalidInputError(f"a name of the model is empty or no str: {names!r:.200}")
    if not description.model_id.strip():
        raise InvalidInputError(f"model_id of {description.slug} is empty: pass a directory or an id on the hub")
    kept = replace(description, model_id=_absolute(description.model_id))
    with _lock:
        for name in names:
            other = _by_name.get(fold_name(name))
            if _in_catalogue(name) or other not in (None, kept):
                owner = "the catalogue" if other is None else other.slug
                raise InvalidInputError(f"the name {name!r:.80} belongs to {owner} already: choose another")
        _added[kept.slug] = kept
        _by_name.update(dict.fromkeys(map(fold_name, names), kept))
    return kept


def list_models() -> tuple[ModelDescription, ...]:
    """Return what is known of every model that has a name here.

    The catalogue's models come first, then those that were added.
    """
    return (*(model.description for model in EmbeddingModel), *_added.values())


def added_model(name: str) -> ModelDescription | None:
    """Return the added model of a name, or None."""
    return _by_name.get(fold_name(name))


def _in_catalogue(name: str) -> bool:
    try:
        EmbeddingModel.parse(name)
    except UnknownModelError:
        return False
    return True


def _absolute(model_id: str) -> str:
    """Return a path that survives a change of the working directory; an id as it is."""
    path = Path(os.path.expanduser(model_id))
    return os.path.abspath(path) if path.is_absolute() or model_id.startswith(("~", ".")) or path.exists() else model_id
