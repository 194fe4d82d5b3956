"""Processes that embed texts side by side, each with the model loaded."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lattice_embed.catalogue import EmbeddingModel, ModelDescription, Role
from lattice_embed.errors import InvalidTextError, LatticeEmbedError, NonFiniteVectorError
from lattice_embed.result import Float32Array
from lattice_embed.validation import check_limit
from lattice_inference import get_num_threads

if TYPE_CHECKING:
    from lattice_embed.native_service import NativeEmbeddingService

__all__ = ["EncodingPool", "chunk_size_of"]

LARGEST_CHUNK = 5000
CHUNKS_A_PROCESS = 10


class EncodingPool:
    """Starts processes that share out the texts of calls; a context manager.

    A service uses all processors by itself, so a pool pays for machines of many processors only. The processes share them
    out: each takes its part of the threads, unless the service says how many it wants. Vectors are the same bits as without.
    A script that makes one needs ``if __name__ == "__main__":``, since the processes import it.

    Args:
        service: what each process makes again for itself.
        processes: how many.
    """

    def __init__(self, service: NativeEmbeddingService, processes: int) -> None:
        self.processes: int = check_limit("processes", processes)
        model, options = service.recipe()
        threads = options["threads"] or max(1, get_num_threads() // processes)
        self._executor = ProcessPoolExecutor(
            processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_open,
            initargs=(model, {**options, "threads": threads}),
        )

    def embed_chunks(
        self,
        texts: list[Any],
        *,
        normalize: bool,
        batch_size: int,
        chunk_size: int | None = None,
        role: Role = Role.GENERIC,
    ) -> Iterator[Float32Array]:
        """Yield the vectors of each chunk of texts, in their order.

        Args:
            texts: the texts, prompts included.
            normalize: scale vectors to length 1.
            batch_size: texts of one call of the service.
            chunk_size: texts that a process gets at once; by default ten chunks a process, of at most 5,000 texts.
            role: what the texts are for.

        Raises:
            InvalidTextError: a text that cannot be embedded, by its position in ``texts``.
            LatticeEmbedError: a process died.
        """
        size = self.chunk_size(len(texts), chunk_size)
        starts = range(0, len(texts), size)
        try:
            jobs = [self._executor.submit(_embed, texts[i : i + size], role, normalize, batch_size) for i in starts]
            for start, job in zip(starts, jobs, strict=True):
                try:
                    yield job.result()
                except (InvalidTextError, NonFiniteVectorError) as error:
                    raise error.shifted(start) from error
        except BrokenProcessPool as error:
            raise LatticeEmbedError("a process of the pool died: start another pool") from error
        except RuntimeError as error:
            if isinstance(error, LatticeEmbedError):
                raise
            raise LatticeEmbedError(f"the pool was stopped: start another one ({error})") from error

    def chunk_size(self, texts: int, chunk_size: int | None) -> int:
        """Return how many texts a chunk has; see :func:`chunk_size_of`."""
        return chunk_size_of(texts, self.processes, chunk_size)

    def close(self) -> None:
        """End the processes; chunks that wait are dropped. Closing twice is harmless."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def chunk_size_of(texts: int, processes: int, chunk_size: int | None) -> int:
    """Return how many texts a chunk has: the caller's number, else a tenth of a process's part.

    Raises:
        InvalidInputError: the caller wants less than one.
    """
    if chunk_size is not None:
        return check_limit("chunk_size", chunk_size)
    return max(1, min(math.ceil(texts / processes / CHUNKS_A_PROCESS), LARGEST_CHUNK))


# In the processes

_services: list[NativeEmbeddingService] = []


def _open(model: EmbeddingModel | ModelDescription | str, options: Mapping[str, Any]) -> None:
    from lattice_embed.native_service import NativeEmbeddingService

    _services.append(NativeEmbeddingService(model, **options))


def _embed(texts: list[Any], role: Role, normalize: bool, batch_size: int) -> Float32Array:
    import numpy as np

    results = _services[0].embed_batches(texts, role=role, normalize=normalize, batch_size=batch_size)
    return np.concatenate([result.vectors for result in results])
