"""The service that the options of a command ask for: in this process, or at a server."""

from __future__ import annotations

import argparse

from lattice_embed.catalogue import EmbeddingModel
from lattice_embed.errors import InvalidInputError, UnknownModelError
from lattice_embed.model_source import default_model
from lattice_embed.native_service import NativeEmbeddingService
from lattice_embed.remote import RemoteEmbeddingService

__all__ = ["open_service"]

NATIVE_OPTIONS: dict[str, object] = {
    "threads": None,
    "device": "cpu",
    "precision": "float32",
    "truncate": "right",
    "plain": False,
}
"""Options that mean something in this process only, and their defaults."""


def open_service(options: argparse.Namespace) -> NativeEmbeddingService | RemoteEmbeddingService:
    """Return the service, not loaded; the caller closes it.

    Raises:
        InvalidInputError: options that do not go together.
    """
    model = default_model() if options.model is None else options.model
    output_dim = getattr(options, "output_dim", None)
    folder = getattr(options, "cache_folder", None)
    cache = folder if folder is not None else getattr(options, "cache", None) or None
    if options.base_url is None and not _is_remote(model):
        if options.api_key_variable is not None:
            raise InvalidInputError("--api-key-variable goes with --base-url, or a model that runs at a provider")
        if options.allow_plain_http:
            raise InvalidInputError("--allow-plain-http goes with --base-url")
        return NativeEmbeddingService(
            model,
            output_dim=output_dim,
            precision=options.precision,
            threads=options.threads,
            truncate=options.truncate,
            cache=cache,
            special_tokens_in_text=not options.plain,
            device=options.device,
        )
    if cache is not None:
        raise InvalidInputError(
            f"--cache is for models that run here, and {model} runs at a server (in Python: CachedEmbeddingService)"
        )
    for name, default in NATIVE_OPTIONS.items():
        if getattr(options, name) != default:
            raise InvalidInputError(f"--{name} is for models that run here, and {model} runs at a server")
    where = {} if options.base_url is None else {"base_url": options.base_url}
    return RemoteEmbeddingService(
        model,
        output_dim=output_dim,
        api_key_variable=options.api_key_variable,
        allow_plain_http=True if options.allow_plain_http else None,
        **where,
    )


def _is_remote(model: EmbeddingModel | str) -> bool:
    try:
        return (model if isinstance(model, EmbeddingModel) else EmbeddingModel.parse(model)).is_remote
    except UnknownModelError:
        return False
