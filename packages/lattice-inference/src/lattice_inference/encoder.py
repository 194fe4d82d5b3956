"""Text to vectors: a tokenizer, a model's program and a backend behind one small class."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import CpuBackend, CpuProgram
from lattice_inference.checkpoint.safetensors import open_checkpoint
from lattice_inference.errors import InvalidInputError, NonFiniteError, TextTooLongError, UnsupportedError
from lattice_inference.graph.batch import Batch
from lattice_inference.hub import ModelFiles, find_model
from lattice_inference.models.bert import build_bert_encoder, find_prefix
from lattice_inference.models.bert_config import BertConfig
from lattice_inference.models.sentence_modules import Pooling, read_sentence_modules
from lattice_inference.runtime import NUMERICS_VERSION
from lattice_inference.tokenizer import PackedEncoding, Tokenizer, load_tokenizer

__all__ = ["STEP_TOKENS", "EncodedTexts", "Encoder", "load_encoder"]

STEP_TOKENS = 1024
"""Tokens that go through the model at once: enough to keep every core busy, few enough to stay in cache and to answer a
cancellation soon."""

Precision = Literal["float32"]
Truncate = Literal["right", "error"]


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


@dataclass(frozen=True)
class _Recipe:
    """How a model directory turns text into a vector."""

    pooling: Pooling
    normalize: bool
    max_tokens: int
    prompts: Mapping[str, str]


class Encoder:
    """A text encoder. Made by :func:`load_encoder`.

    Thread-safe: calls from several threads take turns on the thread pool. A context manager; :meth:`close` gives the
    weights back. Pickling stores where the model came from, not its weights.

    Attributes:
        dimension: length of a vector.
        max_tokens: tokens of a text that the model takes, special tokens included; the rest is cut off.
        pooling: ``"cls"``, ``"mean"`` or ``"last"``.
        normalize: whether the model scales its vectors to length 1.
        prompts: the model's own prompts by name (``"query"``, ``"passage"``, ...); may be empty.
        source: where the files were found; see :func:`lattice_inference.hub.find_model`.
        directory: the files.
        tokenizer: the model's tokenizer.
    """

    def __init__(
        self,
        *,
        files: ModelFiles,
        tokenizer: Tokenizer,
        program: CpuProgram,
        recipe: _Recipe,
        dimension: int,
        reload: partial[Encoder],
    ) -> None:
        self.dimension = dimension
        self.max_tokens = recipe.max_tokens
        self.pooling: Literal["cls", "mean", "last"] = recipe.pooling.value
        self.normalize = recipe.normalize
        self.prompts = recipe.prompts
        self.source = files.source
        self.directory = files.directory
        self.tokenizer = tokenizer
        self._program: CpuProgram | None = program
        self._reload = reload
        self._fingerprint: str | None = None

    def encode(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        normalize: bool | None = None,
        truncate: Truncate = "right",
    ) -> EncodedTexts:
        """Return the vectors of ``texts``; each is the same bits whatever else is in the call.

        Args:
            texts: any number of strings; an empty string has the vector of a text without words.
            prompt: put before every text.
            normalize: scale vectors to length 1; by default what the model's files say.
            truncate: cut a text that exceeds ``max_tokens`` at its right end, or raise.

        Raises:
            InvalidInputError: ``texts`` is not a sequence of strings, or a string holds a lone surrogate.
            TextTooLongError: a text exceeds ``max_tokens`` and ``truncate`` is ``"error"``.
            NonFiniteError: a vector would hold NaN or infinity; its ``rows`` are indices into ``texts``.
        """
        program = self._open_program()
        if truncate not in ("right", "error"):
            raise InvalidInputError(f"truncate must be 'right' or 'error', not {truncate!r}")
        packed = self.tokenizer.encode_packed(_with_prompt(texts, prompt), max_tokens=self.max_tokens)
        if truncate == "error" and packed.truncated.any():
            index = int(np.argmax(packed.truncated))
            raise TextTooLongError(
                f"text {index} has {int(packed.token_counts[index])} tokens and the model takes {self.max_tokens}: "
                "shorten it, or pass truncate='right'"
            )
        lengths = packed.cu_seqlens[1:] - packed.cu_seqlens[:-1]
        output = "normalized" if (self.normalize if normalize is None else normalize) else "pooled"
        steps = list(_steps(packed.cu_seqlens))
        if len(steps) == 1:
            return EncodedTexts(self._run(program, packed, steps[0], output), lengths, packed.truncated)
        vectors = np.empty((len(lengths), self.dimension), np.float32)
        for rows in steps:
            vectors[rows] = self._run(program, packed, rows, output)
        return EncodedTexts(vectors, lengths, packed.truncated)

    def count_tokens(self, texts: Sequence[str], *, prompt: str = "") -> npt.NDArray[np.int32]:
        """Return how many tokens each text has with ``prompt`` before it, special tokens included, before truncation."""
        return self.tokenizer.encode_packed(_with_prompt(texts, prompt), max_tokens=None).token_counts

    @property
    def fingerprint(self) -> str:
        """What a vector depends on, as text: equal fingerprints mean comparable, bit-identical vectors.

        It covers the weights and the tokenizer (SHA-256 of their files), pooling, token limit, precision and
        ``NUMERICS_VERSION``. Worked out on first use, which reads the files.
        """
        if self._fingerprint is None:  # threads that come here together read the files each: that is right, only slower
            digest = hashlib.sha256()
            for path in _defining_files(self.directory):
                digest.update(path.name.encode())
                with open(path, "rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            self._fingerprint = (
                f"{digest.hexdigest()[:32]}:{self.pooling}:{self.max_tokens}:float32:n{NUMERICS_VERSION}"
            )
        return self._fingerprint

    def close(self) -> None:
        """Give the weights back. Further encoding raises InvalidInputError; closing twice is harmless."""
        self._program = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reload, ()

    def __repr__(self) -> str:
        return (
            f"<Encoder {self.directory} dimension={self.dimension} pooling={self.pooling} max_tokens={self.max_tokens}>"
        )

    def _run(
        self, program: CpuProgram, packed: PackedEncoding, rows: npt.NDArray[np.intp], output: str
    ) -> npt.NDArray[np.float32]:
        """Return the vectors of the texts ``rows``."""
        try:
            return program.run(_gather(packed, rows), outputs=(output,))[output]
        except NonFiniteError as error:
            bad = tuple(int(rows[row]) for row in error.rows)
            raise NonFiniteError(
                f"the vector of text {bad[0]} holds NaN or infinity: the weights in {self.directory} are damaged", bad
            ) from error

    def _open_program(self) -> CpuProgram:
        program = self._program
        if program is None:
            raise InvalidInputError("this encoder is closed: load it again")
        return program


def load_encoder(
    path_or_name: str | os.PathLike[str],
    *,
    precision: Precision = "float32",
    pooling: Literal["cls", "mean", "last"] | None = None,
    normalize: bool | None = None,
    max_tokens: int | None = None,
    offline: bool | None = None,
    threads: int | None = None,
) -> Encoder:
    """Load a text encoder.

    Pooling, normalisation, prompts and the token limit come from the model's own files (``modules.json`` and the files it
    names).

    Args:
        path_or_name: a directory, or a model's name; see :func:`lattice_inference.hub.find_model`.
        precision: the type that weights are kept and multiplied in.
        pooling, normalize, max_tokens: used only where the directory has no ``modules.json``; pooling must then be given.
        offline: never open a connection; by default what ``LATTICE_OFFLINE`` and ``HF_HUB_OFFLINE`` say.
        threads: the most threads a call may use; by default all of the process's pool.

    Raises:
        ModelNotFoundError: no place holds the model, or a file is missing.
        ChecksumError, CheckpointError, ModelConfigError, TokenizerError: a file is damaged or malformed.
        UnsupportedError: the architecture, a module or an option does not exist here.
    """
    if precision != "float32":
        raise UnsupportedError(f"precision must be 'float32', not {precision!r}")
    files = find_model(path_or_name, offline=offline)
    config = BertConfig.from_directory(files.directory)
    recipe = _recipe(files.directory, config, pooling, normalize, max_tokens)
    tokenizer = load_tokenizer(files.directory)
    with open_checkpoint(files.directory) as checkpoint:
        prefix = find_prefix(checkpoint.names())
        program = CpuBackend(threads=threads).compile(
            build_bert_encoder(config, pooling=recipe.pooling.value, prefix=prefix), checkpoint
        )
    reload = partial(
        load_encoder,
        os.fspath(path_or_name),
        precision=precision,
        pooling=pooling,
        normalize=normalize,
        max_tokens=max_tokens,
        offline=offline,
        threads=threads,
    )
    return Encoder(
        files=files, tokenizer=tokenizer, program=program, recipe=recipe, dimension=config.hidden_size, reload=reload
    )


def _recipe(
    directory: Path,
    config: BertConfig,
    pooling: Literal["cls", "mean", "last"] | None,
    normalize: bool | None,
    max_tokens: int | None,
) -> _Recipe:
    modules = read_sentence_modules(directory)
    if modules is None and pooling is None:
        raise InvalidInputError(
            f"{directory} has no modules.json, so nothing says how token states become one vector: pass "
            "pooling='cls', 'mean' or 'last' as the model's card states"
        )
    if modules is None:
        limit = config.max_position_embeddings if max_tokens is None else max_tokens
        return _Recipe(Pooling(pooling), normalize is not False, _within(limit, config), {})
    limit = config.max_position_embeddings if modules.max_seq_length is None else modules.max_seq_length
    return _Recipe(modules.pooling, modules.normalize, _within(limit, config), modules.prompts)


def _within(limit: int, config: BertConfig) -> int:
    if not limit >= 3:
        raise InvalidInputError(f"max_tokens must leave room for a token between the two special ones, not be {limit}")
    return min(limit, config.max_position_embeddings)


def _with_prompt(texts: Sequence[str], prompt: str) -> Sequence[str]:
    if isinstance(texts, (str, bytes)):
        raise InvalidInputError("texts must be a sequence of strings, not one string: pass [text]")
    if not prompt:
        return texts
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidInputError(f"text {index} is of type {type(text).__name__}, not a string")
    return [prompt + text for text in texts]


def _steps(bounds: npt.NDArray[np.int32]) -> Iterator[npt.NDArray[np.intp]]:
    """Cut texts into steps of at most STEP_TOKENS tokens (or one text), longest first, so that a step's are alike."""
    lengths = bounds[1:] - bounds[:-1]
    if int(bounds[-1]) <= STEP_TOKENS:
        if len(lengths):
            yield np.arange(len(lengths))
        return
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    start = 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + STEP_TOKENS, side="right")))
        yield order[start:stop]
        start = stop


def _gather(packed: PackedEncoding, rows: npt.NDArray[np.intp]) -> Batch:
    """The batch of some of the texts; all of them are the packed arrays as they are."""
    bounds = packed.cu_seqlens
    if len(rows) == len(bounds) - 1:
        return Batch(packed.token_ids, bounds, token_type_ids=packed.type_ids)
    cu_seqlens = np.zeros(len(rows) + 1, np.int32)
    np.cumsum((bounds[1:] - bounds[:-1])[rows], out=cu_seqlens[1:])
    spans = [slice(bounds[row], bounds[row + 1]) for row in rows]
    return Batch(
        np.concatenate([packed.token_ids[span] for span in spans]),
        cu_seqlens,
        token_type_ids=np.concatenate([packed.type_ids[span] for span in spans]),
    )


def _defining_files(directory: Path) -> list[Path]:
    """The files that a vector depends on beyond what the fingerprint spells out."""
    names = ("*.safetensors", "config.json", "tokenizer.json", "vocab.txt")
    return sorted(path for name in names for path in directory.glob(name))
