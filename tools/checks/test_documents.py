"""Figures in documents equal their committed records, and no record misses a limit."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import documents
from harness.documents import (
    MISSES,
    QUOTATIONS,
    SECTIONS,
    Quotation,
    Section,
    committed,
    section_text,
    unquoted_claims,
)
from harness.options import LIMITS_FILE

ROOT = Path(__file__).resolve().parents[2]
PAGES = subprocess.run(
    ["git", "ls-files", "README.md", "docs/*.md", "packages/*/*.md"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.split()
FROM_CODE = {"docs/ops.md"}  # whose tables tools/op_tables.py writes
# two commits; an hour of training; an idle machine; a machine with a GPU
NO_RECORD = {"compare", "instructions", "lora_quality", "training", "gpu"}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_generated_section_is_that_of_its_record(section: Section) -> None:
    expected = section.render(committed(section.record)).strip()
    assert section_text(section) == expected, "write it again: python benchmarks/documents.py"


def test_every_generated_section_and_every_record_is_known() -> None:
    markers = {
        (page, name)
        for page in PAGES
        if page not in FROM_CODE
        for name in re.findall(r"<!-- begin: (\S+) -->", (ROOT / page).read_text())
    }
    assert markers == {(section.document, section.name) for section in SECTIONS}
    records = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert records == {section.record for section in SECTIONS}


@pytest.mark.parametrize("quotation", QUOTATIONS, ids=lambda quotation: f"{quotation.document}: {quotation.text[:30]}")
def test_sentence_has_the_figures_of_its_record(quotation: Quotation) -> None:
    assert quotation.stated(committed(quotation.record)) in (ROOT / quotation.document).read_text(encoding="utf-8")


def test_claims_of_speed_come_from_a_record() -> None:
    assert {page: found for page in PAGES if (found := list(unquoted_claims(page)))} == {}


@pytest.mark.parametrize("name", MISSES)
def test_committed_record_misses_no_limit(name: str) -> None:
    assert MISSES[name](committed(name)) == []


def test_every_limit_has_its_reason_beside_it_and_a_record_that_it_is_held_against() -> None:
    text = LIMITS_FILE.read_text(encoding="utf-8")
    unexplained = []
    explained = False  # by a comment above, up to the next empty line
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            explained = False
        elif line.startswith("#"):
            explained = True
        elif not line.startswith("[") and "#" not in line and not explained:
            unexplained.append(number)
    assert unexplained == []
    assert {name for name in tomllib.loads(text) if name not in NO_RECORD} <= set(MISSES)


def test_every_script_is_in_the_manual_and_has_the_options_that_the_manual_says() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `benchmarks/(\w+)\.py` \|", page, re.MULTILINE))
    sources = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
    with_record = {name for name, source in sources.items() if "add_record_options(parser" in source}
    assert with_record == listed
    others = {name for name, source in sources.items() if "__main__" in source} - with_record
    assert others == set(re.findall(r"^\* `benchmarks/(\w+)\.py`", page, re.MULTILINE))


def test_a_changed_figure_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(name: str) -> dict[str, object]:
        record = committed(name)
        if name == "recall":
            record["recall"]["int8"] = 0.5
        return record

    monkeypatch.setattr(documents, "committed", other)
    monkeypatch.setattr(documents, "SECTIONS", [section for section in SECTIONS if section.record == "recall"])
    monkeypatch.setattr(documents, "MISSES", {"recall": MISSES["recall"]})
    found = "\n".join(documents.faults())
    assert "section recall is not that of its record" in found
    assert "the record recall says: | `int8` | 384 + 8 | 0.500 | 1.000 |" in found
    assert "recall.json misses a limit" in found


def test_every_dependency_and_extra_of_a_package_is_in_the_manual() -> None:
    page = (ROOT / "docs" / "extras.md").read_text(encoding="utf-8")
    missing = []
    for path in sorted(ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        row = next((line for line in page.splitlines() if re.match(rf"\| `{project['name']}`[^|]*\|", line)), "")
        names = [re.split(r"[<>=\[ ]", requirement)[0] for requirement in project["dependencies"]]
        missing += [f"{project['name']} needs {name}" for name in names if name not in row]
        for extra, requirements in project.get("optional-dependencies", {}).items():
            row = next((line for line in page.splitlines() if f"[{extra}]" in line and project["name"] in line), "")
            missing += [] if row else [f"{project['name']}[{extra}]"]
            foreign = [requirement for requirement in requirements if not requirement.startswith("lattice-")]
            names = [re.split(r"[<>=\[ ]", requirement)[0] for requirement in foreign]
            missing += [f"{project['name']}[{extra}] needs {name}" for name in names if name not in row]
    assert missing == []


def test_links_and_paths_of_the_documents_outside_of_the_manual_exist() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("packages/*/*.md"), ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md"]
    broken = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
        broken += [f"{page.relative_to(ROOT)}: {link}" for link in links if link and not (page.parent / link).exists()]
        paths = re.findall(r"`((?:docs|tools|benchmarks|packages|ci)/[\w./-]+)`", text)
        broken += [f"{page.relative_to(ROOT)}: {path}" for path in paths if not (ROOT / path).exists()]
    assert broken == []
    assert any("](docs/" in page.read_text(encoding="utf-8") for page in pages)
