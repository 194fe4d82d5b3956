"""Generation under a grammar: any model obeys it, and a text alone has the tokens that it has in company."""

from __future__ import annotations

import json
import pickle
import threading

import numpy as np
import pytest

from lattice_inference import (
    Chat,
    Choice,
    FinishReason,
    Gbnf,
    GenerateConfig,
    GrammarError,
    InvalidInputError,
    JsonSchema,
    Lark,
    NonFiniteError,
    Regex,
    Session,
    SessionConfig,
    load_model,
)
from lattice_inference.generate.sampler import Sampler, SamplingConfig
from tiny_decoders import EOS, write_drawn_model

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["é", "😀", 'q"']}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def drawn(seed, **settings):
    return GenerateConfig(
        max_new_tokens=110, temperature=2.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=seed, **settings
    )


@pytest.mark.parametrize(
    ("grammar", "check"),
    [
        (JsonSchema(FORM), json.loads),
        (JsonSchema(FORM, whitespace="indented"), json.loads),
        (Regex("[a-f]{3}(x|é😀)"), None),
        (Choice(["yes", "no", "vielleicht"]), None),
        (Gbnf('root ::= "(" root ")" | "ü"'), None),
        (Lark('start: A B\nA: /a+/\nB: "b"'), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_drawn_model_at_temperature_2_obeys(grammar, check, drawn_model, obeys):
    ended = 0
    with Session(drawn_model) as session:
        for seed in range(5):
            result = session.generate("Once", drawn(seed, grammar=grammar))
            if result.finish_reason is FinishReason.STOP_TOKEN:
                ended += 1
                assert obeys(grammar, result.text)
                if check is not None:
                    assert set(check(result.text)) == {"name", "age", "tags"}
            else:
                assert result.finish_reason is FinishReason.LENGTH
                assert obeys(grammar, result.text, prefix=True)
    assert ended >= 3


@pytest.mark.slow
def test_alone_equals_in_company_half_of_it_constrained(drawn_model):
    grammars = [JsonSchema(FORM), None, Regex("[a-f]{3}x"), None, Choice(["yes", "no"]), None] * 2
    configs = [drawn(seed, grammar=grammar) for seed, grammar in enumerate(grammars)]
    prompts = [f"Text {index}" for index in range(len(configs))]
    with Session(drawn_model, config=SessionConfig(cache_tokens=600)) as session:
        alone = [session.generate(prompt, config) for prompt, config in zip(prompts, configs, strict=True)]
        together = session.generate_batch(prompts, configs)
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert [one.text for one in together] == [one.text for one in alone]


def test_tokens_without_a_choice_need_no_step_and_are_the_same_ones(drawn_model, monkeypatch):
    grammar = JsonSchema({"type": "object", "properties": {"a_long_name": {"type": "boolean"}}, "required": ["a_long_name"],
                          "additionalProperties": False})  # fmt: skip
    steps = []
    forward = type(drawn_model).forward
    monkeypatch.setattr(
        type(drawn_model), "forward", lambda self, work: (steps.append(len(work)), forward(self, work))[1]
    )
    with Session(drawn_model) as session:
        result = session.generate("Say", drawn(3, grammar=grammar))
        taken = len(steps)
        steps.clear()
        plain = session.generate("Say", drawn(3, grammar=grammar, logprobs=0))  # which need the logits of every token
    assert plain.token_ids == result.token_ids
    assert len(plain.logprobs) == len(plain.token_ids)
    assert len(steps) == len(plain.token_ids) + 1
    assert taken <= 8
    assert json.loads(result.text)["a_long_name"] in (True, False)
    assert result.finish_reason is FinishReason.STOP_TOKEN


def test_a_stream_gives_the_text_in_pieces_and_the_context_is_whole(drawn_model):
    with Session(drawn_model) as session:
        stream = session.stream("Say", drawn(3, grammar=JsonSchema(FORM)))
        text = "".join(piece.text for piece in stream)
        assert text == stream.result.text
        assert len(session.token_ids) == stream.result.prompt_tokens + len(stream.result.token_ids) + (
            stream.result.finish_reason is FinishReason.STOP_TOKEN
        )
        longer = session.extend(" and", drawn(4, grammar=Choice(["x"])))
        assert longer.text == "x"


def test_only_where_the_text_may_end_is_a_stop_token_allowed(told_model):
    model = told_model("ab", EOS)  # it wants to say "ab" and to end
    with Session(model) as session:
        config = GenerateConfig(max_new_tokens=20, temperature=0.0, repetition_penalty=1.0, grammar=Regex("a?b{3}"))
        result = session.generate("x", config)
        assert result.text.endswith("bbb")
        assert result.finish_reason is FinishReason.STOP_TOKEN


def test_a_chat_passes_the_grammar_on(chatting_model):
    with Session(chatting_model) as session:
        chat = Chat(session)
        answer = chat.send(
            "Is it?", GenerateConfig(max_new_tokens=20, temperature=0.0, grammar=Choice(["No.", "Maybe."]))
        )
        assert answer.text in {"No.", "Maybe."}


def test_a_mask_comes_before_bias_and_penalties():
    logits = np.array([5.0, 1.0, 3.0, 2.0], np.float32)
    allowed = np.array([0b1010], np.uint32)
    sampler = Sampler(SamplingConfig(logit_bias={1: 2.0, 2: 50.0}), 0, [], 4)
    assert sampler.sample(logits, 0, allowed) == 1
    assert sampler.sample(logits, 0) == 2
    drawn_ids = {Sampler(SamplingConfig(temperature=5.0), seed, [], 4).sample(logits, 0, allowed) for seed in range(50)}
    assert drawn_ids == {1, 3}
    with pytest.raises(NonFiniteError):  # a NaN that the mask covers
        Sampler(SamplingConfig(), 0, [], 4).sample(np.array([np.nan, 1, 2, 3], np.float32), 0, allowed)
    with pytest.raises(NonFiniteError):  # the bias forbids what the grammar allows
        Sampler(SamplingConfig(logit_bias={1: -np.inf, 3: -np.inf}), 0, [], 4).sample(logits, 0, allowed)


def test_masks_of_more_than_one_word():
    logits = np.arange(100, dtype=np.float32)
    allowed = np.zeros(4, np.uint32)
    allowed[1] = 1 << 3
    allowed[2] = 1 << 31
    assert Sampler(SamplingConfig(), 0, [], 100).sample(logits, 0, allowed) == 95


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"grammar": "root ::= x"}, InvalidInputError),
        ({"grammar": {"type": "object"}}, InvalidInputError),
        ({"grammar": Regex("a"), "ignore_stop_tokens": True}, InvalidInputError),
    ],
)
def test_configurations_that_contradict_themselves_are_refused(settings, error):
    with pytest.raises(error):
        GenerateConfig(**settings)


