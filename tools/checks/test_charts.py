"""The pictures of the README and the manual: each is that of its record, and is shown."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import charts

from .conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import manual_plots

PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
PLOTS = {"drift-report", "losses"}


@pytest.mark.parametrize("name", charts.CHARTS)
def test_a_chart_is_that_of_its_record(name: str) -> None:
    text = (charts.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert text == charts.drawn(name), "draw it again: python benchmarks/charts.py"
    assert "prefers-color-scheme: dark" in text
    bars = [bar for bar in ElementTree.fromstring(text).iter() if bar.get("class") in ("ours", "peer")]
    assert len(bars) > 6
    assert all(0 < float(bar.get("width", 0)) <= 500 for bar in bars)


def test_every_picture_is_shown_and_every_shown_one_is_there() -> None:
    shown = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert shown == {(charts.FOLDER / f"{name}.svg").resolve() for name in {*charts.CHARTS, *PLOTS}}
    assert shown == {path.resolve() for path in charts.FOLDER.iterdir()}


def words_of(picture: Path) -> list[str]:
    """The texts of a picture that are no numbers; ticks may differ by release of matplotlib."""
    texts = [
        "".join(node.itertext()).strip() for node in ElementTree.parse(picture).iter() if node.tag.endswith("text")
    ]
    return sorted(text for text in texts if re.search("[a-z]", text))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_plots_say_what_the_packages_draw(tmp_path: Path) -> None:
    assert manual_plots.main([str(tmp_path)]) == 0
    for name in PLOTS:
        assert words_of(tmp_path / f"{name}.svg") == words_of(charts.FOLDER / f"{name}.svg")
        assert len(words_of(tmp_path / f"{name}.svg")) >= 4
