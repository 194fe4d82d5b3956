"""The sources of drafts: repetitions, a second model, and how many drafts pay; and drafts verified by rejection."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lattice_inference import load_model
from lattice_inference.errors import InvalidInputError, NonFiniteError
from lattice_inference.generate import session_drafts
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.draft_length import LONGEST_PAUSE, DraftLength
from lattice_inference.generate.drafts import MOST_DRAFTS
from lattice_inference.generate.ngram_drafts import LEAST_MATCH, MOST_MATCH, NgramDrafts
from lattice_inference.generate.rejection import Candidates, drafted_token, verified_token
from lattice_inference.generate.session import Session, SessionConfig
from lattice_inference.quantize import quantize_gguf
from test_decoder_gguf import write as write_gguf_of
from tiny_decoders import write_drawn_model, write_told_model

from .test_speculation import CONFIGS, DRAWN, PROMPT, plain, speculating, state, told

PAST = 1e-4
"""The chance of a statistic past its limit, were the two distributions the same."""

LIMITS = {3: 21.11, 7: 29.88, 11: 37.37}
"""The chi-square quantiles of 1 - PAST, by degrees of freedom."""


def longest_repetition(ids):
    """Return the length of the longest end of ``ids`` that stands earlier, and the places where it goes on."""
    for length in range(min(MOST_MATCH, len(ids) - 1), LEAST_MATCH - 1, -1):
        places = [end for end in range(length, len(ids)) if ids[end - length : end] == ids[-length:]]
        if places:
            return length, places
    return 0, []


class TestRepetitions:
    @pytest.mark.parametrize(("letters", "share"), [(2, 0.3), (5, 0.8), (30, 1.0)])
    def test_the_longest_one_is_found(self, letters, share):
        """Where the text's last pair stands at many places, the latest few are compared."""
        rng = np.random.default_rng(letters)
        found_all = 0
        for length in (1, 2, 3, 20, 200):
            ids = rng.integers(0, letters, length).tolist()
            drafts = NgramDrafts()
            drafts.start(ids[: length // 2])
            for index in range(length // 2, length):
                drafts.accept(ids[index])
                longest, places = longest_repetition(ids[: index + 1])
                assert drafts._length <= longest
                assert (drafts._length > 0) == (longest > 0)
                if drafts._length:
                    assert (
                        ids[drafts._place - drafts._length : drafts._place]
                        == ids[index + 1 - drafts._length : index + 1]
                    )
                    assert 0 < drafts._place <= index
                found_all += drafts._length == longest and (not longest or drafts._place in places)
        assert found_all >= share * (1 + 1 + 2 + 10 + 100)

    def test_what_followed_is_drafted_also_across_its_own_end(self):
        drafts = NgramDrafts()
        drafts.start([9, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3])
        assert drafts.propose(4, 1) == [4, 5, 6, 7][: len(drafts.propose(4, 1))]
        for token_id in [4, 5, 6, 7, 8] + [1, 2, 3, 4, 5, 6, 7, 8] * 4:
            drafts.accept(token_id)
        assert drafts.propose(MOST_DRAFTS, 1) == ([1, 2, 3, 4, 5, 6, 7, 8] * 2)[:MOST_DRAFTS]

    def test_a_longer_context_is_read_on_and_another_one_anew(self):
        first, other = [1, 2, 3, 1, 2], [5, 1, 2, 9, 1, 2]
        kept = NgramDrafts()
        for ids in (first, [*first, 3, 1], other, other[:4], []):
            fresh = NgramDrafts()
            fresh.start(ids)
            kept.start(ids)
            assert (kept._ids, kept._links, kept._length) == (fresh._ids, fresh._links, fresh._length)
            kept.accept(7)

    def test_guesses_that_are_wrong_stop_and_begin_again_when_they_are_right(self):
        rng = np.random.default_rng(0)
        drafts = NgramDrafts()
        drafts.start(rng.integers(0, 3, 50).tolist())
        for token_id in rng.integers(0, 3, 400).tolist():
            drafts.accept(token_id)
        assert len(drafts.propose(MOST_DRAFTS, 8)) <= 1
        line = list(range(10, 40))
        for token_id in line * 4:
            drafts.accept(token_id)
        assert drafts.propose(MOST_DRAFTS, 1) == line[:MOST_DRAFTS]

    def test_a_step_in_company_has_fewer_drafts(self):
        counts = []
        for company in (1, 4, 32):
            drafts = NgramDrafts()
            drafts.start([*range(20), *range(8)])
            counts.append(len(drafts.propose(MOST_DRAFTS, company)))
        assert counts[0] > counts[1] >= counts[2] >= 0


class TestDraftLength:
    @pytest.mark.parametrize(("draft_cost", "chance", "least", "most"), [
        (0.02, 0.95, 6, 15), (0.1, 0.7, 1, 4), (0.1, 0.1, 0, 0), (1.0, 0.9, 0, 0), (0.0, 0.5, 1, 3),
    ])  # fmt: skip
    def test_it_is_what_pays(self, draft_cost, chance, least, most):
        rng = np.random.default_rng(1)
        length = DraftLength(draft_cost)
        counts = []
        for _ in range(600):
            count = length.choose(MOST_DRAFTS, 1)
            counts.append(count)
            for _ in range(count):
                is_right = bool(rng.random() < chance)
                length.note(is_right)
                if not is_right:
                    break
        assert least <= np.median(counts[200:]) <= most
        if most == 0:  # a trial now and then
            assert np.count_nonzero(counts[200:]) <= (400 / LONGEST_PAUSE + 4 if draft_cost < 0.5 else 0)

    def test_drafts_that_became_right_are_taken_up_again(self):
        length = DraftLength(0.1)
        while length.choose(MOST_DRAFTS, 1):
            length.note(False)
        for _ in range(40 * LONGEST_PAUSE):
            for _ in range(length.choose(MOST_DRAFTS, 1)):
                length.note(True)
        assert length.choose(MOST_DRAFTS, 1) > 3

    def test_in_company_it_is_less(self):
        lengths = [DraftLength(0.05), DraftLength(0.05)]
        for _ in range(20):
            for length in lengths:
                length.note(True)
        assert lengths[0].choose(15, 1) > lengths[1].choose(15, 6) > 0


@pytest.fixture
def cheap(monkeypatch):
    """Make every draft model count as small, whatever it has."""
    monkeypatch.setattr(session_drafts, "_weight_bytes", lambda model: 100 if model.context_length == 128 else 1)


@pytest.fixture(scope="module")
def same(tmp_path_factory):
    """A draft model that agrees with the drawn one."""
    with load_model(write_drawn_model(tmp_path_factory.mktemp("models") / "same", context=120)) as model:
        yield model


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A draft model that knows nothing of the drawn one."""
    with load_model(write_drawn_model(tmp_path_factory.mktemp("models") / "other", seed=7, context=256)) as model:
        yield model


@pytest.fixture(scope="module")
def near(drawn_directory, tmp_path_factory):
    """A draft model whose logits are near the drawn one's."""
    directory = tmp_path_factory.mktemp("models") / "near"
    shutil.copytree(drawn_directory, directory)
    tensors = load_file(directory / "model.safetensors")
    noise = np.random.default_rng(6).normal(size=tensors["lm_head.weight"].shape)
    tensors["lm_head.weight"] += (0.3 * noise).astype(np.float32)
    save_file(tensors, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text()) | {"max_position_embeddings": 100}
    (directory / "config.json").write_text(json.dumps(config))
    with load_model(directory) as model:
        yield model


class TestDraftModel:
    @pytest.mark.parametrize("name", CONFIGS)
    @pytest.mark.parametrize("agrees", [True, False])
    def test_texts_are_those_without_it(self, drawn_model, same, other, cheap, name, agrees):
        config = CONFIGS[name]
        draft = same if agrees else other
        expected, held, _ = plain(drawn_model, PROMPT, config)
        with Session(drawn_model) as session:
            result = session.generate(PROMPT, speculating(config, draft))
            assert told(result) == told(expected)
            assert state(session) == held
            short = dataclasses.replace(config, max_new_tokens=8)
            turns = [session.extend(" and", speculating(short, draft)) for _ in range(2)]
        with Session(drawn_model) as session:
            session.generate(PROMPT, config)
            assert [told(session.extend(" and", short)) for _ in range(2)] == [told(turn) for turn in turns]
        assert result.drafted_tokens > 0
        if agrees:  # also drawn ones: a position has one draw
            assert result.accepted_tokens >= 0.7 * len(expected.token_ids)
            assert result.accepted_tokens == result.drafted_tokens
        else:
            assert result.accepted_tokens < 0.4 * len(expected.token_ids)

    def test_it_runs_no_text_twice(self, drawn_model, same, cheap, monkeypatch):
        rows = {drawn_model: 0, same: 0}
        forward = type(drawn_model).forward

        def counted(self, extensions):
            rows[self] += sum(len(one.token_ids) for one in extensions)
            return forward(self, extensions)

        monkeypatch.setattr(type(drawn_model), "forward", counted)
        with Session(drawn_model) as session:
            config = speculating(dataclasses.replace(DRAWN, max_new_tokens=20), same)
            session.generate(PROMPT, config)
            session.extend(" and", config)
        assert rows[same] <= len(PROMPT) + 20 + 4 + 20 + 8

    def test_a_batch(self, drawn_model, same, cheap):
        prompts = [f"{index}, {index}" for index in range(4)]
        with Session(drawn_model, config=SessionConfig(cache_tokens=512)) as session:
            expected = session.generate_batch(prompts, DRAWN)
            results = session.generate_batch(prompts, speculating(DRAWN, same))
        assert [told(one) for one in results] == [told(one) for one in expected]
        assert sum(one.accepted_tokens for one in results) > 60

    def test_beyond_its_context_nothing_is_drafted(self, drawn_model, same, cheap):
        config = dataclasses.replace(DRAWN, max_new_tokens=20)
        for length in (100, 119, 120, 121):
            prompt = list(range(length))
            expected = plain(drawn_model, prompt, config)[0]
            with Session(drawn_model) as session:
                result = session.generate(prompt, speculating(config, same))
            assert told(result) == told(expected)
            assert (result.drafted_tokens > 0) == (length < 119)

    def test_a_draft_model_that_fails_ends_its_drafts(self, drawn_model, same, cheap, monkeypatch):
        expected = plain(drawn_model, PROMPT, DRAWN)[0]
        forward = type(drawn_model).forward

        def failing(self, extensions):
            if self is same:
                raise NonFiniteError("made up")
            return forward(self, extensions)

        monkeypatch.setattr(type(drawn_model), "forward", failing)
        with Session(drawn_model) as session:
            result = session.generate(PROMPT, speculating(DRAWN, same))
        assert told(result) == told(expected)
        assert result.drafted_tokens == 0

    def test_a_draft_model_that_is_closed_is_named_and_the_session_goes_on(self, drawn_model, cheap, tmp_path):
        expected = plain(drawn_model, PROMPT, DRAWN)[0]
        draft = load_model(write_drawn_model(tmp_path / "draft", context=120))
        config = speculating(DRAWN, draft)
        with Session(drawn_model) as session:
            stream = session.stream(PROMPT, config)
            text = "".join(next(stream).text for _ in range(5))
            draft.close()
            with pytest.raises(InvalidInputError, match=r"the draft model .*draft is closed"):
                "".join(piece.text for piece in stream)
            assert expected.text.startswith(stream.result.text)
            assert stream.result.text.startswith(text)
            for call in (session.generate, session.extend):
                with pytest.raises(InvalidInputError, match=r"the draft model .*draft is closed"):
                    call(PROMPT, config)
            used = session._cache.used_bytes
            with pytest.raises(InvalidInputError, match=r"the draft model .*draft is closed"):
                session.generate_batch(["a", "b"], config)
            assert session._cache.used_bytes == used
            assert session.generate(PROMPT, DRAWN).token_ids == expected.token_ids
            with load_model(tmp_path / "draft") as again:
                assert session.generate(PROMPT, speculating(DRAWN, again)).token_ids == expected.token_ids

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    def test_an_error_or_an_interrupt_between_drafts_leaves_the_session_as_it_is_without(
        self, drawn_model, same, cheap, error
    ):
        expected = plain(drawn_model, PROMPT, DRAWN)[0]
        with Session(drawn_model) as session:
            for last in range(1, 40, 3):

                def cancelled(calls, last=last):
                    if next(calls) == last:
                        raise error
                    return False

                with pytest.raises(error):
                    session.generate(PROMPT, speculating(DRAWN, same), cancelled=partial(cancelled, itertools.count()))
                used, calls = session._cache.used_bytes, itertools.count()
                with pytest.raises(error):
                    session.generate_batch(["a", "b"], speculating(DRAWN, same), cancelled=partial(cancelled, calls))
                assert session._cache.used_bytes == used
            result = session.generate(PROMPT, speculating(DRAWN, same))
            assert result.token_ids == expected.token_ids
            assert result.accepted_tokens > 30

    def test_a_large_draft_model_does_not_pay(self, drawn_model, other):
        with Session(drawn_model) as session:
            assert session.generate(PROMPT, speculating(DRAWN, other)).drafted_tokens <= 8

    def test_another_vocabulary_is_refused(self, drawn_model, told_model, tmp_path):
        directory = write_told_model(tmp_path / "m", {97: 98})
        content = json.loads((directory / "tokenizer.json").read_text())
        vocabulary = content["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
        (directory / "tokenizer.json").write_text(json.dumps(content))
        with load_model(directory) as draft, Session(drawn_model) as session:
            session.generate("abc", GenerateConfig.greedy(2))
            before = session.token_ids
            for _ in range(2):
                with pytest.raises(InvalidInputError, match=r"token 97 is 'b' of the draft model.*same vocabulary"):
                    session.generate("abd", speculating(DRAWN, draft))
            assert session.token_ids == before
            with pytest.raises(InvalidInputError, match="same vocabulary"):
                session.generate_batch(["a"], speculating(DRAWN, draft))

    def test_without_tokenizers_the_numbers_of_tokens_count(self, tmp_path, drawn_model):
        paths = [write_gguf_of(tmp_path / f"{name}.gguf", "llama") for name in "ab"]
        with load_model(paths[0]) as model, load_model(paths[1]) as draft, Session(model) as session:
            assert not model.has_tokenizer
            result = session.generate([1, 2, 3], speculating(dataclasses.replace(DRAWN, max_new_tokens=8), draft))
            assert len(result.token_ids) == 8
            with pytest.raises(InvalidInputError, match="same vocabulary"):
                session.generate([1, 2, 3], speculating(DRAWN, drawn_model))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("cache_dtype", ["float16", "int8"])
def test_block_formats(tmp_path, kind, cache_dtype, monkeypatch):
    monkeypatch.setattr(session_drafts, "_weight_bytes", lambda model: 1 if model.precision == "float32" else 100)
    exact = write_gguf_of(tmp_path / "exact.gguf", "llama")
    quantize_gguf(exact, tmp_path / "blocks.gguf", kind)
    config = dataclasses.replace(DRAWN, temperature=0.7, max_new_tokens=50)
    with load_model(tmp_path / "blocks.gguf") as model, load_model(exact, precision="float32") as draft:
        prompt = list(range(30))
        expected, held, _ = plain(model, prompt, config, cache_dtype=cache_dtype)
        for source in ("ngram", draft):
            with Session(model, config=SessionConfig(cache_dtype=cache_dtype)) as session:
                result = session.generate(prompt, speculating(config, source))
                assert told(result) == told(expected)
                assert state(session) == held
        assert result.accepted_tokens > 10


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


class TestRejection:
    def test_tokens_have_the_probabilities_of_the_model(self):
        rng = np.random.default_rng(4)
        p, q = rng.dirichlet(np.ones(12)), rng.dirichlet(np.ones(12))
        ids = np.arange(0, 36, 3)
        mine, theirs = Candidates(ids, p), Candidates(ids, q)
        seeds = 2000
        counts, drafted, kept = np.zeros(36), np.zeros(36), 0
        for seed in range(seeds):
            draft = drafted_token(theirs, seed, 9)
            token_id = verified_token(mine, theirs, draft, seed, 9)
            drafted[draft] += 1
            counts[token_id] += 1
            kept += token_id == draft
        assert chi_square(drafted[ids], seeds * q) < LIMITS[11]
        assert chi_square(drafted[ids], seeds * p) > 10 * LIMITS[11]  # the test would see drafts that are all kept
        assert chi_square(counts[ids], seeds * p) < LIMITS[11]
        assert abs(kept / seeds - np.minimum(p, q).sum()) < 4 * 0.5 / np.sqrt(seeds)

    def test_tokens_that_only_one_of_both_may_choose(self):
        mine = Candidates(np.array([1, 2, 5]), np.array([0.25, 0.25, 0.5]))
        theirs = Candidates(np.array([2, 3]), np.array([0.5, 0.5]))
        counts = np.zeros(6)
        for seed in range(1200):
            counts[verified_token(mine, theirs, drafted_token(theirs, seed, 0), seed, 0)] += 1
        assert counts[[0, 3, 4]].sum() == 0
        assert chi_square(counts[[1, 2, 5]], 1200 * mine.probabilities) < LIMITS[3]

    def test_equal_distributions_keep_every_draft(self):
        both = Candidates(np.arange(5), np.full(5, 0.2))
        for seed in range(200):
            draft = drafted_token(both, seed, 3)
            assert verified_token(both, both, draft, seed, 3) == draft

    @pytest.mark.slow
    def test_texts_have_the_probabilities_of_texts_without_drafts(self, drawn_model, near, cheap):
        """Pairs of tokens, each of 4: the second one comes from a draft, or from the place of one."""
        base = GenerateConfig(
            max_new_tokens=4, temperature=3.0, top_k=3, top_p=1.0, repetition_penalty=1.0, ignore_stop_tokens=True
        )
        seeds = 400
        counts = []
        with Session(drawn_model, config=SessionConfig(cache_tokens=8192)) as session:
            for settings in ({}, {"speculate": near, "verify": "distribution"}):
                configs = [dataclasses.replace(base, seed=seed, **settings) for seed in range(seeds)]
                results = session.generate_batch(["ab"] * seeds, configs)
                counts.append(np.zeros(1 << 16))
                for result in results:
                    counts[-1][result.token_ids[1] * 256 + result.token_ids[2]] += 1
        assert sum(result.drafted_tokens for result in results) > seeds / 2
        assert sum(result.accepted_tokens for result in results) > 0
        often = np.argsort(-(counts[0] + counts[1]), kind="stable")[:7]
        both = np.array([[*row[often], row.sum() - row[often].sum()] for row in counts])
        expected = both.sum(axis=0) / 2
        assert chi_square(both[0], expected) + chi_square(both[1], expected) < LIMITS[7]

    def test_greedy_texts_stay_the_same(self, drawn_model, other, same, cheap):
        config = CONFIGS["greedy, penalties"]
        expected = plain(drawn_model, PROMPT, config)[0]
        for draft in (same, other):
            with Session(drawn_model) as session:
                result = session.generate(PROMPT, dataclasses.replace(config, speculate=draft, verify="distribution"))
            assert result.token_ids == expected.token_ids

    def test_a_seed_gives_one_text_alone_and_in_a_batch(self, drawn_model, same, cheap):
        config = dataclasses.replace(DRAWN, speculate=same, verify="distribution")
        with Session(drawn_model, config=SessionConfig(cache_tokens=512)) as session:
            alone = session.generate(PROMPT, config)
            results = session.generate_batch([PROMPT, "abc", PROMPT], config)
            assert results[0].token_ids == results[2].token_ids == alone.token_ids
        assert alone.accepted_tokens == alone.drafted_tokens > 0

    def test_a_grammar_and_stop_tokens(self, drawn_model, other, cheap):
        pytest.importorskip("llguidance")
        from lattice_inference import Regex

        config = dataclasses.replace(
            DRAWN, ignore_stop_tokens=False, grammar=Regex("[a-f]{20}x+"), speculate=other, verify="distribution"
        )
        with Session(drawn_model) as session:
            for seed in range(5):
                text = session.generate(PROMPT, dataclasses.replace(config, seed=seed)).text
                assert set(text[:20]) <= set("abcdef")
                assert set(text[20:]) <= {"x"}
                assert len(text) > 20
