"""Every Python snippet of the README and the manual runs."""

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
PAGES = [PACKAGE / "README.md", PACKAGE.parents[1] / "docs" / "transport.md"]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_run(page):
    if not page.is_file():
        pytest.skip("the manual is not part of an sdist")
    snippets = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert snippets
    exec("\n".join(snippets), {})
