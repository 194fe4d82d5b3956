"""Text to vectors: a tokenizer, a model's program and a backend in one small class."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from lattice_inference.argument_checks import check_choice, check_limit, checked_flag
from lattice_inference.backends.opening import BackendName, DeviceName, check_backend, open_backend
from lattice_inference.calibration import Calibration, check_calibration
from lattice_inference.checkpoint.read_once import reading_once
from lattice_inference.encode.cut_side import cut_side, cut_to
from lattice_inference.encode.encoder_recipe import LEAST_TOKENS, EncoderRecipe, encoder_recipe, end_token_of
from lattice_inference.encode.given_tokens import packed_ids
from lattice_inference.encode.text_model import TextModel
from lattice_inference.encode.text_program import TextProgram
from lattice_inference.encode.token_program import TokenProgram
from lattice_inference.errors import InvalidInputError, TextTooLongError
from lattice_inference.files.fingerprint import ModelSnapshot
from lattice_inference.files.hub import ModelFiles, find_model
from lattice_inference.models.adapter_sites import AdapterBase
from lattice_inference.models.config_fields import MAX_POSITIONS
from lattice_inference.models.family import TextConfig, vectors
from lattice_inference.models.opened_model import open_model
from lattice_inference.models.sentence_modules import Pooling
from lattice_inference.precision import Precision, check_precision
from lattice_inference.text_lists import check_text_list
from lattice_inference.thread_count import check_thread_count
from lattice_inference.tokenizer import PackedEncoding, Tokenizer
from lattice_inference.tokenizer.limits import Side
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    from lattice_inference.lora.attached_adapter import AttachedAdapter
    from lattice_inference.vector_cache import VectorCache
    from lattice_inference.vector_cache.encoder_cache import EncoderCache

    CacheName = VectorCache | str | os.PathLike[str] | bool | None

__all__ = ["EncodedTexts", "Encoder", "load_encoder"]

Truncate = Literal["right", "error"]

_POOLINGS = tuple(pooling.value for pooling in Pooling)


@dataclass(frozen=True)
class EncodedTexts:
    """The vectors of some texts, in their order.

    Attributes:
        vectors: (n, dimension) float32, C-contiguous.
        token_counts: (n,) int32, the tokens that were embedded, special tokens included.
        truncated: (n,) bool, whether a text was longer than the model takes.
    """

    vectors: npt.NDArray[np.float32]
    token_counts: npt.NDArray[np.int32]
    truncated: npt.NDArray[np.bool_]


class Encoder(TextModel):
    """A text encoder. Made by :func:`load_encoder`.

    Thread-safe: calls from several threads take turns on the thread pool. A context manager; :meth:`close` gives the
    weights back. Pickling stores where the model came from, as an absolute path or a name, not its weights.

    Attributes:
        dimension: length of a vector.
        max_tokens: tokens of a text that the model takes, special tokens included; the rest is cut off.
        pooling: ``"cls"``, ``"mean"`` or ``"last"``.
        normalize: whether the model scales its vectors to length 1.
        prompts: the model's own prompts by name (``"query"``, ``"passage"``, ...); may be empty. None is
            applied unless a call passes it, not even the files' default.
        source: where the files were found; see :func:`lattice_inference.files.hub.find_model`.
        directory: the files, or the GGUF file.
        tokenizer: the model's tokenizer.
        precision: what the weights are kept in.
        calibration: what it was loaded with, or None.
        special_tokens_in_text: whether special tokens that a text spells out become those tokens.

    >>> from lattice_inference import load_encoder
    >>> with load_encoder("all-minilm-l6-v2") as encoder:
    ...     encoded = encoder.encode(["A cat sleeps.", "A kitten naps.", "Stocks fell."])
    >>> encoded.vectors.shape
    (3, 384)
    >>> [f"{similarity:.2f}" for similarity in encoded.vectors @ encoded.vectors[0]]
    ['1.00', '0.71', '0.01']
    """

    def __init__(
        self,
        *,
        files: ModelFiles,
        snapshot: ModelSnapshot,
        tokenizer: Tokenizer,
        program: TextProgram,
        recipe: EncoderRecipe,
        precision: Precision,
        calibration: Calibration | None,
        special_tokens_in_text: bool,
        cut_from: Side,
        adapter_base: AdapterBase,
        reload: partial[Encoder],
    ) -> None:
        super().__init__(
            files=files,
            snapshot=snapshot,
            tokenizer=tokenizer,
            program=program,
            precision=precision,
            special_tokens_in_text=special_tokens_in_text,
            cut_from=cut_from,
            adapter_base=adapter_base,
            reload=reload,
        )
        self.calibration = calibration
        self.dimension: int = recipe.dimension
        self.max_tokens: int = recipe.max_tokens
        self.pooling: Literal["cls", "mean", "last"] = recipe.pooling.value
        self.normalize: bool = recipe.normalize
        self.prompts: Mapping[str, str] = recipe.prompts
        self._recipe = recipe
        self._cache: EncoderCache | None = None
        self._owned_cache: VectorCache | None = None

    def _keep_vectors(self, cache: VectorCache | str | os.PathLike[str] | bool) -> None:
        """Look vectors up in a cache from now on.

        A cache that is opened here is closed with the encoder.
        """
        from lattice_inference.vector_cache.encoder_cache import EncoderCache, open_cache

        # The fingerprint now, at the price of reading the files: later changes to the files could not be detected.
        opened = open_cache(cache)
        self._owned_cache = None if opened is cache else opened
        self._cache = EncoderCache(opened, self.fingerprint, name=self._name, dimension=self.dimension)

    def close(self) -> None:
        """Give the weights back. Further use raises InvalidInputError; closing twice is harmless."""
        super().close()
        if self._owned_cache is not None:
            self._owned_cache.close()

    def encode(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        normalize: bool | None = None,
        truncate: Truncate = "right",
        special_tokens_in_text: bool | None = None,
        max_tokens: int | None = None,
        adapter: str | None = None,
    ) -> EncodedTexts:
        """Return the vectors of ``texts``; each is the same bits whatever else is in the call.

        Args:
            texts: any number of strings; an empty string has the vector of a text without words.
            prompt: put before every text.
            normalize: scale vectors to length 1; by default what the model's files say.
            truncate: cut a text that exceeds ``max_tokens`` at its right end, or raise.
            special_tokens_in_text: whether special tokens that a text spells out become those tokens; by default what the
                model was loaded with.
            max_tokens: a lower limit than the model's for the texts of this call.
            adapter: the name of one of :attr:`adapters`; by default none.

        Raises:
            InvalidInputError: ``texts`` is not a sequence of strings, a string holds a lone surrogate, ``max_tokens`` is
                above the model's limit, or there is no such adapter.
            TextTooLongError: a text exceeds ``max_tokens`` and ``truncate`` is ``"error"``.
            NonFiniteError: a vector would hold NaN or infinity; its ``rows`` are indices into ``texts``.
        """
        self._program.check_open()
        check_choice("truncate", truncate, ("right", "error"))
        attached = self._adapter(adapter)
        wants_unit = self.normalize if normalize is None else checked_flag("normalize", normalize)
        limit = self.max_tokens
        if max_tokens is not None:
            limit = check_limit(max_tokens, least=LEAST_TOKENS, most=self.max_tokens)
        packed = self._tokens(self._prepare(texts, prompt), limit, special_tokens_in_text)
        if truncate == "error" and packed.truncated.any():
            raise _too_long(packed, limit, is_models=max_tokens is None)
        lengths = packed.cu_seqlens[1:] - packed.cu_seqlens[:-1]
        output = "normalized" if wants_unit else "pooled"
        if self._recipe.words_only and not lengths.all():
            vectors = np.zeros((len(lengths), self.dimension), np.float32)
            if len(worded := np.flatnonzero(lengths)):
                vectors[worded] = self._vectors(packed.select(worded), output, attached)
        else:
            vectors = self._vectors(packed, output, attached)
        return EncodedTexts(vectors, lengths, packed.truncated)

    def encode_tokens(self, token_ids: Sequence[Sequence[int]], *, adapter: str | None = None) -> EncodedTexts:
        """Return the vectors of texts that are given as token ids.

        Nothing is added or cut.

        ``encode_tokens([encoder.tokenizer.encode(text).ids])`` is ``encode([text])`` for most models.

        Args:
            token_ids: the ids of each text, special tokens included.
            adapter: as in :meth:`encode`.

        Raises:
            InvalidInputError: a text without ids, an id that is outside the vocabulary, or no such adapter.
            TextTooLongError: a text has more than :attr:`max_tokens` ids.
            NonFiniteError: as :meth:`encode`.
        """
        self._program.check_open()
        attached = self._adapter(adapter)
        packed = packed_ids(token_ids, self.max_tokens)
        if packed.truncated.any():
            raise _too_long(packed, self.max_tokens, is_models=True)
        vectors = self._vectors(packed, "normalized" if self.normalize else "pooled", attached)
        return EncodedTexts(vectors, packed.token_counts, packed.truncated)

    def _vectors(
        self, packed: PackedEncoding, output: str, attached: AttachedAdapter | None
    ) -> npt.NDArray[np.float32]:
        run, digest = self._program.run, ""
        if attached is not None:
            run, digest = partial(self._program.run, adapter=attached), attached.sha256
        return run(packed, output) if self._cache is None else self._cache.run(packed, output, run, digest)

    def token_vectors(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        truncate: Truncate = "right",
        special_tokens_in_text: bool | None = None,
        max_tokens: int | None = None,
    ) -> list[npt.NDArray[np.float32]]:
        """Return the vectors of each text's tokens: the model's last states, before pooling.

        They have the width of the model's states, not always :attr:`dimension`, and are not scaled to length 1. Adapters and
        the cache have no part in them. The first call opens the model's files again; a GPU gets the weights a second time.

        Args:
            texts, prompt, truncate, special_tokens_in_text, max_tokens: as in :meth:`encode`. The rows of a text are those
                of its :meth:`packed_tokens`, special tokens included.

        Returns:
            A float32 array (tokens, width) for each text; they are parts of one array.

        Raises:
            InvalidInputError, TextTooLongError, NonFiniteError: as :meth:`encode`.
            ModelNotFoundError, CheckpointError: at the first call, the model's files are gone or were changed.
        """
        self._program.check_open()
        check_choice("truncate", truncate, ("right", "error"))
        limit = self._limit_of(max_tokens)
        packed = self._tokens(self._prepare(texts, prompt), limit, special_tokens_in_text)
        if truncate == "error" and packed.truncated.any():
            raise _too_long(packed, limit, is_models=max_tokens is None)
        return self._program.token_rows(packed)

    def _limit_of(self, max_tokens: int | None) -> int:
        return (
            self.max_tokens if max_tokens is None else check_limit(max_tokens, least=LEAST_TOKENS, most=self.max_tokens)
        )

    def count_tokens(
        self, texts: Sequence[str], *, prompt: str = "", special_tokens_in_text: bool | None = None
    ) -> npt.NDArray[np.int32]:
        """Return each text's token count before truncation, with ``prompt`` and special tokens."""
        return self._tokens(self._prepare(texts, prompt), None, special_tokens_in_text).token_counts

    def packed_tokens(self, texts: Sequence[str], *, prompt: str = "", max_tokens: int | None = None) -> PackedEncoding:
        """Return the tokens that :meth:`encode` runs: with special tokens, cut, laid end to end.

        Raises:
            InvalidInputError: as :meth:`encode`.
        """
        return self._tokens(self._prepare(texts, prompt), self._limit_of(max_tokens), None)

    def _tokens(self, texts: Sequence[str], limit: int | None, special_tokens_in_text: bool | None) -> PackedEncoding:
        """Return the tokens of texts, cut to ``limit`` and then ended as the model wants them."""
        end, words_only = self._recipe.end_token, self._recipe.words_only
        room = limit if limit is None or end is None else limit - 1
        packed = self.tokenizer.encode_packed(
            texts,
            max_tokens=room if self._cut_from == "right" else cut_to(room, self._cut_from),
            add_special_tokens=not words_only,
            special_tokens_in_text=self._finds_special_tokens(special_tokens_in_text),
            threads=self._program.threads,
        )
        if words_only and (unknown := self.tokenizer.unknown_id) is not None:
            packed = packed.without(unknown)
        return packed if end is None else packed.framed((), (end,))

    def token_offsets(self, text: str) -> npt.NDArray[np.int32]:
        """Return (n, 2) int32: the characters ``text[start:end]`` of each token.

        No special tokens.
        """
        if not self._recipe.lower_case:
            return self._offsets(text)
        (lowered,) = self._prepare([text], "")
        offsets = self._offsets(lowered)
        if len(lowered) == len(text):
            return offsets
        # a letter may have two in lower case: count back to the letters that the caller knows
        sizes = np.array([len(letter.lower()) for letter in text], np.int32)
        letters = np.repeat(np.arange(len(text), dtype=np.int32), sizes)
        return np.stack([letters[offsets[:, 0]], letters[np.maximum(offsets[:, 1], 1) - 1] + 1], axis=1)

    def _offsets(self, text: str) -> npt.NDArray[np.int32]:
        return self.tokenizer.encode(
            text, add_special_tokens=False, special_tokens_in_text=self.special_tokens_in_text
        ).offsets

    def _prepare(self, texts: Sequence[str], prompt: str) -> Sequence[str]:
        """Return the texts as the tokenizer gets them."""
        if not isinstance(prompt, str):
            raise InvalidInputError(f"prompt is {value_text(prompt)}; pass a str")
        if isinstance(texts, (str, bytes, bytearray, memoryview)):
            raise InvalidInputError("texts must be a sequence of strings, not one string: pass [text]")
        texts = list(check_text_list(texts))
        lower_case = self._recipe.lower_case
        if not prompt and not lower_case:
            return texts
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise InvalidInputError(f"text {index} is of type {type(text).__name__}, not a string")
        prompted = [prompt + text for text in texts]
        # letter by letter: str.lower() would also apply the rule for a final sigma, which sentence-transformers does not
        return ["".join(map(str.lower, text)) for text in prompted] if lower_case else prompted

    @property
    def fingerprint(self) -> str:
        """Identifies all that a vector depends on.

        It covers the weights and the tokenizer (SHA-256 of their files), those of modules on top, pooling, token limit,
        precision, calibration and ``NUMERICS_VERSION``. It also covers ``special_tokens_in_text`` if it is False, the kind
        of instruction of linears that multiply bfloat16 (``"avx512-tiles"``), and of a GPU device and driver. Worked out
        on first use, which reads the files.

        Raises:
            CheckpointError: a file was changed after the model was loaded, before the first use.
        """
        if self._fingerprint is None:  # threads that come here together read the files each: that is right, only slower
            ranges = "" if self.calibration is None else f":{self.calibration.digest()}"
            self._fingerprint = (
                f"{self._snapshot.digest()}:{self.pooling}:{self.max_tokens}"
                f":{self.precision}{ranges}:{self._numerics}"
                + (":lower" if self._recipe.lower_case else "")
                + ("" if self._recipe.end_token is None else f":end{self._recipe.end_token}")
                + self._text_mark
                + self._device_mark
            )
        return self._fingerprint

    @property
    def space(self) -> str:
        """:attr:`fingerprint` without the device: equal for encoders whose vectors may be compared."""
        return self.fingerprint.removesuffix(self._device_mark)

    def __repr__(self) -> str:
        return (
            f"<Encoder {self.directory} dimension={self.dimension} pooling={self.pooling} max_tokens={self.max_tokens}>"
        )


