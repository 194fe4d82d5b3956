"""WordPiece tokenizers over the small committed vocabularies, against Hugging Face's library."""

import pytest
import tokenizers
from tokenizers import normalizers, pre_tokenizers
from tokenizers.models import WordPiece


@pytest.mark.slow
@pytest.mark.parametrize("which", ["uncased", "cased"])
def test_declaration_of_human_rights(which, request, udhr):
    both = request.getfixturevalue(which)
    for text in udhr.values():
        both.compare(text)
        assert both.ours.count(text) == len(both.theirs.encode(text).ids)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["uncased", "cased"])
@pytest.mark.parametrize("pattern", ["{}", "the{}the"])
def test_every_code_point_of_the_first_three_planes(which, pattern, request):
    """Ids, offsets and type ids, alone and inside words; the other planes have few characters and no words."""
    both = request.getfixturevalue(which)
    for start in [*range(0, 0x30000, 0x4000), 0xE0000]:
        characters = [chr(c) for c in range(start, start + 0x4000) if not 0xD800 <= c <= 0xDFFF]
        both.compare("\n".join(map(pattern.format, characters)))


@pytest.mark.parametrize(("lowercase", "kept"), [(True, "naive"), (False, "naïve")])
def test_strip_accents_null_means_the_same_as_lowercase(make_bert, lowercase, kept):
    """Cases A2 and A3: a cased model keeps its accents."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "naive", "naïve"]
    both = make_bert(vocabulary, strip_accents=None, lowercase=lowercase)
    both.compare("naïve")
    assert both.ours.encode("naïve", add_special_tokens=False).tokens == [kept]


def test_cased_keeps_composed_and_decomposed_apart(make_bert):
    """Case A4: nothing is normalized behind the user's back."""
    both = make_bert(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "á", "##\u0301"], lowercase=False)
    for text, tokens in (("\u00e1", ["á"]), ("a\u0301", ["a", "##\u0301"])):
        both.compare(text)
        assert both.ours.encode(text, add_special_tokens=False).tokens == tokens


def test_strip_accents_alone_leaves_composed_characters(make_both):
    """Case A5: StripAccents drops marks, and a composed character has none until NFD or NFKD splits it."""
    words = ["Héllò", "hôw", "are", "ü?", "Hello", "how", "u?"]
    tokenizer = tokenizers.Tokenizer(WordPiece({w: i for i, w in enumerate(["[UNK]", *words])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.StripAccents()])
    both = make_both(tokenizer)
    both.compare("Héllò hôw are ü? ")
    assert both.ours.encode("Héllò hôw are ü? ").tokens == ["Héllò", "hôw", "are", "ü?"]
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    both = make_both(tokenizer)
    both.compare("Héllò hôw are ü? ")
    assert both.ours.encode("Héllò hôw are ü? ").tokens == ["Hello", "how", "are", "u?"]


def test_a_failed_piece_makes_the_whole_word_unknown(uncased):
    uncased.compare("the\u4e00\u2603the the\u2603")
    assert uncased.ours.encode("the\u0e5bthe x", add_special_tokens=False).tokens[0] == "the"
    assert uncased.ours.encode("the\u2603the", add_special_tokens=False).tokens == ["[UNK]"]


@pytest.mark.parametrize("length", [99, 100, 101, 250])
@pytest.mark.parametrize("character", ["a", "é", "が"])
def test_long_words_are_unknown(uncased, length, character):
    """The limit of 100 counts the characters of the normalized word."""
    uncased.compare(character * length)
    uncased.compare(f"the {character * length} the")
    is_unknown = uncased.ours.encode(character * length, add_special_tokens=False).tokens == ["[UNK]"]
    assert is_unknown == (length > 100)


def test_prefix_and_limit_come_from_the_file(make_both):
    vocabulary = ["[UNK]", "play", "@ing", "ing", "@@", "ab"]
    model = WordPiece(
        {token: i for i, token in enumerate(vocabulary)},
        unk_token="[UNK]",
        continuing_subword_prefix="@",
        max_input_chars_per_word=7,
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    both = make_both(tokenizer)
    both.compare("playing playings play@ ab@ing @@ @ing aab")
    assert both.ours.encode("playing").tokens == ["play", "@ing"]


def test_offsets_point_into_the_original_text(uncased):
    text = "  Ünïcode\u0301 [MASK] 日本\x00x"
    encoding = uncased.ours.encode(text)
    uncased.compare(text)
    assert encoding.offsets.dtype == "int32"
    assert [text[start:end] for start, end in encoding.offsets.tolist()][-4:] == ["日", "本", "x", ""]
    assert encoding.tokens[0] == "[CLS]"


def test_vocabulary_look_up(uncased):
    ours, theirs = uncased.ours, uncased.theirs
    assert ours.vocab_size == theirs.get_vocab_size() == 3000
    for token in ("[CLS]", "the", "##s"):
        assert ours.token_to_id(token) == theirs.token_to_id(token)
        assert ours.id_to_token(ours.token_to_id(token)) == token
    assert ours.token_to_id("no such token") is None
    assert ours.id_to_token(3000) is None
    assert ours.id_to_token(-1) is None


def test_special_token_count(uncased):
    assert uncased.ours.special_token_count() == 2
    assert uncased.ours.special_token_count(pair=True) == 3
