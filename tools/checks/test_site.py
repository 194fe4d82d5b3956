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


@pytest.fixture(scope="module")
def on_page_markdown():
    (hook,) = re.findall(r"^hooks:\n  - (\S+)$", SETTINGS, re.MULTILINE)
    spec = importlib.util.spec_from_file_location("page_fences", ROOT / hook)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.on_page_markdown


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
