"""Byte-level BPE with each published splitting pattern, against Hugging Face's library."""

import itertools
import pickle
import random
import threading

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

from lattice_inference.memory.resident import resident_bytes
from lattice_inference.tokenizer import _tokenizer as native

from .bounded_work import bounded_work
from .bpe_vocabularies import GPT2, LLAMA3, PATTERNS, QWEN2, QWEN35, trained

CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
BUSY_CHARACTERS = [c for c in CHARACTERS if ord(c) < 0x32000 or 0xE0000 <= ord(c) < 0xE1000]
SCANNERS = {
    "gpt2": (pre_tokenizers.Split(Regex(GPT2), "isolated"), [native.SPLIT_GPT2]),
    "qwen2": (pre_tokenizers.Split(Regex(QWEN2), "isolated"), [native.SPLIT_QWEN2]),
    "qwen35": (pre_tokenizers.Split(Regex(QWEN35), "isolated"), [native.SPLIT_QWEN35]),
    "llama3": (pre_tokenizers.Split(Regex(LLAMA3), "isolated"), [native.SPLIT_LLAMA3]),
    "digits": (pre_tokenizers.Digits(individual_digits=True), [native.SPLIT_DIGITS]),
    "digit runs": (pre_tokenizers.Digits(individual_digits=False), [native.SPLIT_DIGIT_RUNS]),
}
POOL = [
    *"abcXYZ 0129'\u2019\n\r\t .,!?-_/\\éß日本की्กี😀",
    *"\u017f\u0301\u0323\u00a0\u3000가\u1100\u1161\u0345\u212b٣Ⅷ²\x00\x85\u200b",
    *["'s", "'LL", "'Re", " the", "  ", "\n\n", "ing", "12", "<|end|>", "<think>", "<|end", "\u0f73\u0345", "\u0958"],
]


@pytest.fixture(scope="session", params=PATTERNS)
def pattern(request, make_both, udhr):
    """One tokenizer for each published pattern, trained on the declarations of human rights."""
    return make_both(trained(request.param, udhr.values()))


@pytest.mark.slow
def test_declaration_of_human_rights(pattern, udhr):
    for text in udhr.values():
        pattern.compare(text)
        for line in text.split("\n")[:5]:
            pattern.compare(line, line[::-1])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["{}", "a{}b", " {}'s1\n", "e{} ", "'{}"])
@pytest.mark.parametrize("name", SCANNERS)
def test_splitting_at_every_code_point(name, form):
    theirs, steps = SCANNERS[name]
    pipeline = native.Pipeline((), steps)
    characters = CHARACTERS if form == "{}" and "digit" not in name else BUSY_CHARACTERS
    for start in range(0, len(characters), 0x8000):
        text = "".join(map(form.format, characters[start : start + 0x8000]))
        assert pipeline.split(text)[2] == [span for _, span in theirs.pre_tokenize_str(text)]


@pytest.mark.slow
def test_code_points_in_words(pattern):
    """Every one that is not an ideograph or a syllable, and some of those."""
    characters = [c for c in BUSY_CHARACTERS if ord(c) < 0x3400 or 0xA000 <= ord(c) < 0xAC00 or ord(c) % 19 == 0]
    for start in range(0, len(characters), 0x1000):
        pattern.compare("".join(f"a{c} " for c in characters[start : start + 0x1000]))


def test_white_space_grid(pattern):  # C2
    units = [" ", "\n", "\r", "\t", "a", "1", "'s", "\u00a0", "!"]
    for length in range(1, 5):
        for parts in itertools.product(units, repeat=length):
            pattern.compare("".join(parts))


def test_random_strings(pattern):
    generator = random.Random(1)
    pool = POOL + [chr(c) for c in generator.sample(range(0x10000), 200) if not 0xD800 <= c <= 0xDFFF]
    for _ in range(3000):
        text = "".join(generator.choices(pool, k=generator.choice([1, 2, 3, 5, 8, 13, 30])))
        pattern.compare(text, special_tokens_in_text=generator.random() < 0.7)


