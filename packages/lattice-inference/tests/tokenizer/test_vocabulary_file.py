"""vocab.txt with tokenizer_config.json beside it."""

import json

import pytest

from lattice_inference.errors import TokenizerError, UnsupportedError
from lattice_inference.tokenizer import load_tokenizer

TEXTS = ["Ünïcode TEXT [MASK] [SEP]", "日本語 naïve", "[CLS]x[PAD]y", "", "it's 3.14"]


@pytest.fixture
def write(tmp_path, vocabularies):
    def write(config=None, vocabulary="uncased", text=None):
        path = tmp_path / "vocab.txt"
        path.write_text(text or "".join(f"{token}\n" for token in vocabularies[vocabulary]), encoding="utf-8")
        if config is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("config", "normalizer"),
    [
        (None, {"lowercase": True}),
        ({}, {"lowercase": True}),
        ({"do_lower_case": False, "tokenizer_class": "BertTokenizerFast"}, {"lowercase": False}),
        ({"do_lower_case": True, "strip_accents": False}, {"lowercase": True, "strip_accents": False}),
        ({"do_lower_case": False, "strip_accents": True}, {"lowercase": False, "strip_accents": True}),
        ({"tokenize_chinese_chars": False, "model_max_length": 512}, {"handle_chinese_chars": False}),
    ],
)
def test_same_as_the_tokenizer_json(write, make_bert, vocabularies, config, normalizer, udhr):
    both = make_bert(vocabularies["uncased"], **normalizer)
    both.ours = load_tokenizer(write(config).parent)
    for text in [*TEXTS, udhr["deu_1996"], udhr["jpn"]]:
        both.compare(text)
        both.compare(text, "pair")
        both.compare(text, special_tokens_in_text=False)


def test_directory_prefers_tokenizer_json(write, cased, tmp_path):
    write({"do_lower_case": True})
    cased.theirs.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("The").ids.tolist() == cased.theirs.encode("The").ids
    assert load_tokenizer(tmp_path / "vocab.txt").token_to_id("the") is not None


def test_windows_line_ends_and_byte_order_mark(write, vocabularies):
    lines = "\ufeff" + "".join(f"{token}\r\n" for token in vocabularies["uncased"])
    ours = load_tokenizer(write(text=lines))
    assert ours.vocab_size == 3000
    assert ours.token_to_id("[PAD]") == 0


def test_flags_of_special_tokens(write):
    token = {"content": "[MASK]", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False}
    listed = {"4": token | {"special": True}}
    for config in ({"mask_token": token | {"__type": "AddedToken"}}, {"added_tokens_decoder": listed}):
        offsets = load_tokenizer(write(config)).encode("a  [MASK]", add_special_tokens=False).offsets
        assert offsets.tolist() == [[0, 1], [1, 9]]


def test_additional_special_tokens(write, vocabularies):
    text = "".join(f"{token}\n" for token in [*vocabularies["uncased"], "[E1]", "[E2]"])
    config = {"additional_special_tokens": ["[E1]"], "extra_special_tokens": {"entity": "[E2]"}}
    ours = load_tokenizer(write(config, text=text))
    ids = ours.encode("[E1][E2]", add_special_tokens=False).ids
    assert ids.tolist() == [3000, 3001]
    assert ours.decode(ids) == ""


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"tokenizer_class": "MPNetTokenizer"}, UnsupportedError, "MPNetTokenizer"),
        ({"tokenizer_class": 3}, TokenizerError, "tokenizer_class"),
        ({"do_basic_tokenize": False}, UnsupportedError, "do_basic_tokenize"),
        ({"never_split": ["x"]}, UnsupportedError, "never_split"),
        ({"do_lower_case": "yes"}, TokenizerError, "do_lower_case"),
        ({"strip_accents": 1}, TokenizerError, "strip_accents"),
        ({"cls_token": "<s>"}, TokenizerError, "<s>"),
        ({"unk_token": None}, TokenizerError, "unk_token"),
        ({"additional_special_tokens": "[E]"}, TokenizerError, "additional_special_tokens"),
        ({"added_tokens_decoder": [1]}, TokenizerError, "added_tokens_decoder"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(write, config, error, message):
    path = write(config)
    with pytest.raises(error, match=message):
        load_tokenizer(path)


@pytest.mark.parametrize("text", ["\n", "a\nb\n", "[PAD]\n[CLS]\n[SEP]\n[MASK]\n", "\udcff"])
def test_a_vocabulary_without_the_special_tokens_is_refused(write, text, tmp_path):
    (tmp_path / "vocab.txt").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(TokenizerError):
        load_tokenizer(tmp_path)


def test_repeated_line(write, vocabularies):
    text = "".join(f"{token}\n" for token in [*vocabularies["uncased"], "the"])
    ours = load_tokenizer(write(text=text))
    assert ours.encode("the", add_special_tokens=False).ids.tolist() == [3000]
    assert ours.id_to_token(vocabularies["uncased"].index("the")) is None


@pytest.mark.parametrize("config", [{"tokenizer_class": "T" + "\U0010ffff" * 5_000}, {"unk_token": "u" * 20_000}])
def test_long_words_of_a_file_are_cut_in_the_error(write, config):
    with pytest.raises((TokenizerError, UnsupportedError)) as caught:
        load_tokenizer(write(config).parent)
    assert len(str(caught.value)) < 1_000
