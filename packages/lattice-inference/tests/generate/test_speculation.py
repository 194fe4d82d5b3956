"""Drafts save steps and change no bit of a text, whatever they guess and wherever they end."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from typing import ClassVar

import numpy as np
import pytest

from lattice_inference import CausalLanguageModel, Chat, Extension, load_model
from lattice_inference.errors import CacheFullError, InvalidInputError, NonFiniteError, UnsupportedError
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.drafts import MOST_DRAFTS, row_cost
from lattice_inference.generate.session import Session, SessionConfig
from lattice_inference.generate.session_drafts import SessionDrafts
from tiny_decoders import write_told_model

PROMPT = "hello hello, hello"
DRAWN = GenerateConfig(max_new_tokens=60, temperature=1.0, seed=5, ignore_stop_tokens=True, top_k=0, top_p=1.0)
CONFIGS = {
    "greedy": GenerateConfig(max_new_tokens=60, temperature=0, seed=0, ignore_stop_tokens=True),
    "greedy, penalties": GenerateConfig(
        max_new_tokens=60, temperature=0, seed=0, ignore_stop_tokens=True, repetition_penalty=1.3, frequency_penalty=0.4
    ),
    "drawn": DRAWN,
    "drawn, penalties": dataclasses.replace(
        DRAWN, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.2, logit_bias={5: 3.0}, top_k=30
    ),
    "log-probabilities": dataclasses.replace(DRAWN, logprobs=3, top_p=0.8, min_p=0.01),
}
RIGHT = {
    "all": lambda index: MOST_DRAFTS,
    "none": lambda index: 0,
    "some": lambda index: (3, 0, 7, 1, 12, 2, 5)[index % 7],
}


class Scripted:
    """Drafts of a text that is known: of each proposal the given number are right, then one is wrong."""

    candidates = ()
    texts: ClassVar[dict[tuple[int, ...], tuple[int, ...]]] = {}

    def __init__(self, right, most=MOST_DRAFTS):
        self._right, self._most, self._calls = right, most, 0

    def start(self, token_ids, config):
        self._text, self._place = self.texts[tuple(token_ids)], 0

    def accept(self, token_id):
        assert self._text[self._place] == token_id
        self._place += 1

    def propose(self, most, company):
        self._calls += 1
        rest = self._text[self._place :]
        right = self._right(self._calls)
        drafts = list(rest[:right])
        if right < len(rest) and right < MOST_DRAFTS:
            drafts.append((rest[right] + 1) % 256)
        return drafts[: min(most, self._most)]

    def close(self):
        pass


@pytest.fixture
def scripted(monkeypatch):
    """Make ``speculate="ngram"`` use scripted drafts."""

    def use(right, texts, most=MOST_DRAFTS):
        monkeypatch.setattr(Scripted, "texts", texts)
        monkeypatch.setattr(SessionDrafts, "_open", lambda self, config, tokens: Scripted(right, most))

    return use


@pytest.fixture
def steps(monkeypatch):
    """The rows of each call of any model."""
    calls: list[int] = []
    forward = CausalLanguageModel.forward

    def counted(self, extensions):
        calls.append(sum(len(one.token_ids) for one in extensions))
        return forward(self, extensions)

    monkeypatch.setattr(CausalLanguageModel, "forward", counted)
    return calls


def told(result):
    """What a result says, without times and without what was drafted."""
    values = dataclasses.asdict(result)
    for name in ("prompt_seconds", "generate_seconds", "drafted_tokens", "accepted_tokens"):
        del values[name]
    return values


def state(session):
    """What a session holds: its context, what of it is cached, and the logits after that."""
    sequence = session._sequence
    ids, cached = session.token_ids, sequence.length
    sequence.rewind(cached - 1)
    return ids, cached, session.model.forward([Extension(sequence, ids[cached - 1 : cached])]).tobytes()


def speculating(config, source="ngram"):
    return dataclasses.replace(config, speculate=source)


def plain(model, prompt, config, **settings):
    """Return the result without drafts, the session's state, and the text for scripted drafts."""
    with Session(model, config=SessionConfig(**settings)) as session:
        result = session.generate(prompt, config)
        held = state(session)
        length = result.prompt_tokens
    return result, held, {held[0][:length]: held[0][length:]}


