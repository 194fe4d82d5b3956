"""Tokenizers from GGUF metadata: the same ids as the tokenizer that the file was made from.

A file holds tokens, scores or merges, and a few flags, but not how a text is split: for BPE a name says that
(``tokenizer.ggml.pre``), and what each name means is llama.cpp's convention (``src/llama-vocab.cpp`` of
https://github.com/ggml-org/llama.cpp). Names stand for patterns that Hugging Face's tokenizer.json of the same models
states, and those patterns are what is used here. Not kept by the format, and therefore lost: whether an added token takes
the white space beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lattice_inference.checkpoint.gguf import open_gguf
from lattice_inference.errors import CheckpointError, TokenizerError, UnsupportedError
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer.bpe import BPE
from lattice_inference.tokenizer.charsmap import precompiled
from lattice_inference.tokenizer.decoders import ByteLevelDecoder, WordPieceDecoder, parse_decoder
from lattice_inference.tokenizer.definition import TokenizerDefinition
from lattice_inference.tokenizer.gguf_vocabulary import GgufVocabulary
from lattice_inference.tokenizer.metaspace import SPACE, MetaspaceDecoder, metaspace
from lattice_inference.tokenizer.normalizers import bert_normalizer
from lattice_inference.tokenizer.post_processors import Part, PostProcessor, bert_post_processor
from lattice_inference.tokenizer.pre_tokenizers import BERT_PRE_TOKENIZER, byte_level_steps, parse_pre_tokenizer
from lattice_inference.tokenizer.replacements import Step, prepend, replace, replace_runs
from lattice_inference.tokenizer.sentencepiece_bpe import merges_of
from lattice_inference.tokenizer.sentencepiece_file import NORMAL, SentencePieceFile
from lattice_inference.tokenizer.unigram import Unigram
from lattice_inference.tokenizer.wordpiece import WordPiece

__all__ = ["gguf_tokenizer_definition", "knows_capitals", "read_gguf_tokenizer"]


def read_gguf_tokenizer(path: Path) -> TokenizerDefinition:
    """Return the tokenizer of the GGUF file ``path``.

    Raises as :func:`gguf_tokenizer_definition`, and for a bad file.
    """
    with open_gguf(path) as checkpoint:
        return gguf_tokenizer_definition(checkpoint.metadata, path)


def gguf_tokenizer_definition(metadata: Mapping[str, object], path: Path) -> TokenizerDefinition:
    """Return the tokenizer that an open GGUF file's metadata state; ``path`` is for messages.

    Raises:
        TokenizerError: a part of it is missing or malformed.
        UnsupportedError: its kind, or the way it splits texts, is not built.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise TokenizerError(f"{path} has no tokenizer.ggml.model: it holds no tokenizer")
    if not isinstance(model, str) or model not in _KINDS:
        raise UnsupportedError(
            f"{path}: tokenizer.ggml.model is {model!r:.60}; supported are {', '.join(map(repr, _KINDS))}"
        )
    try:
        return _KINDS[model](GgufVocabulary.from_metadata(metadata, path))
    except CheckpointError as cause:  # an array of the wrong type, or a string that is not UTF-8
        raise TokenizerError(str(cause)) from cause


def _around(before: int | None, behind: int | None) -> PostProcessor:
    """Return the template of optional tokens around a text.

    The second text of a pair is treated likewise.
    """

    def parts(sequence: int) -> tuple[Part, ...]:
        first = () if before is None else (Part(-1, before, sequence),)
        last = () if behind is None else (Part(-1, behind, sequence),)
        return (*first, Part(sequence, -1, sequence), *last)

    return PostProcessor(parts(0), (*parts(0), *parts(1)))


def _ends(vocabulary: GgufVocabulary, *, adds_bos: bool, adds_eos: bool) -> PostProcessor:
    """Return the template by the file's flags.

    Where the file names no such token, there is none to add.
    """
    bos = vocabulary.token_id("bos_token_id") if vocabulary.flag("add_bos_token", adds_bos) else None
    eos = vocabulary.token_id("eos_token_id") if vocabulary.flag("add_eos_token", adds_eos) else None
    return _around(bos, eos)


