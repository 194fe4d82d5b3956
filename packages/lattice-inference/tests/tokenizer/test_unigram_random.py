"""Random Unigram tokenizers on random texts, and many random strings on one tokenizer, against Hugging Face's library."""

import random
import sys
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

from .unigram_tokenizers import charsmap, xlm_roberta

sys.path.append(str(Path(__file__).resolve().parents[4] / "tools/unicode"))

from charsmap import compile_charsmap

POOL = [
    *"abBé가각が日ßΣςİÅΩx1٣_-.,!「…①ﷺﬁａ\u1100\u1161\u11a8\u3099\u212b\u2126\u01c4\u0340\u0374\u037e\ufeff\ufffd",
    *"\u0301\u0323\u0327\u0345\u0344\u0f71\u0f73\u302e\u302f\u0958\u0915\u093c\u094d\U0001d15e\U0001d165\U0001d16d",
    *" \t\n\r\x0b\x00\x07\u00a0\u200b\u200c\u200d\u3000\u2028\U00020000\U000e0001😀™©\ufe0f\u0600\u06dd\u0d4e²½\u2581",
    *[
        "  ",
        "   ",
        "\r\n",
        "e\u0301",
        "\u1e9b\u0323",
        "[X]",
        "<mask>",
        "<s>",
        "</s>",
        "<unk>",
        "<0x41>",
        "\u2581\u2581",
    ],
    *["👩\u200d👩", "\U0001f1e6\U0001f1e7", "\u2122\u200d", "\u00b4", "\u0385", "\u1fee", "the", "\u2581the"],
]
KEYS = [*"abé①ﬁ日が\u0301\u0323\u0915\u0958™© \t", "e\u0301", "ab", "a\u0301", "\u200d", "\u0600", "\u1100\u1161", "aé"]
PATTERNS = [" ", "ab", "é", "\u2581", "  "]
REGEXES = [
    " {2,}",
    "a+",
    r"\s+",
    r"\s{2,3}",
    "b{2}",
    r"\A +| +\z",
    "\\A\u2581",
    r"\n+",
    r"[b]{1,2}",
    r"\.",
    " +\\z",
    "x",
]


class Generator(random.Random):
    def text(self, lengths=(0, 1, 2, 5, 10, 30)):
        return "".join(self.choices(POOL, k=self.choice(lengths)))

    def stage(self, components, sequence, counts=(0, 1, 1, 2, 3)):
        chosen = [self.choice(components)() for _ in range(self.choice(counts))]
        return None if not chosen else chosen[0] if len(chosen) == 1 else sequence(chosen)

    def normalizer(self):
        def rules():
            return normalizers.Precompiled(
                compile_charsmap(
                    {key: self.choice(["", "!", "x", "ab", "日本語", " "]) for key in self.sample(KEYS, 6)}
                )
            )

        return self.stage(
            [
                lambda: normalizers.Precompiled(charsmap()),
                rules,
                rules,
                normalizers.NFKC,
                normalizers.NFD,
                normalizers.Nmt,
                normalizers.Lowercase,
                normalizers.StripAccents,
                lambda: normalizers.Strip(left=self.random() < 0.5, right=self.random() < 0.5),
                lambda: normalizers.Replace(self.choice(PATTERNS), self.choice(["", " ", "\u2581", "xyz"])),
                lambda: normalizers.Replace(Regex(" {2,}"), self.choice([" ", "\u2581"])),
                lambda: normalizers.Replace(Regex(self.choice(REGEXES)), ""),
                lambda: normalizers.Prepend(self.choice(["\u2581", "ab"])),
            ],
            normalizers.Sequence,
        )

    def pre_tokenizer(self):
        def metaspace():
            return pre_tokenizers.Metaspace(
                replacement=self.choice(["\u2581", "\u2581", "_", "日"]),
                prepend_scheme=self.choice(["always", "first", "never"]),
                split=self.random() < 0.7,
            )

        others = [pre_tokenizers.WhitespaceSplit, pre_tokenizers.Whitespace, pre_tokenizers.Punctuation]
        return self.stage([metaspace, metaspace, *others], pre_tokenizers.Sequence)

    def tokenizer(self):
        vocabulary = {"<s>": 0.0, "</s>": 0.0, "<unk>": 0.0}
        step = self.choice([0.5, 0.1, 1e-17])
        for _ in range(60):
            piece = self.choice(["", "", "\u2581"]) + self.text((1, 1, 2, 3))
            vocabulary.setdefault(piece, -step * self.randrange(1, 20))
        byte_fallback = self.random() < 0.5
        if self.random() < 0.5:
            vocabulary.update((f"<0x{byte:02X}>", -20.0) for byte in range(256) if byte or self.random() < 0.5)
        tokenizer = tokenizers.Tokenizer(Unigram(list(vocabulary.items()), unk_id=2, byte_fallback=byte_fallback))
        for name in ("normalizer", "pre_tokenizer"):
            component = getattr(self, name)()
            if component is not None:
                setattr(tokenizer, name, component)
        if self.random() < 0.7:
            tokenizer.post_processor = processors.TemplateProcessing(
                single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
            )
        tokenizer.decoder = decoders.Metaspace(prepend_scheme=self.choice(["always", "first", "never"]))
        normalized = set()
        for content in self.sample(
            ["<mask>", "[X]", "<s>", " x", "é", "the", "<unk>", "\u2581"], self.choice([0, 2, 4])
        ):
            names = ("single_word", "lstrip", "rstrip", "normalized", "special")
            token = AddedToken(content, **{name: self.random() < 0.4 for name in names})
            if token.normalized:
                form = tokenizer.normalizer.normalize_str(content) if tokenizer.normalizer else content
                if form in normalized or not form:
                    continue
                normalized.add(form)
            (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        return tokenizer


@pytest.mark.parametrize("seed", range(8))
def test_random_tokenizers_on_random_texts(make_both, seed):
    generator = Generator(seed)
    for _ in range(30):
        both = make_both(generator.tokenizer())
        added = both.theirs.get_added_tokens_decoder()
        for _ in range(15):
            text = generator.text()
            pair = generator.text() if generator.random() < 0.3 else None
            options = {
                "add_special_tokens": generator.random() < 0.7,
                "special_tokens_in_text": generator.random() < 0.7,
            }
            both.compare(text, pair, **options)
            # How normalized added tokens are named in a decoded text is one of the documented differences.
            ids = [token_id for token_id in both.theirs.encode(text).ids if token_id not in added]
            ids = [token_id for token_id in ids if generator.random() < 0.9]
            assert both.ours.decode(ids) == both.theirs.decode(ids)


@pytest.mark.parametrize("seed", range(4))
def test_random_strings(make_both, seed):
    """With offsets; test_many_strings.py has more strings, without."""
    both = make_both(xlm_roberta())
    generator = Generator(f"strings {seed}")
    texts = [generator.text((1, 2, 3, 5, 10, 30)) for _ in range(3000)]
    texts += ["".join(chr(c) for c in generator.choices(range(0xD800), k=5)) for _ in range(500)]
    texts += ["".join(chr(c) for c in generator.choices(range(0xE000, 0x110000), k=5)) for _ in range(300)]
    for text, ours, theirs in zip(texts, both.ours.encode_batch(texts), both.theirs.encode_batch(texts), strict=True):
        assert ours.ids.tolist() == theirs.ids, ascii(text)
        assert [tuple(offset) for offset in ours.offsets.tolist()] == theirs.offsets, ascii(text)