@reading_once()
def load_encoder(
    path_or_name: str | os.PathLike[str],
    *,
    precision: Precision = "float32",
    pooling: Literal["cls", "mean", "last"] | None = None,
    normalize: bool | None = None,
    max_tokens: int | None = None,
    offline: bool | None = None,
    threads: int | None = None,
    cache: VectorCache | str | os.PathLike[str] | bool | None = None,
    calibration: Calibration | None = None,
    special_tokens_in_text: bool = True,
    backend: BackendName = "cpu",
    device: DeviceName = "cpu",
) -> Encoder:
    """Load a text encoder.

    Pooling, normalisation, prompts and the token limit come from the model's own files (``modules.json`` and the files it
    names). A GGUF file may know its pooling; the token limit is then what it has positions for. A decoder (Qwen3) whose
    last token is pooled gets its end token after each text, once, whether the tokenizer writes it or not.

    Args:
        path_or_name: a directory, a GGUF file, or a model's name; see :func:`lattice_inference.files.hub.find_model`.
        precision: what weights are kept in: ``"float32"``, or ``"bfloat16"`` or ``"float16"``, which take half the memory
            and move results a little (float16 less than bfloat16), or ``"int8"``, which multiplies integers: the fastest and
            smallest (cosine to float32 about 0.998). ``"stored"`` keeps what the file has, quantized weights included.
        pooling, normalize, max_tokens: for a directory without ``modules.json``, where pooling must be given. If it
            exists its files decide, and any other value is refused. But if they state no token limit, or one above the
            model's positions, ``max_tokens`` may be lower. It is at most what the model has positions for. A GGUF file
            takes ``pooling`` if it names none, and the others always; ``normalize`` is true by default.
        offline: never open a connection; by default what ``LATTICE_OFFLINE`` and ``HF_HUB_OFFLINE`` say.
        threads: the most threads a call may use; by default all of the process's pool.
        cache: keep vectors on disk, and look them up before they are computed: a
            :class:`~lattice_inference.VectorCache`, a folder, or True for the default folder.
        calibration: fixed ranges for the inputs of int8 linears, instead of each row's own or those that the files have; see
            :class:`lattice_inference.quantize.Calibrator`.
        special_tokens_in_text: let special tokens that a text spells out, such as ``[SEP]``, become those tokens, as Hugging
            Face's library does; with False they are text like any other. A call may say otherwise.
        backend: ``"cpu"``, or ``"reference"``: NumPy in float64, slow and readable, to compare results with. It rounds
            nothing, so it takes no ``threads`` and the precisions ``"float32"`` and ``"stored"`` only.
        device: ``"cpu"``, ``"wgpu"`` (a GPU by Vulkan, with the extra ``[wgpu]``), ``"metal"`` (an Apple GPU), or
            ``"auto"``: a GPU if one can be used, else the CPU. GPUs take no ``precision="int8"``; see the page on GPUs.

    Raises:
        ModelNotFoundError: no place holds the model, or a file is missing.
        ChecksumError, CheckpointError, ModelConfigError, TokenizerError: a file is damaged or malformed.
        DeviceUnavailableError, DeviceMemoryError: ``device`` cannot be used here, or has no room.
        UnsupportedError: the architecture, a module or an option does not exist here.
        InvalidInputError: an option has a value that is none, or would not count.
    """
    threads = None if threads is None else check_thread_count(threads)
    check_precision(precision)
    check_calibration(calibration, precision)
    _check_options(pooling, normalize, max_tokens, cache)
    checked_flag("special_tokens_in_text", special_tokens_in_text)
    check_backend(backend, device)
    files = find_model(path_or_name, offline=offline)
    snapshot = ModelSnapshot.take(files.directory)
    with open_model(files.directory, causal=False) as model:
        config: TextConfig = model.config
        stated: Literal["cls", "mean", "last"] | None = None if model.pooling is None else model.pooling.value
        if stated is not None:
            _refuse_unread(files.directory, {"pooling": pooling}, {"pooling": stated})
        kind = pooling if stated is None else stated
        recipe = encoder_recipe(model, kind, normalize, max_tokens)
        if model.modules is not None:
            given = {"pooling": pooling, "normalize": normalize, "max_tokens": max_tokens}
            decides = "modules.json" if model.family.sentence is None else "config.json"
            _refuse_unread(files.directory / decides, given, recipe.options)
        head = vectors(recipe.pooling.value, recipe.layers)
        model.check(head)
        tokenizer = model.tokenizer
        end_token = end_token_of(model, tokenizer, recipe.pooling)
        recipe = replace(recipe, end_token=end_token, words_only=model.family.reads_words_only)
        ranges = None if calibration is None else calibration.ranges
        opened = open_backend(backend, device=device, threads=threads, precision=precision, input_ranges=ranges)
        program = opened.compile(model.program(head), model.tensors(head))
    reload = partial(
        load_encoder,
        files.reload_name(path_or_name),
        precision=precision,
        pooling=pooling,
        normalize=normalize,
        max_tokens=max_tokens,
        offline=offline,
        threads=threads,
        cache=_absolute_cache(cache),
        calibration=calibration,
        special_tokens_in_text=special_tokens_in_text,
        backend=backend,
        device=device,
    )
    encoder = Encoder(
        files=files,
        snapshot=snapshot,
        tokenizer=tokenizer,
        program=TextProgram(program, config, files.directory, TokenProgram(opened, program, snapshot, config)),
        recipe=recipe,
        precision=precision,
        calibration=calibration,
        special_tokens_in_text=special_tokens_in_text,
        cut_from="right" if recipe.words_only else cut_side(files.directory, tokenizer),
        adapter_base=model.adapter_base,
        reload=reload,
    )
    if cache is not None and cache is not False:
        encoder._keep_vectors(cache)
    return encoder


