"""Each package's metadata: keywords, versions of Python, links that an index can follow."""

from __future__ import annotations

import re
import sys
import tomllib

import pytest

from .conftest import ROOT

sys.path.insert(0, str(ROOT / "ci"))

from documented_requirements import documented_requirements, requirement

FILES = sorted(ROOT.glob("packages/*/pyproject.toml"))
WHEELS = re.findall(
    r"cp3(\d+)-\*",
    "".join(
        tomllib.loads((ROOT / "packages/lattice-inference/pyproject.toml").read_text())["tool"]["cibuildwheel"]["build"]
    ),
)


@pytest.fixture(params=FILES, ids=lambda path: path.parent.name)
def settings(request):
    return tomllib.loads(request.param.read_text(encoding="utf-8"))


def test_versions_of_python_are_those_that_wheels_are_built_for(settings):
    project = settings["project"]
    stated = [re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", line) for line in project["classifiers"]]
    versions = [int(match[1]) for match in stated if match]
    assert versions == [int(version) for version in WHEELS]
    assert project["requires-python"] == f">=3.{versions[0]}"
    built = settings["tool"].get("cibuildwheel", {}).get("build", [f"cp3{version}-*" for version in versions])
    assert built == [f"cp3{version}-*" for version in versions]
    assert "Programming Language :: Python :: Implementation :: CPython" in project["classifiers"]


def test_requirements_are_those_of_the_architecture_page(request, settings):
    project = settings["project"]
    stated = {requirement(line) for line in project["dependencies"]}
    for lines in project.get("optional-dependencies", {}).values():
        stated |= {requirement(line, extra=True) for line in lines}
    folder = request.node.callspec.params["settings"].parent.name
    assert stated == documented_requirements()[folder]


def test_keywords_and_classifiers_are_stated_once_each(settings):
    project = settings["project"]
    assert len(project["keywords"]) >= 5
    for names in (project["keywords"], project["classifiers"]):
        assert len(set(names)) == len(names)
    assert not any("," in word for word in project["keywords"])  # an index splits there


@pytest.mark.parametrize("page", sorted(ROOT.glob("packages/*/README.md")), ids=lambda path: path.parent.name)
def test_readme_has_no_link_into_the_workspace(page):
    """An index shows the page by itself, so a relative link leads nowhere there."""
    links = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
