"""The service that runs models in this process, on lattice_inference."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from lattice_embed.argument_checks import check_flag
from lattice_embed.catalogue import EmbeddingModel, ModelDescription, Role
from lattice_embed.errors import (
    InvalidInputError,
    InvalidModelConfigError,
    LatticeEmbedError,
    ModelConfigError,
    NonFiniteVectorError,
    TextTooLongError,
    UnsupportedModelError,
    WrongModelError,
)
from lattice_embed.lazy_model import LazyModel
from lattice_embed.model_config import ModelConfig
from lattice_embed.model_source import default_model, resolve_model
from lattice_embed.opened_encoder import OpenedEncoder
from lattice_embed.origin import DeferredProvenance
from lattice_embed.provenance import VectorProvenance
from lattice_embed.result import EmbeddingResult, Float32Array
from lattice_embed.service import DEFAULT_STREAM_BATCH, EmbeddingService, ModelName
from lattice_embed.validation import (
    DEFAULT_MAX_BATCH_SIZE,
    DEFAULT_MAX_TEXT_CHARS,
    Limits,
    check_choice,
    check_iterable,
    check_limit,
    check_role,
    check_text,
    check_threads,
)
from lattice_embed.vectors import normalize as normalize_rows
from lattice_inference import errors as inference_errors
from lattice_inference.cancellation import in_thread
from lattice_inference.device_name import DeviceName
from lattice_inference.precision import Precision

if TYPE_CHECKING:
    from lattice_inference import Encoder, VectorCache
    from lattice_inference.tokenizer import Tokenizer

__all__ = ["NativeEmbeddingService", "missing_feature"]

Truncate = Literal["right", "error"]

DIMENSION_VARIABLE = "LATTICE_EMBED_DIM"
"""Environment variable that sets the output dimension of models that allow one, where the caller passes none."""

LEAST_TOKENS = 3
"""The lowest limit of tokens: the two special ones and one between them."""

# The catalogue's names of tokenizers, and those of a tokenizer.json.
_TOKENIZER_MODELS = {"wordpiece": "WordPiece", "unigram": "Unigram", "bpe": "BPE"}


def missing_feature(description: ModelDescription) -> str | None:
    """Return why this version cannot run the model in this process, or ``None`` if it can.

    It is lattice_inference that is asked, so that a model is refused before a file of it is looked for or downloaded.
    """
    from lattice_inference.capabilities import runs_model_type, runs_tokenizer_model

    if description.is_remote:
        return "it runs at its provider (RemoteEmbeddingService asks it) and has no weights to load"
    if description.architecture and not runs_model_type(description.architecture):
        return f"its architecture ({description.architecture}) is not built in this version"
    tokenizer = _TOKENIZER_MODELS.get(description.tokenizer, description.tokenizer)
    if tokenizer and not runs_tokenizer_model(tokenizer):
        return f"its kind of tokenizer ({description.tokenizer}) is not built in this version"
    return None


class NativeEmbeddingService(LazyModel["OpenedEncoder"], EmbeddingService):
    """Embeds texts with one model, in this process.

    The model is loaded once, on first use, from any thread. After a failed load the next call tries again. All
    methods may be called from several threads at once. Pickling keeps the model's name and the options, not the
    weights: the copy loads for itself.

    Args:
        model: a catalogue member, slug, alias, hub id, directory or GGUF file, or the description of a model of yours (see
            :func:`~lattice_embed.add_model`). ``None`` takes ``LATTICE_EMBED_MODEL``, else
            BGE-small.
        output_dim: shorter vectors, for models trained for that; ``None`` takes ``LATTICE_EMBED_DIM`` for such a model,
            else the model's own length.
        precision: what weights are kept in: ``"float32"``, or ``"bfloat16"`` or ``"float16"``, which take half the memory
            and move vectors a little (float16 less than bfloat16), or ``"int8"``, which multiplies integers: the fastest and
            smallest (cosine to float32 about 0.998). ``"stored"`` keeps what the file has, quantized weights included.
        threads: most threads that a call may use of the pool that the whole process shares; ``None`` for all of them.
        truncate: what happens to a text over the model's token limit: ``"right"`` cuts its end and says so in the
            result, ``"error"`` raises :class:`TextTooLongError`.
        max_batch_size: most texts in one call of :meth:`embed`.
        max_text_chars: most characters (code points) in one text, its prompt not counted.
        max_tokens: a lower limit of tokens a text than the model's, special tokens included.
        adapter: a LoRA adapter that all texts are embedded with: a directory of PEFT's or mlx-lm's, or a GGUF adapter. Its
            content is part of the provenance, so vectors with it and without are not mixed in a cache or a store.
        cache: keep vectors on disk, for this and later processes: a ``lattice_inference.VectorCache``, a folder, or True
            for the default folder. (:class:`CachedEmbeddingService` keeps them in memory; it may be put around this.)
        special_tokens_in_text: let special tokens that a text spells out, such as ``[SEP]``, become those tokens, as Hugging
            Face's library does; with False they are text like any other. Vectors of both kinds are not mixed in a cache or
            a store.
        device: ``"cpu"``, ``"wgpu"`` (a GPU by Vulkan, with the extra ``lattice-inference[wgpu]``), ``"metal"`` (an Apple
            GPU), or ``"auto"``: a GPU if one can be used, else the CPU. Vectors of all devices may be compared.

    Raises:
        UnknownModelError: no model of that name.
        UnsupportedModelError: a remote model.
        ModelConfigError: ``output_dim`` is not possible for the model.
        InvalidInputError: another argument is wrong.

    >>> from lattice_embed import NativeEmbeddingService
    >>> with NativeEmbeddingService("all-minilm-l6-v2") as service:
    ...     result = service.embed(["A cat sleeps.", "A kitten naps."])
    >>> result.vectors.shape, result.token_counts.tolist()
    ((2, 384), [6, 7])
    >>> f"{result[0] @ result[1]:.2f}"
    '0.71'
    """

    _renewal = "make a new service"
    _gives_arrays_away = True

    def __init__(
        self,
        model: EmbeddingModel | ModelDescription | str | os.PathLike[str] | None = None,
        *,
        output_dim: int | None = None,
        precision: Precision = "float32",
        threads: int | None = None,
        truncate: Truncate = "right",
        max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
        max_text_chars: int = DEFAULT_MAX_TEXT_CHARS,
        cache: VectorCache | str | os.PathLike[str] | bool | None = None,
        special_tokens_in_text: bool = True,
        max_tokens: int | None = None,
        adapter: str | os.PathLike[str] | None = None,
        device: DeviceName = "cpu",
    ) -> None:
        check_choice("precision", precision, get_args(Precision))
        check_choice("device", device, get_args(DeviceName))
        check_choice("truncate", truncate, get_args(Truncate))
        self._source = resolve_model(default_model() if model is None else model)
        self._output_dim = self._check_output_dim(output_dim)
        self._precision: Precision = precision
        self._device: DeviceName = device
        self._threads = None if threads is None else check_threads(threads)
        self._truncate: Truncate = truncate
        self._limits = Limits(max_batch_size, max_text_chars)
        self._cache = check_cache(cache)
        self._special_tokens_in_text = check_flag("special_tokens_in_text", special_tokens_in_text)
        self._max_tokens = None if max_tokens is None else check_limit("max_tokens", max_tokens, lowest=LEAST_TOKENS)
        self._adapter = None if adapter is None else _absolute_path("adapter", adapter)
        self._last_provenance: tuple[OpenedEncoder | None, Role, bool, VectorProvenance] | None = None
        super().__init__()

    def _check_output_dim(self, output_dim: int | None) -> int | None:
        member = self._source.description
        if member is None:
            if output_dim is not None:
                raise InvalidModelConfigError(
                    f"output_dim={output_dim} for {self._source.name}: only models that are known to be trained for "
                    "shorter vectors take an output_dim (see add_model)"
                )
            return None
        if member.is_remote:
            raise UnsupportedModelError(f"{member.slug} cannot be run here: {missing_feature(member)}")
        if output_dim is None and member.supports_output_dim:
            output_dim = _dimension_from_environment()
        return ModelConfig(member, output_dim).output_dim

    # What the service is

    @property
    def name(self) -> str:
        """``"native:"`` and the model's name."""
        return f"native:{self._source.name}"

    @property
    def precision(self) -> Precision:
        """What weights are kept in."""
        return self._precision

    @property
    def normalizes(self) -> bool:
        """Whether the model's own files say that its vectors have length 1. Loads the model."""
        return self._load().encoder.normalize

    @property
    def directory(self) -> Path:
        """Where the model's files are. Loads the model."""
        return self._load().encoder.directory

    @property
    def max_tokens(self) -> int:
        """Tokens that the model reads of a text, special tokens included. Loads the model."""
        return self._load().max_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Loads the model."""
        return self._load().encoder.tokenizer

    def model_config(self, model: ModelName | None = None) -> ModelConfig:
        """Return the service's model and the dimension of its vectors. A directory is loaded for it.

        Raises:
            WrongModelError: ``model`` is not the service's.
        """
        self._check_model(model)
        if self._source.known is not None:
            return ModelConfig(self._source.known, self._output_dim)
        return self._load().config

    def supports_model(self, model: ModelName) -> bool:
        """Return whether ``model`` names the model that this service holds."""
        try:
            self._check_model(model)
        except LatticeEmbedError:
            return False
        return True

    def __repr__(self) -> str:
        return f"NativeEmbeddingService({self._source.name!r}, {self._state()})"

    # Loading and closing

    async def aload(self) -> Self:
        """Do :meth:`load` in a worker thread.

        If the waiter is cancelled the load still finishes: other calls may need it.
        """
        return await in_thread(self.load)

    def recipe(self) -> tuple[EmbeddingModel | ModelDescription | str, Mapping[str, Any]]:
        """Return the model and the keyword options of an equal service.

        All are plain values that can be stored.
        """
        return self._recipe()

    def _recipe(self) -> tuple[EmbeddingModel | ModelDescription | str, Mapping[str, Any]]:
        options = {
            "output_dim": self._output_dim,
            "precision": self._precision,
            "threads": self._threads,
            "truncate": self._truncate,
            **self._limits.options(),
            "cache": self._cache,
            "special_tokens_in_text": self._special_tokens_in_text,
        }
        if self._max_tokens is not None:
            options["max_tokens"] = self._max_tokens
        if self._adapter is not None:
            options["adapter"] = self._adapter
        if self._device != "cpu":
            options["device"] = self._device
        return self._source.known or self._source.location, options

    def _open(self) -> OpenedEncoder:
        import lattice_inference

        known, member = self._source.known, self._source.description
        if member is not None and (reason := missing_feature(member)) is not None:
            raise UnsupportedModelError(f"{member.slug} cannot be run here: {reason}")
        plain: dict[str, Any] = {} if self._special_tokens_in_text else {"special_tokens_in_text": False}
        if self._device != "cpu":
            plain["device"] = self._device
        load = partial(
            lattice_inference.load_encoder,
            self._source.location,
            precision=self._precision,
            threads=self._threads,
            cache=self._cache,
            **plain,
        )
        try:
            encoder = load() if member is None else _load_member(load, member)
        except inference_errors.UnsupportedError as error:
            raise UnsupportedModelError(f"{self._source.name} cannot be run here: {error}") from error
        except inference_errors.ModelNotFoundError as error:
            if self._source.model is None:
                raise
            from lattice_embed.installed_models import what_to_do_instead

            raise inference_errors.ModelNotFoundError(f"{error}\n{what_to_do_instead(self._source.model)}") from error
        if known is not None and member is not None:
            if encoder.dimension != member.native_dimensions:
                encoder.close()
                raise ModelConfigError(
                    f"{encoder.directory} gives vectors of {encoder.dimension} dimensions, {member.slug} has "
                    f"{member.native_dimensions}: these are another model's files"
                )
            config = ModelConfig(known, self._output_dim)
            prompts = {role: member.prompt(role) for role in Role}
            return self._opened(encoder, config, prompts)
        own = encoder.prompts
        description = ModelDescription(
            slug=self._source.name,
            model_id=self._source.location,
            native_dimensions=encoder.dimension,
            max_tokens=encoder.max_tokens,
            pooling=encoder.pooling,
            query_prompt=own.get("query", ""),
            passage_prompt=own.get("passage", own.get("document", "")),
        )
        prompts = {role: description.prompt(role) for role in Role}
        return self._opened(encoder, ModelConfig(description), prompts)

    def _opened(self, encoder: Encoder, config: ModelConfig, prompts: Mapping[Role, str]) -> OpenedEncoder:
        """Return what is open, with the caller's limit and adapter; close it if it cannot have them."""
        limit, adapter = self._limit_of(encoder), None
        if self._adapter is not None:
            try:
                adapter = encoder.load_adapter(self._adapter).name
            except inference_errors.UnsupportedError as error:
                encoder.close()
                raise UnsupportedModelError(f"{self._source.name} cannot be run here: {error}") from error
            except BaseException:
                encoder.close()
                raise
        return OpenedEncoder(encoder, config, prompts, self._precision, limit, adapter)

    def _limit_of(self, encoder: Encoder) -> int | None:
        """Return the caller's token limit, or None if it changes nothing.

        Closes the model if the model cannot keep the limit.
        """
        if self._max_tokens is None or self._max_tokens == encoder.max_tokens:
            return None
        if not self._max_tokens <= encoder.max_tokens:
            encoder.close()
            raise InvalidInputError(
                f"max_tokens is {self._max_tokens:,} and {self._source.name} takes {encoder.max_tokens:,} tokens: "
                "pass at most that, or leave the option out"
            )
        return self._max_tokens

    # Embedding

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
            texts: 1 to ``max_batch_size`` texts of at most ``max_text_chars`` characters. An empty or blank text is a
                text like any other: its vector is that of the special tokens alone.
            model: the model that the caller expects; an error if it is not this service's.
            role: what the texts are for; decides the prompt that is put before each.
            normalize: scale the vectors to length 1.

        Returns:
            Vectors in the order of the texts. The bits of a text's vector do not depend on the other texts of the call.

        Raises:
            EmptyInputError, TooManyTextsError, InvalidTextError, TextTooLongError, WrongModelError: the input.
            ModelNotFoundError, CheckpointError, UnsupportedModelError: the model, at the first call.
            NonFiniteVectorError: the model gave NaN or infinity.
        """
        checked = self._limits.texts(texts)
        role = check_role(role)
        normalize = check_flag("normalize", normalize)
        self._check_model(model)
        loaded = self._load()
        prompt = loaded.prompts[role]
        shortened = loaded.config.output_dim
        if shortened == loaded.encoder.dimension:
            shortened = None  # the model's own length by another name
        try:
            lower: dict[str, Any] = {} if loaded.limit is None else {"max_tokens": loaded.limit}
            if loaded.adapter is not None:
                lower["adapter"] = loaded.adapter
            encoded = loaded.encoder.encode(
                checked, prompt=prompt, normalize=normalize and shortened is None, truncate=self._truncate, **lower
            )
        except inference_errors.TextTooLongError as error:
            raise self._too_many_tokens(loaded, checked, prompt) from error
        except inference_errors.NonFiniteError as error:
            raise NonFiniteVectorError(index=min(error.rows, default=0), model=self._source.name) from error
        vectors = encoded.vectors
        if shortened is not None:
            vectors = np.ascontiguousarray(vectors[:, :shortened])
            if normalize:
                normalize_rows(vectors, out=vectors)
        return EmbeddingResult(
            vectors,
            token_counts=encoded.token_counts,
            truncated=encoded.truncated,
            provenance=DeferredProvenance(loaded.provenance, prompt, normalize),
            model=self._source.name,
            role=role,
            prompt=prompt,
        )

    def embed_parallel(
        self,
        texts: Iterable[str],
        *,
        processes: int,
        role: Role = Role.GENERIC,
        normalize: bool = True,
        chunk_size: int | None = None,
    ) -> Float32Array:
        """Do :meth:`encode` with several processes: for large lists on machines of many processors.

        Each process loads the model and takes its part of the threads. The processes end with the call. A script needs
        ``if __name__ == "__main__":`` around what it does, since the processes import it. Vectors are the same bits.

        Args:
            texts: any number of texts.
            processes: how many; 1 does the work in this process.
            role, normalize: as in :meth:`embed`.
            chunk_size: texts that a process gets at once; by default ten chunks a process, of at most 5,000 texts.

        Returns:
            float32 array of shape (n, dim), in the order of the texts.

        Raises:
            InvalidTextError: a text that cannot be embedded, by its position in ``texts``.
            InvalidInputError: ``processes`` or ``chunk_size`` is not at least 1.
            LatticeEmbedError: a process died.
        """
        from lattice_embed.encoding_pool import EncodingPool, chunk_size_of

        role, normalize = check_role(role), check_flag("normalize", normalize)
        if self._closed:
            self._load()  # raises
        given: list[Any] = list(check_iterable(texts))
        size = chunk_size_of(len(given), check_limit("processes", processes), chunk_size)
        workers = min(processes, math.ceil(len(given) / size))
        if workers <= 1:
            return self.encode(given, role=role, normalize=normalize)
        with EncodingPool(self, workers) as pool:
            chunks = pool.embed_chunks(
                given, role=role, normalize=normalize, batch_size=DEFAULT_STREAM_BATCH, chunk_size=size
            )
            return np.concatenate(list(chunks))

    def provenance(
        self, model: ModelName | None = None, *, role: Role = Role.GENERIC, normalize: bool = True
    ) -> VectorProvenance:
        """Return all that the bits of such a call's vectors depend on besides the text.

        Loads the model.

        Raises:
            WrongModelError: ``model`` is not the service's.
            ModelNotFoundError, CheckpointError, UnsupportedModelError: the model cannot be loaded.
        """
        last = self._last_provenance
        if last is not None and model is None and last[0] is self._loaded and last[1] is role and last[2] is normalize:
            return last[3]  # a cache asks at every call
        self._check_model(model)
        loaded = self._load()
        normalize = check_flag("normalize", normalize)
        provenance = loaded.provenance(loaded.prompts[check_role(role)], normalize)
        if self._loaded is loaded:
            self._last_provenance = loaded, role, normalize, provenance
        return provenance

    def count_tokens(self, texts: Sequence[str], *, role: Role = Role.GENERIC) -> npt.NDArray[np.int32]:
        """Count the tokens of each text, prompt and special tokens included, before truncation.

        Returns:
            int32 array of shape (n,).

        Raises:
            EmptyInputError, TooManyTextsError, InvalidTextError, TextTooLongError: the input.
        """
        checked = self._limits.texts(texts)
        loaded = self._load()
        counts: npt.NDArray[np.int32] = loaded.encoder.count_tokens(checked, prompt=loaded.prompts[check_role(role)])
        return counts

    def token_offsets(self, text: str) -> npt.NDArray[np.int32]:
        """Return where the model's tokens lie in a text of any length: what chunking cuts by.

        Returns:
            int32 array of shape (n, 2): the characters ``text[start:end]`` of each token; no prompt, no special tokens.

        Raises:
            InvalidTextError: not a str, or it holds a lone surrogate.
        """
        return self._load().encoder.token_offsets(check_text(text, 0, max_chars=sys.maxsize))

    def token_room(self, *, role: Role = Role.GENERIC) -> int:
        """Return how many tokens of a text fit beside the role's prompt and the special tokens."""
        loaded = self._load()
        taken = loaded.encoder.count_tokens([""], prompt=loaded.prompts[check_role(role)])
        return loaded.max_tokens - int(taken[0])

    def _too_many_tokens(self, loaded: OpenedEncoder, texts: list[str], prompt: str) -> TextTooLongError:
        """Name the first text over the token limit. Counting again is paid by the error only."""
        counts = loaded.encoder.count_tokens(texts, prompt=prompt)
        limit = loaded.max_tokens
        index = int(np.argmax(counts > limit))
        return TextTooLongError(index=index, length=int(counts[index]), limit=limit, unit="tokens")

    def _check_model(self, model: ModelName | os.PathLike[str] | None) -> None:
        if model is None or model is self._source.model:
            return
        asked = resolve_model(model)
        if asked.location != self._source.location:
            raise WrongModelError(expected=self._source.name, actual=asked.name)


