"""Unigram tokenizers that are damaged, or ask for what is not built."""

import base64
import json
import random
import struct

import pytest
from tokenizers import normalizers

from lattice_inference import errors
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer import load_tokenizer
from lattice_inference.tokenizer.charsmap import precompiled
from lattice_inference.tokenizer.replacements import replace_runs

from .bounded_work import bounded_work
from .unigram_tokenizers import DATA, charsmap, xlm_roberta


@pytest.fixture(scope="module")
def good():
    return json.loads(xlm_roberta().to_str())


def load(value, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return load_tokenizer(path)


@pytest.mark.slow
def test_every_malformed_file_is_refused(good, tmp_path):
    cases = json.loads((DATA / "malformed.json").read_text(encoding="utf-8"))
    assert len(cases) > 50
    for case in cases:
        value = {**good, "model": dict(good["model"])}
        *parents, last = case["path"].split(".")
        place = value["model"] if parents else value
        if "value" in case:
            place[last] = case["value"]
        else:
            del place[last]
        with pytest.raises(getattr(errors, case.get("error", "TokenizerError"))) as caught:
            load(value, tmp_path)
        assert case["message"] in str(caught.value), case


@pytest.mark.parametrize(
    "old",
    [
        *[
            b'[["a", 0.0]',
            b'[["a" 0.0]]',
            b'[["a", 0.0],]',
            b'[["a", 0.0]]]',
            b'[["a", 00]]',
            b'[["a", .5]]',
            b'[["a", 1.]]',
        ],
        *[
            b'[["a", -]]',
            b'[["a", 1e]]',
            b'[["a", NaN]]',
            b'[["a", 1e999]]',
            b'[["\xff", 0]]',
            b'[["\xc3", 0]]',
            b'[["\xed\xa0\x80", 0]]',
        ],
        *[
            b'[["\\x", 0]]',
            b'[["\\u12", 0]]',
            b'[["\\ud800", 0]]',
            b'[["\\udc00", 0]]',
            b'[["\\ud800\\u0041", 0]]',
            b'[["a\n", 0]]',
        ],
        *[b'[["a, 0]]', b"[[", b"[", b'[["a", 0.0]], "vocab": [["a", 0.0]]'],
    ],
)
def test_arrays_of_pieces_that_are_not_json(good, old, tmp_path):
    value = {
        **good,
        "added_tokens": [],
        "post_processor": None,
        "model": {**good["model"], "unk_id": 0, "vocab": "here"},
    }
    text = json.dumps(value).encode()
    load(text.replace(b'"here"', b'[["a", 0.0]]'), tmp_path)
    with pytest.raises(errors.TokenizerError):
        load(text.replace(b'"here"', old), tmp_path)


def test_escapes_and_spaces_in_pieces(good, tmp_path):
    vocabulary = b'[ [ "\\u2581\\n\\t\\b\\f\\r\\/\\\\\\"" ,\n\t -1 ] , ["\\ud83d\\ude00\\u00e9\\u0000", 2E0],["", 3] ]'
    value = {
        **good,
        "added_tokens": [],
        "post_processor": None,
        "model": {**good["model"], "unk_id": 0, "vocab": "here"},
    }
    tokenizer = load(json.dumps(value, indent=9).encode().replace(b'"here"', vocabulary), tmp_path)
    assert [tokenizer.id_to_token(i) for i in range(3)] == ['\u2581\n\t\b\f\r/\\"', "\U0001f600\u00e9\x00", ""]


def test_truncated_at_every_length(good, tmp_path):
    value = {**good, "added_tokens": [], "post_processor": None, "normalizer": None}
    value["model"] = {**good["model"], "unk_id": 0, "vocab": [["\u2581日", -1.5], ["b", 2]]}
    data = json.dumps(value, ensure_ascii=False).encode()
    load(data, tmp_path)
    for length in range(len(data)):
        with pytest.raises(errors.TokenizerError):
            load(data[:length], tmp_path)


def test_a_model_written_with_escaped_keys_is_refused(good, tmp_path):
    text = json.dumps(good).replace('"vocab"', '"voc\\u0061b"')
    with pytest.raises(errors.TokenizerError, match="vocab is a list"):
        load(text.encode(), tmp_path)


@pytest.mark.slow
def test_damaged_charsmaps_are_harmless(good, tmp_path):
    """Whatever stands in the trie: no crash, no endless loop."""
    whole = charsmap()
    generator = random.Random(2)
    text = "ﬁne ① ｈｕｍａｎ ㍿ e\u0301 \u2122\u0301 日本 ﷺ" + "".join(map(chr, range(0x20, 0x600)))
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(generator.choice([1, 10, 5000])):
            damaged[generator.randrange(4, 100_000)] = generator.randrange(256)
        native.Pipeline((precompiled(bytes(damaged)),), ()).normalize(text)
    for units in ([0xFFFFFFFF] * 256, [0] * 256, list(range(256)), [generator.randrange(2**32) for _ in range(4096)]):
        data = struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + b"a\0\xc3\xa9"
        native.Pipeline((precompiled(data),), ()).normalize(text)
        good_file = {
            **good,
            "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()},
        }
        load(good_file, tmp_path).encode(text)


def test_growth_is_bounded_by_the_text(good, tmp_path):
    """Steps that each multiply a text are an error when the file is read, not a full memory when a text is."""
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 64}
    tokenizer = load({**good, "normalizer": step}, tmp_path)
    assert tokenizer.count("a", add_special_tokens=False) > 1
    with pytest.raises(errors.TokenizerError, match="could make 68,719,476,736 characters of one"):
        load({**good, "normalizer": {"type": "Sequence", "normalizers": [step] * 6}}, tmp_path)
    charsmap = struct.pack("<II", 4, 0) + b"a" * 5000
    step = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    with pytest.raises(errors.TokenizerError, match="could make 5,000 characters of one"):
        load({**good, "normalizer": step}, tmp_path)
    several = [{"type": kind} for kind in ("NFKC", "NFKD", "NFC", "NFKC", "Lowercase")]
    load({**good, "normalizer": {"type": "Sequence", "normalizers": several}}, tmp_path)


@pytest.mark.parametrize(
    "pattern", [" {2,}", "a+", r"\s+", r"a{2,3}", r"\A +| +\z", "\\A\u2581", r"\n", r"\.", "[b]{2}"]
)
def test_patterns_equal_the_oracle(pattern):
    from tokenizers import Regex

    generator = random.Random(pattern)
    content = "" if "|" in pattern else "xy"
    theirs = normalizers.Replace(Regex(pattern), content)
    pipeline = native.Pipeline(replace_runs(pattern, content), ())
    for _ in range(500):
        text = "".join(generator.choices(" ab\u2581.\n\u00a0\x85", k=generator.choice([0, 1, 3, 8, 20])))
        assert pipeline.normalize(text) == theirs.normalize_str(text), ascii(text)


@pytest.mark.slow
def test_hostile_vocabularies_are_built(good, tmp_path):
    value = {**good, "added_tokens": [], "post_processor": None, "normalizer": None}
    for pieces in (
        ["a" * n for n in range(1, 1500)],
        [f"same prefix of many bytes{i:06d}" for i in range(100_000)][::-1],
        ["a"] * 100_000,
        [chr(c) for c in range(0x4E00, 0x9FFF)],
    ):
        value["model"] = {**good["model"], "unk_id": 0, "vocab": [[piece, -1.0] for piece in pieces]}
        data = json.dumps(value).encode()
        with bounded_work():
            tokenizer = load(data, tmp_path)
        assert tokenizer.token_to_id(pieces[-1]) == len(pieces) - 1
