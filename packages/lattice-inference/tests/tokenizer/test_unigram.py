"""Unigram against Hugging Face's library, with the parts of XLM-R's tokenizer and with small models."""

import json
import random

import numpy as np
import pytest
import tokenizers
from tokenizers import pre_tokenizers

from lattice_inference.errors import InvalidInputError
from lattice_inference.tokenizer import Truncation, load_tokenizer
from lattice_inference.tokenizer._tokenizer import PieceTable, read_pieces

from .bounded_work import bounded_work
from .unigram_tokenizers import pieces, simple, xlm_roberta


@pytest.fixture(scope="session")
def xlmr(make_both):
    return make_both(xlm_roberta())


def test_human_rights_in_all_languages(xlmr, udhr):
    for text in udhr.values():
        xlmr.compare(text)
        xlmr.compare(text[:300], text[300:400])
        for line in text.split("\n")[:20]:
            xlmr.compare(line)


@pytest.mark.parametrize(
    "text",
    [
        *["trailing space ", "   leading whitespace and    multiple    spaces   ", "", " ", "\u2581", "\u2581a \u2581"],
        *["<mask>", "a <mask> b<mask>", "<s>a</s>", "<unk> <unk>", "<unk>☃☃", "☃<unk>☃", "☃☃ ☃", "\u2603\U0001f600"],
        *["a\ufffdb", "a\u200bb\u200d", "\r\n", "①\u0301", "™\u0301\u0302", "©\u200d™\u0301", "\u0600①", "e\u0301"],
        *["\u0915\u094d\u0958\u0301", "\u1100\u1161\u11a8\u0301", "\U0001f1e6\U0001f1e7\U0001f1e8", "ﷺ", "\x00a\x01"],
    ],
)
def test_odd_texts(xlmr, text):
    xlmr.compare(text)
    xlmr.compare(text, text)
    xlmr.compare(f"a {text} b", special_tokens_in_text=False)


def test_template_wraps_texts(xlmr):
    assert xlmr.ours.encode("").ids.tolist() == [0, 2]
    assert xlmr.ours.encode("", "").ids.tolist() == [0, 2, 2, 2]
    assert len(xlmr.ours.encode("trailing space ")) == len(xlmr.ours.encode("trailing space"))


def test_white_space_grid(xlmr):
    spaces = [
        *" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2000\u2009\u200b",
        *"\u2028\u2029\u202f\u205f\u2060\u3000\ufeff\u2581\u0301",
    ]
    for first in spaces:
        for second in ["", *spaces]:
            xlmr.compare(f"{first}{second}the{first}{second}and{first}{second}")


def test_truncation(xlmr, udhr):
    text, pair = udhr["deu_1996"][:500], udhr["jpn"][:200]
    for limit in (2, 3, 5, 20):
        for side in ("left", "right"):
            xlmr.theirs.enable_truncation(limit, direction=side)
            xlmr.compare(text, truncation=Truncation(limit, side=side))
            if limit > 4:
                xlmr.compare(text, pair, truncation=Truncation(limit, side=side))
    xlmr.theirs.no_truncation()


def test_decode_matches(xlmr, udhr):
    for text in [*udhr.values(), "a <mask> b", "\u2581\u2581 x", "☃"]:
        ids = xlmr.theirs.encode(text).ids
        for skip in (True, False):
            assert xlmr.ours.decode(ids, skip_special_tokens=skip) == xlmr.theirs.decode(ids, skip_special_tokens=skip)


def test_vocabulary_look_ups(xlmr):
    assert xlmr.ours.vocab_size == xlmr.theirs.get_vocab_size() == 3001
    for token_id in [0, 3, 4, 2999, 3000]:
        token = xlmr.theirs.id_to_token(token_id)
        assert xlmr.ours.id_to_token(token_id) == token
        assert xlmr.ours.token_to_id(token) == token_id
    assert xlmr.ours.id_to_token(3001) is xlmr.ours.id_to_token(-1) is xlmr.ours.token_to_id("nowhere") is None
    assert xlmr.ours.token_to_id("\ud800") is None
    assert xlmr.ours.encode("a x<mask>").tokens == xlmr.theirs.encode("a x<mask>").tokens


