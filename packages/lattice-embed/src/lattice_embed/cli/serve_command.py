"""``lattice-embed serve``: embeddings and reranking over HTTP."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lattice_embed.cross_encoder import CrossEncoder
from lattice_embed.errors import InvalidInputError
from lattice_embed.model_source import default_model
from lattice_embed.native_service import NativeEmbeddingService
from lattice_embed.served_embeddings import ServedEmbeddings
from lattice_inference.cli.serve_options import serve_app

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from lattice_inference.serve import ServeConfig

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Load the models and serve them."""
    return serve_app(options, "lattice-embed", lambda config, stack: _app(options, config, stack))


def _app(options: argparse.Namespace, config: ServeConfig, stack: contextlib.ExitStack) -> Starlette:
    """Load the models; the stack closes them."""
    from lattice_inference.serve import create_app

    if options.memory_cache < 0:
        raise InvalidInputError(f"--memory-cache is {options.memory_cache}; it must be at least 0")
    folder = options.cache_folder
    models: Sequence[str] = options.model or ()
    if not models and not options.reranker:
        default = default_model()
        models = (default if isinstance(default, str) else default.slug,)
    embeddings: dict[str, ServedEmbeddings] = {}
    rerankers: dict[str, CrossEncoder] = {}
    for name, path in map(_named, models):
        service = NativeEmbeddingService(
            path,
            precision=options.precision,
            threads=options.threads,
            device=options.device,
            special_tokens_in_text=not options.plain,
            cache=folder if folder is not None else options.cache or None,
        )
        stack.enter_context(service)
        name = name or service.name.removeprefix("native:")
        _check_new(name, embeddings)
        embeddings[name] = ServedEmbeddings(service.load(), memory=options.memory_cache)
    for name, path in map(_named, options.reranker or ()):
        scorer = stack.enter_context(
            CrossEncoder(
                path,
                precision=options.precision,
                threads=options.threads,
                device=options.device,
                special_tokens_in_text=not options.plain,
            )
        )
        name = name or scorer.name.removeprefix("native:")
        _check_new(name, {**embeddings, **rerankers})
        rerankers[name] = scorer.load()
    return create_app(embeddings=embeddings, rerankers=rerankers, config=config)


def _named(given: str) -> tuple[str, str]:
    """Return the name, empty if none is given, and the model."""
    name, equals, path = given.partition("=")
    if not equals:
        return "", given
    if not (name and path):
        raise InvalidInputError(f"a model is {given!r}; expected MODEL or NAME=MODEL")
    return name, path


def _check_new(name: str, models: Mapping[str, object]) -> None:
    if name in models:
        raise InvalidInputError(f"two models have the name {name!r}")