def test_random_bytes(pattern):
    generator = random.Random(2)
    for encoding in ("utf-8", "latin-1", "utf-16-le"):
        for _ in range(100):
            text = generator.randbytes(200).decode(encoding, "replace")
            pattern.compare(text.encode("utf-8", "replace").decode())


def test_decoding_and_streaming_of_any_ids(pattern):  # D8
    generator = random.Random(3)
    for _ in range(300):
        ids = [generator.randrange(pattern.ours.vocab_size) for _ in range(generator.choice([0, 1, 2, 20]))]
        for skip in (True, False):
            expected = pattern.theirs.decode(ids, skip_special_tokens=skip)
            assert pattern.ours.decode(ids, skip_special_tokens=skip) == expected
            stream = pattern.ours.stream(skip_special_tokens=skip)
            assert "".join([stream.push(token_id) for token_id in ids]) + stream.finish() == expected


@pytest.mark.parametrize("unit", ["a", "^", " ", "日", "ab", "\n", "\u0301", "12", "'s"])
def test_a_word_of_a_million_characters_ends(pattern, unit):
    """Case C5: one word of any length is merged in nearly linear time."""
    pattern.compare(unit * (3000 // len(unit)))
    with bounded_work():
        assert pattern.ours.count(unit * (1_000_000 // len(unit))) > 0


@pytest.mark.slow
def test_threads_share_one_tokenizer(pattern, udhr):
    texts = list(udhr.values())
    expected = pattern.ours.encode_packed(texts).token_ids
    failures = []

    def work():
        for _ in range(3):
            if not np.array_equal(pattern.ours.encode_packed(texts).token_ids, expected):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_pickle(pattern, udhr):
    again = pickle.loads(pickle.dumps(pattern.ours))
    assert again.encode(udhr["eng"]).ids.tolist() == pattern.ours.encode(udhr["eng"]).ids.tolist()


def test_wide_and_narrow_strings_agree(pattern):
    """Python stores a text in 1, 2 or 4 bytes a character; one wide character must not change the rest."""
    text = "All human beings are born free, équal 123\n\n  and"
    ids = pattern.ours.encode(text, add_special_tokens=False).ids.tolist()
    for wide in ("ÿ", "日", "😀"):
        pattern.compare(f"{text}\n{wide}")
        assert pattern.ours.encode(f"{text}\n{wide}", add_special_tokens=False).ids.tolist()[: len(ids)] == ids


@pytest.mark.slow
def test_a_word_is_the_same_from_the_cache_and_without(pattern):
    """Words of the same length and beginning, more of them than the cache holds, in two orders."""
    generator = random.Random(4)
    words = [f" w{generator.randrange(10**9)}é{i % 7}" for i in range(40_000)]
    first = pattern.ours.encode_packed(words, add_special_tokens=False)
    again = pattern.ours.encode_packed(words[::-1], add_special_tokens=False)
    texts = [first.token_ids[a:b].tolist() for a, b in itertools.pairwise(first.cu_seqlens.tolist())]
    assert texts == [again.token_ids[a:b].tolist() for a, b in itertools.pairwise(again.cu_seqlens.tolist())][::-1]
    for word, ids in list(zip(words, texts, strict=True))[::400]:
        assert ids == pattern.theirs.encode(word, add_special_tokens=False).ids


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["long words", "many words"])
def test_words_do_not_stay_in_memory(make_both, udhr, kind):
    """Case C6: the cache has a bounded number of short keys."""
    ours = make_both(trained("gpt2", [udhr["eng"]], 400)).ours
    letters = "".join(random.Random(5).choices("abcdefgh", k=10_000))
    digits_to_letters = str.maketrans("0123456789", "abcdefghij")

    def run(numbers):
        for number in numbers:
            if kind == "long words":
                ours.count(letters[number:] + letters[:number])
            else:
                ours.count(" ".join(f"{number:05d}{word:04d}" for word in range(1000)).translate(digits_to_letters))

    run(range(50))
    before = resident_bytes()
    if before is None:
        pytest.skip("this system does not tell how much memory is resident")
    run(range(50, 550))  # five megabytes of letters each way
    assert resident_bytes() - before < 2_000_000
