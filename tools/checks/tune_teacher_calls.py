"""Valid calls of the public callables of lattice_tune's teachers."""

from __future__ import annotations

import itertools
from typing import Any

import lattice_tune

from .call_registry import calls

_names = itertools.count()


def _task() -> lattice_tune.LabelingTask:
    return lattice_tune.LabelingTask(("a", "b"))


def _rule() -> lattice_tune.CallableTeacher:
    return lattice_tune.CallableTeacher(lambda text: "a", name="rule")


def _config() -> lattice_tune.TeacherConfig:
    return lattice_tune.TeacherConfig.local("m", "http://127.0.0.1:9/v1")


def _store() -> lattice_tune.LabelStore:
    return lattice_tune.LabelStore(f"out-{next(_names)}.db")


def _row() -> lattice_tune.LabeledText:
    return lattice_tune.LabeledText("x", {"a": 1.0})


def _encoder() -> Any:
    from lattice_inference import load_encoder

    return load_encoder("encoder")


def _context() -> Any:
    from lattice_tune.teachers.label_context import context_of

    return context_of(_rule(), _task())


_labelling = {"texts": ["x"], "teacher": _rule, "task": _task}
calls(
    "lattice_tune",
    lambda: lattice_tune,
    {
        "CallableTeacher": {"function": lambda: str, "name": "rule"},
        "EncoderTeacher": {"model": _encoder},
        "EndpointSecurity": {},
        "LabelStore": {"path": "out-labels.db"},
        "LabeledText": {"text": "x", "labels": {"a": 1.0}},
        "LabelingTask": {"labels": ("a", "b")},
        "LocalTeacher": {"model": "./decoder"},
        "RequestLimits": {},
        "ServedTeacher": {"config": _config},
        "TeacherConfig": {"provider": "openai", "model_id": "m"},
        "TeacherFunction": {"teacher": _rule, "task": _task},
        "TeacherPrices": {"input": 1.0, "output": 1.0},
        "alabel_texts": _labelling,
        "dry_run": _labelling,
        "label_texts": _labelling,
        "write_jsonl": {"path": "out.jsonl", "rows": lambda: [_row()]},
    },
)
_answers = {"answers": {"texts": ["x"], "task": _task}}
calls("lattice_tune.CallableTeacher", _rule, _answers)
calls("lattice_tune.EncoderTeacher", lambda: lattice_tune.EncoderTeacher(_encoder()), _answers)
calls("lattice_tune.LocalTeacher", lambda: lattice_tune.LocalTeacher("./long-decoder"), _answers)
calls("lattice_tune.EndpointSecurity", lattice_tune.EndpointSecurity, {"check": {"endpoint": "https://localhost/v1"}})
calls(
    "lattice_tune.LabelStore",
    _store,
    {
        "claim": {"key": b"k" * 32},
        "count_changed": {"context": _context, "texts": ["x"]},
        "export": {},
        "get": {"context": _context, "keys": [b"k"]},
        "put": {"context": _context, "answers": list},
        "release": {"key": b"k" * 32},
    },
)
calls("lattice_tune.LabelingTask", _task, {"index_of": {"name": "a"}})
calls(
    "lattice_tune.ServedTeacher",
    lambda: lattice_tune.ServedTeacher(_config()),
    {"prepare": {"text": "x", "task": _task}},
)
calls(
    "lattice_tune.TeacherConfig",
    lambda: lattice_tune.TeacherConfig,
    {
        "claude_haiku": {},
        "claude_sonnet": {},
        "gemini_pro": {},
        "gpt4": {},
        "local": {"model_id": "m", "endpoint": "http://localhost:8/v1"},
    },
)
calls(
    "lattice_tune.TeacherPrices",
    lambda: lattice_tune.TeacherPrices(1.0, 2.0),
    {"cost": {"input_tokens": 1, "output_tokens": 2}},
)