@dataclass(frozen=True)
class _Splitting:
    """What a name in ``tokenizer.ggml.pre`` stands for.

    ``steps``: how a text is split before the merges; ``normalizer``: what is done to it before that; ``ignore_merges``: a
    word that is a token is that token; ``adds_bos``: the default of ``add_bos_token``.
    """

    steps: tuple[Step, ...]
    normalizer: tuple[Step, ...] = ()
    ignore_merges: bool = False
    adds_bos: bool = False


def _pattern(regex: str) -> tuple[Step, ...]:
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return parse_pre_tokenizer(split)


_NFC = (native.NORMALIZE_NFC,)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_REST}"  # no endings
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}"
    rf"|\p{{N}}{{1,3}}|{_REST}"
)


def _splitting(pre: str) -> _Splitting | None:
    """Return what ``pre`` stands for, or None for a name that is not known."""
    match pre:
        case "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" | "exaone4" | "gigachat":
            return _Splitting((native.SPLIT_GPT2,))
        case "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b":
            return _Splitting((native.SPLIT_DIGITS, native.SPLIT_GPT2))
        case "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "lfm2":
            return _Splitting((native.SPLIT_LLAMA3,), ignore_merges=True, adds_bos=True)
        case "dbrx" | "smaug-bpe" | "chatglm-bpe" | "glm4":
            return _Splitting((native.SPLIT_LLAMA3,))
        case "qwen2" | "deepseek-r1-qwen":
            return _Splitting((native.SPLIT_QWEN2,), _NFC)
        case "stablelm2" | "hunyuan" | "megrez":
            return _Splitting((native.SPLIT_QWEN2,))
        case "qwen35":
            return _Splitting((native.SPLIT_QWEN35,), _NFC)
        case "tekken":
            return _Splitting(_pattern(_TEKKEN), ignore_merges=True, adds_bos=True)
        case "gpt-4o" | "llama4":
            return _Splitting(_pattern(_GPT4O), adds_bos=pre == "llama4")
        case _:
            return None


def _gpt2(vocabulary: GgufVocabulary) -> TokenizerDefinition:
    """Byte-level BPE, as GPT-2, Llama 3, Qwen and SmolLM have it."""
    pre = vocabulary.text("pre")
    splitting = None if pre is None else _splitting(pre)
    if splitting is None:
        raise UnsupportedError(
            f"{vocabulary.path}: tokenizer.ggml.pre is {'missing' if pre is None else repr(pre)[:60]}, so it is not known "
            "how a text is split; a file that was converted again by a newer llama.cpp may say"
        )
    ids = vocabulary.ids()
    return TokenizerDefinition(
        normalizer=splitting.normalizer,
        pre_tokenizer=(*splitting.steps, *byte_level_steps(add_prefix_space=False, use_regex=False)),
        model=BPE(ids, vocabulary.merges(), ignore_merges=splitting.ignore_merges),
        post_processor=_ends(vocabulary, adds_bos=splitting.adds_bos, adds_eos=False),
        decoder=ByteLevelDecoder(),
        added_tokens=vocabulary.added_tokens(),
        repeated_tokens=vocabulary.repeated_tokens(ids),
    )


def _pieces(vocabulary: GgufVocabulary, kept: Sequence[int] | None = None) -> SentencePieceFile:
    """Return the tokens as pieces, all or those with the ids ``kept``."""
    chosen = np.arange(len(vocabulary.tokens)) if kept is None else np.asarray(kept, np.intp)
    encoded = [vocabulary.tokens[token_id].encode() for token_id in chosen.tolist()]
    ends = np.cumsum([len(token) for token in encoded]).astype(np.int32)
    return SentencePieceFile(b"".join(encoded), ends, vocabulary.scores()[chosen], vocabulary.types[chosen])


def _llama(vocabulary: GgufVocabulary) -> TokenizerDefinition:
    """SentencePiece's BPE, as in the tokenizer.json of Llama 1 and 2, Mistral and Phi-3.

    A space is put before a text, and before what follows a special token, unless ``add_space_prefix`` is false.
    """
    ids = vocabulary.ids()
    adds_prefix = vocabulary.flag("add_space_prefix", True)
    unknown = vocabulary.token_id("unknown_token_id")
    decoders: list[object] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if adds_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return TokenizerDefinition(
        normalizer=(*((prepend(SPACE),) if adds_prefix else ()), replace(" ", SPACE)),
        pre_tokenizer=(),
        model=BPE(
            ids,
            merges_of(_pieces(vocabulary, sorted(ids.values())), ids),
            unknown_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unknown=True,
            byte_fallback=True,
        ),
        post_processor=_ends(vocabulary, adds_bos=True, adds_eos=False),
        decoder=parse_decoder({"type": "Sequence", "decoders": decoders}),
        added_tokens=vocabulary.added_tokens(),
        repeated_tokens=vocabulary.repeated_tokens(ids),
    )