def _load_member(load: Callable[..., Encoder], member: ModelDescription) -> Encoder:
    """Load a described model.

    Its facts count where the files do not say the same themselves.

    Raises:
        LatticeError: as ``lattice_inference.load_encoder``.
    """
    try:
        return load(pooling=member.pooling, normalize=True, max_tokens=member.max_tokens)
    except inference_errors.InvalidInputError as refused:
        try:
            return load()  # files with a modules.json say it all, and options beside them are refused
        except inference_errors.InvalidInputError:
            raise refused from None


def check_cache(
    cache: VectorCache | str | os.PathLike[str] | bool | None,
) -> VectorCache | str | Literal[True] | None:
    """Return a disk cache as an encoder takes it.

    That is None, an absolute path of a folder, True, or the object.

    Raises:
        InvalidInputError: it is none of these.
    """
    if cache is None or cache is False:
        return None
    if isinstance(cache, (str, os.PathLike)) and os.fspath(cache):
        return os.path.abspath(os.path.expanduser(os.fspath(cache)))
    if cache is not True:
        from lattice_inference import VectorCache

        if not isinstance(cache, VectorCache):
            raise InvalidInputError(f"cache is {cache!r}; pass a VectorCache, a folder, or True for the default folder")
    return cache


def _absolute_path(name: str, path: object) -> str:
    """Return an argument that is a path as one that survives a change of the working directory."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(text := os.fspath(path), str) or not text:
        raise InvalidInputError(f"{name} is {path!r:.80}; pass a path, or None")
    return os.path.abspath(os.path.expanduser(text))


def _dimension_from_environment() -> int | None:
    value = os.environ.get(DIMENSION_VARIABLE, "").strip()
    if not value:
        return None
    try:
        return int(value)
    except ValueError:
        raise InvalidModelConfigError(
            f"{DIMENSION_VARIABLE} is {value!r}: set a number of dimensions, or leave it empty"
        ) from None