def _too_long(packed: PackedEncoding, limit: int, *, is_models: bool) -> TextTooLongError:
    index = int(np.argmax(packed.truncated))
    told = "the model takes" if is_models else "max_tokens is"
    return TextTooLongError(
        f"text {index} has {int(packed.token_counts[index])} tokens and {told} {limit}: shorten it, or pass truncate='right'"
    )


def _check_options(pooling: object, normalize: object, max_tokens: object, cache: object) -> None:
    """Refuse values that are none before any file is looked for."""
    if pooling is not None and not (isinstance(pooling, str) and pooling in _POOLINGS):
        raise InvalidInputError(f"pooling must be {', '.join(map(repr, _POOLINGS))} or None, not {value_text(pooling)}")
    if normalize is not None:
        checked_flag("normalize", normalize)
    if max_tokens is not None:
        check_limit(max_tokens, least=LEAST_TOKENS, most=MAX_POSITIONS)
    if cache is not None and cache is not False:
        from lattice_inference.vector_cache.encoder_cache import check_cache

        check_cache(cache)


def _refuse_unread(path: Path, given: Mapping[str, object], decided: Mapping[str, object]) -> None:
    """Refuse options that contradict the model's files.

    One that says the same changes nothing.
    """
    other = [name for name, value in given.items() if value is not None and value != decided[name]]
    if other:
        raise InvalidInputError(
            f"{path} decides that {', '.join(f'{name} is {decided[name]!r}' for name in other)}, so "
            f"{', '.join(f'{name}={given[name]!r}' for name in other)} would not count: leave "
            f"{'it' if len(other) == 1 else 'them'} out"
        )


def _absolute_cache(cache: CacheName) -> CacheName:
    """Return the argument ``cache`` with an absolute folder."""
    return os.path.abspath(os.path.expanduser(cache)) if isinstance(cache, (str, os.PathLike)) else cache
