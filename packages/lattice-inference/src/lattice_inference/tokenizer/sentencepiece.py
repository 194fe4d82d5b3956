"""Tokenizers of directories with only a SentencePiece model.

Its file is ``tokenizer.model``, ``sentencepiece.bpe.model`` and so on. The ids and steps are those of the conversions
in Hugging Face's transformers (version 5). XLM-R's and T5's classes have one each. Any other directory gets the
general one, which follows the model file's settings.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from lattice_inference.errors import TokenizerError, UnsupportedError
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer._tokenizer import PieceTable
from lattice_inference.tokenizer.added_tokens import AddedToken
from lattice_inference.tokenizer.charsmap import precompiled
from lattice_inference.tokenizer.decoders import parse_decoder
from lattice_inference.tokenizer.definition import TokenizerDefinition
from lattice_inference.tokenizer.fields import Fields, read_json_object
from lattice_inference.tokenizer.metaspace import SPACE, MetaspaceDecoder, metaspace
from lattice_inference.tokenizer.post_processors import DEFAULT_POST_PROCESSOR, Part, PostProcessor
from lattice_inference.tokenizer.pre_tokenizers import parse_pre_tokenizer
from lattice_inference.tokenizer.replacements import Step, replace, replace_runs
from lattice_inference.tokenizer.sentencepiece_bpe import sentencepiece_bpe
from lattice_inference.tokenizer.sentencepiece_file import (
    CONTROL,
    USER_DEFINED,
    SentencePieceFile,
    read_sentencepiece_file,
)
from lattice_inference.tokenizer.tokenizer_config import (
    CONFIG_NAME,
    ROBERTA_SPECIAL_TOKENS,
    config_added_tokens,
    special_token,
    tokenizer_family,
)
from lattice_inference.tokenizer.unigram import Unigram

__all__ = ["SENTENCEPIECE_FILE_NAMES", "read_sentencepiece_model"]

SENTENCEPIECE_FILE_NAMES = ("tokenizer.model", "sentencepiece.bpe.model", "spiece.model")
"""What model directories call a SentencePiece file."""

_XLM_ROBERTA = {"XLMRoberta", "xlm-roberta", "xlm-roberta-xl"}
_T5 = {"T5", "t5"}
_GENERAL = {"PreTrained", "Tokenizers", "TokenizersBackend", ""}


@dataclass(frozen=True)
class PieceSplit:
    """Splits a text so that each of ``pieces`` stands alone.

    Where two begin, the first of them counts.
    """

    pieces: tuple[str, ...]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.pieces)))

    @staticmethod
    def begin() -> None:
        """Begin a call of the tokenizer.

        A search for pieces takes linear time, so there is nothing to limit.
        """

    def __call__(self, text: str) -> list[tuple[int, int]]:
        """Return the ranges of the words of ``text``; some may be empty."""
        ends = [0, *(end for match in self._pattern.finditer(text) for end in match.span()), len(text)]
        return list(itertools.pairwise(ends))


def read_sentencepiece_model(path: Path) -> TokenizerDefinition:
    """Return the tokenizer of a SentencePiece model.

    The tokenizer_config.json and config.json beside it count too.

    Raises:
        TokenizerError: a file is malformed.
        UnsupportedError: the model is not a Unigram model, or its directory names a class whose conversion is not built.
    """
    file = read_sentencepiece_file(path)
    if file.model_type not in ("bpe", "unigram"):
        raise UnsupportedError(
            f"{path} is a SentencePiece model of type {file.model_type!r:.80}; supported are bpe, unigram"
        )
    config_path = path.with_name(CONFIG_NAME)
    config = Fields(read_json_object(config_path) if config_path.exists() else {}, CONFIG_NAME)
    family = tokenizer_family(path.parent, config)
    if file.model_type == "bpe":
        return sentencepiece_bpe(file, config, family, path)
    if family in _XLM_ROBERTA:
        return _xlm_roberta(file, config)
    if family in _T5:
        return _t5(file, config)
    if family in _GENERAL:
        if path.name == "sentencepiece.bpe.model":
            raise UnsupportedError(
                f"{path}: no tokenizer_config.json or config.json beside it says whose it is, and the classes that use "
                "this name number its pieces in different ways"
            )
        return _general(file, config, path)
    raise UnsupportedError(
        f"{path}: the directory names the tokenizer class {family!r:.80}, which reads a SentencePiece model in a special "
        "way that is not built; use the model's tokenizer.json"
    )


def _special_tokens(config: Fields, defaults: dict[str, str]) -> dict[str, AddedToken]:
    return {name: special_token(config, name, default) for name, default in defaults.items()}


def _piece_tokens(file: SentencePieceFile, *types: int) -> list[AddedToken]:
    """Return the pieces of some types, which are found in a text before it is cut to pieces."""
    ids = np.flatnonzero(np.isin(file.types, types)).tolist()
    return [
        AddedToken(_piece(file, token_id), normalized=False, special=bool(file.types[token_id] == CONTROL))
        for token_id in ids
    ]


def _piece(file: SentencePieceFile, token_id: int) -> str:
    start = int(file.ends[token_id - 1]) if token_id else 0
    return file.text[start : int(file.ends[token_id])].decode()


def _table(file: SentencePieceFile, before: list[str], skipped: int, behind: list[str]) -> PieceTable:
    """Return the file's pieces without the first ``skipped``, between tokens of score 0."""
    if len(file) < skipped:
        raise TokenizerError(f"the SentencePiece model has {len(file)} pieces; its class expects at least {skipped}")
    first, last = [token.encode() for token in before], [token.encode() for token in behind]
    cut = int(file.ends[skipped - 1]) if skipped else 0
    text = b"".join([*first, file.text[cut:], *last])
    sizes = np.diff(file.ends[skipped:], prepend=np.int32(cut))
    ends = np.cumsum(np.concatenate([_sizes(first), sizes, _sizes(last)]), dtype=np.int64)
    if ends.size and ends[-1] >= 2**31:
        raise TokenizerError("the SentencePiece model has more than 2 GiB of pieces")
    scores = np.concatenate([np.zeros(len(first)), file.scores[skipped:].astype(np.float64), np.zeros(len(last))])
    return PieceTable(text, ends.astype(np.int32), scores)


