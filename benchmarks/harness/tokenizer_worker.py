"""Times tokenizers in a process: ``python -m harness.tokenizer_worker '{options}'``.

Prints one JSON object: each contender's samples in microseconds a call, by case, and whether the ids agree. It also
has the time to load the file, and the cost of doubling a text of one character.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["main"]

Contender = Callable[[], object]

# GPT-2's way of cutting text into words, which a file names by leaving it to its ByteLevel step.
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

DOUBLED = {f"{count:,} x {character!r}": character * count for character, count in (("a", 100_000), ("^", 1_000_000))}


def tokenizer_file(path: Path) -> Path:
    """Return the ``tokenizer.json`` of a directory, or the file itself."""
    return path / "tokenizer.json" if path.is_dir() else path


def our_contenders(tokenizer: Any, texts: Sequence[str]) -> dict[str, Contender]:
    """Return our calls for the texts: with what a peer returns, and as a packed batch."""
    if len(texts) == 1:
        return {
            "lattice encode": lambda: tokenizer.encode(texts[0]),
            "lattice encode_packed": lambda: tokenizer.encode_packed(texts),
        }
    return {
        "lattice encode_batch": lambda: tokenizer.encode_batch(texts),
        "lattice encode_packed": lambda: tokenizer.encode_packed(texts),
    }


def huggingface_contenders(tokenizer: Any, texts: Sequence[str]) -> dict[str, Contender]:
    """Return the calls of Hugging Face's library for the texts."""
    if len(texts) == 1:
        return {"tokenizers encode": lambda: tokenizer.encode(texts[0])}
    return {
        "tokenizers encode_batch": lambda: tokenizer.encode_batch(texts),
        "tokenizers encode_batch_fast": lambda: tokenizer.encode_batch_fast(texts),
    }


def tiktoken_contenders(encoding: Any, texts: Sequence[str], threads: int) -> dict[str, Contender]:
    """Return the calls of tiktoken for the texts."""
    if len(texts) == 1:
        return {"tiktoken encode_ordinary": lambda: encoding.encode_ordinary(texts[0])}
    if threads > 1:
        batch = list(texts)
        return {"tiktoken encode_ordinary_batch": lambda: encoding.encode_ordinary_batch(batch, num_threads=threads)}
    return {"tiktoken encode_ordinary": lambda: [encoding.encode_ordinary(text) for text in texts]}


def load_huggingface(path: Path) -> Any:
    """Return the file's tokenizer in Hugging Face's library, or None if the file is missing.

    Padding and truncation are off.
    """
    if importlib.util.find_spec("tokenizers") is None:
        return None
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file(path)))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def load_tiktoken(definition: Mapping[str, Any]) -> Any:
    """Return the file's tokenizer in tiktoken, or None if it has none.

    Special tokens are left out.
    """
    steps = definition.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    if definition["model"].get("type") != "BPE" or steps[-1].get("type") != "ByteLevel":
        return None
    if len(steps) == 2 and steps[0]["type"] == "Split" and not steps[1].get("use_regex", True):
        pattern = steps[0]["pattern"]["Regex"]
    elif len(steps) == 1 and not steps[0]["add_prefix_space"]:
        pattern = GPT2_PATTERN
    else:
        return None
    if importlib.util.find_spec("tiktoken") is None:
        return None
    import tiktoken

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printable + [byte for byte in range(256) if byte not in printable]
    characters = [chr(byte) for byte in printable] + [chr(256 + n) for n in range(256 - len(printable))]
    spelled = dict(zip(characters, order, strict=True))
    vocabulary = definition["model"]["vocab"].items()
    ranks = {bytes([spelled[c] for c in token]): i for token, i in vocabulary if all(c in spelled for c in token)}
    return tiktoken.Encoding("benchmark", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def loading_contenders(path: Path) -> dict[str, Contender]:
    """Return what loads the file; ``json.loads`` alone is there for comparison."""
    from lattice_inference.tokenizer import load_tokenizer

    file = tokenizer_file(path)
    contenders: dict[str, Contender] = {
        "lattice load_tokenizer": lambda: load_tokenizer(path),
        "json.loads": lambda: json.loads(file.read_bytes()),
    }
    if importlib.util.find_spec("tokenizers") is not None:
        import tokenizers

        contenders["tokenizers from_file"] = lambda: tokenizers.Tokenizer.from_file(str(file))
    return contenders


def time_in_turns(contenders: Mapping[str, Contender], seconds: float, threads: int) -> dict[str, list[float]]:
    """Return the microseconds of one call, by contender and round; the order rotates.

    With one thread it is processor time, which other processes on the machine lengthen less.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    repeats = {}
    for name, run in contenders.items():
        trials = []
        for _ in range(3):
            started = clock()
            run()
            trials.append(clock() - started)
        repeats[name] = max(1, round(0.01 / max(min(trials), 1e-9)))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < 5 or time.perf_counter() < deadline:
        for name in names[rounds % len(names) :] + names[: rounds % len(names)]:
            started = clock()
            for _ in range(repeats[name]):
                contenders[name]()
            times[name].append((clock() - started) / repeats[name] * 1e6)
        rounds += 1
    return times


def doubling(tokenizer: Any, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Return, for each text of one character, our times for the text and for twice the text."""
    return {
        name: time_in_turns(
            {
                "once": functools.partial(tokenizer.encode_packed, [text]),
                "twice": functools.partial(tokenizer.encode_packed, [text * 2]),
            },
            seconds,
            threads=1,
        )
        for name, text in DOUBLED.items()
    }


def main() -> None:
    from lattice_inference.tokenizer import load_tokenizer

    options = json.loads(sys.argv[1])
    path, threads, seconds = Path(options["tokenizer"]), int(options["threads"]), float(options["seconds"])
    ours, theirs = load_tokenizer(path), load_huggingface(path)
    definition = json.loads(tokenizer_file(path).read_text(encoding="utf-8"))
    encoding = load_tiktoken(definition)
    samples = []
    for case, texts in json.loads(Path(options["texts"]).read_text(encoding="utf-8")).items():
        contenders = our_contenders(ours, texts)
        same = None
        if theirs is not None:
            contenders |= huggingface_contenders(theirs, texts)
            expected = [token_id for item in theirs.encode_batch(texts) for token_id in item.ids]
            same = ours.encode_packed(texts).token_ids.tolist() == expected
        if encoding is not None:
            contenders |= tiktoken_contenders(encoding, texts, threads)
        samples.append(
            {
                "case": case,
                "bytes": sum(len(text.encode()) for text in texts),
                "same_ids": same,
                "microseconds": time_in_turns(contenders, seconds, threads),
            }
        )
    result: dict[str, Any] = {"kind": definition["model"].get("type", "BPE"), "samples": samples}
    if threads == 1:
        result["pieces"] = len(definition["model"]["vocab"])
        result["loading"] = time_in_turns(loading_contenders(path), seconds, threads)
        result["doubling"] = doubling(ours, seconds)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
