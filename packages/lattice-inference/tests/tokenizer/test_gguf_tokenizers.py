"""Tokenizers from GGUF files: the ids of Hugging Face's tokenizer over the same vocabulary."""

import json
import pickle
import random

import gguf
import pytest
import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from lattice_inference.checkpoint.gguf import open_gguf
from lattice_inference.checkpoint.gguf_header import GgufArray
from lattice_inference.checkpoint.gguf_writer import write_gguf
from lattice_inference.errors import InvalidInputError, TokenizerError, UnsupportedError
from lattice_inference.tokenizer import load_tokenizer
from lattice_inference.tokenizer.gguf_export import wordpiece_metadata

from .bpe_vocabularies import QWEN2, QWEN35, gpt2, llama, llama_pieces
from .gguf_vocabularies import CONTROL, NORMAL, bpe_fields, llama_fields, write_gguf_vocabulary

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture
def texts(data_directory) -> list[str]:
    generator = random.Random(0)
    pool = [
        *"abÄé \u2581\n\r\t1२日😀<>0'’\u0301.,!?/",
        "  ",
        "   ",
        "<s>",
        "<0x41>",
        "</s>",
        "the",
        "'ll",
        "DON'T",
        "123456",
    ]
    pool += ["<|endoftext|>", "<|im_start|>", "<think>", "[MASK]", "[UNK]", " [SEP] "]
    udhr = [path.read_text(encoding="utf-8")[:1_500] for path in sorted((data_directory / "udhr").glob("*.txt"))]
    return [*udhr, "", " ", *("".join(generator.choices(pool, k=k)) for k in range(150))]


def agree(ours, theirs: Tokenizer, texts: list[str]) -> None:
    for text in texts:
        ids = theirs.encode(text).ids
        assert ours.encode(text).ids.tolist() == ids, text
        assert ours.decode(ids) == theirs.decode(ids), text
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids, skip_special_tokens=False)


@pytest.fixture(scope="session")
def gpt2_model(data_directory) -> tuple[dict[str, int], list[tuple[str, str]]]:
    vocabulary, merges = gpt2(data_directory / "bpe")
    pairs = [merge.split() for merge in merges]
    return vocabulary, [(left, right) for left, right in pairs]


def split(*patterns: object) -> pre_tokenizers.PreTokenizer:
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*patterns, level])


def isolated(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


GPT2_SPLIT = pre_tokenizers.ByteLevel(add_prefix_space=False)
DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2_SPLIT])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pre", "pre_tokenizer", "nfc", "ignores_merges"),
    [
        ("gpt-2", GPT2_SPLIT, False, False),
        ("smollm", DIGITS, False, False),
        ("starcoder", DIGITS, False, False),
        ("llama-bpe", split(isolated(LLAMA3)), False, True),
        ("smaug-bpe", split(isolated(LLAMA3)), False, False),
        ("qwen2", split(isolated(QWEN2)), True, False),
        ("qwen35", split(isolated(QWEN35)), True, False),
        ("tekken", split(isolated(TEKKEN)), False, True),
    ],
)
def test_each_name_of_a_split(tmp_path, gpt2_model, texts, pre, pre_tokenizer, nfc, ignores_merges):
    vocabulary, merges = gpt2_model
    theirs = Tokenizer(BPE(vocabulary, merges, ignore_merges=ignores_merges))
    theirs.pre_tokenizer = pre_tokenizer
    theirs.decoder = decoders.ByteLevel()
    if nfc:
        theirs.normalizer = normalizers.NFC()
    theirs.add_special_tokens([AddedToken("<|endoftext|>", normalized=False, special=True)])
    theirs.add_tokens([AddedToken("<think>", normalized=False), AddedToken("   ", normalized=False)])
    path = write_gguf_vocabulary(tmp_path / "v.gguf", "gpt2", add_bos_token=False, **bpe_fields(theirs, pre))
    agree(load_tokenizer(path), theirs, texts)


