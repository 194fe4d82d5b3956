"""Unigram tokenizers of Hugging Face's library, for the tests to compare with."""

import json
import lzma
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

DATA = Path(__file__).resolve().parents[1] / "data/unigram"


def charsmap() -> bytes:
    """Return XLM-R's precompiled rules."""
    return lzma.decompress((DATA / "nmt_nfkc.charsmap.xz").read_bytes())


def pieces() -> list[tuple[str, float]]:
    """Return the small vocabulary."""
    return [(piece, score) for piece, score in json.loads((DATA / "small_pieces.json").read_text(encoding="utf-8"))]


def xlm_roberta(vocabulary: list[tuple[str, float]] | None = None) -> tokenizers.Tokenizer:
    """Return a tokenizer with all the parts of multilingual-e5's."""
    tokenizer = tokenizers.Tokenizer(Unigram(vocabulary or pieces(), unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(charsmap()), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always", split=True)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    special = [AddedToken(token, normalized=False, special=True) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    tokenizer.add_special_tokens([*special, AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    return tokenizer


def simple(vocabulary: list[tuple[str, float]], unk_id: int | None = 0, **options: bool) -> tokenizers.Tokenizer:
    """Return a tokenizer of a model and nothing else."""
    return tokenizers.Tokenizer(Unigram(vocabulary, unk_id=unk_id, byte_fallback=options.get("byte_fallback", False)))
