"""Each provider's protocol, spoken to a server on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from teacher_server import LABELS, TeacherServer, label_of

from lattice_tune import (
    LabelingTask,
    LabelStore,
    MissingDependencyError,
    Outcome,
    RequestLimits,
    ServedTeacher,
    TeacherApiError,
    alabel_texts,
    label_texts,
)

PROVIDERS = ["anthropic", "openai", "gemini", "openai-compatible"]
TEXTS = [f"text {number}" for number in range(12)]
Make = Callable[..., ServedTeacher]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_labels_are_those_of_the_server(
    provider: str, server: TeacherServer, teacher: Make, task: LabelingTask
) -> None:
    report = label_texts(TEXTS, teacher(provider), task)
    assert [result.label for result in report.results] == [label_of(text) for text in TEXTS]
    assert report.is_complete
    assert sorted(server.texts()) == sorted(TEXTS)
    assert report.input_tokens == server.billed_input
    assert report.output_tokens == server.billed_output
    assert report.cost == pytest.approx((3 * server.billed_input + 15 * server.billed_output) / 1e6)
    assert report.unknown_cost == 0


@pytest.mark.parametrize("provider", PROVIDERS)
def test_soft_labels_are_the_distribution_that_was_given(provider: str, server: TeacherServer, teacher: Make) -> None:
    soft = LabelingTask(LABELS, kind="soft")
    server.usual = server.says({"probabilities": {"alpha": 0.701, "beta": 0.2, "gamma": 0.1}})
    (result,) = label_texts(["a"], teacher(provider), soft).results
    assert result.probabilities == pytest.approx({"alpha": 0.701 / 1.001, "beta": 0.2 / 1.001, "gamma": 0.1 / 1.001})
    assert sum(result.probabilities.values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_async_calls_give_the_same(provider: str, teacher: Make, task: LabelingTask) -> None:
    report = asyncio.run(alabel_texts(TEXTS, teacher(provider), task))
    assert [result.label for result in report.results] == [label_of(text) for text in TEXTS]


def test_sync_call_inside_of_a_running_loop(teacher: Make, task: LabelingTask) -> None:
    async def notebook() -> list[str | None]:
        return [result.label for result in label_texts(TEXTS, teacher(), task).results]

    assert asyncio.run(notebook()) == [label_of(text) for text in TEXTS]


def test_what_each_provider_is_sent(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    for provider in PROVIDERS:
        label_texts(["a"], teacher(provider, system_prompt="Be strict."), task)
    anthropic, openai, gemini, compatible = server.asked
    assert anthropic.path == "/v1/messages"
    assert anthropic.headers["anthropic-version"] == "2023-06-01"
    assert anthropic.body["tool_choice"] == {"type": "tool", "name": "answer"}
    schema = anthropic.body["tools"][0]["input_schema"]
    assert schema["properties"] == {"label": {"type": "string", "enum": list(LABELS)}}
    assert openai.path == "/v1/chat/completions"
    assert openai.body["response_format"]["json_schema"]["schema"] == schema
    assert openai.body["max_completion_tokens"] == 1024
    assert gemini.path == "/v1/models/model-1:generateContent"
    assert gemini.body["generationConfig"]["responseSchema"]["properties"]["label"]["enum"] == list(LABELS)
    assert "response_format" not in compatible.body
    assert compatible.body["max_tokens"] == 1024
    assert compatible.body["messages"][0]["content"].startswith("Be strict.\n")
    assert '{"label": ' in compatible.body["messages"][0]["content"]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ('Sure! {"label": "beta"} I hope that helps.', Outcome.LABELLED),
        ('```json\n{"label": " BETA "}\n```', Outcome.LABELLED),
        ('{"label": "beta"} or rather {"label": "beta"}', Outcome.LABELLED),
        ('{"label": "beta"} or {"label": "alpha"}', Outcome.MALFORMED),
        ('{"label": "delta"}', Outcome.UNKNOWN_LABEL),
        ('{"label": 1}', Outcome.UNKNOWN_LABEL),
        ('{"label": "alpha", "label": "beta"}', Outcome.MALFORMED),
        ('{"other": "alpha"}', Outcome.MALFORMED),
        ("alpha", Outcome.MALFORMED),
        ("", Outcome.MALFORMED),
        ("{" * 50_000, Outcome.MALFORMED),
        ('{"label":' * 20_000, Outcome.MALFORMED),
    ],
)
def test_json_is_found_and_checked(
    provider: str, said: str, outcome: Outcome, server: TeacherServer, teacher: Make, task: LabelingTask
) -> None:
    server.usual = server.says(said=said)
    (result,) = label_texts(["a"], teacher(provider, structured_output=False), task).results
    assert result.outcome is outcome
    assert result.label == ("beta" if outcome is Outcome.LABELLED else None)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        ({"alpha": 0.5, "beta": 0.5}, Outcome.LABELLED),
        ({"alpha": 0.5, "beta": 0.6}, Outcome.WRONG_SUM),
        ({"alpha": 0.0, "beta": 0.0, "gamma": 0.0}, Outcome.WRONG_SUM),
        ({}, Outcome.WRONG_SUM),
        ({"alpha": 1.0, "delta": 0.0}, Outcome.UNKNOWN_LABEL),
        ({"alpha": 1.5, "beta": -0.5}, Outcome.MALFORMED),
        ({"alpha": "1"}, Outcome.MALFORMED),
        ({"alpha": True}, Outcome.MALFORMED),
        ({"alpha": 0.5, "ALPHA": 0.5}, Outcome.MALFORMED),
        ({"alpha": 10**400}, Outcome.MALFORMED),
        ([1.0], Outcome.MALFORMED),
    ],
)
def test_probabilities_are_checked(
    provider: str, given: object, outcome: Outcome, server: TeacherServer, teacher: Make
) -> None:
    server.usual = server.says({"probabilities": given})
    (result,) = label_texts(["a"], teacher(provider), LabelingTask(LABELS, kind="soft")).results
    assert result.outcome is outcome
    assert bool(result.detail) == (outcome is not Outcome.LABELLED)


@pytest.mark.parametrize(
    ("provider", "reason", "outcome"),
    [
        ("anthropic", "refusal", Outcome.REFUSED),
        ("anthropic", "max_tokens", Outcome.CUT_OFF),
        ("openai", "content_filter", Outcome.REFUSED),
        ("openai", "length", Outcome.CUT_OFF),
        ("openai-compatible", "length", Outcome.CUT_OFF),
        ("gemini", "SAFETY", Outcome.REFUSED),
        ("gemini", "RECITATION", Outcome.REFUSED),
        ("gemini", "MAX_TOKENS", Outcome.CUT_OFF),
    ],
)
def test_refusals_and_cut_off_answers_are_no_labels(
    provider: str, reason: str, outcome: Outcome, server: TeacherServer, teacher: Make, task: LabelingTask
) -> None:
    server.usual = server.says(reason=reason)  # with a whole label in it, which does not count
    (result,) = label_texts(["a"], teacher(provider), task).results
    assert (result.outcome, result.label) == (outcome, None)


def test_refusals_in_places_of_their_own(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    message = {"role": "assistant", "content": None, "refusal": "I can't help with that."}
    server.script = [server.document_of(lambda _: {"choices": [{"message": message, "finish_reason": "stop"}]})]
    server.script += [server.document_of(lambda _: {"promptFeedback": {"blockReason": "SAFETY"}})]
    for provider in ("openai", "gemini"):
        (result,) = label_texts(["a"], teacher(provider), task).results
        assert result.outcome is Outcome.REFUSED


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "document",
    [
        {},
        {"choices": []},
        {"choices": [None]},
        {"choices": {}},
        {"content": 1},
        {"candidates": [{"content": []}]},
        {"a": 1},
    ],
)
def test_documents_of_another_shape(
    provider: str, document: dict[str, Any], server: TeacherServer, teacher: Make, task: LabelingTask
) -> None:
    server.usual = server.document_of(lambda _: document)
    (result,) = label_texts(["a"], teacher(provider), task).results
    assert result.outcome is Outcome.MALFORMED


def test_votes_are_averaged_and_each_is_asked_for(
    server: TeacherServer, teacher: Make, task: LabelingTask, store: LabelStore
) -> None:
    server.script = [server.says({"label": label}) for label in ("alpha", "beta", "alpha", "gamma")]
    limits = RequestLimits(concurrency=1)
    (result,) = label_texts(["a"], teacher(), task, votes=4, limits=limits, store=store).results
    assert result.probabilities == {"alpha": 0.5, "beta": 0.25, "gamma": 0.25}
    assert len(server.asked) == 4
    server.script = [server.says({"label": "beta"})]
    (more,) = label_texts(["a"], teacher(), task, votes=5, limits=limits, store=store).results
    assert more.probabilities == {"alpha": 0.4, "beta": 0.4, "gamma": 0.2}
    assert len(server.asked) == 5
    assert next(iter(store.export())).labels == more.probabilities


def test_a_text_that_stands_twice_is_asked_for_once(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    report = label_texts(["a", "b", "a"], teacher(), task)
    assert sorted(server.texts()) == ["a", "b"]
    assert report.results[0] == report.results[2]


def test_a_missing_extra_is_named(teacher: Make, task: LabelingTask, monkeypatch: pytest.MonkeyPatch) -> None:
    import lattice_embed.remote.transport as transport

    monkeypatch.setattr(transport, "LIBRARIES", ("no_such_http_library",))
    with pytest.raises(MissingDependencyError, match=r"lattice-tune\[teachers\]"):
        label_texts(["a"], teacher(), task)


def test_a_missing_package_is_named(teacher: Make, task: LabelingTask, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "lattice_embed", None)
    with pytest.raises(MissingDependencyError, match=r"lattice-tune\[teachers\]"):
        label_texts(["a"], teacher(), task)


def test_progress_counts_to_the_end(teacher: Make, task: LabelingTask) -> None:
    seen: list[tuple[int, int]] = []
    label_texts(TEXTS, teacher(), task, progress=lambda progress: seen.append((progress.done, progress.total)))
    assert seen == [(number, 12) for number in range(1, 13)]


@pytest.mark.parametrize("served", [True, False])
def test_what_a_progress_function_raises_goes_through(served: bool, teacher: Make, task: LabelingTask) -> None:
    from lattice_tune import CallableTeacher

    def fail(_: object) -> None:
        raise ZeroDivisionError("mine")

    chosen = teacher() if served else CallableTeacher(lambda text: "alpha", name="rule")
    with pytest.raises(ZeroDivisionError, match="mine"):
        label_texts(TEXTS, chosen, task, progress=fail)


def test_an_error_carries_what_was_labelled_before(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    server.script = [server.right, server.right, server.status(401, {"error": {"message": "no"}})]
    with pytest.raises(TeacherApiError) as caught:
        label_texts(TEXTS, teacher(), task, limits=RequestLimits(concurrency=1))
    report = caught.value.report
    assert report.outcomes == {Outcome.LABELLED: 2, Outcome.NOT_ASKED: 10}  # type: ignore[attr-defined]
    assert len(server.asked) == 3
