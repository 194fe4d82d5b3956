"""The ``service`` argument of every adapter: a service, or the arguments that make one."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any, TypedDict

from lattice_embed.catalogue import EmbeddingModel, ModelDescription
from lattice_embed.errors import InvalidInputError
from lattice_embed.native_service import NativeEmbeddingService, Truncate
from lattice_embed.service import EmbeddingService
from lattice_inference.device_name import DeviceName
from lattice_inference.precision import Precision

if TYPE_CHECKING:
    from lattice_inference import VectorCache

__all__ = ["ModelOptions", "ModelOrService", "ServiceOptions", "changed_options", "choose_service", "stored_name"]

ModelOrService = EmbeddingService | EmbeddingModel | ModelDescription | str | os.PathLike[str]


class ModelOptions(TypedDict, total=False):
    """The options of :class:`~lattice_embed.NativeEmbeddingService`, except the device."""

    output_dim: int | None
    precision: Precision
    threads: int | None
    truncate: Truncate
    max_batch_size: int
    max_text_chars: int
    cache: VectorCache | str | os.PathLike[str] | bool | None
    special_tokens_in_text: bool
    max_tokens: int | None
    adapter: str | os.PathLike[str] | None


class ServiceOptions(ModelOptions, total=False):
    """The options of :class:`~lattice_embed.NativeEmbeddingService`, the device among them."""

    device: DeviceName


def choose_service(model: ModelOrService | None, options: ModelOptions) -> EmbeddingService:
    """Return the service, or a :class:`NativeEmbeddingService` of the model and the options.

    Raises:
        InvalidInputError: options for a service that exists already.
    """
    if not isinstance(model, EmbeddingService):
        return NativeEmbeddingService(model, **options)
    if options:
        raise InvalidInputError(
            f"{', '.join(options)} given with a service: options belong to the service's own making"
        )
    return model


def stored_name(model: EmbeddingModel | ModelDescription | str) -> str:
    """Return how a file names a model; one that was added is added again where the file is read."""
    return model if isinstance(model, str) else model.slug


def changed_options(service: NativeEmbeddingService) -> dict[str, Any]:
    """Return the options that are not the default, as JSON holds them; of a cache its folder."""
    defaults = inspect.signature(NativeEmbeddingService).parameters
    options = service.recipe()[1].items()
    changed = {name: value for name, value in options if value != defaults[name].default}
    cache = changed.get("cache")
    if cache is not None and not isinstance(cache, str | bool):
        changed["cache"] = str(cache.folder)
    if "adapter" in changed:
        changed["adapter"] = os.fspath(changed["adapter"])
    return changed
