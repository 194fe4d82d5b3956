"""A constrained text alone has the tokens that it has among sixteen others, whatever speeds any of them up."""

from __future__ import annotations

import dataclasses

import pytest

from lattice_inference import (
    AfterReasoning,
    Choice,
    Engine,
    EngineConfig,
    Gbnf,
    GenerateConfig,
    JsonSchema,
    Regex,
    Session,
)
from lattice_inference.generate.draft_length import DraftLength
from lattice_inference.grammar.constraint import Constraint
from tiny_decoders import EOS

from .test_constrained_generation import FORM

GRAMMARS = [JsonSchema(FORM), Regex("([a-f]{3}x ?){4,9}"), Choice(["yes, yes, yes, yes", "no, no, no"]),
            Gbnf('root ::= "(" root ")" root? | "ü"'), JsonSchema({"type": "array", "items": {"enum": ["ab", "abc"]},
                                                                   "minItems": 3, "maxItems": 9})]  # fmt: skip


def config(seed: int, **settings) -> GenerateConfig:
    return GenerateConfig(
        max_new_tokens=60, temperature=1.3, top_k=0, top_p=1.0, repetition_penalty=1.1, seed=seed, **settings
    )


def requests(speculate=None) -> list[tuple[str, GenerateConfig]]:
    """Return seventeen requests; nine of them are constrained, and some want log-probabilities."""
    made = []
    for index in range(17):
        grammar = GRAMMARS[index // 2 % len(GRAMMARS)] if index % 2 == 0 else None
        logprobs = 1 if index % 8 == 6 else None  # then no token is taken without a step
        made.append((f"Text {index} " * (1 + index % 3), config(index, grammar=grammar, logprobs=logprobs)))
    return [(prompt, dataclasses.replace(one, speculate=speculate)) for prompt, one in made]


@pytest.fixture(scope="module")
def alone(drawn_model):
    with Session(drawn_model) as session:
        return [session.generate(*request) for request in requests()]


@pytest.fixture(autouse=True)
def eager_drafts(monkeypatch):
    """Let a model draft although it pays little: the model itself drafts here."""
    monkeypatch.setattr(DraftLength, "choose", lambda self, most, company: min(5, most))


def same(found, expected) -> None:
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert [one.text for one in found] == [one.text for one in expected]
    assert [one.logprobs for one in found] == [one.logprobs for one in expected]
    assert [one.finish_reason for one in found] == [one.finish_reason for one in expected]


@pytest.mark.slow
@pytest.mark.parametrize("speculate", [None, "ngram", "model"])
@pytest.mark.parametrize("cache_tokens", [17 * 128, 144])
def test_among_sixteen_others_with_preemption(drawn_model, alone, speculate, cache_tokens):
    drafts = drawn_model if speculate == "model" else speculate
    with Engine(drawn_model, EngineConfig(page_tokens=16, cache_tokens=cache_tokens, prefix_bytes=0)) as engine:
        streams = [engine.submit(*request) for request in requests(drafts)]
        found = [stream.finish() for stream in streams]
        preemptions = engine.stats().preemptions
    same(found, alone)
    assert (preemptions > 0) == (cache_tokens < 1_000)
    if speculate is not None:
        constrained = [one for one, (_, made) in zip(found, requests(), strict=True) if made.grammar is not None]
        assert sum(one.drafted_tokens for one in constrained) > 0
        assert sum(one.accepted_tokens for one in constrained) > 0


@pytest.mark.parametrize("speculate", [None, "ngram", "model"])
def test_alone_with_forced_runs_on_and_off(drawn_model, alone, monkeypatch, speculate):
    drafts = drawn_model if speculate == "model" else speculate
    runs = requests(drafts)[:10:2]
    with Session(drawn_model) as session:
        found = [session.generate(*request) for request in runs]
        same(found, alone[:10:2])
        assert (sum(one.accepted_tokens for one in found) > 0) == (speculate is not None)
        forced = Constraint.forced
        monkeypatch.setattr(Constraint, "forced", lambda self: None)
        same([session.generate(*request) for request in runs], alone[:10:2])
        monkeypatch.setattr(Constraint, "forced", _eager(forced))
        same([session.generate(*request) for request in runs], alone[:10:2])


@pytest.mark.parametrize(("answers", "text"), [(["yes", "no"], "</think>yes"), (["no"], "</think>\n\nno")])
def test_reasoning_ends_and_the_answer_begins_within_one_step(told_model, monkeypatch, answers, text):
    model = told_model("x</think>yes", EOS)
    grammar = AfterReasoning(Choice(answers), is_open=True)
    settings = GenerateConfig(max_new_tokens=30, temperature=0, repetition_penalty=1.0, grammar=grammar)
    prompt = "x</think>yes and x</think>yes and x"
    steps = []
    forward = type(model).forward
    monkeypatch.setattr(
        type(model), "forward", lambda self, work: (steps.append(len(work[0].token_ids)), forward(self, work))[1]
    )
    with Session(model) as session:
        assert session.generate(prompt, settings).text == text
        plain = len(steps)
        steps.clear()
        drafted = session.generate(prompt, dataclasses.replace(settings, speculate="ngram"))
    assert drafted.text == text
    assert drafted.accepted_tokens >= 7
    assert len(steps) < plain


def _eager(forced):
    """Return forced runs that make every mask at once, also where several tokens may fit."""

    def eager(self):
        self.allowed()
        return forced(self)

    return eager
