"""Tokenizers in two versions: ours, and Hugging Face's as the oracle."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from lattice_inference.tokenizer import Tokenizer, load_tokenizer

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@dataclass
class Both:
    """The same tokenizer twice."""

    ours: Tokenizer
    theirs: tokenizers.Tokenizer

    def compare(self, text: str, pair: str | None = None, **options: Any) -> None:
        """Assert that ids, offsets and type ids agree; ``options`` are those of ``Tokenizer.encode``."""
        ours = self.ours.encode(text, pair, **options)
        self.theirs.encode_special_tokens = not options.get("special_tokens_in_text", True)
        add_special_tokens = options.get("add_special_tokens", True)
        theirs = self.theirs.encode(text, pair, add_special_tokens=add_special_tokens)
        assert ours.ids.tolist() == theirs.ids, f"{text!r} {pair!r} {options}"
        assert [tuple(offset) for offset in ours.offsets.tolist()] == theirs.offsets, f"{text!r} {pair!r} {options}"
        assert ours.type_ids.tolist() == theirs.type_ids


def bert(vocabulary: list[str], **normalizer: Any) -> tokenizers.Tokenizer:
    """Return Hugging Face's BERT tokenizer over a vocabulary."""
    tokenizer = tokenizers.Tokenizer(WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**normalizer)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


@pytest.fixture(scope="session")
def make_both(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tokenizers.Tokenizer], Both]:
    """Return a function that saves a tokenizer of Hugging Face's and loads it with both libraries."""

    def make(tokenizer: tokenizers.Tokenizer, **options: Any) -> Both:
        path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
        tokenizer.save(str(path))
        return Both(load_tokenizer(path, **options), tokenizers.Tokenizer.from_file(str(path)))

    return make


@pytest.fixture(scope="session")
def vocabularies(data_directory: Path) -> dict[str, list[str]]:
    """The small committed vocabularies by name."""
    return {
        name: (data_directory / f"wordpiece/small_{name}.txt").read_text(encoding="utf-8").split("\n")[:-1]
        for name in ("uncased", "cased")
    }


@pytest.fixture(scope="session")
def uncased(make_both: Callable[[tokenizers.Tokenizer], Both], vocabularies: dict[str, list[str]]) -> Both:
    return make_both(bert(vocabularies["uncased"], lowercase=True))


@pytest.fixture(scope="session")
def cased(make_both: Callable[[tokenizers.Tokenizer], Both], vocabularies: dict[str, list[str]]) -> Both:
    return make_both(bert(vocabularies["cased"], lowercase=False))


@pytest.fixture(scope="session")
def make_bert(make_both: Callable[[tokenizers.Tokenizer], Both]) -> Callable[..., Both]:
    """Return a function from a vocabulary and BertNormalizer options to both tokenizers."""
    return lambda vocabulary, **normalizer: make_both(bert(vocabulary, **normalizer))


@pytest.fixture(scope="session")
def minilm(minilm_directory: Path) -> Both:
    theirs = tokenizers.Tokenizer.from_file(str(minilm_directory / "tokenizer.json"))
    theirs.no_truncation()
    theirs.no_padding()
    return Both(load_tokenizer(minilm_directory), theirs)


@pytest.fixture(scope="session")
def udhr(data_directory: Path) -> dict[str, str]:
    """The Universal Declaration of Human Rights by language."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted((data_directory / "udhr").glob("*.txt"))}


@pytest.fixture
def definition(uncased: Both) -> dict[str, Any]:
    """A good tokenizer.json, for a test to change."""
    value: dict[str, Any] = json.loads(uncased.theirs.to_str())
    return value