# Scores that tie, pieces that hold each other, a piece that only a run of unknown characters spells.
MODELS = {
    "ties": [("<unk>", 0), ("a", -1), ("aa", -2), ("aaa", -3), ("b", -1), ("ab", -2), ("ba", -2)],
    "rounding": [("<unk>", 0), ("a", -0.1), ("aa", -0.2), ("aaa", -0.30000000000000004), ("aaaa", -0.4)],
    "positive scores": [("<unk>", 50), ("a", 1), ("xy", 30), ("b", 2), ("ab", 2.5)],
    "unknown by name": [("<unk>", -3), ("u", -1), ("n", -1), ("k", -1), ("<", -2), (">", -2), ("a", -1)],
    "repeated pieces": [("<unk>", 0), ("a", -5), ("b", -1), ("a", -1), ("ab", -3), ("<unk>", -2)],
    "empty piece": [("<unk>", 0), ("", -1), ("a", -2), ("ab", -2)],
    "one piece": [("<unk>", 0)],
    "long pieces": [("<unk>", 0), ("a" * 1000, -1), ("a", -2), ("ab" * 300, -1)],
    "wide characters": [("<unk>", 0), ("日", -1), ("日本", -1.5), ("😀", -2), ("\x00", -1), ("a\x00", -1)],
}
TEXTS = [
    *[
        "",
        "a",
        "aa",
        "aaa",
        "aaaa",
        "aaaaaaa",
        "abab",
        "baab",
        "xy",
        "xyx",
        "xxyy",
        "axyb",
        "<unk>",
        "a<unk>b<unk><unk>",
    ],
    *["x<unk>y", "日本日", "日x日", "😀x😀", "a\x00\x00b", "a" * 2500, "ab" * 700, "é\u0301x"],
]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_small_models(make_both, name, byte_fallback):
    both = make_both(simple(MODELS[name], byte_fallback=byte_fallback))
    for text in TEXTS:
        both.compare(text)


@pytest.mark.parametrize("missing", [None, 0xE6, 0x78])
def test_byte_fallback(make_both, missing):
    """Unknown characters become their bytes, but only if there is a piece for each byte of the whole run."""
    table = [(f"<0x{byte:02X}>", -9.0) for byte in range(256) if byte != missing]
    for fallback in (True, False):
        both = make_both(simple([("<unk>", 0), ("a", -1), *table], byte_fallback=fallback))
        for text in ["x", "axa", "日", "日x", "x日x", "ax日a", "<0x41>", "é😀", "\x00", "a" * 10 + "日" * 10]:
            both.compare(text)


def test_a_model_without_unknown_token(make_both):
    both = make_both(simple([("a", -1), ("b", -1), ("cd", -1)], unk_id=None))
    both.compare("abba")
    for text in ("x", "ax", "cd"):  # "c" alone is no piece, and the search for a path meets it
        with pytest.raises(Exception, match="unk_id"):
            both.theirs.encode(text)
        with pytest.raises(InvalidInputError, match="text 1 has a character that is in no piece"):
            both.ours.encode_batch(["a", text])


