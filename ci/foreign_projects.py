"""Depends on the packages by path and by git, with uv and with pip, and imports them.

Each way makes a project outside the tree, locks it where the tool can, installs it into a fresh environment
and imports the package:

    python ci/foreign_projects.py --way uv-path --package lattice-embed
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIBLINGS = {
    "lattice-inference": [],
    "lattice-embed": ["lattice-inference"],
    "lattice-fann": [],
    "lattice-transport": [],
    "lattice-tune": ["lattice-inference", "lattice-fann"],
}

PROJECT = """\
[project]
name = "foreign"
version = "0"
requires-python = ">=3.11"
dependencies = ["{package}"]

[tool.uv]
package = false

[tool.uv.sources]
{package} = {source}
"""


def run(command: list[str], folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    if "PIP_FIND_LINKS" in environment:  # packages that this machine has beside those of the index
        environment.setdefault("UV_FIND_LINKS", environment["PIP_FIND_LINKS"].replace(" ", ","))
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")


def import_package(python: Path, package: str, folder: Path) -> None:
    name = package.replace("-", "_")
    # every public name is imported, so every extension module is
    code = f"import {name}; [getattr({name}, public) for public in {name}.__all__]; print({name}.__version__)"
    run([str(python), "-W", "error", "-c", code], folder)


def with_uv(package: str, source: str, folder: Path) -> None:
    uv = shutil.which("uv")
    if uv is None:
        raise SystemExit("uv is not installed: pip install uv")
    (folder / "pyproject.toml").write_text(PROJECT.format(package=package, source=source), encoding="utf-8")
    run([uv, "lock", "-q", "--python", sys.executable], folder)
    run([uv, "sync", "-q", "--frozen", "--python", sys.executable], folder)
    import_package(folder / ".venv" / "bin" / "python", package, folder)


def uv_path(package: str, tree: Path, folder: Path) -> None:
    with_uv(package, f'{{ path = "{tree}/packages/{package}" }}', folder)


def uv_git(package: str, tree: Path, folder: Path) -> None:
    with_uv(package, f'{{ git = "file://{tree}", subdirectory = "packages/{package}" }}', folder)


def with_pip(package: str, tree: Path, folder: Path, *options: str) -> None:
    run([sys.executable, "-m", "venv", ".venv"], folder)
    python = folder / ".venv" / "bin" / "python"
    arguments = [word for name in [*SIBLINGS[package], package] for word in (*options, f"{tree}/packages/{name}")]
    run([str(python), "-m", "pip", "install", "-q", *arguments], folder)
    import_package(python, package, folder)


def pip_path(package: str, tree: Path, folder: Path) -> None:
    with_pip(package, tree, folder)


def pip_editable(package: str, tree: Path, folder: Path) -> None:
    with_pip(package, tree, folder, "-e")


WAYS: dict[str, Callable[[str, Path, Path], None]] = {
    "uv-path": uv_path,
    "uv-git": uv_git,
    "pip-path": pip_path,
    "pip-editable": pip_editable,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", action="append", choices=WAYS, help="this way only; may be repeated")
    parser.add_argument("--package", action="append", choices=SIBLINGS, help="this package only; may be repeated")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lattice-foreign-") as name:
        tree = Path(name) / "lattice"  # what is committed, so that no build in place is found
        run(["git", "clone", "-q", str(ROOT), str(tree)], ROOT)
        for way in options.way or WAYS:
            for package in options.package or SIBLINGS:
                folder = Path(name) / f"{way}-{package}"
                folder.mkdir()
                WAYS[way](package, tree, folder)
                print(f"{package} by {way}: installed and imported", flush=True)
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
