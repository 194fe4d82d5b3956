"""Files of BPE tokenizers: malformed ones, older forms, settings beside them."""

import json
import struct

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from lattice_inference import errors
from lattice_inference.tokenizer import load_tokenizer

from .bounded_work import bounded_work
from .bpe_vocabularies import QWEN2, QWEN35, definition_of, trained


@pytest.fixture(scope="module")
def small(udhr):
    return definition_of(trained("gpt2", [udhr["eng"]], 400))


def load(value, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return load_tokenizer(path)


MALFORMED = [
    ("merges", None, "merges is None"),
    ("merges", {}, "merges is {}"),
    ("merges", ["a"], "merges[0] is 'a'"),
    ("merges", ["a b c"], "two tokens with a space between"),
    ("merges", [["a"]], "merges[0]"),
    ("merges", [["a", 3]], "merges[0]"),
    ("merges", [3], "merges[0] is 3"),
    ("merges", ["a \ud800"], "lone surrogate"),
    ("merges", [["a", "nothing"]], "right side is not in model.vocab"),
    ("merges", [["nothing", "a"]], "left side is not in model.vocab"),
    ("merges", [["x", "q"]], "result is not in model.vocab"),
    ("vocab", [], "expected an object"),
    ("vocab", {}, "is empty"),
    ("vocab", {"a": "b"}, "expected an integer id"),
    ("vocab", {"a": 2**40}, "may have ids"),
    ("vocab", {"\ud800": 0}, "lone surrogate"),
    ("vocab", {"a" * 2000: 0}, "2,000 characters"),
    ("unk_token", 3, "unk_token"),
    ("dropout", 0.1, "makes ids random"),
    ("dropout", True, "makes ids random"),
    ("byte_fallback", 1, "byte_fallback"),
    ("fuse_unk", "no", "fuse_unk"),
    ("ignore_merges", None, "ignore_merges"),
    ("continuing_subword_prefix", 1, "continuing_subword_prefix"),
    ("end_of_word_suffix", [], "end_of_word_suffix"),
    ("surprise", 1, "not known here: surprise"),
]


@pytest.mark.parametrize(("field", "value", "message"), MALFORMED)
def test_malformed_models_are_refused(small, tmp_path, field, value, message):
    model = {**small["model"], field: value}
    with pytest.raises(errors.UnsupportedError if field == "dropout" else errors.TokenizerError) as caught:
        load({**small, "model": model}, tmp_path)
    assert message in str(caught.value)


def test_settings_that_change_nothing_are_taken(small, tmp_path):
    for name, value in (("dropout", 0.0), ("dropout", None), ("unk_token", "nowhere"), ("end_of_word_suffix", "")):
        assert load({**small, "model": {**small["model"], name: value}}, tmp_path).count("the text") > 0
    model = {
        name: value for name, value in small["model"].items() if name not in ("type", "byte_fallback", "ignore_merges")
    }
    assert load({**small, "model": model}, tmp_path).count("the text") > 0


def test_an_unknown_token_that_is_needed_must_exist(small, tmp_path):
    vocabulary = {token: i for i, token in enumerate(["a", "b"])}
    model = {**small["model"], "vocab": vocabulary, "merges": [], "unk_token": "nowhere"}
    with pytest.raises(errors.TokenizerError, match="unknown token 'nowhere'"):
        load({**small, "model": model, "added_tokens": [], "post_processor": None}, tmp_path)


def test_merges_may_be_strings_or_pairs(small, tmp_path, udhr):
    strings = [" ".join(merge) for merge in small["model"]["merges"]]
    expected = load(small, tmp_path).encode(udhr["eng"]).ids.tolist()
    for merges in (strings, ["#version: 0.2", *strings]):
        ours = load({**small, "model": {**small["model"], "merges": merges}}, tmp_path)
        assert ours.encode(udhr["eng"]).ids.tolist() == expected


def test_hostile_models_are_loaded(small, tmp_path):
    """Many tokens and merges of one shape: hashing them must not become quadratic."""
    tokens = ["a" * n for n in range(1, 1025)] + [f"b{i:05d}" for i in range(50_000)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [["a" * i, "a" * j] for i in range(1, 513) for j in (1, 2, i)] * 10
    hostile = {
        **small,
        "model": {**small["model"], "vocab": vocabulary, "merges": merges},
        "added_tokens": [],
        "post_processor": None,
    }
    with bounded_work():
        ours = load(hostile, tmp_path)
    assert ours.count("a" * 100_000) > 0


OTHER_PATTERNS = [r"\p{Lu}?\p{Ll}+|\d{1,2}|.", r"[\r\n]", r"(?i:'s)|[^\p{L}\s]+|\s?\p{L}++", r"\s+(?=\S)|\d+?"]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", OTHER_PATTERNS)
@pytest.mark.parametrize("behavior", ["isolated", "removed", "contiguous", "merged_with_previous", "merged_with_next"])
def test_other_patterns_go_through_the_regex_package(make_both, udhr, pattern, behavior):
    pytest.importorskip("regex")
    tokenizer = trained("gpt2", [udhr["eng"]], 400)
    split = pre_tokenizers.Split(Regex(pattern), behavior)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    both = make_both(tokenizer)
    for text in ("", "Hello World  12345\r\n\n x", udhr["deu_1996"][:3000], udhr["jpn"][:1000], "…a。b [c]"):
        both.compare(text)


@pytest.mark.parametrize(
    "pattern", [r"\w+", "[a[b]]", "^a", "a$", r"(?x)a", r"a{2}+", r"[a&&b]", r"\bx", "(?>a)", "[[:alpha:]]"]
)
def test_what_the_engines_do_not_read_alike_is_refused(small, tmp_path, pattern):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    with pytest.raises(errors.UnsupportedError, match="uses"):
        load(
            {**small, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, small["pre_tokenizer"]]}}, tmp_path
        )


