"""A class for code that was written for sentence-transformers.

It does not need that library.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, Unpack, get_args

import numpy as np
import numpy.typing as npt

from lattice_embed.argument_checks import check_flag, check_kind, check_list, check_word, shown
from lattice_embed.catalogue import EmbeddingModel, Role
from lattice_embed.encoding_pool import EncodingPool
from lattice_embed.errors import InvalidInputError
from lattice_embed.integrations.sentence_options import (
    MISSING_METHODS,
    check_device,
    check_service_options,
    refuse_options,
)
from lattice_embed.integrations.service_choice import ModelOptions, choose_service
from lattice_embed.integrations.tensors import as_operands, rows_of, tensor_of
from lattice_embed.integrations.token_embeddings import refuse_for_tokens, token_embeddings, with_progress
from lattice_embed.integrations.vector_precision import VECTOR_PRECISIONS, at_precision
from lattice_embed.model_source import default_model
from lattice_embed.native_service import NativeEmbeddingService
from lattice_embed.origin import check_one_space
from lattice_embed.result import Float32Array
from lattice_embed.validation import check_choice, check_iterable, check_limit
from lattice_embed.vectors import many_vs_many
from lattice_embed.vectors import normalize as normalize_rows
from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.encode.cut_side import cut_side, cut_to
from lattice_inference.encode.text_program import gives_token_types
from lattice_inference.models.sentence_modules import read_sentence_modules
from lattice_inference.tokenizer import Tokenizer
from lattice_inference.tokenizer.limits import Side

__all__ = ["Device", "SentenceEncoder"]

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]

DISTANCES = ("euclidean", "manhattan")
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
POOL_PROCESSES = 4
"""Processes of a pool for which no devices are named, as in sentence-transformers on a CPU."""


class Device(str):
    """The name of a device, with the attribute ``type`` of PyTorch's ``torch.device``."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """The kind of device."""
        return str(self)


