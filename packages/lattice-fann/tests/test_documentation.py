"""Every snippet of README and manual runs, and every public name is documented."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lattice_fann

PACKAGE = Path(__file__).parents[1]
PAGES = [page for page in (PACKAGE / "README.md", PACKAGE.parents[1] / "docs" / "fann.md") if page.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert snippets
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, str(page), "exec"), names)


@pytest.mark.parametrize("name", ["builder", "training.trainer", "estimators.classifier"])
def test_examples_in_docstrings_are_true(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"lattice_fann.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_every_public_name_is_there_and_documented() -> None:
    assert sorted(lattice_fann.__all__) == dir(lattice_fann)
    for name in lattice_fann.__all__:
        value = getattr(lattice_fann, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lattice_fann.nothing


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys, lattice_fann; assert 'numpy' not in sys.modules; "
        "import numpy; before = set(sys.modules); "
        "from lattice_fann import NetworkBuilder, BackpropTrainer; "
        "heavy = {'numpy.random', 'argparse', 'json', 'tempfile', 'matplotlib'} & (set(sys.modules) - before); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