@pytest.mark.slow
def test_llama_pieces(tmp_path, data_directory, texts):
    pieces = llama_pieces(data_directory / "bpe")
    ours = load_tokenizer(write_gguf_vocabulary(tmp_path / "v.gguf", "llama", **llama_fields(pieces)))
    agree(ours, llama(pieces), texts)
    again = pickle.loads(pickle.dumps(ours))
    assert again.encode("Hello 😀").ids.tolist() == ours.encode("Hello 😀").ids.tolist()


@pytest.mark.slow
def test_an_emoji_of_byte_tokens_survives(tmp_path, data_directory):
    pieces = llama_pieces(data_directory / "bpe")
    ours = load_tokenizer(write_gguf_vocabulary(tmp_path / "v.gguf", "llama", **llama_fields(pieces)))
    ids = ours.encode("a 🪿 b", add_special_tokens=False).ids.tolist()
    assert [ours.id_to_token(i) for i in ids if i < 259] == ["<0xF0>", "<0x9F>", "<0xAA>", "<0xBF>"]
    assert ours.decode(ids) == "a 🪿 b"


@pytest.mark.slow
def test_a_space_prefix_is_added_only_where_the_file_wants_it(tmp_path, data_directory):
    fields = llama_fields(llama_pieces(data_directory / "bpe"))
    without = load_tokenizer(write_gguf_vocabulary(tmp_path / "v.gguf", "llama", add_space_prefix=False, **fields))
    ids = without.encode("Hello", add_special_tokens=False).ids.tolist()
    assert [without.id_to_token(i) for i in ids] == ["Hello"]
    assert without.decode(without.encode(" Hello", add_special_tokens=False).ids) == " Hello"


@pytest.mark.slow
@pytest.mark.parametrize("flags", [{}, {"add_bos_token": False}, {"add_eos_token": True}])
def test_flags_say_what_stands_around_a_text(tmp_path, data_directory, flags):
    fields = llama_fields(llama_pieces(data_directory / "bpe"))
    ours = load_tokenizer(write_gguf_vocabulary(tmp_path / "v.gguf", "llama", **fields, **flags))
    ids = ours.encode("x").ids.tolist()
    assert (ids[0] == 1) == flags.get("add_bos_token", True)
    assert (ids[-1] == 2) == flags.get("add_eos_token", False)
    assert ids.count(1) <= 1


@pytest.mark.slow
def test_a_file_without_a_bos_adds_none(tmp_path, data_directory):
    """Case K8: no id is invented where the file names none."""
    fields = llama_fields(llama_pieces(data_directory / "bpe"))
    del fields["bos_token_id"]
    ours = load_tokenizer(write_gguf_vocabulary(tmp_path / "v.gguf", "llama", add_bos_token=True, **fields))
    bare = ours.encode("x", add_special_tokens=False).ids.tolist()
    assert ours.encode("x").ids.tolist() == bare
    assert 11 not in bare


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_wordpiece_goes_to_a_file_and_back(tmp_path, request, name):
    both = request.getfixturevalue(name)
    write_gguf(tmp_path / "v.gguf", {"general.architecture": "bert"} | wordpiece_metadata(both.ours, 2), [])
    back = load_tokenizer(tmp_path / "v.gguf")
    assert back.definition == both.ours.definition
    both.ours = back
    for text in ("", "Hello, WORLD!", "déjà-vu 東京", "un[MASK]able [SEP]", "x" * 200):
        both.compare(text)
        both.compare(text, "a pair")


@pytest.mark.slow
@pytest.mark.model
def test_the_real_wordpiece_vocabulary(tmp_path, minilm_directory, texts):
    ours = load_tokenizer(minilm_directory)
    write_gguf(tmp_path / "v.gguf", {"general.architecture": "bert"} | wordpiece_metadata(ours, 2), [])
    theirs = Tokenizer.from_file(str(minilm_directory / "tokenizer.json"))
    theirs.no_truncation()
    theirs.no_padding()
    back = load_tokenizer(tmp_path / "v.gguf")
    for text in texts:
        assert back.encode(text).ids.tolist() == theirs.encode(text).ids
    tokens = gguf.GGUFReader(tmp_path / "v.gguf").fields["tokenizer.ggml.tokens"].contents()
    assert [tokens[i] for i in (0, 101, 999, 1000, 1996, 2015)] == [
        "[PAD]",
        "[CLS]",
        "\u2581!",
        '\u2581"',
        "\u2581the",
        "s",
    ]


