"""``lattice generate``: a text after a prompt."""

from __future__ import annotations

import argparse
import json
import sys

from lattice_inference.cli.generation_options import (
    add_context,
    add_generation,
    add_loading,
    generate_config,
    load_adapter,
    open_model,
    opened_drafts,
    result_as_json,
    session_config,
)
from lattice_inference.cli.text_input import read_whole_text
from lattice_inference.generate.result import StreamPiece
from lattice_inference.generate.session import Session

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """\
examples:
  lattice generate --model ./model.gguf "The capital of France is"
  lattice generate --model ./model.gguf --temperature 0 --max-tokens 6 --json "The capital of France is"
  lattice generate --model ./model.gguf --json --stream "Once upon a time" | jq -r .text
  cat letter.txt | lattice generate --model ./model.gguf --stop "Kind regards" -
  lattice generate --model ./model.gguf --adapter ./my-adapter "Dear"
  lattice generate --model ./model.gguf --config lattice.toml "Dear"
  lattice generate --model ./model.gguf --speculate ngram --verbose --input edit.txt

The text appears while it is generated. --json prints one object when it is complete:
  {"model", "text", "token_ids", "finish_reason", "prompt_tokens", "generated_tokens", "seed", ...}
and with --stream before it one {"text", "token_id"} a token, each on its line. --verbose tells the speed on standard
error. The prompt is taken as it is; `lattice chat` asks a model that was made for questions.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="what the text begins with; - for standard input")
    parser.add_argument("--input", metavar="FILE", help="take the prompt from a UTF-8 file, whole")
    add_loading(parser)
    parser.add_argument(
        "--plain", action="store_true", help="take special tokens that are spelled out in the prompt for plain text"
    )
    add_context(parser)
    add_generation(parser)
    parser.add_argument("--stream", action="store_true", help="with --json: one object a token, the result at last")
    parser.add_argument(
        "--logprobs", type=int, metavar="N", help="with --json: each token's log-probability and the N best"
    )
    parser.add_argument("--verbose", action="store_true", help="tell the speed on standard error")


def run(options: argparse.Namespace) -> int:
    """Print the text."""
    prompt = read_whole_text(options.prompt, options.input, "a prompt")
    config = generate_config(options, logprobs=options.logprobs)
    session_settings = session_config(options)
    with (
        open_model(options) as model,
        opened_drafts(config, options) as config,
        Session(model, config=session_settings, adapter=load_adapter(model, options)) as session,
    ):
        stream = session.stream(prompt, config)
        for piece in stream:
            _show(piece, options)
        result = stream.result
    if options.json:
        print(json.dumps({"model": options.model} | result_as_json(result)))
    else:
        print()
    if options.verbose:
        prompt_speed = (result.prompt_tokens - result.reused_tokens) / max(result.prompt_seconds, 1e-9)
        speed = max(0, len(result.token_ids) - 1) / max(result.generate_seconds, 1e-9)
        print(
            f"prompt: {result.prompt_tokens:,} tokens, {prompt_speed:,.1f}/s; generated: {len(result.token_ids):,}, "
            f"{speed:,.1f}/s; ended by {result.finish_reason.value.replace('_', ' ')}; seed {result.seed}"
            + (f"; guessed {result.drafted_tokens:,}, right {result.accepted_tokens:,}" if config.speculate else ""),
            file=sys.stderr,
        )
    return 0


def _show(piece: StreamPiece, options: argparse.Namespace) -> None:
    if not options.json:
        print(piece.text, end="", flush=True)
    elif options.stream:
        print(json.dumps({"text": piece.text, "token_id": piece.token_id}), flush=True)
