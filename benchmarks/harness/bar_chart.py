"""Writes bar charts as SVG text, in light and in dark surroundings.

The same figures give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Bar", "Chart", "Group", "draw"]

WIDTH = 760
LABELS = 226
VALUES = 96
ROW = 22
HEADING = 30
TOP = 62
BOTTOM = 16

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2933; }
  .paper { fill: #ffffff; } .title { font-size: 16px; font-weight: 600; } .small { font-size: 12px; fill: #52606d; }
  .group { font-weight: 600; } .ours { fill: #1d6fd1; } .peer { fill: #9aa5b1; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7eb; } .paper { fill: #0d1117; } .small { fill: #9aa5b1; }
    .ours { fill: #5aa9ff; } .peer { fill: #616e7c; }
  }
"""


@dataclass(frozen=True)
class Bar:
    """One bar: whose figure it is, the figure, its text, and whether it is ours."""

    label: str
    value: float
    shown: str
    ours: bool


@dataclass(frozen=True)
class Group:
    """Bars that are compared with one another."""

    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Chart:
    """A chart: what it shows, how it is read and where the figures are from.

    ``one_scale`` says whether its groups have one scale.
    """

    title: str
    reading: str
    groups: tuple[Group, ...]
    one_scale: bool = False


def draw(chart: Chart) -> str:
    """Return the chart as an SVG document. The longest bar of a scale has the whole width."""
    height = TOP + sum(HEADING + ROW * len(group.bars) for group in chart.groups) + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{escape(chart.title)}">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text class="title" x="16" y="28">{escape(chart.title)}</text>',
        f'<text class="small" x="16" y="48">{escape(chart.reading)}</text>',
    ]
    most = {group: max(bar.value for bar in group.bars) for group in chart.groups}
    y = TOP
    for group in chart.groups:
        lines.append(f'<text class="group" x="16" y="{y + 20}">{escape(group.title)}</text>')
        y += HEADING
        lines += _bars(group.bars, y, max(most.values()) if chart.one_scale else most[group])
        y += ROW * len(group.bars)
    return "\n".join([*lines, "</svg>", ""])


def _bars(bars: Sequence[Bar], y: int, most: float) -> list[str]:
    lines = []
    for place, bar in enumerate(bars):
        top = y + ROW * place
        length = round((WIDTH - LABELS - VALUES) * bar.value / most, 1)
        kind = "ours" if bar.ours else "peer"
        lines += [
            f'<text x="{LABELS - 8}" y="{top + 15}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect class="{kind}" x="{LABELS}" y="{top + 3}" width="{length}" height="{ROW - 6}" rx="2"/>',
            f'<text x="{LABELS + length + 6:g}" y="{top + 15}">{escape(bar.shown)}</text>',
        ]
    return lines
