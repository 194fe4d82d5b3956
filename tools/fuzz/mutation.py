"""Damage of files, drawn from a seed: of bytes, JSON values and texts, by the file's kind."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from target import add_tests

add_tests("inference", "damage")

from mutated_files import mutated_bytes, mutated_json  # noqa: E402

__all__ = ["damage_any_file", "damage_file", "mutated_bytes", "mutated_document", "mutated_json", "mutated_text"]

TOKENS = (
    "\0",
    "\n",
    "\r\n",
    "\ufeff",
    "\u2028",
    "é",
    "😀",
    "\U0010ffff",
    "e\u0301",
    '"',
    "\\",
    "{",
    "[",
    "%",
    " ",
    "\t",
)
NUMBERS = (
    "-1",
    "0",
    "1e999",
    "-0.0",
    "nan",
    "inf",
    "9" * 25,
    "9" * 5_000,
    "1e-400",
    "0x10",
    "1_000",
    "٣",
    "2147483648",
)
DEEP = (100, 1_000, 100_000)


def mutated_text(text: str, draw: random.Random) -> str:
    """Return ``text`` with characters, words or lines replaced, repeated, moved or left out.

    Numbers are changed too.
    """
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(text) + 1)
        length = draw.choice((0, 1, 1, 4, 30))
        kind = draw.randrange(6)
        if kind == 0:
            text = text[:place] + draw.choice(TOKENS) * draw.choice((1, 1, 1, 70, 5_000)) + text[place + length :]
        elif kind == 1:
            text = text[:place] + draw.choice(NUMBERS) + text[place + length :]
        elif kind == 2:
            text = text[:place] + text[place + length :]
        elif kind == 3:
            start = draw.randrange(len(text) + 1)
            text = text[:place] + text[start : start + draw.choice((1, 10, 100))] + text[place:]
        elif kind == 4 and "\n" in text:
            lines = text.split("\n")
            draw.shuffle(lines)
            text = "\n".join(lines[: draw.choice((1, len(lines), len(lines)))])
        else:
            text = text[:place]
    return text


def mutated_document(content: bytes, draw: random.Random) -> bytes:
    """Return the JSON ``content`` with one to three values changed, or with a damaged text."""
    kind = draw.randrange(20)
    if kind == 0:
        return mutated_bytes(content, draw)
    if kind == 1:
        return mutated_text(content.decode("utf-8", "replace"), draw).encode("utf-8", "replace")
    try:
        value: Any = json.loads(content)
    except (ValueError, RecursionError):  # the second piece of damage to what is no JSON any more
        return mutated_bytes(content, draw)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        value = mutated_json(value, draw) if draw.random() < 0.4 else with_neighbour(value, draw)
    text = json.dumps(value, ensure_ascii=draw.random() < 0.5)
    if kind == 2:  # nested beyond what is read, at a place where a value stands
        place = text.find(":", draw.randrange(len(text) + 1)) + 1
        deep = draw.choice(DEEP)
        opened, closed = draw.choice((("[", "]"), ('{"a":', "}")))
        text = text[:place] + opened * deep + "1" + closed * deep + text[place:]
    elif kind == 3:  # a name twice
        text = text.replace("{", '{"' + draw.choice(("version", "model", "a", "__metadata__")) + '": 1, ', 1)
    return text.encode("utf-8", "surrogatepass")


def with_neighbour(value: Any, draw: random.Random) -> Any:
    """Change one value to another of its kind.

    This passes the first check more often than another kind. A way down is drawn step by step, so that the few
    settings are hit as often as the many entries of a table.
    """
    root = [value]
    holder: Any = root
    name: Any = 0
    texts = [text for text in _texts(value) if len(text) < 200]
    while isinstance(holder[name], (dict, list)) and holder[name] and draw.random() < 0.9:
        holder = holder[name]
        name = draw.choice(list(holder)) if isinstance(holder, dict) else draw.randrange(len(holder))
    old = holder[name]
    if isinstance(old, bool) or old is None:
        holder[name] = draw.choice((True, False, None))
    elif isinstance(old, int):
        holder[name] = draw.choice(
            (old + 1, old - 1, old * 2, -old, 0, 1, old // 2, old * 1000, 10**6, 2**31 - 1, 2**24)
        )
    elif isinstance(old, float):
        holder[name] = draw.choice((-old, 0.0, -0.0, old * 1e9, 1e308, 5e-324, 1e-30, 3.5e38, old * 2, 1.0, 65520.0))
    elif isinstance(old, str):
        holder[name] = draw.choice(
            (mutated_text(old, draw), draw.choice(texts or [""]), old * 2, old + "x", old.upper())
        )
    elif isinstance(old, list):
        choices = (old[::-1], old * 2, old[:1] * 500, old[1:], old[:-1], [old], [*old, draw.choice(texts or [""])])
        holder[name] = draw.choice(choices)
    elif old and isinstance(holder, (dict, list)):
        inner = dict(old)
        key = draw.choice(list(inner))
        inner[draw.choice((key + "x", *texts[:50]))] = inner.pop(key)
        holder[name] = inner
    return root[0]


def _texts(value: Any) -> list[str]:
    """Return some of the texts in what JSON holds, and its names."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for name, inner in list(value.items())[:60] for text in (name, *_texts(inner))]
    return [text for inner in value[:60] for text in _texts(inner)] if isinstance(value, list) else []


def damage_file(path: Path, draw: random.Random) -> None:
    """Damage one file by its kind: JSON, text, or bytes, whose beginning is hit more often."""
    content = path.read_bytes()
    kind = path.suffix if draw.random() < 0.85 else ""
    if kind == ".json":
        content = mutated_document(content, draw)
    elif kind in (".txt", ".csv", ".tsv", ".net"):
        content = mutated_text(content.decode("utf-8", "replace"), draw).encode("utf-8", "surrogatepass")
    elif kind == ".safetensors" and draw.random() < 0.7:
        content = with_document(content, draw)
    elif draw.random() < 0.5:
        end = draw.choice((64, 256, 2_000))
        content = mutated_bytes(content[:end], draw) + content[end:]
    else:
        content = mutated_bytes(content, draw)
    path.write_bytes(content)


def with_document(content: bytes, draw: random.Random) -> bytes:
    """Damage the JSON in front of a safetensors file, whose length still fits or does not."""
    length = int.from_bytes(content[:8], "little")
    header = mutated_document(content[8 : 8 + length], draw)
    claimed = len(header) + (draw.choice((-1, 1, 2**31, 2**62)) if draw.random() < 0.1 else 0)
    return (claimed % 2**64).to_bytes(8, "little") + header + content[8 + length :]


def damage_any_file(folder: Path, draw: random.Random) -> None:
    """Damage one file of a folder, rarely two, and at times leave one out or empty it."""
    for _ in range(draw.choice((1, 1, 1, 2))):
        path = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
        kind = draw.randrange(60)
        if kind == 0 and sum(1 for _ in folder.rglob("*")) > 1:
            path.unlink()
            return
        if kind == 1:
            path.write_bytes(b"")
        else:
            damage_file(path, draw)
