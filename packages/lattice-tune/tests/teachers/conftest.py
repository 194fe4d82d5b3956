"""Fixtures: a served teacher, a store, and an environment without keys and proxies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from teacher_server import LABELS, TeacherServer

from lattice_tune import LabelingTask, LabelStore, ServedTeacher, TeacherConfig, TeacherPrices, TeacherProvider

QUICK = {"max_retries": 2, "retry_delay": 0.001, "timeout": 10.0, "prices": TeacherPrices(3.0, 15.0)}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TeacherServer]:
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "LATTICE_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.lower(), raising=False)
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    made = TeacherServer()
    yield made
    made.close()


@pytest.fixture
def teacher(server: TeacherServer) -> Callable[..., ServedTeacher]:
    """Makes teachers that ask the server."""

    def make(provider: str = "openai", **options: Any) -> ServedTeacher:
        settings = {"endpoint": server.url} | QUICK | options
        return ServedTeacher(TeacherConfig(TeacherProvider(provider), "model-1", **settings))

    return make


@pytest.fixture
def task() -> LabelingTask:
    return LabelingTask(LABELS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LabelStore]:
    with LabelStore(tmp_path / "labels.db") as made:
        yield made
