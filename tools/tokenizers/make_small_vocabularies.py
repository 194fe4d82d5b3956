"""Trains the tokenizer tests' two small WordPiece vocabularies on tests/data/udhr.

python tools/tokenizers/make_small_vocabularies.py
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, normalizers, pre_tokenizers, trainers
from tokenizers.models import WordPiece

DATA = Path(__file__).resolve().parents[2] / "packages/lattice-inference/tests/data"
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def main() -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted((DATA / "udhr").glob("*.txt"))]
    for name, lowercase in (("small_uncased", True), ("small_cased", False)):
        tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(
            vocab_size=3000, special_tokens=SPECIAL_TOKENS, limit_alphabet=700, show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        path = DATA / "wordpiece" / f"{name}.txt"
        path.write_text("".join(f"{token}\n" for token, _ in vocabulary), encoding="utf-8")
        print(f"wrote {path} ({len(vocabulary):,} tokens)")


if __name__ == "__main__":
    main()