class SentenceEncoder:
    """Encodes as ``SentenceTransformer`` of sentence-transformers 6 does, on our own kernels.

    Prompts, and whether vectors have length 1 without being asked to, are those of the model's files, as there; the
    catalogue's prompts are not used. What differs: results are NumPy arrays unless tensors are requested or given, no
    texts give (0, dim), and a text's vector is the same bits in any batch. Options and methods that cannot be had here
    are refused by their names; the manual lists them.

    Args:
        model: a name, hub id or directory for :class:`~lattice_embed.NativeEmbeddingService`, or such a service.
        model_name_or_path: the same by its name there.
        device: ``None`` or the CPU.
        prompts: prompts by name, instead of those of the model's files.
        default_prompt_name: the prompt of calls that name none, instead of that of the model's files.
        trust_remote_code: allowed, and without effect: no model's own code is run.
        revision: a branch, tag or commit of the hub's repository.
        local_files_only: never ask the hub.
        token: access token for the hub; ``use_auth_token`` is its earlier name.
        similarity_fn_name: how :meth:`similarity` compares, instead of what the model's files say.
        truncate_dim: give the first so many dimensions of each vector.
        cache_folder: the Hugging Face cache that is searched and downloaded to.
        modules, model_kwargs, processor_kwargs, tokenizer_kwargs, config_kwargs, model_card_data, backend: not
            to be had here: anything but the default is refused.
        **options: of :class:`~lattice_embed.NativeEmbeddingService`.

    Raises:
        InvalidInputError: an option that cannot be had here, ``default_prompt_name`` is none of the prompts, or another
            service than a native one is given.
    """

    def __init__(
        self,
        model: NativeEmbeddingService | EmbeddingModel | str | None = None,
        *,
        model_name_or_path: str | None = None,
        modules: None = None,
        device: str | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        local_files_only: bool = False,
        token: bool | str | None = None,
        use_auth_token: bool | str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        config_kwargs: Mapping[str, Any] | None = None,
        model_card_data: None = None,
        backend: str = "torch",
        similarity_fn_name: Similarity | None = None,
        truncate_dim: int | None = None,
        **options: Unpack[ModelOptions],
    ) -> None:
        if model is not None and model_name_or_path is not None:
            raise InvalidInputError("model and model_name_or_path are two names of one option: pass one")
        refuse_options({"modules": modules, "model_card_data": model_card_data})
        keywords = {
            "model_kwargs": model_kwargs,
            "processor_kwargs": processor_kwargs,
            "tokenizer_kwargs": tokenizer_kwargs,
            "config_kwargs": config_kwargs,
        }
        refuse_options(keywords, (None, {}))
        refuse_options({"backend": backend}, (None, "torch"))
        check_device(device)
        check_flag("trust_remote_code", trust_remote_code)
        if prompts is not None:
            check_kind("prompts", prompts, Mapping)
        check_service_options(options)
        named = model if model is not None else model_name_or_path
        source = _located(named, revision, local_files_only, token, use_auth_token, cache_folder)
        service = choose_service(source, options)
        if not isinstance(service, NativeEmbeddingService):
            raise InvalidInputError(f"{service.name} runs elsewhere: this class needs a NativeEmbeddingService")
        self.service: NativeEmbeddingService = service
        self._owns_service = service is not model
        found = read_sentence_modules(service.directory)
        self._lower_case = found is not None and found.do_lower_case
        self._similarity_of_files = None if found is None else found.similarity
        own = {} if found is None else found.prompts
        self.prompts: dict[str, str] = {"query": "", "document": ""} | dict(own if prompts is None else prompts)
        self.similarity_fn_name = similarity_fn_name
        self.truncate_dim = _dimension_of_files(service) if truncate_dim is None else truncate_dim
        of_files = None if found is None else found.default_prompt_name
        self.default_prompt_name: str | None = of_files if default_prompt_name is None else default_prompt_name
        if self.default_prompt_name is not None:
            self._prompt(None, self.default_prompt_name)

    # What the model is

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a text; the rest is cut off.

        When a smaller number is set, the model is loaded again.
        """
        return self.service.max_tokens

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        model, options = self.service.recipe()
        service = NativeEmbeddingService(model, **{**options, "max_tokens": value}).load()
        if self._owns_service:
            self.service.close()
        self.service, self._owns_service = service, True

    def get_max_seq_length(self) -> int:
        """Return :attr:`max_seq_length`."""
        return self.max_seq_length

    @property
    def similarity_fn_name(self) -> Similarity:
        """How :meth:`similarity` compares.

        None takes what the model's files say, else ``"cosine"``.
        """
        return self._similarity

    @similarity_fn_name.setter
    def similarity_fn_name(self, value: Any) -> None:
        value = getattr(value, "value", value)  # of an enumeration
        if value is None:
            value = self._similarity_of_files or "cosine"
        check_choice("similarity_fn_name", value, get_args(Similarity))
        self._similarity: Similarity = value

    @property
    def truncate_dim(self) -> int | None:
        """How many dimensions of each vector are given; None for all."""
        return self._truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, value: int | None) -> None:
        self._truncate_dim = None if value is None else check_limit("truncate_dim", value)

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Give the first ``truncate_dim`` dimensions while the ``with`` block runs."""
        before, self.truncate_dim = self.truncate_dim, truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    truncate_sentence_embeddings = truncate_embeddings

    def get_embedding_dimension(self) -> int:
        """Return the length of the vectors."""
        dimensions = self.service.model_config().dimensions
        return dimensions if self.truncate_dim is None else min(dimensions, self.truncate_dim)

    get_sentence_embedding_dimension = get_embedding_dimension

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, our own class: ``encode(text).ids``."""
        return self.service.tokenizer

    @cached_property
    def _cut_side(self) -> Side:
        return cut_side(self.service.directory, self.tokenizer)

    @cached_property
    def _gives_token_types(self) -> bool:
        return gives_token_types(self.service.directory)

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None) -> dict[str, npt.NDArray[np.int64]]:
        """Return the tokens that the model reads of each text, padded on the right to the longest.

        Returns:
            ``input_ids`` and ``attention_mask``, int64 arrays of shape (texts, tokens), and ``token_type_ids`` where the
            model's tokenizer gives them.

        Raises:
            InvalidInputError: ``inputs`` is no list of texts.
        """
        texts = [check_word("a text", text) for text in check_iterable(inputs)]
        texts = [check_word("prompt", prompt or "") + text for text in texts]
        if self._lower_case:
            texts = ["".join(map(str.lower, text)) for text in texts]
        packed = self.tokenizer.encode_packed(texts, max_tokens=cut_to(self.max_seq_length, self._cut_side))
        lengths = np.diff(packed.cu_seqlens)
        mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
        padding = self.tokenizer.definition.padding
        filler = 0 if padding is None else padding.id
        tokens = {"input_ids": np.full(mask.shape, filler, np.int64)}
        tokens["input_ids"][mask] = packed.token_ids
        if self._gives_token_types:
            tokens["token_type_ids"] = np.zeros(mask.shape, np.int64)
            tokens["token_type_ids"][mask] = packed.type_ids
        return tokens | {"attention_mask": mask.astype(np.int64)}

    def tokenize(self, texts: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
        """Do :meth:`preprocess`, by its earlier name."""
        return self.preprocess(texts)

    @property
    def device(self) -> Device:
        """``"cpu"``, a str with PyTorch's attribute ``type``."""
        return Device("cpu")

    def to(self, device: str | None = None) -> Self:
        """Return this encoder.

        Raises:
            InvalidInputError: ``device`` is not the CPU.
        """
        check_device(device)
        return self

    def cpu(self) -> Self:
        """Return this encoder."""
        return self

    def eval(self) -> Self:
        """Return this encoder: it is never trained."""
        return self

    def train(self, mode: bool = True) -> Self:
        """Return this encoder if ``mode`` is False.

        Raises:
            InvalidInputError: ``mode`` is True.
        """
        if check_flag("mode", mode):
            raise InvalidInputError("train(True) does not exist here: nothing is trained")
        return self

    # Encoding

    def encode(
        self,
        inputs: str | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | list[str] | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: EncodingPool | None = None,
        chunk_size: int | None = None,
        *,
        sentences: str | Sequence[str] | None = None,
        task: str | None = None,
        processing_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Return the vector of a text, or one a text of a sequence.

        Args:
            inputs: a text, or a sequence of any length.
            prompt_name: name of the prompt to put before each text.
            prompt: a prompt itself; it goes before ``prompt_name``.
            batch_size: texts that are computed at once; the vectors do not depend on it.
            show_progress_bar: show one on standard error.
            output_value: ``"token_embeddings"`` gives an array (tokens, width) for each text: the model's last states, of
                special tokens, too. As there, they are neither cut nor scaled. They have no ``pool`` and no ``precision``.
            precision: ``"float32"``, or integers as sentence-transformers makes them: ``"int8"`` and ``"uint8"`` from the
                range of each dimension in this call, ``"binary"`` and ``"ubinary"`` from the signs.
            convert_to_numpy: ``False`` gives a list of tensors; needs PyTorch.
            convert_to_tensor: give one tensor; needs PyTorch.
            device: ``None`` or the CPU; a list of n CPUs starts n processes for this call.
            normalize_embeddings: scale to length 1 what the model's own files do not, after ``truncate_dim``.
            truncate_dim: give the first so many dimensions; by default those of the encoder.
            pool: processes that share the texts out, of :meth:`start_multi_process_pool`.
            chunk_size: texts that a process of the pool gets at once.
            sentences: ``inputs`` by its earlier name.
            task: allowed, and without effect: models that route by task cannot be run.
            processing_kwargs: not to be had here.

        Returns:
            float32 array of shape (texts, dim), or (dim,) for one text.

        Raises:
            InvalidInputError: a prompt's name that there is not, or an option that cannot be had here.
        """
        if options:
            raise InvalidInputError(f"encode has no option {', '.join(options)}: leave it out")
        if (inputs is None) == (sentences is None):
            raise InvalidInputError("pass a text or a list of texts as inputs, or by its earlier name sentences")
        refuse_options({"output_value": output_value}, ("sentence_embedding", "token_embeddings"))
        refuse_options({"processing_kwargs": processing_kwargs}, (None, {}))
        precision = "float32" if precision is None else precision
        check_choice("precision", precision, VECTOR_PRECISIONS)
        normalize_embeddings = check_flag("normalize_embeddings", normalize_embeddings)
        check_limit("batch_size", batch_size)
        for name, value in (("truncate_dim", truncate_dim), ("chunk_size", chunk_size)):
            if value is not None:
                check_limit(name, value)
        dimensions = self.truncate_dim if truncate_dim is None else truncate_dim
        given = sentences if inputs is None else inputs
        single = isinstance(given, str)
        texts: list[Any] = [given] if isinstance(given, str) else list(check_iterable(given))
        prefix = self._prompt(prompt, prompt_name)
        if prefix:
            texts = [prefix + text if isinstance(text, str) else text for text in texts]
        as_tensors = convert_to_tensor or not convert_to_numpy
        if output_value == "token_embeddings":
            refuse_for_tokens(precision, pool, device)
            check_device(device)
            tokens = token_embeddings(self.service, texts, batch_size, show_progress_bar)
            arrays = list(map(tensor_of, tokens)) if as_tensors else tokens
            return arrays[0] if single else arrays
        cuts = dimensions is not None and dimensions < self.service.model_config().dimensions
        normalize = (normalize_embeddings and not cuts) or self.service.normalizes
        with self._pool(pool, device) as processes:
            vectors = self._vectors(texts, normalize, batch_size, show_progress_bar, processes, chunk_size)
        if cuts:
            vectors = np.ascontiguousarray(vectors[:, :dimensions])
            if normalize_embeddings:
                normalize_rows(vectors, out=vectors)
        made = at_precision(vectors, precision)  # type: ignore[arg-type]  # it was checked
        if as_tensors:
            tensor = tensor_of(made)
            if single:
                return tensor[0]
            return tensor if convert_to_tensor else list(tensor)
        return made[0] if single else made

    def encode_query(
        self,
        inputs: str | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        """Do :meth:`encode` with the model's ``"query"`` prompt, unless another is named."""
        return self.encode(inputs, self._prompt_name(prompt, prompt_name, ("query",)), prompt, *arguments, **options)

    def encode_document(
        self,
        inputs: str | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        """Do :meth:`encode` for documents.

        The prompt is ``"document"``, ``"passage"`` or ``"corpus"`` unless another is named.
        """
        name = self._prompt_name(prompt, prompt_name, DOCUMENT_PROMPTS)
        return self.encode(inputs, name, prompt, *arguments, **options)

    def start_multi_process_pool(self, target_devices: list[str] | None = None) -> EncodingPool:
        """Start a process for each device of the list; four without a list.

        The list may name CPUs only.
        """
        devices = ["cpu"] * POOL_PROCESSES if target_devices is None else check_list("target_devices", target_devices)
        for device in devices:
            check_device(device, or_none=False)
        return EncodingPool(self.service, len(devices))

    @staticmethod
    def stop_multi_process_pool(pool: EncodingPool) -> None:
        """End the processes of a pool."""
        check_kind("pool", pool, EncodingPool)
        pool.close()

    def encode_multi_process(
        self,
        sentences: Sequence[str],
        pool: EncodingPool,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        chunk_size: int | None = None,
        **options: Any,
    ) -> Any:
        """Do :meth:`encode` with a pool, by its earlier name."""
        check_kind("pool", pool, EncodingPool)
        return self.encode(sentences, prompt_name, prompt, batch_size, pool=pool, chunk_size=chunk_size, **options)

    # Comparing

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarities of all pairs, (n, m); a distance counts as its negative.

        Returns:
            float32 array, or a tensor if one of the operands is a tensor or a list of tensors.
        """
        check_one_space(embeddings1, embeddings2)
        scores = self._scores(rows_of(embeddings1), rows_of(embeddings2))
        return as_operands(scores, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarity of each row with its counterpart, (n,).

        Arrays or tensors, as :meth:`similarity`.
        """
        check_one_space(embeddings1, embeddings2)
        first, second = rows_of(embeddings1), rows_of(embeddings2)
        if len(first) != len(second):
            raise InvalidInputError(f"{len(first)} rows cannot be paired with {len(second)} rows one to one")
        pairs = zip(first, second, strict=True)
        scores = np.array([self._scores(one[None], other[None])[0, 0] for one, other in pairs], np.float32)
        return as_operands(scores, embeddings1, embeddings2)

    # Closing

    def close(self) -> None:
        """Release the model's memory."""
        self.service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getattr__(self, name: str) -> NoReturn:
        reason = MISSING_METHODS.get(name)
        raise AttributeError(f"SentenceEncoder has no {name}" + (f": {reason}" if reason else ""), name=name, obj=self)

    def _vectors(
        self,
        texts: list[Any],
        normalize: bool,
        batch_size: int,
        progress: bool | None,
        pool: EncodingPool | None,
        chunk_size: int | None,
    ) -> Float32Array:
        parts: Iterator[Float32Array]
        if pool is None:
            results = self.service.embed_batches(texts, role=Role.GENERIC, normalize=normalize, batch_size=batch_size)
            parts, size, unit = (result.vectors for result in results), batch_size, "Batches"
        else:
            size, unit = pool.chunk_size(len(texts), chunk_size), "Chunks"
            parts = pool.embed_chunks(texts, normalize=normalize, batch_size=batch_size, chunk_size=size)
        arrays = list(with_progress(parts, -(-len(texts) // size), unit, progress))
        if arrays:
            return np.concatenate(arrays)
        return np.empty((0, self.service.model_config().dimensions), np.float32)

    @contextmanager
    def _pool(self, pool: EncodingPool | None, device: Any) -> Iterator[EncodingPool | None]:
        """The caller's pool, or one for this call if devices are listed."""
        if pool is not None:
            check_kind("pool", pool, EncodingPool)
            yield pool
        elif isinstance(device, list) and device:
            with self.start_multi_process_pool(device) as started:
                yield started
        else:
            check_device(None if isinstance(device, list) else device)
            yield None

    def _scores(self, first: npt.NDArray[Any], second: npt.NDArray[Any]) -> Float32Array:
        scores = many_vs_many(first, second, metric=self.similarity_fn_name)
        return -scores if self.similarity_fn_name in DISTANCES else scores

    def _prompt(self, prompt: str | None, prompt_name: str | None) -> str:
        if prompt is not None:
            return check_word("prompt", prompt)
        name = self.default_prompt_name if prompt_name is None else prompt_name
        if name is None:
            return ""
        if check_word("prompt_name", name) not in self.prompts:
            raise InvalidInputError(f"no prompt is called {name!r}; there are {', '.join(self.prompts)}")
        return self.prompts[name]

    def _prompt_name(self, prompt: str | None, prompt_name: str | None, names: tuple[str, ...]) -> str | None:
        if prompt is not None or prompt_name is not None:
            return prompt_name
        return next((name for name in names if name in self.prompts), None)


def _located(
    model: Any, revision: str | None, local_files_only: bool, token: Any, use_auth_token: Any, cache_folder: Any
) -> Any:
    """Return the model's name, or the folder of its files if the caller gives hub options."""
    if token is not None and use_auth_token is not None:
        raise InvalidInputError("token and use_auth_token are two names of one option: pass token")
    token = use_auth_token if token is None else token
    if not (token is None or token is True or (isinstance(token, str) and token)):
        raise InvalidInputError("token must be a str, True or None: huggingface_hub decides whether a token is sent")
    offline = check_flag("local_files_only", local_files_only)
    if revision is None and not offline and not isinstance(token, str) and cache_folder is None:
        return model
    named = default_model() if model is None else model
    if isinstance(named, EmbeddingModel):
        named = named.model_id
    if not isinstance(named, str | os.PathLike):
        raise InvalidInputError(
            f"revision, local_files_only, token and cache_folder need a model's name, not {shown(model)}"
        )
    from lattice_inference import find_model

    text = token if isinstance(token, str) else None
    found = find_model(
        named, revision=revision, offline=True if offline else None, token=text, cache_folder=cache_folder
    )
    return model if revision is None and cache_folder is None else str(found.directory)


def _dimension_of_files(service: NativeEmbeddingService) -> int | None:
    """Return ``truncate_dim`` of the model's files."""
    path = service.directory / "config_sentence_transformers.json"
    value = load_json_object(path).get("truncate_dim") if path.is_file() else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
