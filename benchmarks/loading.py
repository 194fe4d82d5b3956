"""Times loading a language model to its first token, and measures its memory.

The file is not in memory before. Reading the file is timed too.

Each load is a separate process; reading and loading take turns, and before each the file's pages are dropped. Memory
is the process's resident set: after the first token, and at most ever, once a prompt of --context tokens has been
run.

Without files, models with drawn weights are written first (tools/models/random_llama.py) and deleted afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from decode import load_random_llama, weight_bytes
from harness.options import Record, add_record_options, finish, limits, positive_int, thread_count
from harness.process import answer_of
from harness.progress import report
from harness.record import append_samples, describe_run, read_record
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "read_cold", "render"]

SCRIPT = "loading"
PIECE = 1 << 20

EXAMPLES = """
examples:
  python benchmarks/loading.py                              a file of 640 MB in Q8_0
  python benchmarks/loading.py --shape llama-2-7b --types Q4_0 Q8_0 --repeats 1 --folder /tmp --layers
  python benchmarks/loading.py --shape llama-2-7b --types Q4_0 --precision int8 --repeats 1 --context 2040 --append
  python benchmarks/loading.py model.gguf --threads 1 --check
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, metavar="FILE.gguf", help="(default: drawn weights)")
    parser.add_argument("--shape", default="qwen3-0.6b", help="shape of drawn weights (default: qwen3-0.6b)")
    parser.add_argument("--types", nargs="+", default=["Q8_0"], metavar="TYPE", help="types of them (default: Q8_0)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where they are written (default: a temporary one)")
    parser.add_argument("--precision", default="stored", help="what weights are kept in (default: stored)")
    parser.add_argument("--threads", type=thread_count, default=os.cpu_count() or 1, metavar="N", help="(default: all)")
    parser.add_argument("--repeats", type=positive_int, default=5, metavar="N", help="turns of each (default: 5)")
    parser.add_argument("--context", type=positive_int, default=512, metavar="N", help="tokens run (default: 512)")
    parser.add_argument("--layers", action="store_true", help="print what each layer takes by type, too")
    parser.add_argument("--append", action="store_true", help="add to the record, if it is of this machine and commit")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record."""
    record = describe_run(SCRIPT) | {"threads": options.threads, "samples": []}
    for path in options.models:
        record["samples"] += _samples(path, options)
    for kind in [] if options.models else options.types:
        with _drawn(options, kind) as path:
            record["samples"] += _samples(path, options)
    report()
    if options.layers:
        for name, text in {sample["model"]: sample["report"] for sample in record["samples"]}.items():
            print(f"{name}\n{text}\n")
    if options.append and options.json.exists():
        return append_samples(read_record(options.json, SCRIPT), record, ("threads",))
    return record


@contextlib.contextmanager
def _drawn(options: argparse.Namespace, kind: str) -> Iterator[Path]:
    """Write a file of drawn weights, and delete it afterwards."""
    tool = load_random_llama()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / f"{options.shape}-{kind.lower()}.gguf"
        report(f"writing {path.name}")
        tool.write_random_llama(path, tool.SHAPES[options.shape], kind)
        yield path


def _samples(path: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    samples = []
    for turn in range(options.repeats):
        report(f"{path.name}: turn {turn + 1} of {options.repeats}")
        sample = {"model": path.name, "bytes": path.stat().st_size, "weight_bytes_in_file": weight_bytes(path)}
        sample["precision"] = options.precision
        drop_pages(path)
        sample["read_seconds"] = read_cold(path)
        drop_pages(path)
        sample |= _load(path, options)
        samples.append(sample)
    return samples


def drop_pages(path: Path) -> None:
    """Have the system forget what it holds of a file in memory."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_cold(path: Path) -> float:
    """Return the seconds that reading a file from its beginning to its end takes."""
    buffer = bytearray(PIECE)
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while file.readinto(buffer):
            pass
    return time.perf_counter() - start


