"""The vectors of single tokens, as sentence-transformers gives them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from lattice_embed.catalogue import Role
from lattice_embed.errors import InvalidInputError, InvalidTextError, NonFiniteVectorError, UnsupportedModelError
from lattice_embed.native_service import NativeEmbeddingService
from lattice_embed.result import Float32Array
from lattice_inference import errors as inference_errors

__all__ = ["refuse_for_tokens", "token_embeddings", "with_progress"]

Part = TypeVar("Part")


def with_progress(parts: Iterable[Part], count: int, unit: str, progress: bool | None) -> Iterable[Part]:
    """Return ``parts``, with a bar on standard error if it is wanted and there is one."""
    if not progress or sys.stderr is None:  # None: a process without a console
        return parts
    from tqdm import tqdm

    shown: Iterable[Part] = tqdm(parts, total=count, desc=unit)
    return shown


def refuse_for_tokens(precision: str, pool: object, device: object) -> None:
    """Raise InvalidInputError for an option that vectors of tokens do not have."""
    if precision != "float32":
        raise InvalidInputError(f"precision={precision!r} is for vectors of texts: token_embeddings are float32")
    if pool is not None or isinstance(device, list):
        name = "device, a list," if pool is None else "pool"
        raise InvalidInputError(f"{name} is for vectors of texts: token_embeddings are computed in this process")


def token_embeddings(
    service: NativeEmbeddingService, texts: Sequence[Any], batch_size: int, progress: bool | None
) -> list[Float32Array]:
    """Return the array (tokens, width) of each text: the model's last states, before pooling.

    Raises:
        InvalidTextError, TextTooLongError: a text, by its place.
        NonFiniteVectorError: the model gave NaN or infinity.
        UnsupportedModelError: the service has an adapter, which vectors of tokens do not have.
    """
    size = min(batch_size, service.max_batch_size)
    parts = _batches(service, texts, size)
    return [array for part in with_progress(parts, -(-len(texts) // size), "Batches", progress) for array in part]


def _batches(service: NativeEmbeddingService, texts: Sequence[Any], size: int) -> Iterator[list[Float32Array]]:
    for start in range(0, len(texts), size):
        try:
            yield _batch(service, texts[start : start + size])
        except (InvalidTextError, NonFiniteVectorError) as error:
            raise error.shifted(start) from error.__cause__  # the caller counts texts, not batches


def _batch(service: NativeEmbeddingService, texts: Sequence[Any]) -> list[Float32Array]:
    checked = service._limits.texts(texts)
    loaded = service._load()
    prompt = loaded.prompts[Role.GENERIC]
    if loaded.adapter is not None:
        raise UnsupportedModelError("token_embeddings of a model with an adapter are not built: merge the adapter")
    try:
        return loaded.encoder.token_vectors(checked, prompt=prompt, truncate=service._truncate, max_tokens=loaded.limit)
    except inference_errors.TextTooLongError as error:
        raise service._too_many_tokens(loaded, checked, prompt) from error
    except inference_errors.NonFiniteError as error:
        model = loaded.config.description.slug
        raise NonFiniteVectorError(index=min(error.rows, default=0), model=model) from error
