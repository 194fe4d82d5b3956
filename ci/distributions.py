"""Each package's folder, distribution name, version, tag and changelog.

A distribution's name stands in one place, ``[project] name`` of its ``pyproject.toml``. Folder, import name, command and tag
do not follow it.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["TAKEN_NAMES", "Distribution", "distributions", "faults", "normalized", "tags_of_head"]

ROOT = Path(__file__).resolve().parent.parent

TAKEN_NAMES = {"lattice-transport": "another project has this name on the public index"}
"""Names that must not be uploaded, with the reason. The owner chooses another in ``pyproject.toml``."""

# Dependencies come before what needs them: the order of a first upload.
ORDER = ("inference", "fann", "transport", "embed", "tune")
SECTIONS = ("Added", "Changed", "Fixed")
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
RELEASE_HEAD = re.compile(r"^## (?P<version>\S+) \((?P<date>unreleased|\d{4}-\d{2}-\d{2})\)$", re.MULTILINE)


def normalized(name: str) -> str:
    """Return a distribution's name as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Distribution:
    """One package of the workspace.

    Attributes:
        short: its name in tags: ``inference`` for ``packages/lattice-inference``.
        name: of the distribution.
        version: ``_version.py`` states it.
        requirements: of ``pyproject.toml``, without those of extras.
        changelog: the text of ``CHANGELOG.md``.
    """

    short: str
    name: str
    version: str
    requirements: tuple[str, ...]
    changelog: str

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return ROOT / "packages" / f"lattice-{self.short}"

    @property
    def is_native(self) -> bool:
        """Whether it has machine code, so that each Python, system and processor has a wheel of it."""
        return (self.folder / "setup.py").exists()

    @property
    def tag(self) -> str:
        """The tag of a release of this version."""
        return f"{self.short}-{self.version}"

    @property
    def file_name(self) -> str:
        """How the names of its sdist and wheels begin."""
        return f"{normalized(self.name).replace('-', '_')}-{self.version}"

    @property
    def date(self) -> str | None:
        """The date of this version in the changelog, ``"unreleased"``, or None.

        None means that the changelog does not begin with it.
        """
        head = RELEASE_HEAD.search(self.changelog)
        return head["date"] if head is not None and head["version"] == self.version else None


def distributions() -> list[Distribution]:
    """Return all packages of the workspace; each stands after the siblings that it needs."""
    return [_read(short) for short in ORDER]


def _read(short: str) -> Distribution:
    folder = ROOT / "packages" / f"lattice-{short}"
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = (folder / "src" / f"lattice_{short}" / "_version.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.*)"$', source, re.MULTILINE)
    return Distribution(
        short,
        project["name"],
        version[1] if version else "",
        tuple(project["dependencies"]),
        (folder / "CHANGELOG.md").read_text(encoding="utf-8"),
    )


def tags_of_head() -> list[str]:
    """Return the tags of the commit that is checked out, none outside of a git checkout."""
    command = ["git", "-c", "safe.directory=*", "tag", "--points-at", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else []


def faults(packages: Iterable[Distribution], tags: Iterable[str], *, for_upload: bool = False) -> Iterator[str]:
    """Yield what blocks a release: versions, changelogs, tags and names that disagree.

    Args:
        packages: in the order of a first upload.
        tags: of the commit.
        for_upload: also refuse names that are taken, and versions without a date in the changelog.
    """
    packages = list(packages)
    known = {normalized(package.name) for package in packages}
    before: set[str] = set()
    for package in packages:
        where = f"packages/lattice-{package.short}"
        if not VERSION.fullmatch(package.version):
            yield f"{where}: the version {package.version!r} is not of the form 1.2.3, 1.2.3a1, 1.2.3b1 or 1.2.3rc1"
        if package.date is None:
            yield f"{where}/CHANGELOG.md: its first entry is not of version {package.version}"
        yield from (f"{where}/CHANGELOG.md: {fault}" for fault in _section_faults(package.changelog))
        for requirement in package.requirements:
            name = normalized(re.split(r"[\[<>=!~; ]", requirement)[0])
            if name.startswith("lattice-") and name not in known:
                yield f"{where}: it needs {name}, which no package of the workspace is called"
            if name in known - before:
                yield f"{where}: it needs {name}, which is uploaded after it"
        if for_upload and normalized(package.name) in TAKEN_NAMES:
            reason = TAKEN_NAMES[normalized(package.name)]
            yield f"{where}: {package.name} must not be uploaded, because {reason}: choose another name in pyproject.toml"
        if for_upload and package.date == "unreleased":
            yield f"{where}/CHANGELOG.md: version {package.version} has no date yet"
        before.add(normalized(package.name))
    yield from _tag_faults(packages, tags)


def _section_faults(changelog: str) -> Iterator[str]:
    """Yield sections of releases that are unknown, twice, out of order or empty."""
    for entry in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        version = entry.split()[0]
        titles = re.findall(r"^### (.*)$", entry, re.MULTILINE)
        if [title for title in SECTIONS if title in titles] != titles:
            yield f"{version} has the sections {', '.join(titles)}; they are {', '.join(SECTIONS)}, each once, in this order"
        if not titles:
            yield f"{version} has none of the sections {', '.join(SECTIONS)}"


def _tag_faults(packages: Iterable[Distribution], tags: Iterable[str]) -> Iterator[str]:
    by_short = {package.short: package for package in packages}
    for tag in tags:
        short, _, version = tag.partition("-")
        package = by_short.get(short)
        if package is None:
            continue
        if version != package.version:
            yield f"the tag {tag} is on this commit, whose lattice-{short} has version {package.version}"
        if package.date == "unreleased":
            yield f"the tag {tag} is on this commit, whose changelog says unreleased"
