"""No public callable lets an error through that is not of its package, whatever it is given."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from drawn_checkpoints import write_directory

from .command_cases import PROGRAMS, write_command_folder
from .conftest import ROOT
from .public_calls import CALLS, MADE_BY_THE_LIBRARY

# one process for each: a group that takes long shows which it is
GROUPS = sorted({".".join(name.split(".")[:2]) for name in CALLS})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_command_folder(tmp_path_factory.mktemp("calls"))
    cases = ROOT / "packages" / "lattice-inference" / "tests" / "data" / "architectures" / "cases.json"
    write_directory(folder / "reranker", json.loads(cases.read_text(encoding="utf-8"))["cases"]["cross-encoder-bert"])
    return folder


def public(module: ModuleType, prefix: str) -> dict[str, object]:
    """Return a module's public callables, with those of its public modules and classes."""
    found: dict[str, object] = {}
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            if value.__name__ == f"{module.__name__}.{name}" and name != "utils":  # another name for vectors
                found |= public(value, f"{prefix}.{name}")
        elif inspect.isclass(value):
            if issubclass(value, BaseException):
                continue
            if not issubclass(value, enum.Enum):
                found[f"{prefix}.{name}"] = value
            for attribute, member in inspect.getmembers(value, callable):
                module_name = getattr(member, "__module__", None) or ""
                if not attribute.startswith("_") and module_name.startswith("lattice_"):
                    found[f"{prefix}.{name}.{attribute}"] = member
        elif callable(value):
            found[f"{prefix}.{name}"] = value
    return found


def takes_something(value: object) -> bool:
    try:
        parameters = inspect.signature(value).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return True
    return any(each.name != "self" and each.kind != inspect.Parameter.VAR_KEYWORD for each in parameters)


@pytest.mark.parametrize("package", PROGRAMS.values())
def test_every_public_callable_is_walked(package: str) -> None:
    given = MADE_BY_THE_LIBRARY[package]
    missing = [
        name
        for name, value in public(importlib.import_module(package), package).items()
        if takes_something(value) and name not in CALLS and not given & set(name.split("."))
    ]
    assert missing == []


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_wrong_arguments_are_typed_errors(group: str, folder: Path, snippet_environment: dict[str, str]) -> None:
    environment = snippet_environment | {"LATTICE_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = f"{ROOT}:{environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "tools.checks.walk_public_callables", group],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == []
