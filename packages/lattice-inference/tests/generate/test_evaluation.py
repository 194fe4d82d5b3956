"""Perplexity and the comparison of models, against NumPy on tables and against the definition."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

from lattice_inference import load_model
from lattice_inference.errors import InvalidInputError
from lattice_inference.generate import windows
from lattice_inference.generate.causal_language_model import Extension
from lattice_inference.generate.compare_logits import compare_logits
from lattice_inference.generate.perplexity import perplexity
from lattice_inference.generate.windows import Window, windows_of
from tiny_decoders import VOCAB, write_drawn_model, write_told_model

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness."


@pytest.fixture(scope="module")
def table():
    return np.random.default_rng(3).normal(0, 2, (VOCAB, VOCAB)).astype(np.float32)


@pytest.fixture(scope="module")
def table_model(tmp_path_factory, table):
    with load_model(write_told_model(tmp_path_factory.mktemp("table"), table)) as model:
        yield model


@pytest.fixture(scope="module")
def other_model(tmp_path_factory, table):
    with load_model(write_told_model(tmp_path_factory.mktemp("other"), table * 0.5)) as model:
        yield model


def whole_window_nlls(model, ids):
    with model.open_cache(tokens=len(ids)) as cache:
        logits = model.forward([Extension(cache.sequence(), ids, "all")]).astype(np.float64)
    return -scipy.special.log_softmax(logits, axis=1)[np.arange(len(ids) - 1), ids[1:]]


def test_it_is_what_the_table_says(table_model, table):
    ids = list(TEXT.encode())
    expected = -scipy.special.log_softmax(table.astype(np.float64), axis=1)[ids[:-1], ids[1:]]
    result = perplexity(table_model, TEXT, window=16, stride=5)
    np.testing.assert_allclose(result.token_nlls, expected, atol=1e-3)
    assert result.tokens == len(ids) - 1
    assert result.nll == pytest.approx(expected.mean(), abs=1e-3)
    assert result.perplexity == pytest.approx(np.exp(expected.mean()), rel=1e-3)


def test_each_token_is_seen_from_its_window(drawn_model):
    ids = list(TEXT.encode())
    result = perplexity(drawn_model, ids, window=32, stride=10)
    expected = np.full(len(ids), np.nan)
    for start in range(0, len(ids), 10):
        nlls = whole_window_nlls(drawn_model, ids[start : start + 32])
        for offset, value in enumerate(nlls, start + 1):
            if np.isnan(expected[offset]):
                expected[offset] = value
    np.testing.assert_allclose(result.token_nlls, expected[1:], rtol=1e-12)


@pytest.mark.parametrize("tokens", [2, 15, 16, 17, 26, 27, 100])
@pytest.mark.parametrize("stride", [1, 6, 15])
def test_every_token_but_the_first_is_predicted_once(tokens, stride):
    seen = list(windows_of(tokens, 16, stride))
    scored = [position for window in seen for position in range(window.scored, window.end)]
    assert scored == list(range(1, tokens))
    assert all(window.end - window.start <= 16 for window in seen)


def test_the_windows_are_the_issues():
    assert list(windows_of(1100, 512, 256)) == [
        Window(0, 512, 1),
        Window(256, 768, 512),
        Window(512, 1024, 768),
        Window(768, 1100, 1024),
    ]


def test_how_many_logits_are_held_at_once_changes_nothing(drawn_model, monkeypatch):
    expected = perplexity(drawn_model, TEXT, window=64, stride=32).token_nlls
    monkeypatch.setattr(windows, "LOGITS_AT_ONCE", 5 * VOCAB)
    assert (perplexity(drawn_model, TEXT, window=64, stride=32).token_nlls == expected).all()


def test_max_tokens_takes_the_beginning(drawn_model):
    short = perplexity(drawn_model, TEXT, window=32, stride=16, max_tokens=20)
    assert short.tokens == 19
    assert (short.token_nlls == perplexity(drawn_model, TEXT[:20], window=32, stride=16).token_nlls).all()


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, "0 tokens"),
        ("a", {}, "1 tokens"),
        (TEXT, {"stride": 64}, "stride is 64"),
        (TEXT, {"stride": 0}, "stride is 0"),
        (TEXT, {"window": 1}, "window is 1"),
        (TEXT, {"window": 129}, "129"),
        (TEXT, {"max_tokens": 1}, "max_tokens"),
        (5, {}, "the text is a int"),
        ([1, 2, VOCAB], {}, f"text holds the token id {VOCAB}; the model's ids go to {VOCAB - 1}"),  # I11
        ([VOCAB, 1], {}, f"token id {VOCAB}"),
        ([1] * 99 + [VOCAB, 1], {}, f"token id {VOCAB}"),
        ([1, -1], {}, "the text holds -1"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(drawn_model, text, settings, message):
    windows = {"window": 64, "stride": 32, **settings}
    with pytest.raises(InvalidInputError, match=message):
        perplexity(drawn_model, text, **windows)
    with pytest.raises(InvalidInputError, match=message):
        compare_logits(drawn_model, drawn_model, text, **windows)


class TestComparison:
    def test_a_model_equals_itself(self, drawn_model):
        result = compare_logits(drawn_model, drawn_model, TEXT, window=64, stride=32)
        assert (result.agreement, result.mean_kl, result.max_kl) == (1.0, 0.0, 0.0)
        alone = perplexity(drawn_model, TEXT, window=64, stride=32)
        assert result.perplexity == result.reference_perplexity == pytest.approx(alone.perplexity)

    def test_it_is_what_the_tables_say(self, table_model, other_model, table):
        ids = list(TEXT.encode())
        p = scipy.special.softmax(table[ids[:-1]].astype(np.float64), axis=1)
        q = scipy.special.softmax(table[ids[:-1]].astype(np.float64) * 0.5, axis=1)
        kl = scipy.special.rel_entr(p, q).sum(axis=1)
        result = compare_logits(table_model, other_model, TEXT, window=32, stride=16)
        np.testing.assert_allclose(result.kl, kl, atol=1e-3)
        assert result.agreement == 1.0  # half the logits, the same order
        assert result.mean_kl == pytest.approx(kl.mean(), abs=1e-3)
        expected = np.exp(-np.log(q[np.arange(len(q)), ids[1:]]).mean())
        assert result.perplexity == pytest.approx(expected, rel=1e-3)

    def test_disagreement_is_counted(self, table_model, drawn_model, table):
        result = compare_logits(table_model, drawn_model, TEXT, window=32, stride=16)
        ids = list(TEXT.encode())
        with drawn_model.open_cache(tokens=32) as cache:
            logits = drawn_model.forward([Extension(cache.sequence(), ids[:32], "all")])
        expected = table[ids[:31]].argmax(axis=1) == logits[:31].argmax(axis=1)
        assert (result.agrees[:31] == expected).all()
        assert not result.agrees.all()

    def test_windows_fit_into_the_shorter_context_of_the_two(self, drawn_model, tmp_path):
        with load_model(write_drawn_model(tmp_path, context=48)) as shorter:
            for models in ((drawn_model, shorter), (shorter, drawn_model)):
                with pytest.raises(InvalidInputError, match="window is 64; expected 2 to 48"):
                    compare_logits(*models, TEXT, window=64, stride=32)
                assert compare_logits(*models, TEXT, window=48, stride=32).tokens > 0

    def test_models_of_different_vocabularies_do_not_compare(self, drawn_model, tmp_path):
        import json

        directory = write_drawn_model(tmp_path)
        from safetensors.numpy import load_file, save_file

        tensors = load_file(directory / "model.safetensors")
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = tensors[name][:270]
        save_file(tensors, directory / "model.safetensors")
        config = json.loads((directory / "config.json").read_text()) | {"vocab_size": 270}
        (directory / "config.json").write_text(json.dumps(config))
        with load_model(directory) as smaller, pytest.raises(InvalidInputError, match="272 and 270"):
            compare_logits(drawn_model, smaller, TEXT)
