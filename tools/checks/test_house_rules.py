"""Rules of the tree that a program can check, and tables of the manual that follow the code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from .conftest import ROOT

MOST_LINES = 600
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
VAGUE_NAMES = {"utils", "misc", "common", "helpers"}


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """Every file of the workspace that git tracks or would track."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip(f"not a git checkout: {listed.stderr.strip()}")
    paths = [Path(name) for name in listed.stdout.split("\0") if name]
    return [path for path in paths if (ROOT / path).is_file()]


def test_no_source_file_is_too_long(files):
    sources = [path for path in files if path.suffix in {".py", ".pyx", ".h", ".c"}]
    assert len(sources) > 100
    lengths = {
        path: len((ROOT / path).read_bytes().splitlines()) for path in sources if "unicode_tables" not in path.name
    }
    assert {str(path): lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_file_or_folder_has_a_name_that_says_nothing(files):
    vague = {str(path) for path in files if VAGUE_NAMES & {Path(part).stem for part in path.parts}}
    assert vague == {"packages/lattice-embed/src/lattice_embed/utils.py"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "LICENSE", "DESIGN.md", "py.typed"])
def test_package_has_what_every_package_has(package, name):
    folder = package / "src" / package.name.replace("-", "_") if name == "py.typed" else package
    assert (folder / name).is_file()
    assert name == "py.typed" or (folder / name).stat().st_size > 0


def test_every_cython_module_has_a_stub(files):
    modules = [path for path in files if path.suffix == ".pyx"]
    assert modules
    assert [str(path) for path in modules if not (ROOT / path).with_suffix(".pyi").is_file()] == []


def test_every_page_of_the_manual_is_in_its_navigation(files):
    pages = {path.relative_to("docs").as_posix() for path in files if path.parts[0] == "docs" and path.suffix == ".md"}
    navigation = set(re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert pages == {name for name in navigation if not name.startswith("api/")}  # those are made of docstrings


def test_every_check_is_described():
    sessions = re.findall(
        r"^@nox\.session\S*\ndef (\w+)", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    page = (ROOT / "docs/development.md").read_text(encoding="utf-8")
    described = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(sessions) == sorted(described)


def test_every_environment_variable_is_described(files):
    read = re.compile(r"""(?:environ(?:\.get)?[(\[]|getenv\(|from_environment\()\s*["'](LATTICE_\w+)["']""")
    used: set[str] = set()
    for path in files:
        if path.suffix in {".py", ".pyx", ".pxi", ".h", ".c"} and path.parts[0] in {"packages", "tools"}:
            used |= set(read.findall((ROOT / path).read_text(encoding="utf-8")))
    assert {"LATTICE_ISA", "LATTICE_NUM_THREADS", "LATTICE_WERROR"} <= used
    page = (ROOT / "docs/inference.md").read_text(encoding="utf-8")
    assert {name for name in used if f"`{name}" not in page} == set()


def test_every_room_is_in_the_architecture_and_none_that_exists_is_planned(files):
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    told = {name: row for row in rows for name in re.findall(r"`([\w/]+)/`", row.split("|")[1])}
    below = [path.parts[3:] for path in files if path.parts[0] == "packages" and path.parts[2:3] == ("src",)]
    rooms = {f"{package}/{room}" for package, room, *rest in (parts for parts in below if len(parts) > 2)}
    assert {"lattice_inference/backends", "lattice_embed/stores", "lattice_fann/cli"} <= rooms
    missing = {room for room in rooms if room not in told and room.removeprefix("lattice_inference/") not in told}
    assert missing == set()
    exists = rooms | {room.removeprefix("lattice_inference/") for room in rooms} | {path.name for path in PACKAGES}
    unbuilt = [row.split("|")[1] for row in rows if "*planned*" in map(str.strip, row.split("|"))]
    planned = {name for cell in unbuilt for name in re.findall(r"`([\w/-]+?)/?`", cell)}
    assert planned & exists == set()
