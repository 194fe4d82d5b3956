"""What transport.py concludes from a record: ratios, limits that are missed, and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.options import limits
from harness.tables import markdown_table, provenance

__all__ = ["SCRIPT", "misses", "ratios", "render"]

SCRIPT = "transport"
OURS = "lattice float32"
OURS_EXACT = "lattice emd"

Rows = list[dict[str, Any]]


def problems(rows: Rows) -> Iterator[tuple[dict[str, Any], Rows]]:
    """Yield each problem of the Sinkhorn part as our float32 row and all its rows."""
    for n, epsilon in dict.fromkeys((row["n"], row["epsilon"]) for row in rows):
        members = [row for row in rows if (row["n"], row["epsilon"]) == (n, epsilon)]
        yield next(row for row in members if row["system"] == OURS), members


def ratios(record: Mapping[str, Any]) -> Iterator[tuple[int, float, str, float]]:
    """Yield points, epsilon, peer, and the ratio of each Sinkhorn problem.

    The ratio is the peer's processor time / ours in float32.
    """
    for own, members in problems(record.get("sinkhorn", [])):
        for row in members:
            if not row["system"].startswith("lattice"):
                yield row["n"], row["epsilon"], row["system"], row["cpu_ms"] / own["cpu_ms"]


def exact_ratios(record: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
    """Yield points and POT's processor time / ours of each exact problem that POT solved, too."""
    times = {(row["n"], row["system"]): row["cpu_ms"] for row in record.get("emd", [])}
    for (n, system), peer in times.items():
        if system != OURS_EXACT:
            yield n, peer / times[n, OURS_EXACT]


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for every limit that is missed."""
    bound = limits(SCRIPT)
    lines = []
    for n, epsilon, system, reached in ratios(record):
        least = bound["sinkhorn"].get(system)
        if epsilon == bound["epsilon"] and least is not None and not reached >= least:
            lines.append(f"{n} points, epsilon {epsilon}: {reached:.1f} times {system}, {least} is the limit")
    for n, reached in exact_ratios(record):
        if not reached >= bound["exact"]:
            lines.append(f"{n} points, exact: {reached:.2f} times POT, {bound['exact']} is the limit")
    figures = {"online": ("check_cpu_ms", "ms"), "clouds": ("peak_rss_mb", "MB")}
    for part, (name, unit) in figures.items():
        if part in record and not record[part][name] <= bound[name]:
            lines.append(f"{part}: {record[part][name]} {unit}, {bound[name]} is the limit")
    for row in record.get("power", []):
        if row["kind"] == "false alarms":
            low, high = row["band"]
            for name in ("divergence", "online"):
                if not low <= row[name] <= high:
                    lines.append(f"{name}: {row[name]:.1%} false alarms, {low:.1%} to {high:.1%} is the limit")
    return lines


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record in Markdown."""
    parts = [
        provenance(record),
        *([record["note"]] if "note" in record else []),
        f"{record['threads']} threads; medians of processor time, because other work changes wall-clock time. The "
        "error is the L1 marginal error of the plan, computed in float64.",
    ]
    if "sinkhorn" in record:
        rows = [
            [
                f"{row['n']:,}",
                str(row["epsilon"]),
                row["system"],
                f"{row['cpu_ms']:.1f}",
                f"{row['cpu_ms'] / own['cpu_ms']:.1f}",
                f"{row['error']:.1e}",
            ]
            for own, members in problems(record["sinkhorn"])
            for row in members
        ]
        header = ["Sinkhorn, points", "epsilon", "system", "ms", f"time / {OURS}", "error"]
        parts.append(markdown_table(header, rows))
    if "emd" in record:
        own = {row["n"]: row["cpu_ms"] for row in record["emd"] if row["system"] == OURS_EXACT}
        rows = [
            [f"{row['n']:,}", row["system"], f"{row['cpu_ms']:.1f}", f"{row['cpu_ms'] / own[row['n']]:.2f}"]
            for row in record["emd"]
        ]
        parts.append(markdown_table(["exact, points", "system", "ms", f"time / {OURS_EXACT}"], rows))
    parts += _single_figures(record)
    return "\n\n".join(parts)


def _single_figures(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences and a table of what has no peer."""
    if "online" in record:
        found = record["online"]
        yield (
            f"An online check with a window of {found['window']} vectors of {found['dimension']} dimensions takes "
            f"{found['check_cpu_ms']:.1f} ms of processor time."
        )
    if "clouds" in record:
        found = record["clouds"]
        yield (
            f"Two clouds of {found['n']:,} points of {found['dimension']} dimensions: {found['iterations']} iterations in "
            f"{found['cpu_s']:.1f} s of processor time, and a process of {found['peak_rss_mb']:.0f} MB at its peak."
        )
    if "import" in record:
        found = record["import"]
        yield (
            f"`import lattice_transport` takes {max(found['lattice_transport_over_numpy_ms'], 0):.1f} ms after NumPy, with "
            f"`solve` {max(found['with_solve_over_numpy_ms'], 0):.1f} ms."
        )
    rows = []
    for row in record.get("power", []):
        is_null = row["kind"] == "false alarms"
        what = (
            f"{row['nulls']:,} samples without drift, {row['stated']:.0%} stated"
            if is_null
            else f"{row['trials']} shifts by {row['shift_sigma']} of {row['n']} vectors"
        )
        online = f"{row['online']:.1%}" if is_null else "-"
        rows.append([what, *(f"{row[name]:.1%}" for name in ("divergence", "mmd", "classifier")), online])
    if rows:
        yield markdown_table(["alarms", "divergence", "MMD", "classifier", "online"], rows)
