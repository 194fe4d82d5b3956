"""The site of the manual: its groups, and fences that Markdown knows."""

from __future__ import annotations

import importlib.util
import re

import pytest

from .conftest import ROOT
from .snippets import blocks_of

SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
PAGES = sorted(ROOT.glob("docs/**/*.md"))
FENCE_OF_MARKDOWN = re.compile(r"[\w#.+-]*")  # what Python-Markdown takes for a language


HOOKS = re.findall(r"^  - (tools/\w+\.py)$", SETTINGS, re.MULTILINE)


def hook(name):
    """The function of that name of the hook that has it."""
    found = []
    for path in HOOKS:
        spec = importlib.util.spec_from_file_location("hook", ROOT / path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += [getattr(module, name)] if hasattr(module, name) else []
    (function,) = found
    return function


@pytest.fixture(scope="module")
def on_page_markdown():
    return hook("on_page_markdown")


def test_navigation_has_its_groups():
    groups = re.findall(r"^  - ([^:\n]+):$", SETTINGS, re.MULTILINE)
    assert groups[:8] == "Start,Embed,Generate,Small networks,Transport,Tune,Files,Reference".split(",")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_fence_of_the_page_is_code_on_the_site(page, on_page_markdown):
    blocks = blocks_of(on_page_markdown(page.read_text(encoding="utf-8")))
    assert [block.info for block in blocks if not FENCE_OF_MARKDOWN.fullmatch(block.info)] == []


def test_hook_changes_fences_only(on_page_markdown):
    text = "say `python no-run`\n```python no-run\nx = 1\n```\n  ```python\n  ```\n"
    assert on_page_markdown(text, page=None) == text.replace("```python no-run", "```python")


@pytest.mark.parametrize(
    "tag",
    [
        '<script src="https://other.example/a.js"></script>',
        "<link rel=stylesheet href=//other.example/a.css>",
        "<img alt='a' src='http://other.example/a.png'>",
    ],
)
def test_page_that_loads_from_another_host_does_not_build(tag):
    with pytest.raises(ValueError, match=r"other\.example/a\.\w+ from another host"):
        hook("on_post_page")(f"<html>{tag}</html>", page=None)


def test_links_to_other_hosts_and_own_files_are_fine():
    page = '<a href="https://other.example/">x</a><script src="../js/a.js"></script><img src="a//b.png">'
    assert hook("on_post_page")(page, page=None) == page


def test_pages_of_names_have_signatures_and_docstrings():
    api_page, packages = hook("api_page"), importlib.import_module("tools.page_api").PACKAGES
    pages = {package: api_page(package) for package in packages}
    assert all(f"api/{package}.md" in SETTINGS for package in packages)
    for package, page in pages.items():
        module = importlib.import_module(package)
        names = {name for name in module.__all__ if not name.startswith("__")}
        headings = set(re.findall(r"^## (.*)$", page, re.MULTILINE))
        assert headings <= names
        assert len(names - headings) <= 3  # packages within the package
        for name in ("load_encoder", "NativeEmbeddingService", "Network", "solve"):
            if name in headings:
                assert getattr(module, name).__doc__.splitlines()[0].replace("``", "`") in page
    assert "def encode(texts: Iterable[str]" not in pages["lattice_inference"]
    assert "### Encoder.encode" in pages["lattice_inference"]


def test_examples_of_docstrings_are_blocks_and_long_signatures_have_lines():
    page = hook("api_page")("lattice_inference")
    inside = False
    for line in page.splitlines():
        if line.startswith("```"):
            inside = not inside
        assert inside or not line.lstrip().startswith(">>>"), line
    assert not inside
    assert "```pycon\n>>> " in page
    assert "# doctest:" not in page
    assert "    threads: int | None = None,\n" in page


def test_style_and_script_are_our_own_and_load_nothing():
    for name in ("site.css", "site.js"):
        assert f"assets/{name}" in SETTINGS
        text = (ROOT / "docs" / "assets" / name).read_text(encoding="utf-8")
        assert "://" not in text
        assert "@import" not in text
