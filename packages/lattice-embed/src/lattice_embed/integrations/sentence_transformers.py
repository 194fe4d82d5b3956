"""A door for code that was written for sentence-transformers. That library is not needed for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt

from lattice_embed.argument_checks import check_flag, check_kind, check_word
from lattice_embed.arrays import plain_array
from lattice_embed.catalogue import EmbeddingModel, Role
from lattice_embed.errors import InvalidInputError
from lattice_embed.integrations.service_choice import choose_service
from lattice_embed.native_service import NativeEmbeddingService
from lattice_embed.origin import check_one_space
from lattice_embed.result import Float32Array
from lattice_embed.validation import check_iterable, check_limit
from lattice_embed.vectors import many_vs_many
from lattice_inference.models.sentence_modules import read_sentence_modules

__all__ = ["SentenceEncoder"]

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]

DISTANCES = ("euclidean", "manhattan")
DOCUMENT_PROMPTS = ("document", "passage", "corpus")


class SentenceEncoder:
    """Encodes as ``SentenceTransformer.encode`` does, on our own kernels.

    Prompts, and whether vectors have length 1 without being asked to, are those of the model's files, as there; the
    catalogue's prompts are not used. What differs: results are NumPy arrays unless tensors are asked for, no texts give
    (0, dim), a text's vector is the same bits in any batch, and options that this library does not have (other devices,
    token vectors, quantization in ``encode``) are refused, not ignored.

    Args:
        model: a name, hub id or directory for :class:`~lattice_embed.NativeEmbeddingService`, or such a service.
        prompts: prompts by name, instead of those of the model's files.
        default_prompt_name: the prompt of calls that name none, instead of that of the model's files.
        **options: of :class:`~lattice_embed.NativeEmbeddingService`.

    Raises:
        InvalidInputError: ``default_prompt_name`` is none of the prompts, or another service than a native one is given.
    """

    def __init__(
        self,
        model: NativeEmbeddingService | EmbeddingModel | str | None = None,
        *,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        **options: Any,
    ) -> None:
        if prompts is not None:
            check_kind("prompts", prompts, Mapping)
        service = choose_service(model, options)
        if not isinstance(service, NativeEmbeddingService):
            raise InvalidInputError(f"{service.name} runs elsewhere: this door needs a NativeEmbeddingService")
        self.service = service
        modules = read_sentence_modules(service.directory)
        found = {} if modules is None else modules.prompts
        self.prompts: dict[str, str] = {"query": "", "document": ""} | dict(found if prompts is None else prompts)
        stated = None if modules is None else modules.similarity
        self.similarity_fn_name = cast(Similarity, stated or "cosine")
        named = None if modules is None else modules.default_prompt_name
        self.default_prompt_name = named if default_prompt_name is None else default_prompt_name
        if self.default_prompt_name is not None:
            self._prompt(None, self.default_prompt_name)

    @property
    def max_seq_length(self) -> int:
        """Tokens that the model reads of a text; the rest is cut off."""
        return self.service.max_tokens

    def get_embedding_dimension(self) -> int:
        """Return the length of the vectors."""
        return self.service.model_config().dimensions

    get_sentence_embedding_dimension = get_embedding_dimension

    def encode(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
    ) -> Any:
        """Return the vector of a text, or one a text of a sequence.

        Args:
            inputs: a text, or a sequence of any length.
            prompt_name: name of the prompt to put before each text.
            prompt: a prompt itself; it goes before ``prompt_name``.
            batch_size: texts that are computed at once; the vectors do not depend on it.
            show_progress_bar: show one on standard error.
            output_value: ``"sentence_embedding"`` alone.
            precision: ``"float32"`` alone.
            convert_to_numpy: ``False`` gives a list of tensors; needs PyTorch.
            convert_to_tensor: give one tensor; needs PyTorch.
            device: ``None`` or ``"cpu"`` alone.
            normalize_embeddings: scale to length 1 what the model's own files do not.

        Returns:
            float32 array of shape (texts, dim), or (dim,) for one text.

        Raises:
            InvalidInputError: a prompt's name that there is not, or an option that this library does not have.
        """
        for name, value, allowed in (
            ("output_value", output_value, ("sentence_embedding",)),
            ("precision", precision, ("float32", None)),
            ("device", device, (None, "cpu")),
        ):
            if not isinstance(value, str | None) or value not in allowed:
                raise InvalidInputError(f"{name}={value!r:.80} does not exist here; it must be {allowed[0]!r}")
        normalize_embeddings = check_flag("normalize_embeddings", normalize_embeddings)
        check_limit("batch_size", batch_size)
        single = isinstance(inputs, str)
        texts: list[Any] = [inputs] if isinstance(inputs, str) else list(check_iterable(inputs))
        vectors = self._encode(
            texts, self._prompt(prompt, prompt_name), batch_size, show_progress_bar, normalize_embeddings
        )
        if convert_to_tensor or not convert_to_numpy:
            import torch

            tensor = torch.from_numpy(vectors)
            if single:
                return tensor[0]
            return tensor if convert_to_tensor else list(tensor)
        return vectors[0] if single else vectors

    def encode_query(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """Do :meth:`encode` with the model's ``"query"`` prompt, unless another is named."""
        return self.encode(inputs, **self._with_prompt(options, ("query",)))

    def encode_document(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """Do :meth:`encode` with the ``"document"``, ``"passage"`` or ``"corpus"`` prompt, unless another is named."""
        return self.encode(inputs, **self._with_prompt(options, DOCUMENT_PROMPTS))

    def similarity(self, embeddings1: npt.ArrayLike, embeddings2: npt.ArrayLike) -> Float32Array:
        """Return the similarities of all pairs, as an array of shape (n, m); a distance is a similarity with a minus."""
        check_one_space(embeddings1, embeddings2)
        scores = many_vs_many(_rows(embeddings1), _rows(embeddings2), metric=self.similarity_fn_name)
        return -scores if self.similarity_fn_name in DISTANCES else scores

    def similarity_pairwise(self, embeddings1: npt.ArrayLike, embeddings2: npt.ArrayLike) -> Float32Array:
        """Return the similarity of each row with its counterpart, as an array of shape (n,)."""
        check_one_space(embeddings1, embeddings2)
        first, second = _rows(embeddings1), _rows(embeddings2)
        if len(first) != len(second):
            raise InvalidInputError(f"{len(first)} rows cannot be paired with {len(second)} rows one to one")
        pairs = zip(first, second, strict=True)
        return np.array([self.similarity(one, other)[0, 0] for one, other in pairs], np.float32)

    def close(self) -> None:
        """Release the model's memory."""
        self.service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _encode(
        self, texts: Sequence[str], prompt: str, batch_size: int, progress: bool | None, normalize: bool
    ) -> Float32Array:
        if prompt:
            texts = [prompt + text if isinstance(text, str) else text for text in texts]
        batches = self.service.embed_batches(
            texts, role=Role.GENERIC, normalize=normalize or self.service.normalizes, batch_size=batch_size
        )
        if progress and sys.stderr is not None:  # None: a process without a console
            from tqdm import tqdm

            batches = tqdm(batches, total=-(-len(texts) // batch_size), desc="Batches")
        parts = [result.vectors for result in batches]
        return np.concatenate(parts) if parts else np.empty((0, self.get_embedding_dimension()), np.float32)

    def _prompt(self, prompt: str | None, prompt_name: str | None) -> str:
        if prompt is not None:
            return check_word("prompt", prompt)
        name = self.default_prompt_name if prompt_name is None else prompt_name
        if name is None:
            return ""
        if check_word("prompt_name", name) not in self.prompts:
            raise InvalidInputError(f"no prompt is called {name!r}; there are {', '.join(self.prompts)}")
        return self.prompts[name]

    def _with_prompt(self, options: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        if options.get("prompt") is not None or options.get("prompt_name") is not None:
            return options
        return options | {"prompt_name": next((name for name in names if name in self.prompts), None)}


def _rows(embeddings: npt.ArrayLike) -> npt.NDArray[Any]:
    return np.atleast_2d(plain_array(embeddings, "embeddings"))