def _t5(vocabulary: GgufVocabulary) -> TokenizerDefinition:
    """Unigram with SentencePiece's normalisation, as T5 and XLM-RoBERTa have it."""
    file = _pieces(vocabulary)
    unknown = vocabulary.token_id("unknown_token_id")
    charsmap = vocabulary.numbers("precompiled_charsmap", "UINT8")
    normalizer: tuple[Step, ...] = ()
    if charsmap is not None and charsmap.size:
        normalizer = (precompiled(charsmap.tobytes(), "tokenizer.ggml.precompiled_charsmap"),)
    if vocabulary.flag("remove_extra_whitespaces", False):
        normalizer += replace_runs(" {2,}", " ")
    scheme = "always" if vocabulary.flag("add_space_prefix", True) else "never"
    words = parse_pre_tokenizer({"type": "WhitespaceSplit"})
    return TokenizerDefinition(
        normalizer=normalizer,
        pre_tokenizer=(*words, metaspace(prepend_scheme=scheme)),
        model=Unigram(native.PieceTable(file.text, file.ends, file.scores.astype(np.float64)), unknown),
        post_processor=_ends(vocabulary, adds_bos=False, adds_eos=True),
        decoder=MetaspaceDecoder(has_prefix=scheme != "never"),
        added_tokens=vocabulary.added_tokens(),
        repeated_tokens=vocabulary.repeated_tokens(
            dict(zip(vocabulary.tokens, range(len(vocabulary.tokens)), strict=True))
        ),
    )


def _bert(vocabulary: GgufVocabulary) -> TokenizerDefinition:
    """WordPiece.

    The file writes ``##x`` as ``x`` and ``x`` as ``\u2581x``; what is in brackets stands as it is. It does not say
    whether the model knows capital letters, but the vocabulary does: one without any (outside of special tokens) is
    of a model that is given lower case without accents.
    """
    cls = vocabulary.token_id("cls_token_id", "bos_token_id")
    sep = vocabulary.token_id("seperator_token_id", "eos_token_id")
    unknown = vocabulary.token_id("unknown_token_id")
    if cls is None or sep is None or unknown is None:
        raise TokenizerError(
            f"{vocabulary.path}: a BERT tokenizer needs tokenizer.ggml.cls_token_id, .seperator_token_id and "
            ".unknown_token_id"
        )
    added = vocabulary.added_tokens()
    written = {token.content for token in added}
    pieces = [token if token in written else _piece(token) for token in vocabulary.tokens]
    ids = vocabulary.ids(pieces)
    kinds = vocabulary.types.tolist()
    lower = not knows_capitals(piece for piece, kind in zip(pieces, kinds, strict=True) if kind == NORMAL)
    return TokenizerDefinition(
        normalizer=bert_normalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lower),
        pre_tokenizer=BERT_PRE_TOKENIZER,
        model=WordPiece(ids, pieces[unknown]),
        post_processor=bert_post_processor(cls, sep),
        decoder=WordPieceDecoder(),
        added_tokens=added,
        repeated_tokens=vocabulary.repeated_tokens(ids, pieces),
    )


def knows_capitals(pieces: Iterable[str]) -> bool:
    """Whether a piece other than those in brackets has a capital letter."""
    return any(piece != piece.lower() and not _is_bracketed(piece) for piece in pieces)


def _piece(token: str) -> str:
    """Return the piece that a BERT file writes as ``token``."""
    if token.startswith(SPACE):
        return token.removeprefix(SPACE)
    return token if _is_bracketed(token) else f"##{token}"


def _is_bracketed(token: str) -> bool:
    return token.startswith("[") and token.endswith("]")


_KINDS: dict[str, Callable[[GgufVocabulary], TokenizerDefinition]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "bert": _bert,
    "t5": _t5,
}