@pytest.mark.slow
def test_the_real_smollm2(smollm2, texts):
    with open_gguf(smollm2) as checkpoint:
        fields = {key: list(value) for key, value in checkpoint.metadata.items() if isinstance(value, GgufArray)}
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    theirs = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges))
    theirs.pre_tokenizer, theirs.decoder = DIGITS, decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    theirs.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    ours = load_tokenizer(smollm2)
    agree(ours, theirs, texts)
    assert ours.encode("The capital of France is").ids.tolist() == [504, 3575, 282, 4649, 314]
    assert ours.encode("Hello world! 123").ids.tolist() == [19556, 905, 17, 216, 33, 34, 35]


def test_unigram_of_xlm_roberta(tmp_path, data_directory, texts):
    """The pieces, scores and character map of a committed tokenizer, against Hugging Face's reading of them."""
    pieces = json.loads((data_directory / "unigram/small_pieces.json").read_text(encoding="utf-8"))
    vocabulary = [
        ("<s>", 0.0),
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        *((p, float(s)) for p, s in pieces[:2000]),
    ]
    seen: set[str] = set()
    vocabulary = [item for item in vocabulary if not (item[0] in seen or seen.add(item[0]))]
    theirs = Tokenizer(tokenizers.models.Unigram(vocabulary, unk_id=3, byte_fallback=False))
    theirs.normalizer = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    theirs.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    theirs.decoder = decoders.Metaspace()
    template = tokenizers.processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 0), ("</s>", 2)])
    theirs.post_processor = template
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    theirs.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    path = write_gguf_vocabulary(
        tmp_path / "v.gguf",
        "t5",
        tokens=[piece for piece, _ in vocabulary],
        scores=[score for _, score in vocabulary],
        token_type=[2 if piece == "<unk>" else CONTROL if piece in special else NORMAL for piece, _ in vocabulary],
        remove_extra_whitespaces=True,
        add_bos_token=True,
        add_eos_token=True,
        bos_token_id=0,
        eos_token_id=2,
        unknown_token_id=3,
    )
    ours = load_tokenizer(path)
    for text in texts:
        assert ours.encode(text).ids.tolist() == theirs.encode(text).ids, text


# Files that are not as they should be

GOOD = {"pre": "gpt-2", "tokens": ["a", "b", "ab"], "token_type": [1, 1, 1], "merges": ["a b"]}


@pytest.mark.parametrize(
    ("model", "change", "error", "message"),
    [
        ("gpt2", {"pre": "no-such"}, UnsupportedError, "tokenizer.ggml.pre is 'no-such'"),
        ("gpt2", {"pre": None}, UnsupportedError, "tokenizer.ggml.pre is missing"),
        ("gpt2", {"tokens": None}, TokenizerError, "no tokenizer.ggml.tokens"),
        ("gpt2", {"tokens": [1, 2, 3]}, TokenizerError, "tokens is an array of INT32; expected STRING"),
        ("gpt2", {"tokens": "abc"}, TokenizerError, "expected an array"),
        ("gpt2", {"token_type": [1, 1]}, TokenizerError, "2 elements and there are 3 tokens"),
        ("gpt2", {"token_type": [1.0, 1.0, 1.0]}, TokenizerError, "token_type is an array of FLOAT32; expected INT32"),
        ("gpt2", {"token_type": [1, 1, 9]}, TokenizerError, "token_type holds 9"),
        ("gpt2", {"merges": None}, TokenizerError, "no tokenizer.ggml.merges"),
        ("gpt2", {"merges": ["a c"]}, TokenizerError, "c"),
        ("gpt2", {"merges": [1]}, TokenizerError, "merges is an array of INT32; expected STRING"),
        (
            "gpt2",
            {"add_bos_token": True, "bos_token_id": 3},
            TokenizerError,
            "bos_token_id is 3; expected an id from 0 to 2",
        ),
        ("gpt2", {"add_bos_token": 1}, TokenizerError, "add_bos_token is 1; expected true or false"),
        ("llama", {}, TokenizerError, "no tokenizer.ggml.scores"),
        ("llama", {"scores": [1, 2, 3]}, TokenizerError, "scores is an array of INT32; expected FLOAT32"),
        ("llama", {"scores": [0.0, 1.0]}, TokenizerError, "2 elements and there are 3 tokens"),
        ("llama", {"scores": [0.0, float("nan"), 1.0]}, TokenizerError, r"scores\[1\] is not finite"),
        ("bert", {}, TokenizerError, "needs tokenizer.ggml.cls_token_id"),
        ("rwkv", {}, UnsupportedError, "tokenizer.ggml.model is 'rwkv'; supported are 'gpt2'"),
    ],
)
def test_bad_vocabularies_are_refused(tmp_path, model, change, error, message):
    fields = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    path = write_gguf_vocabulary(tmp_path / "v.gguf", model, **fields)
    with pytest.raises(error, match=message):
        load_tokenizer(path)