class TestBits:
    @pytest.mark.parametrize("right", RIGHT)
    @pytest.mark.parametrize("name", CONFIGS)
    def test_a_text_and_the_session_after_it_are_those_without_drafts(self, drawn_model, scripted, name, right):
        config = CONFIGS[name]
        expected, held, texts = plain(drawn_model, PROMPT, config, page_tokens=16)
        scripted(RIGHT[right], texts)
        with Session(drawn_model, config=SessionConfig(page_tokens=16)) as session:
            result = session.generate(PROMPT, speculating(config))
            assert told(result) == told(expected)
            assert state(session) == held
        assert (result.accepted_tokens > 0) == (right != "none")
        assert result.drafted_tokens > 0

    @pytest.mark.parametrize(
        "dtype", ["int8", *(pytest.param(name, marks=pytest.mark.slow) for name in ("float16", "float32", "bfloat16"))]
    )
    @pytest.mark.parametrize("first", range(12, 20))
    def test_drafts_end_at_before_and_behind_a_page(self, drawn_model, scripted, dtype, first):
        """A step of 4 rows after ``first`` tokens, of which 0 to 3 are kept: pages have 16."""
        config = dataclasses.replace(DRAWN, max_new_tokens=12)
        settings = {"cache_dtype": dtype, "page_tokens": 16}
        prompt = list(range(40, 40 + first))
        expected, held, texts = plain(drawn_model, prompt, config, **settings)
        for right in range(4):
            scripted(lambda index, right=right: right, texts, most=3)
            with Session(drawn_model, config=SessionConfig(**settings)) as session:
                assert told(session.generate(prompt, speculating(config))) == told(expected)
                assert state(session) == held

    @pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", "int8"])
    def test_weights_of_every_precision(self, drawn_directory, scripted, precision):
        with load_model(drawn_directory, precision=precision) as model:
            expected, held, texts = plain(model, PROMPT, DRAWN)
            scripted(RIGHT["some"], texts)
            with Session(model) as session:
                assert told(session.generate(PROMPT, speculating(DRAWN))) == told(expected)
                assert state(session) == held

    @pytest.mark.slow
    def test_a_batch_of_eight_speculates(self, drawn_model, scripted, steps):
        prompts = [f"{index} and {index}" for index in range(8)]
        configs = [list(CONFIGS.values())[index % len(CONFIGS)] for index in range(8)]
        alone = [plain(drawn_model, prompt, config) for prompt, config in zip(prompts, configs, strict=True)]
        texts = dict(itertools.chain.from_iterable(each[2].items() for each in alone))
        settings = SessionConfig(cache_tokens=1024)
        for right, most_steps in (("all", 12), ("some", 40), ("none", 61)):
            scripted(RIGHT[right], texts)
            with Session(drawn_model, config=settings) as session:
                steps.clear()
                results = session.generate_batch(prompts, [speculating(config) for config in configs])
                taken = len(steps)
            assert [told(result) for result in results] == [told(each[0]) for each in alone]
            assert taken <= most_steps

    def test_half_of_a_batch_speculates(self, drawn_model, scripted):
        expected, _, texts = plain(drawn_model, PROMPT, DRAWN)
        scripted(RIGHT["some"], texts)
        with Session(drawn_model, config=SessionConfig(cache_tokens=512)) as session:
            results = session.generate_batch([PROMPT] * 4, [DRAWN, speculating(DRAWN)] * 2)
        assert [told(result) for result in results] == [told(expected)] * 4
        assert [result.accepted_tokens > 0 for result in results] == [False, True] * 2

    def test_an_adapter_has_its_own_text(self, drawn_directory, scripted):
        from lattice_inference.lora import LoraAdapter, LoraSite

        with load_model(drawn_directory) as model:
            rng = np.random.default_rng(3)
            sites = {
                name: LoraSite(rng.normal(size=(2, inputs)), 0.3 * rng.normal(size=(outputs, 2)), 1.0)
                for name, (outputs, inputs) in model.adapter_sites.items()
            }
            model.attach_adapter(LoraAdapter(sites), "a")
            with Session(model, adapter="a") as session:
                expected = session.generate(PROMPT, DRAWN)
                ids = session.token_ids
            scripted(RIGHT["some"], {ids[: expected.prompt_tokens]: ids[expected.prompt_tokens :]})
            with Session(model, adapter="a") as session:
                assert told(session.generate(PROMPT, speculating(DRAWN))) == told(expected)
            assert expected.token_ids != plain(model, PROMPT, DRAWN)[0].token_ids

    def test_a_conversation_of_turns(self, drawn_model):
        """The second turn reuses as much of the context, and says the same."""
        answers = []
        for config in (DRAWN, speculating(DRAWN)):
            short = dataclasses.replace(config, max_new_tokens=25)
            with Session(drawn_model) as session:
                chat = Chat(session, config=short)
                answers.append([told(chat.send("aaaa bbbb aaaa")), told(chat.send("bbbb"))])
        assert answers[0] == answers[1]

    @pytest.mark.slow
    def test_a_real_model_in_a_code_edit(self, smollm2, steps):
        code = 'def area(width, height):\n    """Return the area."""\n    return width * height\n'
        prompt = f"{code}\n{code}\n{code}\ndef area(width"
        with load_model(smollm2) as model, Session(model) as session:
            for config in (
                GenerateConfig.greedy(24),
                GenerateConfig(max_new_tokens=24, temperature=0.5, repetition_penalty=1.0, seed=2, logprobs=1),
            ):
                steps.clear()
                expected = session.generate(prompt, config)
                without = len(steps)
                session.reset()
                steps.clear()
                assert told(session.generate(prompt, speculating(config))) == told(expected)
                assert len(steps) < 0.7 * without
                session.reset()


