"""``lattice bench``: a model's speed and memory on this machine."""

from __future__ import annotations

import argparse
import json

from lattice_inference.cli.generation_options import add_context, add_loading, open_model, session_config
from lattice_inference.generate.bench import Measurement, measure_generation
from lattice_inference.memory.use import MemoryReport, memory_report

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """\
examples:
  lattice bench --model ./model.gguf
  lattice bench --model ./model.gguf --prompt-tokens 512 --generate-tokens 256 --repeat 5 --threads 1 --json

Prompts are drawn tokens. The speed of a prompt is its tokens by the time to its last logits. The speed of generating is the
slope between two lengths, so that what one call costs whatever its length does not count. Medians of --repeat runs.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_loading(parser)
    add_context(parser)
    parser.add_argument("--prompt-tokens", type=int, default=512, metavar="N", help="length of the prompt (512)")
    parser.add_argument("--generate-tokens", type=int, default=128, metavar="N", help="tokens to generate (128)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs, of which the median counts (3)")
    parser.add_argument("--layers", action="store_true", help="list the memory of each layer")


def run(options: argparse.Namespace) -> int:
    """Print the measurements."""
    with open_model(options) as model:
        measured = measure_generation(
            model,
            prompt_tokens=options.prompt_tokens,
            generate_tokens=options.generate_tokens,
            repeat=options.repeat,
            config=session_config(options),
        )
        report = memory_report(model, cache_bytes=measured.cache_bytes, cache_token_bytes=measured.cache_token_bytes)
    if options.json:
        print(json.dumps({"model": options.model, "speed": measured.as_json(), "memory": report.as_json()}))
    else:
        _print(measured, report, options.layers)
    return 0


def _print(measured: Measurement, report: MemoryReport, layers: bool) -> None:
    print(f"prompt      {measured.prompt_speed:10,.1f} tokens/s  ({measured.prompt_tokens:,} tokens)")
    print(f"generating  {measured.generate_speed:10,.1f} tokens/s  ({measured.generate_tokens:,} tokens)")
    print(f"first token {1000 * measured.first_token_seconds:10,.1f} ms")
    print(f"threads     {measured.threads:10d}")
    print(report.as_text(layers=layers))
