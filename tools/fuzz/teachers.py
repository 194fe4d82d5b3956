"""Inputs of teachers: a provider's answers, and the store of earlier answers."""

from __future__ import annotations

import json
import random
from pathlib import Path

from mutation import mutated_bytes, mutated_document, mutated_text
from target import Target, add_tests

from lattice_tune import (
    CallableTeacher,
    LabelingTask,
    LabelStore,
    Outcome,
    TeacherConfig,
    TeacherProvider,
    TuneError,
    label_texts,
)
from lattice_tune.teachers.found_json import parse_json
from lattice_tune.teachers.protocols import PROTOCOLS

__all__ = ["TARGETS"]

add_tests("inference", "damage")

from mutated_files import mutate_database, mutate_file  # noqa: E402

LABELS = ("alpha", "beta", "gamma")
TASKS = {"hard": LabelingTask(LABELS), "soft": LabelingTask(LABELS, kind="soft")}
VALUES = {"hard": {"label": "beta"}, "soft": {"probabilities": {"alpha": 0.2, "beta": 0.5, "gamma": 0.3}}}


def documents(kind: str) -> dict[str, object]:
    """Return the right answer of each protocol."""
    written = json.dumps(VALUES[kind])
    usage = {"input_tokens": 12, "output_tokens": 3}
    tool = {"type": "tool_use", "id": "t", "name": "answer", "input": VALUES[kind]}
    text = {"type": "text", "text": f"Here it is: {written} ({{or so}})"}
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": written, "refusal": None},
    }
    candidate = {"content": {"role": "model", "parts": [{"text": written}]}, "finishReason": "STOP"}
    return {
        "anthropic": {"content": [tool], "stop_reason": "tool_use", "usage": usage},
        "anthropic-text": {"content": [text, text], "stop_reason": "end_turn", "usage": usage},
        "openai": {"choices": [choice], "usage": {"prompt_tokens": 12, "completion_tokens": 3}},
        "gemini": {
            "candidates": [candidate],
            "promptFeedback": {},
            "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 3, "thoughtsTokenCount": 1},
        },
    }


def make_documents(folder: Path) -> None:
    """Write an answer of each protocol, for both kinds of labels."""
    for kind in TASKS:
        for name, document in documents(kind).items():
            (folder / f"{kind}.{name}").mkdir()
            (folder / f"{kind}.{name}" / "body.json").write_text(json.dumps(document))
            (folder / f"{kind}.{name}" / "protocol").write_text(f"{kind} {name.partition('-')[0]}")


def damage_document(folder: Path, draw: random.Random) -> None:
    """Damage the document, the words in it, or its bytes."""
    path = folder / "body.json"
    content = path.read_bytes()
    kind = draw.randrange(4)
    if kind == 0:
        content = mutated_bytes(content, draw)
    elif kind == 1:
        content = mutated_text(content.decode(), draw).encode("utf-8", "surrogatepass")
    else:
        content = mutated_document(content, draw)
    path.write_bytes(content)


def use_document(folder: Path) -> None:
    """Read the answer; what comes of it is a distribution, or an outcome that has none."""
    kind, name = (folder / "protocol").read_text().split()
    provider = TeacherProvider(name)
    try:
        document = parse_json((folder / "body.json").read_bytes())
    except ValueError:
        return
    if not isinstance(document, dict):
        return
    task = TASKS[kind]
    answer = PROTOCOLS[provider].read(document, TeacherConfig(provider, "m"), task)
    if answer.outcome is Outcome.LABELLED:
        assert len(answer.probabilities) == len(LABELS)
        assert abs(sum(answer.probabilities) - 1) < 1e-9
        assert all(0 <= value <= 1 for value in answer.probabilities)
    else:
        assert answer.probabilities == ()
        assert answer.detail.isprintable()
        assert answer.detail


def rule() -> CallableTeacher:
    """Return what labels the texts of the stores."""
    return CallableTeacher(lambda text: LABELS[len(text) % 3], name="length")


def make_stores(folder: Path) -> None:
    """Write a store with two contexts."""
    (folder / "store").mkdir()
    with LabelStore(folder / "store" / "labels.db") as store:
        for task in TASKS.values():
            label_texts([f"{number} " * number for number in range(40)], rule(), task, store=store)


def damage_store(folder: Path, draw: random.Random) -> None:
    """Damage the file, or what its tables hold."""
    draw.choice((mutate_file, mutate_database))(folder / "labels.db", draw)


def use_store(folder: Path) -> None:
    """Read all of the store, and label with it."""
    with LabelStore(folder / "labels.db", timeout=0.1) as store:
        len(store)
        for each in store.contexts():
            for row in store.export(each.number):
                row.to_json()
        texts = [f"{number} " * number for number in range(45)]
        assert label_texts(texts, rule(), TASKS["soft"], store=store).is_complete


TARGETS = [
    Target("teacher-answers", make_documents, damage_document, use_document, (TuneError,)),
    Target("label-stores", make_stores, damage_store, use_store, (TuneError,), is_changed=True),
]