def _sizes(tokens: list[bytes]) -> list[int]:
    return [len(token) for token in tokens]


def _charsmap(file: SentencePieceFile) -> tuple[Step, ...]:
    charsmap = file.normalizer.precompiled_charsmap
    return (precompiled(charsmap, "normalizer_spec.precompiled_charsmap"),) if charsmap else ()


def _words(prepend_scheme: str) -> tuple[Step, ...]:
    """Return the pre-tokenizer of XLM-R and T5."""
    return (*parse_pre_tokenizer({"type": "WhitespaceSplit"}), metaspace(prepend_scheme=prepend_scheme))


def _xlm_roberta(file: SentencePieceFile, config: Fields) -> TokenizerDefinition:
    """Numbers XLM-R's pieces as fairseq did.

    Four special tokens, the file's pieces from the fourth on, the mask.
    """
    tokens = _special_tokens(config, ROBERTA_SPECIAL_TOKENS)
    before = [tokens[name].content for name in ("bos_token", "pad_token", "eos_token", "unk_token")]
    vocabulary = _table(file, before, 3, [tokens["mask_token"].content])
    bos, eos = (vocabulary[tokens[name].content] for name in ("bos_token", "eos_token"))
    single = (Part(-1, bos, 0), Part(0, -1, 0), Part(-1, eos, 0))
    scheme = "always" if config.boolean("add_prefix_space", True) else "never"
    return TokenizerDefinition(
        normalizer=_charsmap(file),
        pre_tokenizer=_words(scheme),
        model=Unigram(vocabulary, 3),
        post_processor=PostProcessor(single, (*single, Part(-1, eos, 0), Part(1, -1, 0), Part(-1, eos, 0))),
        decoder=MetaspaceDecoder(has_prefix=scheme != "never"),
        added_tokens=_added(config, tokens, _piece_tokens(file, CONTROL, USER_DEFINED)),
    )