class TestSteps:
    def test_drafts_that_are_right_save_their_steps(self, drawn_model, scripted, steps):
        config = dataclasses.replace(DRAWN, max_new_tokens=1 + 3 * (MOST_DRAFTS + 1))
        expected, _, texts = plain(drawn_model, PROMPT, config)
        assert len(expected.token_ids) == 49
        for right, count in (("all", 1 + 3), ("none", 1 + 48)):
            scripted(RIGHT[right], texts)
            with Session(drawn_model) as session:
                steps.clear()
                result = session.generate(PROMPT, speculating(config))
            assert len(steps) == count
            assert result.accepted_tokens == 49 - count

    def test_no_step_runs_beyond_the_last_token(self, drawn_model, scripted, steps):
        """By ``max_new_tokens`` or the end of the context within the drafts."""
        for new, context in ((10, 128), (99, 28)):
            config = dataclasses.replace(DRAWN, max_new_tokens=new)
            expected, held, texts = plain(drawn_model, PROMPT, config, max_tokens=context)
            assert len(expected.token_ids) == 10
            scripted(RIGHT["all"], {prompt: (*text, *range(20)) for prompt, text in texts.items()})
            with Session(drawn_model, config=SessionConfig(max_tokens=context)) as session:
                steps.clear()
                result = session.generate(PROMPT, speculating(config))
                assert told(result) == told(expected)
                assert steps == [18, 9]
                assert state(session) == held

    def test_a_repeating_text_takes_few_steps_by_ngrams(self, tmp_path, steps):
        """The model says a line of 20 bytes again and again."""
        line = bytes(range(65, 85))
        table = {line[index]: line[(index + 1) % 20] for index in range(20)}
        settings = SessionConfig(cache_tokens=2048)
        with load_model(write_told_model(tmp_path, table)) as model, Session(model, config=settings) as session:
            config = GenerateConfig.greedy(200)
            expected = session.generate("A", config)
            session.reset()
            steps.clear()
            result = session.generate("A", speculating(config))
            assert result.token_ids == expected.token_ids
            assert len(steps) < 60
            steps.clear()
            session.generate_batch(["A"] * 8, speculating(config))
            assert len(steps) < 60

    def test_a_text_without_repetitions_has_no_drafts(self, drawn_model):
        with Session(drawn_model) as session:
            assert (
                session.generate("abcdefg", speculating(dataclasses.replace(DRAWN, temperature=5.0))).drafted_tokens < 5
            )


