"""Makes the data of the Unigram tests: small SentencePiece models, their encodings.

They are transformers' encodings. A small vocabulary is made too.

    python tools/goldens/sentencepiece_goldens.py [--charsmap FILE]

writes packages/lattice-inference/tests/data/unigram. Needs sentencepiece 0.2.3, transformers 5.24.0, tokenizers 0.23.3 and
protobuf. ``--charsmap`` names XLM-R's precompiled charsmap (the field of that name in a GGUF file with its vocabulary),
which is committed compressed and kept without the option.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "packages/lattice-inference/tests/data"
TARGET = DATA / "unigram"

MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "xlm_roberta": (
        "sentencepiece.bpe.model",
        {},
        {
            "tokenizer_class": "XLMRobertaTokenizerFast",
            "mask_token": {
                "__type": "AddedToken",
                "content": "<mask>",
                "lstrip": True,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
            },
        },
    ),
    "t5": (
        "spiece.model",
        {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
        {"tokenizer_class": "T5Tokenizer", "extra_ids": 100},
    ),
    "general": ("tokenizer.model", {"byte_fallback": True, "user_defined_symbols": ["<sep>", "foo"]}, {}),
    "plain": ("tokenizer.model", {"remove_extra_whitespaces": False, "add_dummy_prefix": False}, {}),
}

ODD = [
    "",
    " ",
    "   ",
    "\u2581",
    "\u2581a",
    "\u2581\u2581 a",
    " leading",
    "trailing ",
    "a  b   c",
    "a\tb\nc",
    "<s> a </s>",
    "a<mask>b <mask> c",
    "<unk>",
    "<pad>x",
    "foo bar<sep>foofoo",
    "<extra_id_0> and <extra_id_99>",
    "<0x41>",
    "日本語 ☃ 😀",
    "e\u0301\u0323",
    "ﬁ ① ½",
    "a\u00a0b\u3000c",
    "\u0000\u0007",
]


def texts() -> list[str]:
    """Return the odd texts, and pieces of the declaration of human rights."""
    generator = random.Random(4)
    result = list(ODD)
    for path in sorted((DATA / "udhr").glob("*.txt")):
        words = path.read_text(encoding="utf-8").split()
        start = generator.randrange(max(1, len(words) - 25))
        result.append(" ".join(words[start : start + 25]))
    return result


def train(folder: Path, name: str, options: dict[str, Any]) -> None:
    import sentencepiece

    corpus = folder / "corpus.txt"
    files = [DATA / "udhr" / f"{language}.txt" for language in ("eng", "deu_1996", "fra", "rus", "ell_monotonic")]
    corpus.write_text("\n".join(path.read_text(encoding="utf-8") for path in files), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / name),
        model_type="unigram",
        vocab_size=900,
        character_coverage=0.999,
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
        **options,
    )


def convert(name: str) -> Any:
    """Return what transformers makes of a model's directory."""
    from transformers import T5Tokenizer, XLMRobertaTokenizer
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    classes = {"xlm_roberta": XLMRobertaTokenizer, "t5": T5Tokenizer}
    return classes.get(name, TokenizersBackend).from_pretrained(TARGET / name)._tokenizer


def write_models() -> None:
    expected: dict[str, Any] = {"texts": texts()}
    for name, (file, options, config) in MODELS.items():
        shutil.rmtree(TARGET / name, ignore_errors=True)
        (TARGET / name).mkdir(parents=True)
        with tempfile.TemporaryDirectory() as folder:
            train(Path(folder), name, options)
            shutil.copyfile(Path(folder) / f"{name}.model", TARGET / name / file)
        if config:
            text = json.dumps(config, indent=2) + "\n"
            (TARGET / name / "tokenizer_config.json").write_text(text, encoding="utf-8")
        tokenizer = convert(name)
        encodings = [tokenizer.encode(text) for text in expected["texts"]]
        pair = tokenizer.encode("a b", "c")
        expected[name] = {
            "vocab_size": tokenizer.get_vocab_size(),
            "ids": [encoding.ids for encoding in encodings],
            "offsets": [encoding.offsets for encoding in encodings],
            "decoded": [tokenizer.decode(encoding.ids) for encoding in encodings],
            "pair": {"ids": pair.ids, "type_ids": pair.type_ids},
        }
    (TARGET / "sentencepiece.json").write_text(json.dumps(expected, ensure_ascii=False) + "\n", encoding="utf-8")


def write_vocabulary() -> None:
    """Train 3,000 pieces with XLM-R's normalizer on all the languages."""
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    charsmap = lzma.decompress((TARGET / "nmt_nfkc.charsmap.xz").read_bytes())
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Precompiled(charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    trainer = trainers.UnigramTrainer(
        vocab_size=3000,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    files = sorted(str(path) for path in (DATA / "udhr").glob("*.txt"))
    tokenizer.train(files, trainer)
    pieces = json.loads(tokenizer.to_str())["model"]["vocab"]
    lines = ",\n".join(json.dumps(piece, ensure_ascii=False) for piece in pieces)
    (TARGET / "small_pieces.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--charsmap", type=Path, help="XLM-R's precompiled charsmap, uncompressed")
    arguments = parser.parse_args()
    TARGET.mkdir(exist_ok=True)
    if arguments.charsmap is not None:
        compressed = lzma.compress(arguments.charsmap.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
        (TARGET / "nmt_nfkc.charsmap.xz").write_bytes(compressed)
    write_models()
    write_vocabulary()
    return 0


if __name__ == "__main__":
    sys.exit(main())
