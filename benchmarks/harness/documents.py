"""Which sections and sentences of the documents state figures of which committed record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import caches
import decode
import design_baselines
import distillation
import embed
import fann
import footprint
import forward
import grammar
import hybrid
import instructions
import kernels
import loading
import lora
import peak
import precision_quality
import quality
import recall
import registry
import sampling
import serving
import serving_http
import serving_peers
import speculation
import teacher_accuracy
import tiles
import tokenizing
import training
import vectors
from harness import embed_tables, transport_tables
from harness.options import limits
from harness.record import RESULTS, ROOT, read_record

__all__ = ["MISSES", "QUOTATIONS", "SECTIONS", "Quotation", "Section", "committed", "section_text", "unquoted_claims"]

Record = Mapping[str, Any]

BENCHMARKS = "docs/benchmarks.md"
EMBED_DESIGN = "packages/lattice-embed/DESIGN.md"

SCRIPTS: dict[str, Any] = {
    "caches": caches,
    "decode": decode,
    "design_baselines": design_baselines,
    "distillation": distillation,
    "embed": embed,
    "embed_avx2": embed,
    "fann": fann,
    "footprint": footprint,
    "forward": forward,
    "hybrid": hybrid,
    "instructions": instructions,
    "kernels": kernels,
    "loading": loading,
    "lora": lora,
    "peak": peak,
    "precision_quality": precision_quality,
    "quality": quality,
    "recall": recall,
    "grammar": grammar,
    "registry": registry,
    "sampling": sampling,
    "serving": serving,
    "serving_http": serving_http,
    "serving_peers": serving_peers,
    "speculation": speculation,
    "teacher_accuracy": teacher_accuracy,
    "tiles": tiles,
    "tokenizing": tokenizing,
    "training": training,
    "transport": transport_tables,
    "vectors": vectors,
}
"""The module that renders each committed record, by the record's name."""

BASELINES = {"instructions"}  # what later counts are compared with has no limit itself
MISSES: dict[str, Callable[[Record], list[str]]] = {
    name: script.misses for name, script in SCRIPTS.items() if hasattr(script, "misses") and name not in BASELINES
}
"""What says which limits a record misses, by the record's name."""


@dataclass(frozen=True)
class Section:
    """A generated section of a document: the text between its two comments, from one record."""

    name: str
    document: str
    record: str
    render: Callable[[Record], str]


def _render(name: str, script: Any) -> Callable[[Record], str]:
    return partial(script.render, baseline=None) if name in BASELINES else script.render


SECTIONS = [
    *(
        Section(name, EMBED_DESIGN if name == "design_baselines" else BENCHMARKS, name, _render(name, script))
        for name, script in SCRIPTS.items()
    ),
    Section("embed-summary", "README.md", "embed", embed_tables.summary),
]


@dataclass(frozen=True)
class Quotation:
    """A piece of a document whose figures are those of a record.

    ``text`` is a format string; its fields are those of ``values``, or of the record itself.
    """

    document: str
    record: str
    text: str
    values: Callable[[Record], Mapping[str, Any]] = lambda record: record

    def stated(self, record: Record) -> str:
        """Return the text with the record's figures."""
        return self.text.format_map(dict(self.values(record)))


def committed(name: str) -> dict[str, Any]:
    """Return the committed record of a name."""
    return read_record(RESULTS / f"{name}.json", getattr(SCRIPTS[name], "SCRIPT", name))


def section_text(section: Section) -> str:
    """Return the present text of a section.

    Raises ValueError if the document has no such section.
    """
    begin, end = f"<!-- begin: {section.name} -->\n", f"<!-- end: {section.name} -->\n"
    whole = (ROOT / section.document).read_text(encoding="utf-8")
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise ValueError(f"{section.document} must have one section {section.name}")
    return whole.split(begin)[1].split(end)[0].strip()


def _recall(tier: str) -> Callable[[Record], Mapping[str, Any]]:
    return lambda record: {"alone": record["recall"][tier], "rescored": record["recall"][f"{tier}, rescored"]}


def _prompt_ratios(record: Record) -> Mapping[str, Any]:
    found = decode.prompt_ratios(record, "PyTorch bfloat16")
    return {"least": min(found), "most": max(found)}


def _drafted(record: Record) -> Mapping[str, Any]:
    found = speculation.speeds(record)
    return {"edit": found["code edit, greedy"], "prose": found["prose, drawn"]}


