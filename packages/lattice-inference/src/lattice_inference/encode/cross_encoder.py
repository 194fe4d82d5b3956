"""Scores pairs of texts: a cross-encoder reads query and document together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from lattice_inference.argument_checks import check_choice, check_limit, checked_flag
from lattice_inference.backends.cpu import sigmoid
from lattice_inference.backends.opening import BackendName, DeviceName, check_backend, open_backend
from lattice_inference.calibration import Calibration, check_calibration
from lattice_inference.checkpoint.read_once import reading_once
from lattice_inference.encode.cut_side import cut_side
from lattice_inference.encode.pair_tokens import AskedPairs, PairTokens, PlainPairs
from lattice_inference.encode.text_model import TextModel
from lattice_inference.encode.text_program import TextProgram
from lattice_inference.errors import InvalidInputError, ModelConfigError, TextTooLongError, UnsupportedError
from lattice_inference.files.fingerprint import ModelSnapshot
from lattice_inference.files.hub import ModelFiles, find_model
from lattice_inference.models.adapter_sites import AdapterBase
from lattice_inference.models.config_fields import MAX_POSITIONS
from lattice_inference.models.cross_encoder_config import (
    CrossEncoderConfig,
    ScoreActivation,
    read_asked_config,
    read_cross_encoder_config,
)
from lattice_inference.models.family import SCORES, TextConfig
from lattice_inference.models.opened_model import open_model
from lattice_inference.models.weight_check import refuse_adapters
from lattice_inference.precision import Precision, check_precision
from lattice_inference.text_lists import check_text_list
from lattice_inference.thread_count import check_thread_count
from lattice_inference.tokenizer import PackedEncoding, Tokenizer
from lattice_inference.tokenizer.limits import Side

__all__ = ["CrossEncoder", "load_cross_encoder"]


class CrossEncoder(TextModel):
    """A model that scores pairs of texts. Made by :func:`load_cross_encoder`.

    Thread-safe: calls from several threads take turns on the thread pool. A context manager; :meth:`close` gives the
    weights back. Pickling stores where the model came from, as an absolute path or a name, not its weights.

    Attributes:
        label_count: scores of a pair; 1 for a model that ranks.
        activation: what turns logits into scores: ``"sigmoid"`` or ``"identity"``.
        max_tokens: tokens of a pair that the model takes, special tokens included.
        source: where the files were found; see :func:`lattice_inference.files.hub.find_model`.
        directory: the files.
        tokenizer: the model's tokenizer.
        precision: what the weights are kept in.
        calibration: what it was loaded with, or None.
    """

    def __init__(
        self,
        *,
        files: ModelFiles,
        snapshot: ModelSnapshot,
        tokenizer: Tokenizer,
        program: TextProgram,
        config: CrossEncoderConfig,
        label_count: int,
        precision: Precision,
        calibration: Calibration | None,
        special_tokens_in_text: bool,
        cut_from: Side,
        pairs: PairTokens,
        compares_answers: bool,
        adapter_base: AdapterBase,
        reload: partial[CrossEncoder],
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
        self.label_count = label_count
        self.activation: ScoreActivation = config.activation
        self.max_tokens: int = config.max_tokens
        self._pairs = pairs
        self._compares_answers = compares_answers
        self.calibration = calibration

    def score(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        activation: ScoreActivation | None = None,
        truncate: Literal["longest_first", "error"] = "longest_first",
        special_tokens_in_text: bool | None = None,
        adapter: str | None = None,
    ) -> npt.NDArray[np.float32]:
        """Score ``query`` with each of ``documents``; see :meth:`score_pairs` for the rest.

        Returns:
            (n,) float32, or (n, label_count) for a model with several labels.
        """
        if not isinstance(query, str):
            raise InvalidInputError(f"query must be a string, not {type(query).__name__}")
        if isinstance(documents, (str, bytes)):
            raise InvalidInputError("documents must be a sequence of strings, not one string: pass [document]")
        pairs = [(query, document) for document in check_text_list(documents, "documents")]
        return self.score_pairs(
            pairs,
            instruction=instruction,
            activation=activation,
            truncate=truncate,
            special_tokens_in_text=special_tokens_in_text,
            adapter=adapter,
        )

    def score_pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        instruction: str | None = None,
        activation: ScoreActivation | None = None,
        truncate: Literal["longest_first", "error"] = "longest_first",
        special_tokens_in_text: bool | None = None,
        adapter: str | None = None,
    ) -> npt.NDArray[np.float32]:
        """Score pairs of texts; a pair's score is the same bits whatever else is in the call.

        Args:
            pairs: any number of pairs of strings.
            instruction: what a document is to do for a query, in words, for a language model that is asked (Qwen3-Reranker);
                by default its own, which is web search. Other models take none.
            activation: ``"identity"`` for the logits, ``"sigmoid"`` for their logistic function; by default what the
                model's files say.
            truncate: cut a pair over ``max_tokens`` at the end of its longer text, token by token, as Hugging Face's
                "longest_first" does (a language model's at the end of the document); or raise.
            special_tokens_in_text: whether special tokens that a text spells out become those tokens; by default what the
                model was loaded with.
            adapter: the name of one of :attr:`adapters`; by default none.

        Returns:
            (n,) float32, or (n, label_count) for a model with several labels.

        Raises:
            InvalidInputError: ``pairs`` does not hold pairs of strings, a string holds a lone surrogate, or there is no such
                adapter.
            TextTooLongError: a pair exceeds ``max_tokens`` and ``truncate`` is ``"error"``.
            NonFiniteError: a score would be NaN or infinity; its ``rows`` are indices into ``pairs``.
        """
        self._program.check_open()
        activation = self.activation if activation is None else activation
        check_choice("activation", activation, ("sigmoid", "identity"))
        check_choice("truncate", truncate, ("longest_first", "error"))
        attached = self._adapter(adapter)
        packed = self._tokens(pairs, instruction, self.max_tokens, special_tokens_in_text)
        if truncate == "error" and packed.truncated.any():
            index = int(np.argmax(packed.truncated))
            raise TextTooLongError(
                f"pair {index} has {int(packed.token_counts[index])} tokens and the model takes {self.max_tokens}: "
                "shorten it, or pass truncate='longest_first'"
            )
        if not len(packed.truncated):
            return np.empty(0 if self.label_count == 1 else (0, self.label_count), np.float32)
        logits = self._program.run(packed, "logits", attached)
        if self._compares_answers:
            logits = logits[:, :1] - logits[:, 1:]
        scores = sigmoid(logits) if activation == "sigmoid" else logits
        return scores[:, 0] if self.label_count == 1 else scores

    def count_tokens(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        instruction: str | None = None,
        special_tokens_in_text: bool | None = None,
    ) -> npt.NDArray[np.int32]:
        """Return each pair's token count before truncation.

        Special tokens and a question's words are included.
        """
        return self._tokens(pairs, instruction, None, special_tokens_in_text).token_counts

    def packed_tokens(
        self, pairs: Sequence[tuple[str, str]], *, instruction: str | None = None, max_tokens: int | None = None
    ) -> PackedEncoding:
        """Return the tokens that :meth:`score_pairs` runs, laid end to end.

        Raises:
            InvalidInputError: as :meth:`score_pairs`.
        """
        limit = self.max_tokens
        if max_tokens is not None:
            limit = check_limit(max_tokens, least=self._pairs.least_tokens, most=self.max_tokens)
        return self._tokens(pairs, instruction, limit, None)

    def _tokens(
        self, pairs: Iterable[object], instruction: str | None, limit: int | None, special_tokens_in_text: bool | None
    ) -> PackedEncoding:
        return self._pairs.pack(
            _checked(pairs),
            self._pairs.check_instruction(instruction),
            limit=limit,
            finds_special=self._finds_special_tokens(special_tokens_in_text),
            threads=self._program.threads,
        )

    @property
    def fingerprint(self) -> str:
        """Identifies all that a score depends on.

        See :attr:`Encoder.fingerprint <lattice_inference.Encoder.fingerprint>`.
        """
        if self._fingerprint is None:
            digest = self._snapshot.digest()
            ranges = "" if self.calibration is None else f":{self.calibration.digest()}"
            read = f"{self.precision}{ranges}:{self._numerics}{self._text_mark}{self._device_mark}"
            self._fingerprint = f"{digest}:{self.activation}:{self.max_tokens}:{read}"
        return self._fingerprint

    def __repr__(self) -> str:
        return (
            f"<CrossEncoder {self.directory} label_count={self.label_count} activation={self.activation} "
            f"max_tokens={self.max_tokens}>"
        )


@reading_once()
def load_cross_encoder(
    path_or_name: str | os.PathLike[str],
    *,
    precision: Precision = "float32",
    max_tokens: int | None = None,
    offline: bool | None = None,
    threads: int | None = None,
    calibration: Calibration | None = None,
    special_tokens_in_text: bool = True,
    backend: BackendName = "cpu",
    device: DeviceName = "cpu",
) -> CrossEncoder:
    """Load a model that scores pairs of texts.

    That is a cross-encoder, a ``BertForSequenceClassification`` or one of the RoBERTas, whose activation and token limit
    come from its own files; or a language model that is asked, Qwen3-Reranker, in whichever form it is stored. There a
    score is the probability of "yes" against "no", and ``max_tokens`` is 8,192 unless it is given.

    Args:
        path_or_name: a directory, a GGUF file of a language model, or a model's name; see
            :func:`lattice_inference.files.hub.find_model`.
        precision: what weights are kept in: ``"float32"``, or ``"bfloat16"`` or ``"float16"``, which take half the memory
            and move results a little (float16 less than bfloat16), or ``"int8"``, which multiplies integers: the fastest and
            smallest (cosine to float32 about 0.998). ``"stored"`` keeps what the file has, quantized weights included.
        max_tokens: a lower limit on the tokens of a pair than the model's own; a higher one is refused. Of a language model
            it is at most what it has positions for.
        offline: never open a connection; by default what ``LATTICE_OFFLINE`` and ``HF_HUB_OFFLINE`` say.
        threads: the most threads a call may use; by default all of the process's pool.
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
        UnsupportedError: the architecture, the activation, a module or an option does not exist here.
        InvalidInputError: ``max_tokens`` leaves no room for a pair, or is above the model's own limit.
    """
    threads = None if threads is None else check_thread_count(threads)
    check_precision(precision)
    check_calibration(calibration, precision)
    if max_tokens is not None:
        check_limit(max_tokens, least=1, most=MAX_POSITIONS)
    checked_flag("special_tokens_in_text", special_tokens_in_text)
    check_backend(backend, device)
    files = find_model(path_or_name, offline=offline)
    refuse_adapters(files.directory)
    snapshot = ModelSnapshot.take(files.directory)
    with open_model(files.directory, causal=False) as model:
        network: TextConfig = model.config
        template = model.family.pair_template
        if model.is_gguf and template is None:
            raise UnsupportedError(
                f"{files.directory}: BERT cross-encoders in GGUF files are not built: load the model's directory"
            )
        tokenizer = model.tokenizer
        compares_answers = template is not None and not network.classifies
        head = SCORES
        side = cut_side(files.directory, tokenizer)
        pairs: PairTokens = PlainPairs(tokenizer, side)
        if template is not None:
            pairs = AskedPairs(tokenizer, template, side)
            head = replace(SCORES, answers=template.answers(tokenizer)) if compares_answers else SCORES
            config = read_asked_config(files.directory, network, is_gguf=model.is_gguf)
        else:
            config = read_cross_encoder_config(files.directory, network)
        if not config.longest >= pairs.least_tokens:
            raise ModelConfigError(
                f"{files.directory}: the files allow {config.longest} tokens, and a pair needs {pairs.least_tokens}: its "
                "special tokens and one"
            )
        if max_tokens is not None:
            limit = check_limit(max_tokens, least=pairs.least_tokens, most=config.longest)
            config = replace(config, max_tokens=limit)
        ranges = None if calibration is None else calibration.ranges
        opened = open_backend(backend, device=device, threads=threads, precision=precision, input_ranges=ranges)
        model.check(head)
        program = opened.compile(model.program(head), model.tensors(head))
    return CrossEncoder(
        files=files,
        snapshot=snapshot,
        tokenizer=tokenizer,
        program=TextProgram(program, network, files.directory),
        config=config,
        label_count=network.label_count,
        precision=precision,
        calibration=calibration,
        special_tokens_in_text=special_tokens_in_text,
        cut_from=side,
        pairs=pairs,
        compares_answers=compares_answers,
        adapter_base=model.adapter_base,
        reload=partial(
            load_cross_encoder,
            files.reload_name(path_or_name),
            precision=precision,
            max_tokens=max_tokens,
            offline=offline,
            threads=threads,
            calibration=calibration,
            special_tokens_in_text=special_tokens_in_text,
            backend=backend,
            device=device,
        ),
    )


def _checked(pairs: Iterable[object]) -> list[tuple[str, str]]:
    """Return the pairs as tuples of two strings."""
    checked: list[tuple[str, str]] = []
    for index, pair in enumerate(check_text_list(pairs, "pairs", "pairs of texts")):
        if isinstance(pair, (str, bytes)) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise InvalidInputError(f"pair {index} is {type(pair).__name__}: pass two strings")
        for text in pair:
            if not isinstance(text, str):
                raise InvalidInputError(f"pair {index} holds {type(text).__name__}, not a string")
        checked.append((str(pair[0]), str(pair[1])))
    return checked
