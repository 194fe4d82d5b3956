"""SentencePiece model files: what transformers makes of them, and files that are damaged or of another kind."""

import json
import random
import shutil
import struct

import numpy as np
import pytest
from tokenizers import normalizers

from lattice_inference.errors import TokenizerError, UnsupportedError
from lattice_inference.tokenizer import load_tokenizer
from lattice_inference.tokenizer import sentencepiece_file as reader

from .bounded_work import bounded_work
from .unigram_tokenizers import DATA, charsmap

EXPECTED = json.loads((DATA / "sentencepiece.json").read_text(encoding="utf-8"))
FAMILIES = ["xlm_roberta", "t5", "general", "plain"]


def varint(value):
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def field(number, value):
    """Return a field of a protobuf message: of bytes, of a float32 or of an integer."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value & (2**64 - 1))


def piece(text, score=0.0, kind=1):
    return field(1, field(1, text.encode()) + field(2, score) + field(3, kind))


SMALL = (
    piece("<unk>", 0.0, 2) + piece("<s>", 0.0, 3) + piece("</s>", 0.0, 3) + piece("\u2581a", -1.5) + piece("b", -2.0)
)
TRAINER = field(2, field(3, 1) + field(40, 0) + field(41, 1) + field(42, 2) + field(43, -1))


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_what_transformers_makes_of_it(name):
    tokenizer, expected = load_tokenizer(DATA / name), EXPECTED[name]
    assert tokenizer.vocab_size == expected["vocab_size"]
    for i, text in enumerate(EXPECTED["texts"]):
        encoding = tokenizer.encode(text)
        assert encoding.ids.tolist() == expected["ids"][i], text
        assert encoding.offsets.tolist() == expected["offsets"][i], text
        assert tokenizer.decode(encoding.ids) == expected["decoded"][i], text
    pair = tokenizer.encode("a b", "c")
    assert pair.ids.tolist() == expected["pair"]["ids"]
    assert pair.type_ids.tolist() == expected["pair"]["type_ids"]


def test_the_rules_in_the_file_are_applied(tmp_path):
    """A message may state a field in two parts: the file's normalizer and XLM-R's rules behind it."""
    shutil.copytree(DATA / "xlm_roberta", tmp_path / "model")
    path = tmp_path / "model/sentencepiece.bpe.model"
    plain = load_tokenizer(path)
    path.write_bytes(path.read_bytes() + field(3, field(1, b"nmt_nfkc") + field(2, charsmap())))
    ruled = load_tokenizer(path)
    theirs = normalizers.Precompiled(charsmap())
    for text in ["ﬁne ① ｈｕｍａｎ", "a\u0301\u0323 \u2122"]:
        expected = plain.encode(theirs.normalize_str(text)).ids.tolist()
        assert ruled.encode(text).ids.tolist() == expected != plain.encode(text).ids.tolist()


def test_fairseq_numbers_follow_the_configuration(tmp_path):
    for name, value in (
        ("config.json", {"model_type": "xlm-roberta"}),
        ("tokenizer_config.json", {"tokenizer_class": "XLMRobertaTokenizer"}),
    ):
        folder = tmp_path / name.removesuffix(".json")
        folder.mkdir()
        (folder / "sentencepiece.bpe.model").write_bytes(SMALL + TRAINER)
        (folder / name).write_text(json.dumps(value))
        tokenizer = load_tokenizer(folder)
        assert [tokenizer.id_to_token(i) for i in range(7)] == [
            "<s>",
            "<pad>",
            "</s>",
            "<unk>",
            "\u2581a",
            "b",
            "<mask>",
        ]
        assert tokenizer.encode("ab").ids.tolist() == [0, 4, 5, 2]


def test_classes_with_a_way_of_their_own_are_refused(tmp_path):
    path = tmp_path / "sentencepiece.bpe.model"
    path.write_bytes(SMALL + TRAINER)
    with pytest.raises(UnsupportedError, match="no tokenizer_config"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CamembertTokenizer"}')
    with pytest.raises(UnsupportedError, match="'Camembert'"):
        load_tokenizer(tmp_path)
    path.write_bytes(SMALL + field(2, field(3, 3)))
    with pytest.raises(UnsupportedError, match="'word'"):
        load_tokenizer(tmp_path)


def test_fields_are_read():
    spec = field(1, b"nfkc") + field(2, b"\0\0\0\0") + field(3, 0) + field(4, 0) + field(5, 0)
    trainer = field(2, field(3, 2) + field(24, 1) + field(35, 1) + field(40, 2) + field(41, -1) + field(43, 4))
    file = reader.parse_sentencepiece(SMALL + trainer + field(3, spec) + field(9, b"later"))
    assert file.pieces == ["<unk>", "<s>", "</s>", "\u2581a", "b"]
    assert file.scores.tolist() == [0, 0, 0, -1.5, -2]
    assert file.types.tolist() == [2, 3, 3, 1, 1]
    assert (file.model_type, file.byte_fallback, file.whitespace_is_suffix) == ("bpe", True, True)
    assert (file.unk_id, file.bos_id, file.eos_id, file.pad_id) == (2, -1, 2, 4)
    assert file.normalizer == reader.NormalizerSpec("nfkc", b"\0\0\0\0", False, False, False)
    bare = reader.parse_sentencepiece(field(1, field(1, b"a")))
    assert (bare.pieces, bare.scores.tolist(), bare.types.tolist(), bare.unk_id) == (["a"], [0], [reader.NORMAL], 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no pieces"),
        (TRAINER, "has no pieces"),
        (b"not a model at all", "not a SentencePiece model|states"),
        (SMALL + field(2, field(3, 9)), "model_type is 9"),
        (SMALL + field(2, field(40, 5)), "unk_id is 5; there are 5 pieces"),
        (SMALL + field(2, field(42, -2)), "eos_id is -2"),
        (SMALL + field(2, field(40, 2**40)), "expected 32 bits"),
        (piece("a", float("nan")), r"pieces\[0\] has the score nan"),
        (piece("a") + piece("b", float("-inf")), r"pieces\[1\] has the score -inf"),
        (piece("a", 0.0, 7), r"pieces\[0\].type is 7"),
        (field(1, field(1, b"\xff")), r"pieces\[0\] has a string that is not UTF-8"),
        (field(1, field(1, 3)), r"pieces\[0\] is not a SentencePiece model: field 1 is varint"),
        (field(1, 3), "field 1 is varint"),
        (field(1, field(2, 3)), "field 2 is varint"),
        (SMALL + varint(1 << 3 | 3), "wire type 3"),
        (SMALL + b"\x02\x00", "number 0"),
        (SMALL + b"\xff" * 11, "more than 10 bytes"),
        (SMALL + field(2, b"\x18"), "ends inside a number"),
        (SMALL + varint(4 << 3 | 2) + varint(2**62), "states 4,611,686,018,427,387,904 bytes where 0 are left"),
        (SMALL + field(3, field(1, b"\xc3")), "not UTF-8"),
    ],
)
def test_malformed_models(data, message, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.slow
def test_truncated_at_every_length(tmp_path):
    data = (DATA / "t5/spiece.model").read_bytes()
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    path = tmp_path / "spiece.model"
    for length in [*range(60), *range(60, len(data), 97)]:
        path.write_bytes(data[:length])
        try:
            tokenizer = load_tokenizer(path)
        except TokenizerError:
            continue
        assert tokenizer.vocab_size < EXPECTED["t5"]["vocab_size"]  # cut between two pieces, which no reader can tell


@pytest.mark.slow
def test_damaged_bytes_give_an_error_or_a_tokenizer(tmp_path):
    data = (DATA / "general/tokenizer.model").read_bytes()
    generator = random.Random(9)
    path = tmp_path / "tokenizer.model"
    failures = 0
    for _ in range(600):
        damaged = bytearray(data)
        for _ in range(generator.choice([1, 3, 30])):
            damaged[generator.randrange(len(data))] = generator.randrange(256)
        path.write_bytes(bytes(damaged))
        try:
            load_tokenizer(path).encode("human rights ☃ foo")
        except (TokenizerError, UnsupportedError):
            failures += 1
    assert failures > 100


def test_both_readers_of_pieces_agree(monkeypatch):
    data = (DATA / "general/tokenizer.model").read_bytes()
    fast = reader.parse_sentencepiece(data)
    monkeypatch.setattr(reader, "read_protobuf_pieces", lambda data, limit: None)
    slow = reader.parse_sentencepiece(data)
    for name in ("text", "ends", "scores", "types"):
        assert np.array_equal(getattr(fast, name), getattr(slow, name)), name
    assert fast.normalizer == slow.normalizer
    assert fast.pieces == slow.pieces


def test_a_large_file_is_refused_without_being_read(tmp_path):
    path = tmp_path / "tokenizer.model"
    with path.open("wb") as file:
        file.truncate(200_000_000_000)  # a hole, more than any memory
    with pytest.raises(TokenizerError, match=f"{reader.MAX_FILE_BYTES:,} bytes"):
        load_tokenizer(path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(TokenizerError, match="Git LFS pointer"):
        load_tokenizer(path)


@pytest.mark.slow
def test_a_quarter_of_a_million_pieces_load(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}')
    pieces = b"".join(piece(f"\u2581{i:06x}", -0.0001 * i) for i in range(250_000))
    (tmp_path / "sentencepiece.bpe.model").write_bytes(SMALL + pieces + TRAINER)
    load_tokenizer(DATA / "plain")
    with bounded_work():
        tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 250_007


def test_a_long_name_of_a_class_is_cut_in_the_error(tmp_path):
    (tmp_path / "spiece.model").write_bytes(SMALL + TRAINER)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T" + "\U0010ffff" * 5_000}))
    with pytest.raises(UnsupportedError, match="names the tokenizer class") as caught:
        load_tokenizer(tmp_path)
    assert len(str(caught.value)) < 1_000
