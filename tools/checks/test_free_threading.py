"""No module relies on Python's lock, and the page says so."""

from __future__ import annotations

import re

from .conftest import ROOT

SECTION = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8").partition("### Free-threaded Python")[2]


def test_no_module_takes_the_lock_again():
    sources = list(ROOT.glob("packages/*/src/**/*.pyx"))
    assert len(sources) >= 8
    assert [path for path in sources if "freethreading_compatible" in path.read_text(encoding="utf-8")] == []
    build = (ROOT / "tools" / "native" / "native_build.py").read_text(encoding="utf-8")
    assert '"freethreading_compatible": True' in build


def test_the_page_names_the_session():
    assert re.search(r"`nox -s free_threading`", SECTION)