def _t5(file: SentencePieceFile, config: Fields) -> TokenizerDefinition:
    """T5 has ``<extra_id_99>`` to ``<extra_id_0>`` after the file's pieces.

    ``</s>`` comes after a text.
    """
    tokens = _special_tokens(config, {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"})
    count = config.integer("extra_ids", 0, 10_000, 100)
    extra = [f"<extra_id_{i}>" for i in range(count - 1, -1, -1)]
    vocabulary = _table(file, [], 0, extra)
    eos = vocabulary.get(tokens["eos_token"].content)
    if eos is None:
        raise TokenizerError(f"the SentencePiece model lacks the piece {tokens['eos_token'].content!r}")
    single = (Part(0, -1, 0), Part(-1, eos, 0))
    special = [AddedToken(token, normalized=False, special=True) for token in extra]
    return TokenizerDefinition(
        normalizer=_charsmap(file),
        pre_tokenizer=_words("always"),
        model=Unigram(vocabulary, 2),
        post_processor=PostProcessor(single, (*single, Part(1, -1, 0), Part(-1, eos, 0))),
        decoder=MetaspaceDecoder(),
        added_tokens=_added(config, tokens, [*special, *_piece_tokens(file, CONTROL, USER_DEFINED)]),
    )


def _general(file: SentencePieceFile, config: Fields, path: Path) -> TokenizerDefinition:
    """Follow the settings in the file, as SentencePiece itself does."""
    if file.unk_id < 0:
        raise TokenizerError(f"{path} has no unknown piece")
    spec = file.normalizer
    normalizer = _charsmap(file)
    if spec.remove_extra_whitespaces:
        normalizer += (*replace_runs(r"\A +| +\z", ""), *replace_runs(" {2,}", " "))
    if spec.escape_whitespaces:
        normalizer += (replace(" ", SPACE),)
    pre_tokenizer: tuple[Step, ...] = ()
    decoders: list[object] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    if file.byte_fallback:
        decoders.append({"type": "ByteFallback"})
    if spec.add_dummy_prefix:
        # Metaspace leaves a text alone that begins with the visible space, SentencePiece does not.
        normalizer += replace_runs(rf"\A{SPACE}", SPACE * 2)
        pre_tokenizer = (metaspace(split=False),)
        decoders += [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    elif file.byte_fallback:
        decoders.append({"type": "Fuse"})
    user_defined = [_piece(file, token_id) for token_id in np.flatnonzero(file.types == USER_DEFINED).tolist()]
    if user_defined:
        pre_tokenizer += ((native.SPLIT_EXTERNAL, PieceSplit(tuple(sorted(user_defined, key=len, reverse=True)))),)
    names = [name for name in ("bos_token", "eos_token", "unk_token", "pad_token") if config.raw(name, None)]
    tokens = {name: special_token(config, name, None) for name in names}
    unknown = AddedToken(_piece(file, file.unk_id), normalized=False, special=True)
    return TokenizerDefinition(
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizer,
        model=Unigram(_table(file, [], 0, []), file.unk_id, file.byte_fallback),
        post_processor=DEFAULT_POST_PROCESSOR,
        decoder=parse_decoder({"type": "Sequence", "decoders": decoders}),
        added_tokens=_added(config, tokens, [unknown, *_piece_tokens(file, CONTROL)]),
    )


def _added(config: Fields, special: dict[str, AddedToken], others: list[AddedToken]) -> tuple[AddedToken, ...]:
    """Return the added tokens by content.

    The configuration's flags count before those of the model file.
    """
    tokens = {token.content: token for token in config_added_tokens(config, list(special.values()))}
    for token in others:
        tokens.setdefault(token.content, token)
    return tuple(tokens.values())
