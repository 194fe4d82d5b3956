"""Counts of a server, in the text form that Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from lattice_inference.generate.engine_config import EngineStats

__all__ = ["ServeMetrics", "engine_lines", "model_lines"]

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_HELP = {
    "lattice_requests_total": "requests that were answered, by route, status and code of error",
    "lattice_tokens_total": "tokens by model and kind (prompt, completion, and cached: of prompts that were not run again)",
    "lattice_request_seconds": "seconds from the arrival of a request to the end of its answer",
    "lattice_first_token_seconds": "seconds from the arrival of a request to its first token",
    "lattice_token_gap_seconds": "seconds between two tokens of an answer",
}

_Labels = tuple[tuple[str, object], ...]


class ServeMetrics:
    """Counters and histograms. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, dict[_Labels, float]] = {}
        self._histograms: dict[str, dict[_Labels, list[float]]] = {}

    def add(self, name: str, amount: float = 1, **labels: object) -> None:
        """Add to a counter."""
        key = tuple(labels.items())
        with self._lock:
            family = self._counts.setdefault(name, {})
            family[key] = family.get(key, 0) + amount

    def observe(self, name: str, seconds: float, **labels: object) -> None:
        """Add a time to a histogram."""
        key = tuple(labels.items())
        with self._lock:
            # the times up to each bound and above the one before, those above all, and their sum
            found = self._histograms.setdefault(name, {}).setdefault(key, [0.0] * (len(_BOUNDS) + 2))
            found[bisect_left(_BOUNDS, seconds)] += 1
            found[-1] += seconds

    def text(self, further: Iterable[str] = ()) -> str:
        """Return all of it, and further lines."""
        with self._lock:
            return "\n".join([*self._lines(), *further]) + "\n"

    def _lines(self) -> Iterator[str]:
        for name, family in self._counts.items():
            yield from (f"# HELP {name} {_HELP.get(name, name)}", f"# TYPE {name} counter")
            for labels, value in family.items():
                yield f"{name}{{{_written(labels)}}} {value:.15g}"
        for name, members in self._histograms.items():
            yield from (f"# HELP {name} {_HELP.get(name, name)}", f"# TYPE {name} histogram")
            for labels, values in members.items():
                key = _written(labels)
                before = f"{key}," if key else ""
                for bound, count in zip((*map("{:g}".format, _BOUNDS), "+Inf"), accumulate(values[:-1]), strict=True):
                    yield f'{name}_bucket{{{before}le="{bound}"}} {count:.15g}'
                yield f"{name}_count{{{key}}} {sum(values[:-1]):.15g}"
                yield f"{name}_sum{{{key}}} {values[-1]:.9g}"


def engine_lines(stats: Mapping[str, EngineStats]) -> Iterator[str]:
    """Yield the lines that tell what engines do, by the name of their model."""
    gauges = ("waiting", "running", "parked", "cache_pages", "used_pages", "remembered_pages")
    counters = (
        *("finished", "cancelled", "failed", "steps", "rows", "step_seconds"),
        *("prompt_tokens", "new_tokens", "preemptions"),
    )
    for kind, names in (("gauge", gauges), ("counter", counters)):
        for field in names if stats else ():
            name = f"lattice_engine_{field}" + ("_total" if kind == "counter" else "")
            yield from model_lines(name, kind, {model: getattr(values, field) for model, values in stats.items()})


def model_lines(name: str, kind: str, values: Mapping[str, float]) -> Iterator[str]:
    """Yield the lines of a gauge or counter that each model has, by the name of the model."""
    yield f"# TYPE {name} {kind}"
    for model, value in values.items():
        yield f"{name}{{{_written([('model', model)])}}} {value}"


def _written(labels: Iterable[tuple[str, object]]) -> str:
    pairs = []
    for name, value in labels:
        text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        pairs.append(f'{name}="{text}"')
    return ",".join(pairs)