@pytest.mark.parametrize(
    "grammar",
    [Lark("start: ("), Lark('begin: "a"'), Regex("a("), Regex(r"(a)\1"), JsonSchema({"allOf": [True, False]})],
)
def test_what_the_engine_cannot_read_is_told_before_a_step_and_leaves_the_session_usable(grammar, drawn_model):
    with Session(drawn_model) as session:
        before = session.generate("x", GenerateConfig.greedy(2)).token_ids
        with pytest.raises(GrammarError) as caught:
            session.generate("x", drawn(0, grammar=grammar))
        assert "<state>" not in str(caught.value)
        assert "backtrace" not in str(caught.value)
        assert session.generate("x", GenerateConfig.greedy(2)).token_ids == before


def test_a_grammar_needs_a_token_to_end_with(tmp_path):
    directory = write_drawn_model(tmp_path / "endless", template=None)
    (directory / "tokenizer_config.json").write_text("{}")
    with load_model(directory) as model, Session(model) as session:
        with pytest.raises(GrammarError, match="stop_token_ids"):
            session.generate("x", drawn(0, grammar=Regex("a")))
        assert session.generate("x", drawn(0, grammar=Regex("a"), stop_token_ids=[EOS])).text == "a"


def test_specifications_are_values():
    assert JsonSchema(FORM) == JsonSchema(json.dumps(FORM))
    assert hash(JsonSchema(FORM)) == hash(JsonSchema(FORM))
    for grammar in (
        JsonSchema(FORM),
        Regex("a/b\n"),
        Choice(["a", "b", "a"]),
        Gbnf('root ::= "a"'),
        Lark('start: "a"'),
    ):
        assert pickle.loads(pickle.dumps(grammar)) == grammar
    assert JsonSchema(JsonSchema(FORM).schema) == JsonSchema(FORM)
    assert JsonSchema.any_object() == JsonSchema({"type": "object"})


@pytest.mark.parametrize("texts", [[], "yes", ["a", ""], ["a", 3], ["a"] * 10_001, ["\ud800"], [b"a"], None])
def test_choices_that_are_none_are_refused(texts):
    with pytest.raises(GrammarError):
        Choice(texts)


@pytest.mark.parametrize("text", ["", 3, None, "x" * 200_001, "\ud800"])
@pytest.mark.parametrize("kind", [Regex, Gbnf, Lark])
def test_texts_of_grammars_that_are_none_are_refused(kind, text):
    with pytest.raises(GrammarError):
        kind(text)


def test_slashes_and_line_ends_of_a_regex_are_its_own(obeys):
    grammar = Regex("a/b\\/c\\\\|\n\r|\\n")
    for text in ("a/b/c\\", "\n\r", "\n"):
        assert obeys(grammar, text)
    assert not obeys(grammar, "a/b")


def test_threads_share_what_was_compiled(byte_compiler):
    grammar = JsonSchema({"type": "array", "items": {"enum": list(range(300))}})
    found, errors = [], []

    def compile_it():
        try:
            found.append(byte_compiler.matcher(grammar))
        except Exception as error:  # told by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=compile_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for matcher in found:
        matcher.accept(ord("["))
    assert len(byte_compiler._compiling) == 0
