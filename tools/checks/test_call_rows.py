"""The tables of the pages "coming from ...": all our calls run, and equal results are equal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .call_tables import rows_of
from .conftest import ROOT, link_models, needs_model

RUNNER = Path(__file__).with_name("call_rows.py")
RUST = "coming-from-lattice-rust.md"  # its tables list names, not calls
PAGES = {p: p.read_text(encoding="utf-8") for p in sorted(ROOT.glob("docs/coming-from-*.md")) if p.name != RUST}
TABLES = {page: list(rows_of(text)) for page, text in PAGES.items()}
COMPARED = {"coming-from-pot.md": 15, "coming-from-scikit-learn-mlp.md": 7}


def run(page: Path, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(RUNNER), str(page)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, id=p.stem, marks=pytest.mark.model if needs_model(PAGES[p]) else ()) for p in TABLES],
)
def test_calls_of_the_tables_run_and_give_the_values_of_the_other_library(
    page, request, snippet_folder, snippet_environment
):
    if page.name in COMPARED:
        pytest.importorskip({"coming-from-pot.md": "ot"}.get(page.name, "sklearn"))
    link_models(snippet_folder, PAGES[page], request)
    done = run(page, snippet_folder, snippet_environment)
    assert done.returncode == 0, done.stderr
    ours = sum(bool(row.ours) for row in TABLES[page])
    assert done.stdout.splitlines()[-1] == f"{ours} calls ran, {COMPARED.get(page.name, 0)} compared"


def test_every_library_has_its_table():
    libraries = {"fastembed", "sentence-transformers", "llama-cpp-python", "scikit-learn-mlp", "pot"}
    assert {page.stem.removeprefix("coming-from-") for page in TABLES} == libraries
    for page, rows in TABLES.items():
        assert len(rows) >= 12, page
        assert [row.line for row in rows if not row.ours] == [], page


@pytest.mark.slow
def test_values_that_differ_are_found(tmp_path, snippet_environment):
    pytest.importorskip("ot")
    page = tmp_path / "coming-from-pot.md"
    table = "| POT | here, the same value |\n|---|---|\n| `1.0 + 1.0` | `2.0` |\n| `1.0 + 2.0` | `3.1` |\n"
    page.write_text(f"{table}\n| POT | elsewhere |\n|---|---|\n| `1` | `undefined` |\n", encoding="utf-8")
    done = run(page, tmp_path, snippet_environment)
    assert done.returncode == 1
    assert "coming-from-pot.md:4" in done.stderr