def test_scores_are_read_as_serde_reads_them(tmp_path):
    """Not always the nearest double: sums are compared for equality, so the bits must be those of the other library."""
    generator = random.Random(3)
    numbers = [
        "0",
        "-0",
        "-0.0",
        "1e5",
        "-1E-5",
        "2e+3",
        "1e-330",
        "12345678901234567890123",
        "0.1e1",
        "3.0e-400",
        "9e307",
    ]
    numbers += ["123456789012345678901.25e-3", "-1.7976931348623157e308", "0." + "0" * 400 + "1", "1" * 300 + "e-299"]
    numbers += ["0e999999999999", "18446744073709551615", "18446744073709551616", "-9223372036854775809"]
    numbers += [repr(-20 * generator.random()) for _ in range(3000)]
    numbers += [f"{generator.uniform(-30, 30):.{generator.randrange(1, 30)}f}" for _ in range(1000)]
    vocabulary = "[" + ", ".join(f'["p{i}", {number}]' for i, number in enumerate(numbers)) + "]"
    value = json.loads(tokenizers.Tokenizer(tokenizers.models.Unigram([("a", 0.0)], 0, False)).to_str())
    value["model"]["vocab"] = "here"
    text = json.dumps(value).replace('"here"', vocabulary)
    expected = json.loads(tokenizers.Tokenizer.from_str(text).to_str())["model"]["vocab"]
    path = tmp_path / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    load_tokenizer(path)
    table, _, _ = read_pieces(text.encode(), 100, 2**20)
    assert np.array_equal(table.scores, np.array([float(score) for _, score in expected]))
    assert sum(score != float(number) for score, number in zip(table.scores, numbers, strict=True)) > 100


def test_table_of_pieces_equals_a_dictionary():
    generator = random.Random(8)
    texts = ["".join(generator.choices("ab\x00日é", k=generator.choice([1, 2, 8, 9, 16, 20]))) for _ in range(3000)]
    texts += ["a" * n for n in range(1, 300)] + [
        "\u2581inter" + "".join(generator.choices("abc", k=6)) for _ in range(500)
    ]
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded]).astype(np.int32)
    table = PieceTable(b"".join(encoded), ends, np.zeros(len(texts)))
    by_text = {text: i for i, text in enumerate(texts)}
    assert len(by_text) < len(texts)
    assert all(table.get(text) == i for text, i in by_text.items())
    assert [table.piece(i) for i in range(len(texts))] == texts
    assert table.get("abc" * 9) is None
    assert "a" in table
    assert "" not in table
    assert 3 not in table


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit", ["a", "^", " ", "\u2581", "日", "☃", "e\u0301", "\u0301", "\u200d", "ﷺ", "<mask>", "ab "]
)
def test_a_megabyte_of_anything_ends(xlmr, unit):
    piece = unit * (50_000 // len(unit))
    xlmr.compare(piece[:1000])
    with bounded_work():
        assert xlmr.ours.count(piece * 20) > 0


@pytest.mark.slow
def test_large_vocabularies_load(tmp_path):
    generator = random.Random(1)
    syllables = ["\u2581", *"etaoinshrdlu", "日本", "é", "ing", "tion"]
    names = ["<unk>"] + ["".join(generator.choices(syllables, k=4)) + str(i) for i in range(250_000)]
    entries = ",\n".join(f'      [\n        "{name}",\n        -{i * 0.00007}\n      ]' for i, name in enumerate(names))
    value = json.loads(simple([("a", 0.0)]).to_str())
    value["model"]["vocab"] = "here"
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(value, indent=2).replace('"here"', f"[\n{entries}\n    ]"), encoding="utf-8")

    assert load_tokenizer(path).token_to_id(names[-1]) == 250_000


def test_pickle_keeps_the_model(xlmr):
    import pickle

    again = pickle.loads(pickle.dumps(xlmr.ours))
    text = "trailing space <mask> ☃ ①"
    assert again.encode(text).ids.tolist() == xlmr.ours.encode(text).ids.tolist()
    assert again.decode(again.encode(text).ids) == xlmr.ours.decode(again.encode(text).ids)


def test_metaspace_first_looks_at_the_text_not_the_piece(make_both):
    """Only what begins where the text begins gets a prefix: not what follows an added token, or white space that went."""
    tokenizer = xlm_roberta(pieces())
    for split in (True, False):
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=split)
        both = make_both(tokenizer)
        for text in ["hello world", " hello", "<s>hello", "a<mask>b", "<mask>a", "\u200bhello", "\x07hello"]:
            both.compare(text)
