"""The interface of everything that turns texts into vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import ClassVar, overload

import numpy as np

from lattice_embed.catalogue import EmbeddingModel, Role
from lattice_embed.errors import InvalidInputError, InvalidTextError, LatticeEmbedError, NonFiniteVectorError
from lattice_embed.model_config import ModelConfig
from lattice_embed.provenance import VectorProvenance
from lattice_embed.result import EmbeddingResult, Float32Array
from lattice_embed.validation import Limits, check_iterable, check_limit
from lattice_inference.cancellation import in_thread

__all__ = ["EmbeddingService", "ModelName"]

ModelName = EmbeddingModel | str
"""How a call names a model: a catalogue member, or a slug, alias or hub id."""

TextList = list[str] | tuple[str, ...]
"""Several texts, told apart from one (a str is a sequence of str to a type checker)."""


DEFAULT_STREAM_BATCH = 256
"""Texts that ``embed_iter`` reads ahead: enough to fill the threads, little enough to answer soon."""


class EmbeddingService(ABC):
    """Turns texts into vectors.

    Implement :meth:`embed`, :meth:`model_config`, :meth:`supports_model` and :attr:`name`; everything else is derived
    from them. An implementation is expected to be safe to call from several threads at once, because the ``a...``
    methods run it in worker threads.
    """

    _gives_arrays_away: ClassVar[bool] = False
    """Whether a result's arrays are held nowhere else, so that a service around this one may pass them on."""

    _limits: Limits = Limits()
    """What a call may hold. A service with limits as options replaces it in its ``__init__``."""

    @abstractmethod
    def embed(
        self,
        texts: Sequence[str],
        model: ModelName | None = None,
        *,
        role: Role = Role.GENERIC,
        normalize: bool = True,
    ) -> EmbeddingResult:
        """Embed the texts of one call.

        Args:
            texts: at least one text.
            model: the model that the caller expects; an error if it is not this service's.
            role: what the texts are for; decides the prompt.
            normalize: scale the vectors to length 1.

        Returns:
            One vector a text, in the order of the texts.
        """

    @abstractmethod
    def model_config(self, model: ModelName | None = None) -> ModelConfig:
        """Return the model, and the dimension of its vectors, that this service uses for ``model``."""

    @abstractmethod
    def supports_model(self, model: ModelName) -> bool:
        """Return whether this service can embed with ``model``."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Short name of the service, for logs."""

    @property
    def max_batch_size(self) -> int:
        """Texts that one call of :meth:`embed` may hold; the methods that split go by it."""
        return self._limits.max_batch_size

    @property
    def max_text_chars(self) -> int:
        """Characters that one text may have."""
        return self._limits.max_text_chars

    def provenance(
        self, model: ModelName | None = None, *, role: Role = Role.GENERIC, normalize: bool = True
    ) -> VectorProvenance | None:
        """Return all that the bits of such a call's vectors depend on besides the text.

        None if it is unknown. Caches go by it: a service whose weights may change while it runs must implement it. It
        may load the model and read its files.
        """
        return None

    # One text

    def embed_one(
        self, text: str, model: ModelName | None = None, *, role: Role = Role.GENERIC, normalize: bool = True
    ) -> Float32Array:
        """Embed one text into a float32 vector of shape (dim,)."""
        vector: Float32Array = self._embed_checked([_one_text(text)], model, role, normalize).vectors[0]
        return vector

    @overload
    def embed_query(self, text: str, model: ModelName | None = None, *, normalize: bool = True) -> Float32Array: ...
    @overload
    def embed_query(
        self, text: TextList, model: ModelName | None = None, *, normalize: bool = True
    ) -> EmbeddingResult: ...
    def embed_query(
        self, text: str | TextList, model: ModelName | None = None, *, normalize: bool = True
    ) -> Float32Array | EmbeddingResult:
        """Embed a search query, or a list of them: the model's query prompt is put before each.

        Returns:
            A float32 vector of shape (dim,) for one text, an :class:`EmbeddingResult` for a list.
        """
        return self._embed_as(Role.QUERY, text, model, normalize)

    @overload
    def embed_passage(self, text: str, model: ModelName | None = None, *, normalize: bool = True) -> Float32Array: ...
    @overload
    def embed_passage(
        self, text: TextList, model: ModelName | None = None, *, normalize: bool = True
    ) -> EmbeddingResult: ...
    def embed_passage(
        self, text: str | TextList, model: ModelName | None = None, *, normalize: bool = True
    ) -> Float32Array | EmbeddingResult:
        """Embed a text or a list of texts to be found, each after the model's passage prompt.

        Returns:
            A float32 vector of shape (dim,) for one text, an :class:`EmbeddingResult` for a list.
        """
        return self._embed_as(Role.PASSAGE, text, model, normalize)

    # Any number of texts

    def embed_batches(
        self,
        texts: Iterable[str],
        model: ModelName | None = None,
        *,
        role: Role = Role.GENERIC,
        normalize: bool = True,
        batch_size: int = DEFAULT_STREAM_BATCH,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[EmbeddingResult]:
        """Yield a result for each ``batch_size`` texts, in order, for any iterable of any length.

        At most one batch is read ahead, so that memory stays bounded and the first vectors come early. Inside a batch a
        service may take texts in an order that suits it, by length for instance. Errors name a text by its position in
        ``texts``. No texts yield nothing.

        Args:
            batch_size: texts of a batch; no batch holds more than :attr:`max_batch_size`.
            progress: called after each batch with the number of texts that are done.
        """
        if progress is not None and not callable(progress):
            raise InvalidInputError(
                f"progress is a {type(progress).__name__}; pass a function of the texts done, or None"
            )
        size = min(check_limit("batch_size", batch_size), self.max_batch_size)
        remaining = iter(check_iterable(texts))
        done = 0
        while batch := list(islice(remaining, size)):
            try:
                result = self._embed_checked(batch, model, role, normalize)  # type: ignore[arg-type]
            except (InvalidTextError, NonFiniteVectorError) as error:
                raise error.shifted(done) from error.__cause__  # the caller counts texts, not batches
            done += len(batch)
            if progress is not None:
                progress(done)
            yield result

    def embed_iter(
        self,
        texts: Iterable[str],
        model: ModelName | None = None,
        *,
        role: Role = Role.GENERIC,
        normalize: bool = True,
        batch_size: int = DEFAULT_STREAM_BATCH,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[Float32Array]:
        """Yield one float32 vector of shape (dim,) a text, in order, for any iterable of any length.

        As :meth:`embed_batches`, one vector at a time.
        """
        for result in self.embed_batches(
            texts, model, role=role, normalize=normalize, batch_size=batch_size, progress=progress
        ):
            yield from result.vectors

    def encode(
        self,
        texts: Iterable[str],
        model: ModelName | None = None,
        *,
        role: Role = Role.GENERIC,
        normalize: bool = True,
    ) -> Float32Array:
        """Embed any number of texts into one float32 array (n, dim).

        No texts give (0, dim).
        """
        batches = self.embed_batches(texts, model, role=role, normalize=normalize, batch_size=self.max_batch_size)
        if not isinstance(texts, Sized):
            parts = [result.vectors for result in batches]
            return np.concatenate(parts) if parts else self._no_vectors(model)
        vectors: Float32Array | None = None
        filled = 0
        for result in batches:
            if vectors is None:
                vectors = np.empty((len(texts), result.dimensions), np.float32)
            vectors[filled : filled + len(result)] = result.vectors
            filled += len(result)
        return self._no_vectors(model) if vectors is None else vectors[:filled]

    # The same for asyncio: the work is done in a worker thread, the event loop stays free. Cancelling the waiter ends
    # the work at the model's next step, unless others wait for the same. A model that is being loaded is loaded all
    # the same. A service that waits instead of working overrides aembed alone.

    async def aembed(
        self,
        texts: Sequence[str],
        model: ModelName | None = None,
        *,
        role: Role = Role.GENERIC,
        normalize: bool = True,
    ) -> EmbeddingResult:
        """Do :meth:`embed` in a worker thread.

        If the waiter is cancelled, the model's work ends at its next step.
        """
        return await in_thread(self.embed, texts, model, role=role, normalize=normalize)

    async def aembed_one(
        self, text: str, model: ModelName | None = None, *, role: Role = Role.GENERIC, normalize: bool = True
    ) -> Float32Array:
        """Do :meth:`embed_one` by way of :meth:`aembed`."""
        result = await self.aembed([_one_text(text)], model, role=role, normalize=normalize)
        vector: Float32Array = self._one_each(result, 1).vectors[0]
        return vector

    @overload
    async def aembed_query(
        self, text: str, model: ModelName | None = None, *, normalize: bool = True
    ) -> Float32Array: ...
    @overload
    async def aembed_query(
        self, text: TextList, model: ModelName | None = None, *, normalize: bool = True
    ) -> EmbeddingResult: ...
    async def aembed_query(
        self, text: str | TextList, model: ModelName | None = None, *, normalize: bool = True
    ) -> Float32Array | EmbeddingResult:
        """Do :meth:`embed_query` by way of :meth:`aembed`."""
        return await self._aembed_as(Role.QUERY, text, model, normalize)

    @overload
    async def aembed_passage(
        self, text: str, model: ModelName | None = None, *, normalize: bool = True
    ) -> Float32Array: ...
    @overload
    async def aembed_passage(
        self, text: TextList, model: ModelName | None = None, *, normalize: bool = True
    ) -> EmbeddingResult: ...
    async def aembed_passage(
        self, text: str | TextList, model: ModelName | None = None, *, normalize: bool = True
    ) -> Float32Array | EmbeddingResult:
        """Do :meth:`embed_passage` by way of :meth:`aembed`."""
        return await self._aembed_as(Role.PASSAGE, text, model, normalize)

    async def aencode(
        self,
        texts: Iterable[str],
        model: ModelName | None = None,
        *,
        role: Role = Role.GENERIC,
        normalize: bool = True,
    ) -> Float32Array:
        """Do :meth:`encode` by way of :meth:`aembed`."""
        remaining = iter(check_iterable(texts))
        parts: list[Float32Array] = []
        done = 0
        while batch := list(islice(remaining, self.max_batch_size)):
            try:
                result = await self.aembed(batch, model, role=role, normalize=normalize)  # type: ignore[arg-type]
            except (InvalidTextError, NonFiniteVectorError) as error:
                raise error.shifted(done) from error.__cause__  # the caller counts texts, not batches
            parts.append(self._one_each(result, len(batch)).vectors)
            done += len(batch)
        return np.concatenate(parts) if parts else self._no_vectors(model)

    # Shared by the derived methods

    def _embed_as(
        self, role: Role, text: str | TextList, model: ModelName | None, normalize: bool
    ) -> Float32Array | EmbeddingResult:
        if isinstance(text, str):
            return self.embed_one(text, model, role=role, normalize=normalize)
        return self.embed(text, model, role=role, normalize=normalize)

    def _embed_checked(
        self, texts: Sequence[str], model: ModelName | None, role: Role, normalize: bool
    ) -> EmbeddingResult:
        """Embed one call's texts and make sure that the implementation returned one vector a text."""
        return self._one_each(self.embed(texts, model, role=role, normalize=normalize), len(texts))

    async def _aembed_as(
        self, role: Role, text: str | TextList, model: ModelName | None, normalize: bool
    ) -> Float32Array | EmbeddingResult:
        if isinstance(text, str):
            return await self.aembed_one(text, model, role=role, normalize=normalize)
        return await self.aembed(text, model, role=role, normalize=normalize)

    def _one_each(self, result: EmbeddingResult, texts: int) -> EmbeddingResult:
        if len(result) != texts:
            raise LatticeEmbedError(f"{self.name}.embed() returned {len(result)} vectors for {texts} texts")
        return result

    def _no_vectors(self, model: ModelName | None) -> Float32Array:
        return np.empty((0, self.model_config(model).dimensions), np.float32)


def _one_text(text: object) -> str:
    if not isinstance(text, str):
        raise InvalidInputError(f"text is a {type(text).__name__}, not a str; embed() takes a list of texts")
    return text
