"""Random tokenizers on random texts, and hard-to-guess mixtures on fixed ones, against Hugging Face's library."""

import random
import string

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from lattice_inference.tokenizer import Truncation

# Letters in several forms, marks of many classes, Hangul in parts, white space, punctuation, specials, odd code points.
POOL = [
    *"abBé가각が日ßΣςİÅΩx1٣_-.,!「…①ﷺﬁａ\u1100\u1161\u11a8\u3099\u212b\u2126\u01c4\u0340\u0374\u037e\ufeff\ufffd",
    *"\u0301\u0323\u0327\u0345\u0344\u0f71\u0f73\u302e\u302f\u0958\u0915\u093c\u094d\U0001d15e\U0001d165\U0001d16d",
    *" \t\n\x0b\x00\x07\u00a0\u200b\u3000\u2028\U00020000\U000e0001😀",
    *["  ", "e\u0301", "\u1e9b\u0323", "[X]", "[Y]", "[MASK]", "[M", "[CLS]", "##b", "👩\u200d👩", "nope"],
]
ADDED = ["[X]", "[Y]", "[MASK]", "[M", "é", " x", "ab", "ａ", "か", "[CLS]", "[SEP]", "  ", "a b", "ß", "B"]
PUNCTUATION = ["isolated", "removed", "contiguous", "merged_with_previous", "merged_with_next"]


class Generator(random.Random):
    def text(self, lengths=(0, 1, 2, 5, 10, 30)):
        return "".join(self.choices(POOL, k=self.choice(lengths)))

    def flag(self, probability=0.5):
        return self.random() < probability

    def stage(self, components, sequence):
        count = self.choice([0, 1, 1, 2, 3])
        chosen = [self.choice(components) for _ in range(count)]
        return None if not chosen else chosen[0] if count == 1 else sequence(chosen)

    def normalizer(self):
        bert = normalizers.BertNormalizer(
            clean_text=self.flag(),
            handle_chinese_chars=self.flag(),
            strip_accents=self.choice([None, True, False]),
            lowercase=self.flag(),
        )
        simple = [getattr(normalizers, name)() for name in ("Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD")]
        strips = [normalizers.Strip(), normalizers.Strip(left=False), normalizers.Strip(right=False)]
        return self.stage([bert, normalizers.BertNormalizer(), *simple, *strips], normalizers.Sequence)

    def pre_tokenizer(self):
        spaces = [getattr(pre_tokenizers, name)() for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")]
        return self.stage([*spaces, *map(pre_tokenizers.Punctuation, PUNCTUATION)], pre_tokenizers.Sequence)

    def post_processor(self):
        template = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
        return self.choice([template, processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)), None])

    def tokenizer(self):
        tokens = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        for _ in range(40):
            piece = self.text((1, 1, 1, 2, 3))
            tokens += [piece, f"##{piece}", piece.lower()]
        model = WordPiece(
            {token: i for i, token in enumerate(dict.fromkeys(tokens))},
            unk_token="[UNK]",
            max_input_chars_per_word=self.choice([100, 100, 3, 7]),
            continuing_subword_prefix=self.choice(["##", "##", "", "@"]),
        )
        tokenizer = tokenizers.Tokenizer(model)
        for name in ("normalizer", "pre_tokenizer", "post_processor"):
            component = getattr(self, name)()
            if component is not None:
                setattr(tokenizer, name, component)
        tokenizer.decoder = decoders.WordPiece(cleanup=self.flag())
        normalized = set()
        for content in self.sample(ADDED, self.choice([0, 1, 3, 6])):
            names = ("single_word", "lstrip", "rstrip", "normalized", "special")
            token = AddedToken(content, **{name: self.flag(0.4) for name in names})
            if token.normalized:
                # Of tokens that normalize alike the library takes a random one; one that becomes nothing is refused.
                form = tokenizer.normalizer.normalize_str(content) if tokenizer.normalizer else content
                if form in normalized or not form:
                    continue
                normalized.add(form)
            (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        return tokenizer


@pytest.mark.parametrize("seed", range(8))
def test_random_tokenizers_on_random_texts(make_both, seed):
    generator = Generator(seed)
    for _ in range(40):
        both = make_both(generator.tokenizer())
        for _ in range(12):
            text = generator.text()
            pair = generator.text() if generator.flag(0.3) else None
            options = {"add_special_tokens": generator.flag(0.7), "special_tokens_in_text": generator.flag(0.7)}
            both.theirs.no_truncation()
            both.compare(text, pair, **options)
            limit = generator.randint(3, 15)
            side = generator.choice(["left", "right"])
            both.theirs.enable_truncation(limit, strategy="longest_first", direction=side)
            both.compare(text, pair, truncation=Truncation(limit, side=side), **options)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["uncased", "cased"])
def test_random_mixtures(which, request, udhr):
    both = request.getfixturevalue(which)
    generator = Generator(which)
    words = [word for text in udhr.values() for word in text.split()[:200]]
    for _ in range(1500):
        text = "".join(
            generator.choice([generator.choice(words), generator.text((1, 2)), generator.choice(string.printable)])
            + generator.choice(["", " ", " "])
            for _ in range(generator.choice([3, 12, 40]))
        )
        both.compare(text, special_tokens_in_text=generator.flag())


def test_white_space_grid(uncased):
    """Every kind of white space and lookalike, once, doubled and mixed, before, between and after words."""
    spaces = [
        *" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2000\u2009\u200b",
        *"\u2028\u2029\u202f\u205f\u2060\u3000\ufeff",
    ]
    for first in spaces:
        for second in ["", *spaces]:
            uncased.compare(f"{first}{second}the{first}{second}and{first}{second}")