def _load(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    arguments = [str(path), str(options.threads), str(options.context), options.precision]
    answer = answer_of(["-m", "harness.loading_worker", *arguments], options.threads)
    assert isinstance(answer, dict)
    return answer


def _groups(record: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for sample in record["samples"]:
        kept = (
            sample["model"] if sample["precision"] == "stored" else f"{sample['model']}, kept as {sample['precision']}"
        )
        groups.setdefault(kept, []).append(sample)
    return groups


def _median(samples: Sequence[Mapping[str, Any]], field: str) -> float:
    return median(float(sample[field]) for sample in samples)


def ratio(samples: Sequence[Mapping[str, Any]]) -> float:
    """Return the time to the first token / the time of reading the file.

    Medians of the same turns.
    """
    return _median(samples, "first_token_seconds") / _median(samples, "read_seconds")


def above_load(samples: Sequence[Mapping[str, Any]]) -> float:
    """Return the memory after the first token beyond that of the file.

    Or beyond the weights that are made of the file.
    """
    return _median(samples, "resident_after_load") - float(samples[0]["bytes"]) - _made_of_it(samples)


def _made_of_it(samples: Sequence[Mapping[str, Any]]) -> float:
    """Return the memory of weights beyond the file's, if they are kept in another precision."""
    if samples[0]["precision"] == "stored":
        return 0.0
    return float(samples[0]["weights_bytes"]) - float(samples[0]["weight_bytes_in_file"])


def above_peak(samples: Sequence[Mapping[str, Any]]) -> float:
    """Return the most bytes in memory beyond those of the file's weights and of keys and values."""
    held = float(samples[0]["weight_bytes_in_file"]) + float(samples[0]["cache_bytes"]) + _made_of_it(samples)
    return max(float(sample["peak_resident"]) for sample in samples) - held


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for every limit that is missed."""
    bounds = limits(SCRIPT)
    found = []
    for model, samples in _groups(record).items():
        if len(samples) > 1 and ratio(samples) > bounds["read_ratio"]:
            found.append(f"{model}: loads in {ratio(samples):.2f} times the read, at most {bounds['read_ratio']}")
        if above_load(samples) > 1e6 * bounds["above_file_mb"]:
            found.append(
                f"{model}: {above_load(samples) / 1e6:,.0f} MB above the file, at most {bounds['above_file_mb']}"
            )
        if max(sample["peak_resident"] for sample in samples) > 1e9 * bounds["peak_gb"]:
            found.append(f"{model}: more than {bounds['peak_gb']} GB in memory")
        if above_peak(samples) > 1e6 * bounds["peak_above_mb"]:
            found.append(
                f"{model}: at most {above_peak(samples) / 1e6:,.0f} MB above weights and cache, "
                f"the limit is {bounds['peak_above_mb']}"
            )
    return found


def render(record: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown."""
    titles = ["model", "file, MB", "read, s", "first token, s", "ratio", "after load, MB", "context", "peak, MB"]
    titles += ["ms a token"]
    rows = [
        [
            model,
            f"{samples[0]['bytes'] / 1e6:,.0f}",
            f"{_median(samples, 'read_seconds'):.2f}",
            f"{_median(samples, 'first_token_seconds'):.2f}",
            f"{ratio(samples):.2f}",
            f"{_median(samples, 'resident_after_load') / 1e6:,.0f} (file {above_load(samples) / 1e6:+,.0f})",
            f"{samples[0]['context']:,}",
            f"{max(sample['peak_resident'] for sample in samples) / 1e6:,.0f} "
            f"(weights and cache {above_peak(samples) / 1e6:+,.0f})",
            f"{1e3 * _median(samples, 'token_seconds'):.1f}",
        ]
        for model, samples in _groups(record).items()
    ]
    what = f"{record['threads']} threads, medians of the turns."
    layers = [_layer_row(model, samples[0]) for model, samples in _groups(record).items()]
    layer_titles = [
        "weights, MB",
        "outside layers",
        "one layer",
        "layers",
        "together",
        "keys, values",
        "for a context of",
        "peak",
    ]
    tables = [markdown_table(titles, rows), markdown_table(layer_titles, layers)]
    return "\n\n".join([provenance(record), what, *tables])


def _layer_row(model: str, sample: Mapping[str, Any]) -> list[str]:
    """Return what is outside of layers, what the largest layer takes, and all of it."""
    sizes = {row["layer"]: sum(size for kind, size in row.items() if kind != "layer") for row in sample["layers"]}
    outside = sizes.pop(None, 0)
    return [
        model,
        f"{outside / 1e6:,.1f}",
        f"{max(sizes.values()) / 1e6:,.1f}",
        f"{len(sizes)}",
        f"{(outside + sum(sizes.values())) / 1e6:,.0f}",
        f"{sample['cache_bytes'] / 1e6:,.0f}",
        f"{sample['context']:,} tokens",
        f"{sample['peak_resident'] / 1e6:,.0f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
