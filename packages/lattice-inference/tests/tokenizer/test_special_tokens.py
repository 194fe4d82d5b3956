"""Added tokens: special tokens in a user's text, stripping, whole words, normalized ones."""

import itertools

import pytest
from tokenizers import AddedToken

from lattice_inference.errors import UnsupportedError

from .bpe_vocabularies import llama, llama_pieces, trained

TEXTS = [
    "[CLS] special tokens [SEP]",
    "[MASK]",
    "a[MASK]b  [MASK]  c",
    "[CLS][SEP][CLS]",
    "[MAS K] [MASK",
    "[mask] [Mask] MASK",
    "日[MASK]本 \u0301[MASK]\u0301 é[SEP]é",
    "\x00[MASK]\x00 \u3000[MASK]\u3000",
]


@pytest.mark.parametrize("special_tokens_in_text", [True, False])
@pytest.mark.parametrize("add_special_tokens", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_special_tokens_in_text(uncased, text, add_special_tokens, special_tokens_in_text):
    uncased.compare(text, add_special_tokens=add_special_tokens, special_tokens_in_text=special_tokens_in_text)


def test_ordinary_text_has_no_special_ids(uncased):
    special = {uncased.ours.token_to_id(token) for token in ("[CLS]", "[SEP]", "[MASK]", "[PAD]")}
    found = uncased.ours.encode("[CLS] [SEP] [MASK] [PAD]", add_special_tokens=False)
    hidden = uncased.ours.encode("[CLS] [SEP] [MASK] [PAD]", add_special_tokens=False, special_tokens_in_text=False)
    assert set(found.ids.tolist()) == special
    assert not special & set(hidden.ids.tolist())


FLAGS = [
    dict(zip(("single_word", "lstrip", "rstrip", "normalized", "special"), values, strict=True))
    for values in itertools.product([False, True], repeat=5)
]


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "+".join(name for name in flags if flags[name]) or "none")
def test_flags_of_added_tokens(uncased, make_both, flags):
    tokenizer = type(uncased.theirs).from_str(uncased.theirs.to_str())
    add = tokenizer.add_special_tokens if flags["special"] else tokenizer.add_tokens
    add([AddedToken("Ünit", **flags), AddedToken("Ünits", **flags), AddedToken("  two  ", **flags)])
    both = make_both(tokenizer)
    for text in (
        "Ünit unit ÜNIT U\u0308nit",
        "a Ünit b",
        "aÜnitb ,Ünit, _Ünit_ 1Ünit1",
        "  Ünit \t Ünits\u3000\u00a0Ünit",
        "Ünits Ünit's Ünitss",
        "x  two  two  two  x",
        "Ünit  two  Ünit",
        "Ünit",
        "Ünit ",
        "日Ünit本 Ünit\u0301",
    ):
        for special_tokens_in_text in (True, False):
            both.compare(text, special_tokens_in_text=special_tokens_in_text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wordpiece", "byte-level", "llama"])
def test_added_tokens_are_text_and_special_ones_are_not(uncased, make_both, udhr, data_directory, kind):
    """Case D3: whatever the model and the decoder, whole or streamed."""
    if kind == "wordpiece":
        tokenizer = type(uncased.theirs).from_str(uncased.theirs.to_str())
    elif kind == "byte-level":
        tokenizer = trained("gpt2", [udhr["eng"]], 400)
    else:
        tokenizer = llama(llama_pieces(data_directory / "bpe"))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ("<thought>", "日<é>", "<｜turn｜>")])
    tokenizer.add_special_tokens([AddedToken("<|user|>", normalized=False, special=True)])
    both = make_both(tokenizer)
    for text in ("<thought>", "a <thought> b", "<|user|>é<thought>😀<|user|>日<é>", "x<｜turn｜><|user|>"):
        ids = both.theirs.encode(text, add_special_tokens=False).ids
        for skip in (True, False):
            shown = both.ours.decode(ids, skip_special_tokens=skip)
            stream = both.ours.stream(skip_special_tokens=skip)
            assert "".join([stream.push(token_id) for token_id in ids]) + stream.finish() == shown
            assert shown == both.theirs.decode(ids, skip_special_tokens=skip)
            for token in ("<thought>", "日<é>", "<｜turn｜>"):
                assert shown.count(token) == text.count(token)
            assert shown.count("<|user|>") == (0 if skip else text.count("<|user|>"))


def test_longest_added_token_wins(uncased, make_both):
    tokenizer = type(uncased.theirs).from_str(uncased.theirs.to_str())
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ("ab", "abc", "bcd", "a b", "abcdef")])
    both = make_both(tokenizer)
    for text in ("abcd", "abcde", "abcdef", "xabcx", "a bcd", "ab cd", "aab abb"):
        both.compare(text)


@pytest.mark.parametrize("special_first", [False, True])
def test_of_two_added_tokens_that_normalize_to_one_text_the_special_one_is_found(uncased, make_both, special_first):
    """Whatever their order. Hugging Face's library takes either, differently in each process (0.23)."""
    tokenizer = type(uncased.theirs).from_str(uncased.theirs.to_str())
    add = [
        lambda: tokenizer.add_tokens([AddedToken("Ünit", normalized=True)]),
        lambda: tokenizer.add_special_tokens([AddedToken("UNIT", normalized=True)]),
    ]
    for step in reversed(add) if special_first else add:
        step()
    ours = make_both(tokenizer).ours
    for text in ("unit", "Ünit", "UNIT"):
        assert ours.encode(text, add_special_tokens=False).ids.tolist() == [ours.token_to_id("UNIT")]


def test_added_token_that_normalizes_to_nothing_is_refused(uncased, make_both):
    tokenizer = type(uncased.theirs).from_str(uncased.theirs.to_str())
    tokenizer.add_tokens([AddedToken("\u0301", normalized=True)])
    with pytest.raises(UnsupportedError, match="nothing once normalized"):
        make_both(tokenizer)


@pytest.mark.slow
def test_decode_matches(uncased, cased, udhr):
    for both in (uncased, cased):
        for text in [*udhr.values(), "Don't! I'm, you've \" ' n't [MASK] do not ..."]:
            ids = both.theirs.encode(text).ids
            for skip in (True, False):
                assert both.ours.decode(ids, skip_special_tokens=skip) == both.theirs.decode(
                    ids, skip_special_tokens=skip
                )
    assert uncased.ours.decode([]) == ""