def test_a_pattern_without_the_regex_package(small, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "regex", None)
    split = {"type": "Split", "pattern": {"Regex": r"\p{Lu}+"}, "behavior": "Isolated", "invert": False}
    with pytest.raises(errors.UnsupportedError, match=r"lattice-inference\[regex\]"):
        load(
            {**small, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, small["pre_tokenizer"]]}}, tmp_path
        )


def write_files(directory, tokenizer, **config):
    model = definition_of(tokenizer)["model"]
    (directory / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
    (directory / "merges.txt").write_text("\r\n".join(lines) + "\r\n", encoding="utf-8")
    if config:
        (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "pattern", "name"),
    [
        ({"tokenizer_class": "Qwen2TokenizerFast"}, QWEN2, "qwen2"),
        ({"tokenizer_class": "Qwen3_5Tokenizer"}, QWEN35, "qwen35"),
        ({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, None, "gpt2"),
    ],
)
def test_the_class_says_how_texts_are_split(tmp_path, udhr, config, pattern, name):
    theirs = tokenizers.Tokenizer(trained(name, udhr.values(), 1000).model)
    if pattern is not None:
        theirs.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        theirs.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    else:
        theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    theirs.add_special_tokens([AddedToken("<|endoftext|>", normalized=False, special=True)])
    write_files(tmp_path, theirs, **config)
    ours = load_tokenizer(tmp_path)
    for text in [*udhr.values(), "x<|endoftext|>e\u0301 12345 'S"]:
        encoding = ours.encode(text)
        assert encoding.ids.tolist() == theirs.encode(text).ids
        assert [tuple(offset) for offset in encoding.offsets.tolist()] == theirs.encode(text).offsets


def test_vocabulary_and_merges_belong_together(tmp_path, udhr):
    tokenizer = trained("gpt2", [udhr["eng"]], 400)
    write_files(tmp_path, tokenizer, tokenizer_class="CLIPTokenizer")
    with pytest.raises(errors.UnsupportedError, match="'CLIP'"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(errors.ModelNotFoundError, match=r"merges\.txt"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(errors.TokenizerError, match="not UTF-8"):
        load_tokenizer(tmp_path)


def sentencepiece(pieces, model_type=2):
    """Return the bytes of a SentencePiece model: pieces of (text, score, type), and what its trainer states."""

    def varint(number):
        out = bytearray()
        while number > 127:
            out.append(number & 127 | 128)
            number >>= 7
        return bytes([*out, number])

    def message(field, body):
        return varint(field << 3 | 2) + varint(len(body)) + body

    out = b""
    for text, score, kind in pieces:
        out += message(1, message(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind))
    return out + message(2, b"\x18" + varint(model_type) + varint(35 << 3) + b"\x01")


@pytest.mark.slow
def test_a_sentencepiece_model_of_type_bpe(tmp_path, make_both, udhr):
    """Llama's form: special pieces, bytes, then pieces in the order of their merges."""
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=700, show_progress=False)
    learned = tokenizers.Tokenizer(BPE())
    learned.normalizer = normalizers.Replace(" ", "\u2581")
    learned.train_from_iterator([udhr["eng"], udhr["fra"]], trainer)
    made = definition_of(learned)["model"]
    results = ["".join(merge) for merge in made["merges"]]
    letters = [token for token in made["vocab"] if token not in set(results)]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *results, *letters]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(results) + len(letters))]
    pieces = [(name, -float(i), kind) for i, (name, kind) in enumerate(zip(names, kinds, strict=True))]
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece(pieces))
    vocabulary = {name: i for i, name in enumerate(names)}
    merges = sorted(
        (vocabulary[p], cut, p[:cut], p[cut:])
        for p in names
        for cut in range(1, len(p))
        if p[:cut] in vocabulary and p[cut:] in vocabulary
    )
    theirs = tokenizers.Tokenizer(
        BPE(vocabulary, [merge[2:] for merge in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    theirs.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", "first", split=False)
    theirs.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", 1)])
    theirs.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    theirs.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    ours = load_tokenizer(tmp_path)
    for text in [*udhr.values(), "a</s> b", " ", ""]:
        assert ours.encode(text).ids.tolist() == theirs.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs.encode(text).ids)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}', encoding="utf-8")
    with pytest.raises(errors.UnsupportedError, match="'Gemma'"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false, "add_eos_token": true}', encoding="utf-8")
    assert load_tokenizer(tmp_path).encode("a").ids.tolist()[-1] == 2