def _spread(record: Record) -> Mapping[str, Any]:
    cell = [s for s in record["samples"] if (s["rows"], s["k"], s["threads"], s["streamed"]) == (10, 1536, 1, False)]
    found = [sample["rate"] / sample["peak"] for sample in cell]
    return {"least": min(found), "most": max(found)}


def _peaks(record: Record) -> Mapping[str, Any]:
    found = [sample["peak"] / 1e9 for sample in record["samples"] if not sample["streamed"] and sample["threads"] == 1]
    return {"least": min(found), "most": max(found)}


def _perplexity(record: Record) -> Mapping[str, Any]:
    return {
        sample["precision"]: sample["perplexity"] for sample in record["samples"] if sample["activations"] == "int8"
    }


def _tiles(record: Record) -> Mapping[str, Any]:
    return {"share": tiles.share(record, "blocks")}


def _wheel(name: str) -> Callable[[Record], Mapping[str, Any]]:
    return lambda record: {
        "size": record["wheel_bytes"][name] / 1e6,
        "limit": limits("footprint")["wheel_mb"][name],
        "date": record["date"][:10],
    }


def _loading_limits(_: Record) -> Mapping[str, Any]:
    return limits("loading")


LIMITS = "benchmarks/limits.toml"
INFERENCE_DESIGN = "packages/lattice-inference/DESIGN.md"
WHEEL_ROW = (
    "| size | wheel, CPython 3.11, x86-64 | {size:.2f} MB | {date} | {limit} MB | `python benchmarks/footprint.py` |"
)
QUOTATIONS = [
    Quotation(
        "docs/generation.md",
        "speculation",
        "With SmolLM2 a greedy code edit is {edit:.1f} times as fast, and drawn prose {prose:.2f} times.",
        _drafted,
    ),
    Quotation("docs/vectors.md", "recall", "| `bfloat16` | 768 | {alone:.3f} | {rescored:.3f} |", _recall("bfloat16")),
    Quotation("docs/vectors.md", "recall", "| `float16` | 768 | {alone:.3f} | {rescored:.3f} |", _recall("float16")),
    Quotation("docs/vectors.md", "recall", "| `int8` | 384 + 8 | {alone:.3f} | {rescored:.3f} |", _recall("int8")),
    Quotation(
        "docs/vectors.md",
        "recall",
        "| `int8` with a calibration | 384 + 4 | {alone:.3f} | {rescored:.3f} |",
        _recall("int8, calibrated"),
    ),
    Quotation("docs/vectors.md", "recall", "| `int4` | 192 + 12 | {alone:.3f} | {rescored:.3f} |", _recall("int4")),
    Quotation("docs/vectors.md", "recall", "| `binary` | 48 | {alone:.3f} | {rescored:.3f} |", _recall("binary")),
    Quotation(
        BENCHMARKS, "quality", "{spearman:.4f} is what the original", lambda _: limits("quality")["sts_b_english"]
    ),
    Quotation(
        BENCHMARKS,
        "loading",
        "at most {peak_gb} GB, and {peak_above_mb} MB above weights, keys and values",
        _loading_limits,
    ),
    Quotation(
        "docs/generation.md", "precision_quality", "test split has a perplexity of {float32:.3f}, by", _perplexity
    ),
    Quotation(LIMITS, "peak", "varies from {least:.0f} to {most:.0f} GFLOP/s", _peaks),
    Quotation(LIMITS, "peak", "(10 x 1536 x 384: {least:.2f} to {most:.2f})", _spread),
    Quotation(LIMITS, "decode", "{least:.2f} to {most:.2f} is reached", _prompt_ratios),
    Quotation(LIMITS, "tiles", "allows {share:.2f} of bfloat16's products", _tiles),
    Quotation(INFERENCE_DESIGN, "footprint", WHEEL_ROW, _wheel("lattice-inference")),
    Quotation(EMBED_DESIGN, "footprint", WHEEL_ROW, _wheel("lattice-embed")),
]

CLAIM = re.compile(r"\b\d+(?:\.\d+)? times (?:as (?:fast|long|slow)|faster|slower)")
"""What a claim of speed looks like in prose. Each must come from a record."""


def unquoted_claims(document: str) -> Iterator[str]:
    """Yield claims of speed in a document outside of generated sections and quotations."""
    text = (ROOT / document).read_text(encoding="utf-8")
    text = re.sub(r"<!-- begin: (\S+) -->.*?<!-- end: \1 -->", "", text, flags=re.DOTALL)
    for quotation in QUOTATIONS:
        if quotation.document == document:
            text = text.replace(quotation.stated(committed(quotation.record)), "")
    yield from CLAIM.findall(text)
