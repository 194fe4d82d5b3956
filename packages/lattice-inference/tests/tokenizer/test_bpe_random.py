"""Random BPE models with all settings, on random texts, against Hugging Face's library."""

import random

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

LETTERS = [*"abc \u2581é日"]
BYTES = ["Ġ", "a", "b", "c", "Ã", "©", "æ", "Ĺ", "¥", "Ċ", "1", "'"]
ADDED = ["[X]", " x", "ab", "<mask>", "  ", "é", "b c"]


class Generator(random.Random):
    def flag(self, probability=0.5):
        return self.random() < probability

    def model(self, *, byte_level, affixes=None):
        """A model whose merges are drawn at random among pairs whose result has not been made yet."""
        prefix, suffix = affixes or ("", "")
        units = self.sample(BYTES if byte_level else LETTERS, self.choice([5, 7]) if self.flag(0.7) else 3)
        starts = list(units)
        tokens = [*units]
        if prefix or suffix:
            starts = [t for u in units for t in (u, u + suffix)]
            tokens = starts + [prefix + t for t in starts] if prefix else starts
        tokens = list(dict.fromkeys(tokens))
        merges = []
        for _ in range(self.choice([0, 5, 15, 40])):
            left, right = self.choice(tokens), self.choice(tokens)
            if prefix and not right.startswith(prefix):
                continue
            result = left + right[len(prefix) :]
            if len(result) < 12 and (left, right) not in merges:
                merges.append((left, right))
                if result not in tokens:
                    tokens.append(result)
        fallback = not (prefix or suffix) and self.flag(0.4)
        if fallback:
            tokens += [f"<0x{b:02X}>" for b in range(256) if self.flag(0.9 if self.flag() else 1)]
        unknown = "<unk>" if self.flag(0.6) else None
        tokens = [*(["<unk>"] if unknown or self.flag() else []), *tokens]
        options = {"unk_token": unknown, "continuing_subword_prefix": prefix, "end_of_word_suffix": suffix}
        return BPE(
            {token: i for i, token in enumerate(tokens)},
            merges,
            fuse_unk=self.flag(),
            byte_fallback=fallback,
            ignore_merges=self.flag(0.3),
            **{name: value for name, value in options.items() if value},
        )

    def tokenizer(self):
        byte_level = self.flag()
        affixes = self.choice([None, None, ("", "</w>"), ("##", ""), ("##", "</w>"), ("Ġ", "")])
        tokenizer = tokenizers.Tokenizer(self.model(byte_level=byte_level, affixes=affixes))
        if byte_level:
            last = pre_tokenizers.ByteLevel(add_prefix_space=self.flag(), use_regex=self.flag(0.7))
            first = [
                pre_tokenizers.Digits(self.flag()),
                pre_tokenizers.WhitespaceSplit(),
                pre_tokenizers.Split("b", "removed"),
            ]
            tokenizer.pre_tokenizer = (
                last if self.flag() else pre_tokenizers.Sequence([*self.sample(first, self.choice([1, 2])), last])
            )
        else:
            tokenizer.pre_tokenizer = (
                self.choice(
                    [
                        None,
                        pre_tokenizers.Metaspace("\u2581", self.choice(["always", "first", "never"]), self.flag()),
                        pre_tokenizers.WhitespaceSplit(),
                        pre_tokenizers.Split(" ", self.choice(["isolated", "contiguous", "merged_with_next"])),
                        pre_tokenizers.Split("b", "merged_with_previous", invert=self.flag()),
                    ]
                )
                or tokenizer.pre_tokenizer
            )
        steps = [
            normalizers.NFC(),
            normalizers.Replace(" ", "\u2581"),
            normalizers.Prepend("\u2581"),
            normalizers.NFKC(),
        ]
        if self.flag(0.4):
            tokenizer.normalizer = normalizers.Sequence(
                self.sample(steps[:1] if byte_level else steps, self.choice([1, 1]))
            )
        tokenizer.post_processor = self.choice(
            [
                processors.ByteLevel(trim_offsets=True, add_prefix_space=self.flag()),
                processors.ByteLevel(trim_offsets=False),
                processors.RobertaProcessing(("<unk>", 0), ("<unk>", 0), self.flag(), self.flag()),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel() if byte_level else decoders.BPEDecoder("</w>")
        for content in self.sample(ADDED, self.choice([0, 0, 1, 3])):
            names = ("single_word", "lstrip", "rstrip", "special")
            token = AddedToken(content, normalized=False, **{name: self.flag(0.4) for name in names})
            (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        return tokenizer

    def text(self):
        pool = [*"aaabbbccc   éé日日x😀\n1'\u0301\u2581", "ab", "bc", " a", "  ", "[X]", "<mask>", "</w>", "##", "Ġ"]
        return "".join(self.choices(pool, k=self.choice([0, 1, 2, 3, 5, 8, 20, 80])))


@pytest.mark.parametrize("seed", range(12))
def test_random_models_on_random_texts(make_both, seed):
    generator = Generator(seed)
    for _ in range(40):
        both = make_both(generator.tokenizer())
        for _ in range(15):
            text = generator.text()
            pair = generator.text() if generator.flag(0.2) else None
            both.compare(text, pair, add_special_tokens=generator.flag(0.7))
            ids = both.theirs.encode(text).ids
            assert both.ours.decode(ids) == both.theirs.decode(ids)


@pytest.mark.parametrize("seed", range(4))
def test_truncation_counts_from_the_first_token_kept(make_both, seed):
    """Offsets are trimmed after truncation: which token is the first depends on the side that was cut."""
    from lattice_inference.tokenizer import Truncation

    generator = Generator(100 + seed)
    for _ in range(30):
        tokenizer = generator.tokenizer()
        both = make_both(tokenizer)
        for _ in range(8):
            text, limit = generator.text(), generator.randint(4, 9)
            side = generator.choice(["left", "right"])
            both.theirs.enable_truncation(limit, strategy="longest_first", direction=side)
            both.compare(text, truncation=Truncation(limit, side=side))


@pytest.mark.slow
@pytest.mark.parametrize("size", [49, 60, 500, 9000])
def test_long_words_of_random_letters(make_both, size):
    """Words too long for the array, and for the heap alone: every way of merging gives the same."""
    generator = Generator(size)
    for _ in range(12 if size < 9000 else 4):
        tokenizer = tokenizers.Tokenizer(generator.model(byte_level=False))
        both = make_both(tokenizer)
        for alphabet in ("ab", "abc", "ab \u2581", "a"):
            both.compare("".join(generator.choices(alphabet, k=size)))


def test_merges_that_are_out_of_order(make_both):
    """A merge may need a token that only a later merge makes: then it comes into play when that one has been applied."""
    vocabulary = {token: i for i, token in enumerate(["a", "b", "c", "bc", "abc", "ab", "aa"])}
    for merges in (
        [("a", "bc"), ("b", "c"), ("a", "b"), ("ab", "c"), ("a", "a")],
        [("ab", "c"), ("a", "a"), ("a", "b"), ("b", "c"), ("a", "bc")],
        [("a", "b"), ("b", "c"), ("a", "b"), ("a", "a")],  # twice: the later rank counts
    ):
        both = make_both(tokenizers.Tokenizer(BPE(vocabulary, merges)))
        generator = random.Random(0)
        for size in (3, 8, 60, 9000):
            both.compare("".join(generator.choices("abc", k=size)))
