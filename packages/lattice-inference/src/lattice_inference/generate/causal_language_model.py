"""A causal language model: from token ids to next-token logits, with a key-value cache."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from lattice_inference.argument_checks import check_choice, check_count, checked_flag
from lattice_inference.backends.opening import BackendName, DeviceName, check_backend, default_activations
from lattice_inference.calibration import Calibration, check_calibration
from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.checkpoint.read_once import reading_once
from lattice_inference.errors import CacheFullError, InvalidInputError, TextTooLongError, UnsupportedError
from lattice_inference.files.fingerprint import ModelSnapshot
from lattice_inference.files.hub import ModelFiles, find_model
from lattice_inference.generate.decoder_program import DecoderProgram
from lattice_inference.graph.program import Program
from lattice_inference.loaded_model import LoadedModel
from lattice_inference.models.adapter_sites import AdapterBase
from lattice_inference.models.config_fields import token_ids_of
from lattice_inference.models.family import LOGITS, CausalConfig
from lattice_inference.models.opened_model import OpenedModel, open_model
from lattice_inference.precision import Activations, Precision, check_precision
from lattice_inference.state import CachedSequence, KvCache
from lattice_inference.state.recurrent_slots import slots_for
from lattice_inference.thread_count import check_thread_count
from lattice_inference.token_ids import checked_token_ids
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    from lattice_inference.backends.protocol import WeightSize
    from lattice_inference.tokenizer import Tokenizer
    from lattice_inference.tokenizer.chat_template import ChatTemplate

__all__ = ["CacheType", "CausalLanguageModel", "Extension", "load_model"]

CacheType = Literal["float16", "float32", "bfloat16", "int8"]
"""The type of the cached keys and values."""

Logits = Literal["last", "all", "none"]
_LOGITS = get_args(Logits)


MOST_STATES = 1024
"""The most recurrent states that are remembered for other sequences."""


@dataclass(frozen=True)
class Extension:
    """Tokens to run at the end of a sequence.

    Attributes:
        sequence: the cached sequence; the call appends ``token_ids`` to it.
        token_ids: at least one id, each below the model's ``vocab_size``.
        logits: for which of ``token_ids`` to return the next token's logits: the last one, all, or none. The others are not
            computed.
    """

    sequence: CachedSequence
    token_ids: Sequence[int] | npt.NDArray[np.int32]
    logits: Logits = "last"


@dataclass(frozen=True)
class _Texts:
    """What turns ids into texts; it is read at load, so that a bad file is found then."""

    tokenizer: Tokenizer | None
    special_tokens: dict[str, str]
    template: Callable[[], ChatTemplate | None]


class CausalLanguageModel(LoadedModel[DecoderProgram]):
    """A language model that predicts the next token. Made by :func:`load_model`.

    >>> model = load_model("model-directory")                                             # doctest: +SKIP
    >>> with model.open_cache(tokens=4096) as cache:                                      # doctest: +SKIP
    ...     sequence = cache.sequence()
    ...     logits = model.forward([Extension(sequence, prompt_ids)])       # (1, vocab_size)
    ...     while (token := int(logits[0].argmax())) not in model.eos_token_ids:
    ...         logits = model.forward([Extension(sequence, [token])])

    A sequence's logits have the same bits in any batch, for any chunks of its tokens, and with any number of threads.
    Thread-safe: calls from several threads take turns on the thread pool, but a sequence belongs to one call at a time. A
    context manager; :meth:`close` frees the weights. A pickle stores where the model came from; it stores neither weights
    nor caches.

    Attributes:
        vocab_size: the number of logits per token.
        context_length: the most positions of a sequence; longer sequences raise an error.
        bos_token_id: the id that begins a text, or None.
        eos_token_ids: ids that end a text, from ``config.json`` and ``generation_config.json`` together. A tokenizer or a
            chat template may add more.
        generation_config: the content of the model's own ``generation_config.json``; empty without the file.
        source: where the files were found; see :func:`lattice_inference.files.hub.find_model`.
        directory: the directory of the files, or the GGUF file.
        precision: the type of the weights in memory.
        activations: the type of the inputs that quantized weights are multiplied by.
        calibration: the calibration it was loaded with, or None.
        config: the hyperparameters of the network.
        has_tokenizer: whether the model's files hold a tokenizer. A model without one reads and returns token ids only.
        special_tokens: the texts of special tokens by their roles in the files, ``"bos_token"``, ``"eos_token"``, ...
    """

    def __init__(
        self,
        *,
        files: ModelFiles,
        snapshot: ModelSnapshot,
        config: CausalConfig,
        program: DecoderProgram,
        texts: _Texts,
        generation_config: Mapping[str, object],
        precision: Precision,
        activations: Activations,
        calibration: Calibration | None,
        adapter_base: AdapterBase,
        reload: partial[CausalLanguageModel],
    ) -> None:
        super().__init__(
            files=files,
            snapshot=snapshot,
            program=program,
            precision=precision,
            adapter_base=adapter_base,
            reload=reload,
        )
        self.config = config
        self.vocab_size: int = config.vocab_size
        self.context_length: int = config.context_length
        self.bos_token_id: int | None = config.bos_token_id
        more = token_ids_of(generation_config, "eos_token_id", source=str(files.directory / "generation_config.json"))
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys((*config.eos_token_ids, *more)))
        self.generation_config = generation_config
        self.activations: Activations = activations
        self.calibration = calibration
        self.has_tokenizer: bool = texts.tokenizer is not None
        self.special_tokens: dict[str, str] = texts.special_tokens
        self._texts = texts

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            TokenizerError: the model's files hold no tokenizer.
        """
        if self._texts.tokenizer is not None:
            return self._texts.tokenizer
        from lattice_inference.tokenizer import load_tokenizer

        return load_tokenizer(self.directory)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies all that logits depend on.

        It covers the files, the way their weights are multiplied, and ``NUMERICS_VERSION``. The first use reads the files.

        Raises:
            CheckpointError: a file was changed after the model was loaded, before the first use.
        """
        ranges = "" if self.calibration is None else f":{self.calibration.digest()}"
        layers = ":mtp" if self.mtp_layers else ""
        return (
            f"{self._snapshot.digest()}:{self.precision}:{self.activations}{ranges}{layers}:{self._numerics}"
            f"{self._device_mark}"
        )

    def fingerprint_with(self, adapter: str) -> str:
        """Return what logits with an adapter depend on.

        These are :attr:`fingerprint` and the digest of the adapter's content.

        Raises:
            CheckpointError: as :attr:`fingerprint` does.
            InvalidInputError: no adapter of that name is attached.
        """
        return f"{self.fingerprint}:lora{self._named_adapter(adapter).sha256}"

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own chat template, or None; read from its files on first use.

        Raises:
            TokenizerError, ModelConfigError: a file, or the template, is malformed.
        """
        return self._texts.template()

    @property
    def weight_sizes(self) -> tuple[WeightSize, ...]:
        """The memory that each weight takes."""
        return self._program.weight_sizes

    @property
    def arena_bytes(self) -> int:
        """Bytes of memory that are kept for the activations of later calls."""
        return self._program.arena_bytes

    @property
    def step_tokens(self) -> int:
        """The best number of tokens for a step: longer inputs are run in steps of this length."""
        return self._program.step_tokens

    @property
    def mtp_layers(self) -> int:
        """How many layers that predict further tokens are loaded."""
        return self._program.predicting_layers

    @property
    def mtp_share(self) -> float:
        """What such a layer reads for a token, as a share of what the model reads."""
        return self._program.predicting_share

    def predict(
        self,
        sequence: CachedSequence,
        position: int,
        token_ids: Sequence[int] | npt.NDArray[np.int32],
        hidden: npt.NDArray[np.float32],
        *,
        layer: int = 0,
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Predict the token after the next one, by a layer for further tokens (MTP).

        Row t of layer 0 takes the model's last row of token t, and token t + 1. It reads its own earlier rows in the pages
        of ``sequence``, and writes there; the model's keys and values stay as they are. The model's rows are collected if
        ``sequence.hidden`` is a :class:`~lattice_inference.state.hidden_rows.HiddenRows`. Row t of layer k takes the row of
        layer k - 1, and token t + 1 + k, to predict one token more.

        Args:
            sequence: the sequence.
            position: the position t of the first row.
            token_ids: T ids, the tokens from t + 1 + ``layer`` on.
            hidden: (T, width) float32, the model's rows from t on, or those of the layer before. The last layer also takes
                its own row, to predict one token more.
            layer: which of the :attr:`mtp_layers`.

        Returns:
            The logits (1, vocab_size) of the token after the last row's token; and hidden: of the last layer the last row
            (1, width), of others all rows (T, width).

        Raises:
            InvalidInputError: the model was loaded without the layer, or an argument does not fit.
            CacheFullError: the cache has too few free pages.
            NonFiniteError: logits hold NaN or infinity.
        """
        if not self.mtp_layers:
            raise InvalidInputError(f"{self.directory} was loaded without layers for further tokens: pass mtp=True")
        if not isinstance(sequence, CachedSequence) or not isinstance(hidden, np.ndarray):
            raise InvalidInputError(
                "predict takes a sequence of a cache, open_cache()'s, and hidden as an array of rows"
            )
        position = check_count("position", position, least=0, most=self.context_length)
        layer = check_count("layer", layer, least=0, most=self.mtp_layers - 1)
        ids = np.array(checked_token_ids(token_ids, "token_ids"), np.int32)
        return self._program.predict(sequence, position, ids, hidden, layer=layer)

    def open_cache(
        self,
        *,
        tokens: int | None = None,
        dtype: CacheType = "float16",
        page_tokens: Literal[16, 32, 64] = 32,
        prefix_bytes: int = 0,
        sequences: int = 8,
    ) -> KvCache:
        """Return a cache for keys and values, and recurrent state, of this model.

        All of its address space is reserved at once; memory is allocated when a page is first used.

        Args:
            tokens: the most tokens that fit, over all sequences; by default one sequence of ``context_length``.
            dtype: the type that keys and values are rounded to. float16 is as good as float32 for nearly every model;
                bfloat16 has the range of float32; int8 has a scale per head and token.
            page_tokens: tokens in a page; a sequence's last page may be partly filled.
            prefix_bytes: the most bytes of remembered prefixes, within ``tokens``; see :meth:`KvCache.remember`.
            sequences: how many sequences may be generated at once, 1 to 4,096. It matters only for models with recurrent
                layers, whose states take memory that does not depend on ``tokens``.

        Raises:
            InvalidInputError: an argument is out of range.
            CacheFullError: the process has too little address space.
        """
        check_choice("dtype", dtype, get_args(CacheType))
        check_choice("page_tokens", page_tokens, (16, 32, 64))
        wanted = self.context_length if tokens is None else check_count("tokens", tokens, least=1, most=2**40)
        prefix_bytes = check_count("prefix_bytes", prefix_bytes, least=0, most=2**62)
        sequences = check_count("sequences", sequences, least=1, most=4096)
        try:
            storage = self._program.open_state(
                dtype=dtype,
                page_tokens=page_tokens,
                pages=-(-wanted // page_tokens),
                slots=self._slots(sequences, prefix_bytes),
            )
        except (MemoryError, OverflowError):
            raise CacheFullError(
                f"there is no address space for a cache of {wanted:,} tokens: give fewer (tokens=, cache_tokens=, "
                "max_tokens=)"
            ) from None
        return KvCache(
            storage,
            prefix_bytes=prefix_bytes,
            identity=lambda: self.fingerprint,
            adapter_named=self._named_adapter,
            sequences=sequences,
        )

    def _slots(self, sequences: int, prefix_bytes: int) -> int:
        """Return the slots of recurrent state of a cache: for sequences, and for remembered states."""
        specs = self._program.recurrent_specs
        if not specs:
            return 0
        nbytes = sum(4 * math.prod(spec.shape) for spec in specs)  # a slot has more
        return slots_for(sequences) + min(2 * (prefix_bytes // nbytes), MOST_STATES)

    def forward(self, extensions: Sequence[Extension]) -> npt.NDArray[np.float32]:
        """Run new tokens of several sequences of one cache, each at the end of its sequence.

        Long inputs are run in steps of about a thousand tokens. If the call raises, every sequence stays as it was.

        Returns:
            (R, vocab_size) float32: the logits wanted, in the order of ``extensions`` and of their tokens.

        Raises:
            InvalidInputError: an id is outside the vocabulary, a list is empty, or a sequence is closed, occurs twice or
                belongs to another cache than the first one.
            TextTooLongError: a sequence would exceed ``context_length``.
            CacheFullError: the cache has too few free pages.
            NonFiniteError: logits hold NaN or infinity; its ``rows`` are rows of the result.
        """
        if not isinstance(extensions, Sequence):
            raise InvalidInputError(f"extensions is {value_text(extensions)}; expected a list of Extension")
        return self._program.run([self._checked(extension) for extension in extensions])

    def __repr__(self) -> str:
        return (
            f"<CausalLanguageModel {self.directory} layers={self.config.num_hidden_layers} vocab_size={self.vocab_size} "
            f"context_length={self.context_length}>"
        )

    def _checked(self, extension: Extension) -> tuple[CachedSequence, npt.NDArray[np.int32], Logits]:
        if not isinstance(extension, Extension) or not isinstance(extension.sequence, CachedSequence):
            raise InvalidInputError(f"{value_text(extension)} is no Extension of a sequence of a cache, open_cache()'s")
        given = extension.token_ids
        if not (type(given) is np.ndarray and given.ndim == 1 and given.dtype.kind in "iu"):
            given = checked_token_ids(given, "token_ids")
        ids = np.asarray(given)
        if not ids.size:
            raise InvalidInputError("token_ids must be a sequence of at least one integer")
        low, high = int(ids.min()), int(ids.max())
        if not (low >= 0 and high < self.vocab_size):
            raise InvalidInputError(
                f"token id {low if low < 0 else high} is outside of the vocabulary of {self.vocab_size} tokens"
            )
        logits: object = extension.logits
        if not isinstance(logits, str) or logits not in _LOGITS:
            check_choice("logits", logits, _LOGITS)
        total = extension.sequence.length + ids.size
        if total > self.context_length:
            raise TextTooLongError(
                f"the sequence would have {total} tokens and the model takes {self.context_length}: shorten it, or rewind"
            )
        return extension.sequence, np.ascontiguousarray(ids, np.int32), extension.logits


@reading_once()
def load_model(
    path_or_name: str | os.PathLike[str],
    *,
    precision: Precision = "stored",
    activations: Activations | None = None,
    calibration: Calibration | None = None,
    offline: bool | None = None,
    threads: int | None = None,
    backend: BackendName = "cpu",
    device: DeviceName = "cpu",
    mtp: bool = False,
) -> CausalLanguageModel:
    """Load a language model: Llama, Mistral, Qwen2, Qwen3 or Qwen3.5.

    The files are a directory in Hugging Face's format, or a GGUF file.

    Args:
        path_or_name: a directory, a GGUF file, or a model's name; see :func:`lattice_inference.files.hub.find_model`.
        precision: the type of the weights in memory; by default the type in the files, block formats included. Sums are
            always float32.
        activations: the type of the inputs that quantized weights are multiplied by. ``"int8"`` rounds rows to integers,
            with a scale per 32 elements. ``"float32"`` is slower, and does not round them. The default is int8 on the CPU.
            A GPU supports only float32. Other weights are always multiplied by floats.
        calibration: fixed ranges for the inputs of int8 linears; they replace each row's range and the ranges in the
            files. See :class:`lattice_inference.quantize.Calibrator`.
        offline: never open a connection; by default as ``LATTICE_OFFLINE`` and ``HF_HUB_OFFLINE`` say.
        threads: the most threads of a call; by default all of the process's pool.
        backend: ``"cpu"``, or ``"reference"``: NumPy in float64, slow and readable, to compare results with. It rounds
            nothing to lower precisions. It takes no ``threads``, only the precisions ``"float32"`` and ``"stored"``, and
            quantized weights only with ``activations="float32"``.
        device: ``"cpu"``, ``"wgpu"`` (a GPU by Vulkan, with the extra ``[wgpu]``), ``"metal"`` (an Apple GPU), or
            ``"auto"``: a GPU if one can be used, else the CPU. GPUs do not support ``precision="int8"``; see the page on
            GPUs.
        mtp: load the layers that predict further tokens too, for ``speculate="mtp"``. Prompts then take a little longer,
            because the last layer computes every row. With bfloat16 weights, its rows are then rounded as those of the
            other layers, so that the last bits of logits differ from those without ``mtp``.

    Raises:
        ModelNotFoundError: the model was not found, or a file is missing.
        ChecksumError, CheckpointError, ModelConfigError, TokenizerError: a file is damaged or malformed.
        DeviceUnavailableError, DeviceMemoryError: ``device`` cannot be used here, or has too little memory.
        UnsupportedError: the architecture, the tokenizer or an option is not supported.
    """
    threads = None if threads is None else check_thread_count(threads)
    mtp = checked_flag("mtp", mtp)
    check_precision(precision)
    if activations is not None:
        check_choice("activations", activations, get_args(Activations), UnsupportedError)
    check_calibration(calibration, precision, activations or "int8")
    check_backend(backend, device)
    files = find_model(path_or_name, offline=offline)
    snapshot = ModelSnapshot.take(files.directory)
    with open_model(files.directory, causal=True) as opened:
        opened.check(LOGITS)
        program_of_model, predicting = _programs(opened, mtp=mtp)
        texts = _Texts(opened.tokenizer if opened.has_tokenizer else None, opened.special_tokens, opened.template)
        program = DecoderProgram(
            program_of_model,
            opened.tensors(LOGITS),
            precision=precision,
            activations=activations,
            input_ranges=None if calibration is None else calibration.ranges,
            threads=threads,
            backend=backend,
            device=device,
            predicting=predicting,
            recurrent_only=opened.recurrent_only(LOGITS),
        )
    return CausalLanguageModel(
        files=files,
        config=opened.config,
        program=program,
        texts=texts,
        generation_config=_generation_config(files.directory),
        snapshot=snapshot,
        precision=precision,
        activations=activations or default_activations(program.device),
        calibration=calibration,
        adapter_base=opened.adapter_base,
        reload=partial(
            load_model,
            files.reload_name(path_or_name),
            precision=precision,
            activations=activations,
            calibration=calibration,
            offline=offline,
            threads=threads,
            backend=backend,
            device=device,
            mtp=mtp,
        ),
    )


def _programs(opened: OpenedModel, *, mtp: bool) -> tuple[Program, tuple[Program, ...]]:
    """Return a model's program, and those of its layers for further tokens if wanted."""
    if not mtp:
        return opened.program(LOGITS), ()
    programs = opened.predicting(LOGITS)
    if programs is None:
        raise UnsupportedError(f"{opened.path}: mtp needs heads for further tokens (MTP), and the files hold none")
    return programs


def _generation_config(directory: Path) -> Mapping[str, object]:
    path = directory / "generation_config.json"
    return load_json_object(path) if path.is_file() else {}