ELEMENTS = [kind for kind in gguf.GGUFValueType if kind is not gguf.GGUFValueType.ARRAY]


@pytest.mark.parametrize("kind", ELEMENTS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("key", ["tokens", "scores", "token_type", "merges"])
def test_arrays_of_another_type_are_refused(tmp_path, key, kind):
    """Case G12: other readers take scores and token types for four bytes an element, whatever the file says."""
    good = {"tokens": "STRING", "scores": "FLOAT32", "token_type": "INT32", "merges": "STRING"}
    values = {"tokens": ["a", "b", "ab"], "scores": [0.0, -1.0, -2.0], "token_type": [1, 1, 1], "merges": ["a b"]}
    writer = gguf.GGUFWriter(tmp_path / "v.gguf", "llama")
    writer.add_tokenizer_model("gpt2" if key == "merges" else "llama")
    writer.add_tokenizer_pre("gpt-2")
    for name in good:
        sub_type = kind if name == key else gguf.GGUFValueType[good[name]]
        array = values[name]
        if sub_type.name != good[name]:
            array = ["1"] * len(array) if sub_type is gguf.GGUFValueType.STRING else [1] * len(array)
        writer.add_key_value(f"tokenizer.ggml.{name}", array, gguf.GGUFValueType.ARRAY, sub_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    if kind.name == good[key] or (key, kind.name) == ("token_type", "UINT32"):  # as wide, and the kinds are positive
        assert load_tokenizer(tmp_path / "v.gguf").vocab_size == 3
    else:
        with pytest.raises(TokenizerError, match=f"{key} is an array of {kind.name}; expected {good[key]}"):
            load_tokenizer(tmp_path / "v.gguf")


def test_a_token_that_is_not_utf8_is_refused(tmp_path):
    path = write_gguf_vocabulary(tmp_path / "v.gguf", "gpt2", **{**GOOD, "tokens": ["a", "b", "\u00e9"]})
    path.write_bytes(path.read_bytes().replace("\u00e9".encode(), b"\xc3\x28"))
    with pytest.raises(TokenizerError, match=r"tokens\[2\] is not UTF-8"):
        load_tokenizer(path)


def test_a_file_without_a_tokenizer_says_so(tmp_path):
    write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, [])
    with pytest.raises(TokenizerError, match="holds no tokenizer"):
        load_tokenizer(tmp_path / "m.gguf")


def test_a_directory_with_one_gguf_file_is_enough(tmp_path):
    write_gguf_vocabulary(tmp_path / "v.gguf", "gpt2", **GOOD)
    assert load_tokenizer(tmp_path).encode("ab").ids.tolist() == [2]
    write_gguf_vocabulary(tmp_path / "w.gguf", "gpt2", **GOOD)
    with pytest.raises(InvalidInputError, match=r"2 GGUF files.*v\.gguf, w\.gguf"):
        load_tokenizer(tmp_path)
