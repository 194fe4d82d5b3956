"""Scores how well documents answer a query, by a model that reads both together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from lattice_embed.argument_checks import check_flag
from lattice_embed.errors import (
    InvalidInputError,
    InvalidTextError,
    NonFiniteVectorError,
    TextTooLongError,
    UnsupportedModelError,
)
from lattice_embed.lazy_model import LazyModel
from lattice_embed.model_source import resolve_model
from lattice_embed.result import Float32Array
from lattice_embed.validation import (
    DEFAULT_MAX_TEXT_CHARS,
    Limits,
    check_choice,
    check_iterable,
    check_limit,
    check_threads,
)
from lattice_inference import errors as inference_errors
from lattice_inference.device_name import DeviceName
from lattice_inference.precision import Precision

if TYPE_CHECKING:
    import lattice_inference

__all__ = ["CrossEncoder", "RankedDocument"]

PairTruncation = Literal["longest_first", "error"]


@dataclass(frozen=True)
class RankedDocument:
    """A document's place in a ranking.

    Attributes:
        index: its position in the list that was ranked.
        score: how well it answers the query, in the model's own terms.
    """

    index: int
    score: float


class CrossEncoder(LazyModel["lattice_inference.CrossEncoder"]):
    """Scores pairs of texts with one model in this process: the exact second step of a search.

    An embedding model reads texts separately. A cross-encoder reads query and document together: it ranks better, and
    needs a pass of the model for each pair. Use it on the first hundred results of an embedding search.

    The model is loaded by the first call that needs it, once; a load that fails may be tried again by the next call. All
    methods may be called from several threads at once. Pickling keeps the model's name and the options.

    Args:
        model: a directory, a GGUF file or a hub id: a ``BertForSequenceClassification`` or a RoBERTa of that form, such as
            ``cross-encoder/ms-marco-MiniLM-L6-v2`` or ``BAAI/bge-reranker-base``; or a language model that is asked,
            ``Qwen/Qwen3-Reranker-0.6B``, whose scores are probabilities.
        precision: what weights are kept in; see :class:`NativeEmbeddingService`.
        threads: most threads that a call may use of the pool that the whole process shares; ``None`` for all of them.
        truncate: what happens to a pair over the model's token limit: ``"longest_first"`` cuts the end of its longer text,
            ``"error"`` raises :class:`TextTooLongError`.
        max_text_chars: most characters (code points) in one text.
        special_tokens_in_text: let special tokens that a text spells out, such as ``[SEP]``, become those tokens, as Hugging
            Face's library does; with False they are text like any other.
        device: what computes; see :class:`NativeEmbeddingService`.

    Raises:
        UnknownModelError: no model of that name.
        InvalidInputError: another argument is wrong.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        precision: Precision = "float32",
        threads: int | None = None,
        truncate: PairTruncation = "longest_first",
        max_text_chars: int = DEFAULT_MAX_TEXT_CHARS,
        special_tokens_in_text: bool = True,
        device: DeviceName = "cpu",
    ) -> None:
        check_choice("precision", precision, get_args(Precision))
        check_choice("device", device, get_args(DeviceName))
        check_choice("truncate", truncate, get_args(PairTruncation))
        self._source = resolve_model(model)
        if self._source.known is not None:
            raise InvalidInputError(
                f"{self._source.name} is a model of embeddings: use NativeEmbeddingService, or name a cross-encoder, such "
                "as cross-encoder/ms-marco-MiniLM-L6-v2"
            )
        self._precision: Precision = precision
        self._device: DeviceName = device
        self._threads = None if threads is None else check_threads(threads)
        self._truncate: PairTruncation = truncate
        self._limits = Limits(max_text_chars=max_text_chars)
        self._special_tokens_in_text = check_flag("special_tokens_in_text", special_tokens_in_text)
        super().__init__()

    # Scoring

    def score(self, query: str, documents: Sequence[str], *, instruction: str | None = None) -> Float32Array:
        """Score each of ``documents`` as an answer to ``query``.

        Args:
            query: the question.
            documents: what is scored.
            instruction: what a document is to do for the query, in words, for a language model that is asked; ``None`` for
                its own, web search. Other models take none.

        Returns:
            float32 array of shape (n,), higher for a better answer; of shape (n, labels) for a model that classifies. A
            document's score has the same bits whatever else is in the call.

        Raises:
            InvalidInputError, InvalidTextError, TextTooLongError: the input; an error's ``index`` is the document's.
            ModelNotFoundError, CheckpointError, UnsupportedModelError: the model, at the first call.
            NonFiniteVectorError: the model gave NaN or infinity.
        """
        checked_query = self._check_query(query)
        documents = self._check_documents(documents)
        return self.score_pairs([(checked_query, document) for document in documents], instruction=instruction)

    def score_pairs(self, pairs: Sequence[tuple[str, str]], *, instruction: str | None = None) -> Float32Array:
        """Score pairs of texts: like :meth:`score`, with a separate query for each document."""
        scorer = self._load()
        asked: dict[str, Any] = {} if instruction is None else {"instruction": instruction}
        checked = self._check_pairs(pairs)
        try:
            return scorer.score_pairs(checked, truncate=self._truncate, **asked)
        except inference_errors.TextTooLongError as error:
            counts = scorer.count_tokens(pairs, **asked)
            index = int(np.argmax(counts > scorer.max_tokens))
            raise TextTooLongError(
                index=index, length=int(counts[index]), limit=scorer.max_tokens, unit="tokens"
            ) from error
        except inference_errors.NonFiniteError as error:
            raise NonFiniteVectorError(index=min(error.rows, default=0), model=self._source.name) from error
        except inference_errors.InvalidInputError as error:
            raise InvalidInputError(str(error)) from error

    def count_tokens(
        self, pairs: Sequence[tuple[str, str]], *, instruction: str | None = None
    ) -> npt.NDArray[np.int32]:
        """Return (n,) int32: the tokens of each pair before it is cut, special tokens included.

        Raises:
            InvalidInputError, InvalidTextError: as :meth:`score_pairs`.
        """
        scorer = self._load()
        asked: dict[str, Any] = {} if instruction is None else {"instruction": instruction}
        try:
            counts: npt.NDArray[np.int32] = scorer.count_tokens(self._check_pairs(pairs), **asked)
        except inference_errors.InvalidInputError as error:
            raise InvalidInputError(str(error)) from error
        return counts

    def rank(
        self, query: str, documents: Sequence[str], *, top_k: int | None = None, instruction: str | None = None
    ) -> list[RankedDocument]:
        """Rank ``documents`` as answers to ``query``, best first.

        Equal scores keep the order of the list.

        Args:
            query: the question.
            documents: what is ranked.
            top_k: return the best so many; ``None`` for all.
            instruction: as :meth:`score` has it.

        Raises:
            UnsupportedModelError: the model gives several scores a pair. Otherwise as :meth:`score`.
        """
        limit = None if top_k is None else check_limit("top_k", top_k)
        if self._load().label_count != 1:
            raise UnsupportedModelError(
                f"{self._source.name} gives {self._load().label_count} scores a pair, which do not rank: use score()"
            )
        scores = self.score(query, documents, instruction=instruction)
        order = np.argsort(-scores, kind="stable")[:limit]
        return [RankedDocument(int(index), float(scores[index])) for index in order]

    # What the model is

    @property
    def name(self) -> str:
        """``"native:"`` and the model's name."""
        return f"native:{self._source.name}"

    @property
    def max_tokens(self) -> int:
        """Longest pair in tokens, special tokens included. Loads the model."""
        return self._load().max_tokens

    @property
    def label_count(self) -> int:
        """Scores of a pair: 1 for a model that ranks. Loads the model."""
        return self._load().label_count

    @property
    def fingerprint(self) -> str:
        """Identifies all that a score's bits depend on besides the texts.

        Loads the model and reads its files once.
        """
        return self._load().fingerprint

    def __repr__(self) -> str:
        return f"CrossEncoder({self._source.name!r}, {self._state()})"

    # Loading and closing

    def _recipe(self) -> tuple[Any, Mapping[str, Any]]:
        options: dict[str, Any] = {
            "precision": self._precision,
            "threads": self._threads,
            "truncate": self._truncate,
            "max_text_chars": self._limits.max_text_chars,
            "special_tokens_in_text": self._special_tokens_in_text,
        }
        if self._device != "cpu":
            options["device"] = self._device
        return self._source.location, options

    def _open(self) -> lattice_inference.CrossEncoder:
        import lattice_inference

        try:
            return lattice_inference.load_cross_encoder(
                self._source.location,
                precision=self._precision,
                threads=self._threads,
                special_tokens_in_text=self._special_tokens_in_text,
                device=self._device,
            )
        except inference_errors.UnsupportedError as error:
            raise UnsupportedModelError(f"{self._source.name} cannot be run here: {error}") from error

    # Checks

    def _check_query(self, query: str) -> str:
        if not isinstance(query, str):
            raise InvalidInputError(f"query is a {type(query).__name__}, not a str")
        try:
            return self._limits.text(query)
        except InvalidTextError as error:  # whose index would name a document
            raise InvalidInputError(f"query {error.reason}") from None

    def _check_documents(self, documents: Sequence[str]) -> list[str]:
        return [self._limits.text(text, index) for index, text in enumerate(check_iterable(documents))]

    def _check_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        checked = []
        for index, pair in enumerate(check_iterable(pairs)):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise InvalidInputError(f"pair {index} is a {type(pair).__name__}: pass two texts")
            first, second = (self._limits.text(text, index) for text in pair)
            checked.append((first, second))
        return checked
