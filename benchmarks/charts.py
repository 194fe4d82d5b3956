"""Draws the charts of the README and of the manual from the committed records.

The charts are SVG files in docs/charts.

Nothing is measured, and no package beside ours is needed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from harness.bar_chart import Bar, Chart, Group, draw
from harness.corpus import CELLS
from harness.embed_tables import fastest_peer, medians, ours
from harness.engines import ENGINES
from harness.record import RESULTS, ROOT, read_record

__all__ = ["CHARTS", "drawn", "main"]

FOLDER = ROOT / "docs" / "charts"
PRECISIONS = ("float32", "bfloat16", "int8")
SPEED_CELLS = ("1x10", "mixed")
DECODERS = {"lattice": "Lattice", "llama.cpp": "llama.cpp", "PyTorch bfloat16": "PyTorch, bfloat16"}
COST_CELLS = ("1x10", "32x20", "32x128", "8x256")

Record = Mapping[str, Any]

EXAMPLES = """
examples:
  python benchmarks/charts.py            write the charts
  python benchmarks/charts.py --check    write nothing; exit with 1 where a chart is not that of its record
"""


def speed(record: Record) -> Chart:
    """Return the time of each engine as a multiple of ours, by precision."""
    threads, cells = _most_threads(record)
    groups = []
    for precision in PRECISIONS:
        for cell in SPEED_CELLS:
            times = cells[cell]
            names = [name for name in times if ENGINES[name].precision == precision]
            assert fastest_peer(times, precision) in names
            base = times[ours(precision)]
            bars = [
                Bar(
                    ENGINES[name].title.removesuffix(f", {precision}"),
                    times[name] / base,
                    f"{times[name] / base:.2f}",
                    name == ours(precision),
                )
                for name in sorted(names, key=times.__getitem__)
            ]
            groups.append(Group(f"{precision}, {CELLS[cell].title}", tuple(bars)))
    title = "Text to vector, all-MiniLM-L6-v2: time of a call, Lattice = 1"
    return Chart(title, f"Shorter is faster. {_origin(record)}, {threads} threads.", tuple(groups))


def cost(record: Record) -> Chart:
    """Return what a token costs us, by how many texts of which length a call has."""
    threads, cells = _most_threads(record)
    groups = []
    for cell in COST_CELLS:
        tokens = sum(CELLS[cell].lengths)
        costs = {precision: cells[cell][ours(precision)] / tokens * 1e6 for precision in PRECISIONS}
        bars = [Bar(precision, value, f"{value:.1f} us", True) for precision, value in costs.items()]
        groups.append(Group(CELLS[cell].title, tuple(bars)))
    title = "Text to vector, all-MiniLM-L6-v2: cost of a token by batch and length"
    return Chart(
        title, f"Microseconds a token; shorter is faster. {_origin(record)}, {threads} threads.", tuple(groups), True
    )


def decoding(record: Record) -> Chart:
    """Return tokens a second while decoding."""
    return _rates(record, "Decoding, tokens a second", lambda sample: sample["seconds"] and 1 / sample["seconds"])


def prompts(record: Record) -> Chart:
    """Return tokens a second of a prompt."""
    tokens = record["prompt"]
    title = f"A prompt of {tokens} tokens, tokens a second"
    return _rates(record, title, lambda sample: tokens / sample["prompt_seconds"])


def _rates(record: Record, title: str, rate: Callable[[Mapping[str, Any]], float | None]) -> Chart:
    """Return a group for each model and context, with most threads.

    Engines without a rate are left out.
    """
    threads = max(sample["threads"] for sample in record["samples"])
    found: dict[str, dict[str, list[float]]] = {}
    for sample in record["samples"]:
        value = rate(sample)
        if sample["threads"] != threads or value is None or sample["engine"] not in DECODERS:
            continue
        group = sample["model"].removesuffix(".gguf") + (
            f", after {sample['context']:,} tokens" if sample["context"] else ""
        )
        found.setdefault(group, {}).setdefault(sample["engine"], []).append(value)
    groups = []
    for name, engines in found.items():
        rates = sorted(((median(values), engine) for engine, values in engines.items()), reverse=True)
        bars = [Bar(DECODERS[engine], value, f"{value:,.1f}", engine == "lattice") for value, engine in rates]
        groups.append(Group(name, tuple(bars)))
    return Chart(title, f"Longer is faster. {_origin(record)}, {threads} threads.", tuple(groups))


def _most_threads(record: Record) -> tuple[int, dict[str, dict[str, float]]]:
    threads = max(threads for threads, _ in medians(record))
    return threads, {cell: times for (of_threads, cell), times in medians(record).items() if of_threads == threads}


def _origin(record: Record) -> str:
    return f"{record['machine']['cpu']}, {record['date'][:10]}"


CHARTS: Mapping[str, tuple[str, Callable[[Record], Chart]]] = {
    "text-to-vector": ("embed", speed),
    "cost-of-a-token": ("embed", cost),
    "decoding": ("decode", decoding),
    "prompts": ("decode", prompts),
}
"""By the file's name: the record, and what is drawn from it."""


def drawn(name: str) -> str:
    """Return a chart from its committed record."""
    script, chart = CHARTS[name]
    return draw(chart(read_record(RESULTS / f"{script}.json", script)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or compare; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a chart is out of date")
    options = parser.parse_args(arguments)
    status = 0
    for name in CHARTS:
        path, text = FOLDER / f"{name}.svg", drawn(name)
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path.relative_to(ROOT)} is not that of its record: python benchmarks/charts.py", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
