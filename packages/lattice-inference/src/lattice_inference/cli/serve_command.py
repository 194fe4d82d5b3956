"""``lattice serve``: chat, completions, embeddings and reranking over HTTP."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, get_args

from lattice_inference.cli.generation_options import add_context
from lattice_inference.cli.options import add_threads
from lattice_inference.cli.serve_options import add_server_options, serve_app
from lattice_inference.errors import InvalidInputError
from lattice_inference.precision import Precision

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from lattice_inference import CrossEncoder, Encoder
    from lattice_inference.generate.engine import Engine
    from lattice_inference.lora.attached_adapter import AttachedAdapter
    from lattice_inference.serve import ServeConfig

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """\
examples:
  lattice serve --model small=./model.gguf
  lattice serve --model small=./qwen3 --adapter formal=small:./my-adapter --embedding minilm=all-minilm-l6-v2
  lattice serve --model small=./model.gguf --host 0.0.0.0 --port 8000 --api-key-file keys.txt
  lattice serve --model small=./model.gguf --check

Each NAME is a `model` of requests. Clients of OpenAI's API use http://127.0.0.1:8080/v1. Without keys the server is for
this machine only. The log on standard error has one JSON object a request, without its text.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    for option, what in (
        ("--model", "a language model, for chat and completions"),
        ("--embedding", "a model that embeds texts"),
        ("--reranker", "a model that scores documents for a query"),
    ):
        parser.add_argument(option, action="append", metavar="NAME=PATH", help=f"{what}; may be repeated")
    parser.add_argument(
        "--adapter", action="append", metavar="NAME=MODEL:DIR", help="a LoRA adapter of a served model; may be repeated"
    )
    add_server_options(parser)
    parser.add_argument(
        "--precision",
        choices=get_args(Precision),
        default="stored",
        help="what weights of language models are kept in (default: what the model's files have them in)",
    )
    add_context(parser)
    parser.add_argument("--cache-tokens", type=int, metavar="N", help="tokens in a model's cache (default: --context)")
    add_threads(parser)


def run(options: argparse.Namespace) -> int:
    """Load the models and serve them."""
    if not (options.model or options.embedding or options.reranker):
        raise InvalidInputError("there is nothing to serve: name a --model, an --embedding or a --reranker")
    return serve_app(options, "lattice", lambda config, stack: _app(options, config, stack))


def _app(options: argparse.Namespace, config: ServeConfig, stack: contextlib.ExitStack) -> Starlette:
    """Load the models; the stack closes them."""
    from lattice_inference import EngineConfig, load_cross_encoder, load_encoder, load_model, set_num_threads
    from lattice_inference.generate.engine import Engine
    from lattice_inference.serve import create_app

    if options.threads is not None:
        set_num_threads(options.threads)
    settings = EngineConfig(
        max_tokens=options.context, cache_tokens=options.cache_tokens, cache_dtype=options.cache_type
    )
    paths = {kind: _pairs(getattr(options, kind), f"--{kind}") for kind in ("model", "embedding", "reranker")}
    names = [name for group in paths.values() for name in group]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInputError(f"two models have the name {name!r}")
    attach: dict[str, Callable[[str, str], AttachedAdapter]] = {}
    engines: dict[str, Engine] = {}
    encoders: dict[str, Encoder] = {}
    scorers: dict[str, CrossEncoder] = {}
    for name, path in paths["embedding"].items():
        encoders[name] = stack.enter_context(load_encoder(path))
        attach[name] = encoders[name].load_adapter
    for name, path in paths["reranker"].items():
        scorers[name] = stack.enter_context(load_cross_encoder(path))
        attach[name] = scorers[name].load_adapter
    for name, path in paths["model"].items():
        model = stack.enter_context(load_model(path, precision=options.precision))
        attach[name] = model.load_adapter
        engines[name] = stack.enter_context(Engine(model, settings))
    adapters: dict[str, tuple[str, str]] = {}
    for name, value in _pairs(options.adapter, "--adapter").items():
        base, colon, folder = value.partition(":")
        if not colon or base not in attach:
            raise InvalidInputError(f"--adapter is '{name}={value}'; expected NAME=MODEL:DIR with a served MODEL")
        adapters[name] = base, attach[base](folder, name).name
    return create_app(models=engines, embeddings=encoders, rerankers=scorers, adapters=adapters, config=config)


def _pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """Return paths by their names."""
    pairs: dict[str, str] = {}
    for text in given or ():
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise InvalidInputError(f"{option} is {text!r}; expected NAME=PATH")
        if name in pairs:
            raise InvalidInputError(f"{option}: two have the name {name!r}")
        pairs[name] = path
    return pairs