class TestEnds:
    @pytest.mark.parametrize("first", range(1, 9))
    def test_a_stop_text_within_and_across_drafts(self, drawn_model, scripted, steps, first):
        """It ends the text where it does without drafts, and what was drafted behind it is forgotten."""
        everything = plain(drawn_model, PROMPT, DRAWN)[2]
        (ids,) = everything.values()
        shown = [chr(one) if 32 < one < 127 else None for one in ids]
        pairs = [(a + b) for a, b in itertools.pairwise(shown) if a and b]
        config = dataclasses.replace(DRAWN, stop=pairs[first % len(pairs)])
        expected, held, _ = plain(drawn_model, PROMPT, config)
        assert expected.finish_reason == "stop_text"
        for right in RIGHT.values():
            scripted(right, everything)
            with Session(drawn_model) as session:
                assert told(session.generate(PROMPT, speculating(config))) == told(expected)
                assert state(session) == held

    def test_a_stop_token_within_drafts(self, drawn_model, scripted):
        ids = plain(drawn_model, PROMPT, DRAWN)[0].token_ids
        stop = ids[7]
        config = dataclasses.replace(DRAWN, ignore_stop_tokens=False, stop_token_ids=[stop])
        expected, held, _ = plain(drawn_model, PROMPT, config)
        assert expected.stop_token_id == stop
        scripted(RIGHT["all"], {held[0][: expected.prompt_tokens]: ids})
        with Session(drawn_model) as session:
            result = session.generate(PROMPT, speculating(config))
            assert told(result) == told(expected)
            assert state(session) == held
        assert result.drafted_tokens < 7  # the stop token and what is behind it is not run

    @pytest.mark.parametrize("read", range(1, 8))
    def test_a_stream_ends_between_any_two_tokens(self, drawn_model, scripted, read):
        expected, _, texts = plain(drawn_model, PROMPT, DRAWN)
        scripted(RIGHT["some"], texts)
        for how in ("close", "cancel"):
            seen = []
            for config in (DRAWN, speculating(DRAWN)):
                event = threading.Event()
                with Session(drawn_model) as session:
                    stream = session.stream(PROMPT, config, cancelled=event)
                    pieces = [next(stream) for _ in range(read)]
                    assert session.token_ids[expected.prompt_tokens :] == expected.token_ids[:read]
                    if how == "close":
                        stream.close()
                    else:
                        event.set()
                        pieces += list(stream)
                    seen.append((pieces, told(stream.result), state(session)))
                    more = session.extend(" and", dataclasses.replace(DRAWN, max_new_tokens=5))
                    seen[-1] += (told(more),)
            assert seen[0] == seen[1]

    def test_an_error_within_a_step_leaves_the_context(self, drawn_model, scripted, monkeypatch):
        """As without drafts, the tokens read so far stay, and the session goes on."""
        expected, _, texts = plain(drawn_model, PROMPT, DRAWN)
        scripted(RIGHT["all"], texts)
        with Session(drawn_model) as session:
            stream = session.stream(PROMPT, speculating(DRAWN))
            for _ in range(4):
                next(stream)
            with monkeypatch.context() as broken:
                broken.setattr("lattice_inference.generate.generation.sample_rows", lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    next(stream)
            assert session.token_ids[expected.prompt_tokens :] == expected.token_ids[:4]
            rest = session.extend([], dataclasses.replace(DRAWN, max_new_tokens=8))
            assert rest.token_ids == expected.token_ids[4:12]

    def test_an_interrupt_leaves_no_draft_in_the_context(self, drawn_model, scripted, monkeypatch):
        expected, _, texts = plain(drawn_model, PROMPT, DRAWN)
        scripted(RIGHT["none"], texts)
        forward = type(drawn_model).forward
        with Session(drawn_model) as session:
            stream = session.stream(PROMPT, speculating(DRAWN))
            for _ in range(4):
                next(stream)

            def interrupted(self, extensions):
                forward(self, extensions)
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(type(drawn_model), "forward", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    next(stream)
            assert session.token_ids[expected.prompt_tokens :] == expected.token_ids[:4]
            rest = session.extend([], dataclasses.replace(DRAWN, max_new_tokens=8))
            assert rest.token_ids == expected.token_ids[4:12]

    @pytest.mark.parametrize("error", [NonFiniteError("made up"), CacheFullError("made up")])
    def test_what_only_drafts_cannot_do_is_done_without(self, drawn_model, scripted, monkeypatch, error):
        expected, held, texts = plain(drawn_model, PROMPT, DRAWN)
        scripted(RIGHT["some"], texts)
        forward = type(drawn_model).forward

        def refusing(self, extensions):
            if len(extensions[0].token_ids) > 1 and extensions[0].logits == "all":
                raise error
            return forward(self, extensions)

        monkeypatch.setattr(type(drawn_model), "forward", refusing)
        with Session(drawn_model) as session:
            result = session.generate(PROMPT, speculating(DRAWN))
            assert told(result) == told(expected)
            assert result.accepted_tokens == result.drafted_tokens == 0
            monkeypatch.undo()
            assert state(session) == held

    def test_a_full_cache_has_room_for_a_text_without_drafts(self, drawn_model, scripted):
        """A fork holds all other pages, so drafts that need another page are not run."""
        config = dataclasses.replace(DRAWN, max_new_tokens=14)
        expected, _, texts = plain(drawn_model, PROMPT, config)
        scripted(RIGHT["none"], texts)
        settings = SessionConfig(max_tokens=48, cache_tokens=48, page_tokens=16)
        with Session(drawn_model, config=settings) as session, session.fork() as other:
            other.extend("x" * 10, GenerateConfig.greedy(0))
            assert told(session.generate(PROMPT, speculating(config))) == told(expected)


class TestGrammar:
    @pytest.mark.parametrize("right", RIGHT)
    @pytest.mark.parametrize("settings", [{}, {"logprobs": 1}], ids=str)
    def test_a_text_under_a_grammar(self, drawn_model, scripted, right, settings):
        pytest.importorskip("llguidance")
        from lattice_inference import JsonSchema, Regex

        form = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
                "required": ["name", "age"], "additionalProperties": False}  # fmt: skip
        for grammar in (JsonSchema(form), Regex("[a-f]{30}(x|é😀)")):
            config = dataclasses.replace(DRAWN, ignore_stop_tokens=False, grammar=grammar, **settings)
            expected, held, texts = plain(drawn_model, PROMPT, config)
            scripted(RIGHT[right], texts)
            with Session(drawn_model) as session:
                result = session.generate(PROMPT, speculating(config))
                assert told(result) == told(expected)
                assert state(session) == held
            if right == "some" and settings:
                assert result.accepted_tokens > 3

    def test_what_the_grammar_forbids_is_not_run(self, drawn_model, scripted):
        pytest.importorskip("llguidance")
        from lattice_inference import Regex

        config = dataclasses.replace(DRAWN, ignore_stop_tokens=False, grammar=Regex("[a-f]{30}"))
        expected, _, texts = plain(drawn_model, PROMPT, config)
        (context,) = texts
        scripted(RIGHT["all"], {context: (*expected.token_ids[:5], ord("z"), *expected.token_ids[6:])})
        Scripted.accept = lambda self, token_id: setattr(self, "_place", self._place + 1)
        with Session(drawn_model) as session:
            result = session.generate(PROMPT, speculating(config))
        assert told(result) == told(expected)
        assert result.drafted_tokens == result.accepted_tokens


class TestRefusals:
    @pytest.mark.parametrize("value", [3, "grams", "", b"ngram", True, ["ngram"], CausalLanguageModel])
    def test_what_is_no_source_of_drafts(self, value):
        with pytest.raises(InvalidInputError, match="speculate"):
            GenerateConfig(speculate=value)

    @pytest.mark.parametrize(("name", "lacks"), [("mtp", "MTP"), ("self", "linear layers")])
    def test_a_model_without_what_it_takes(self, drawn_model, name, lacks):
        with Session(drawn_model) as session:
            session.generate("abc", GenerateConfig.greedy(2))
            before = session.token_ids
            with pytest.raises(UnsupportedError, match=f"'{name}'.*{lacks}"):
                session.generate("abd", GenerateConfig(speculate=name))
            with pytest.raises(UnsupportedError, match=lacks):
                session.generate_batch(["a", "b"], [GenerateConfig(), GenerateConfig(speculate=name)])
            assert session.token_ids == before

    def test_a_way_to_verify(self, drawn_model):
        for verify in ("rejection", 1):
            with pytest.raises(InvalidInputError, match="verify"):
                GenerateConfig(speculate="ngram", verify=verify)
        for source in (None, "ngram", "mtp"):
            with pytest.raises(InvalidInputError, match=r"distribution.*draft model"):
                GenerateConfig(speculate=source, verify="distribution")
        assert GenerateConfig(speculate=drawn_model, verify="distribution").resolve().verify == "distribution"
        assert GenerateConfig().resolve().verify == "exact"


def test_a_row_costs_more_the_more_texts_a_step_serves():
    costs = [row_cost(company) for company in (1, 2, 8, 64)]
    assert costs == sorted(costs)
    assert 0 < costs[0] < 0.3
    assert 0.9 < costs[-1] < 1
