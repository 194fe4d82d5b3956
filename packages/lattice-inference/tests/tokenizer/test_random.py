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
        spaces = [
            *" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2000\u2009\u200b\u2028\u2029\u202f\u205f\u2060\u3000"
        ]

    spaces.append("\ufeff")
    for first in spaces:
        for second in ["", *spaces]:
            uncased.compare(f"{first}{second}the{first}{second}and{first}{second}")
