"""Parser of ``lattice-tune lora``; :mod:`lora_training` and :mod:`lora_files` do the work."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable

from lattice_tune.cli.configured_parser import ConfiguredParser, add_config

__all__ = ["add_commands"]

_EXAMPLES = """\
examples:
  lattice-tune lora train chats.jsonl --model smollm2.gguf --output my-adapter --folder work
  lattice-tune lora train chats.jsonl --config lora.toml --output my-adapter
  lattice-tune lora train sts.jsonl --model all-minilm-l6-v2 --objective cosent --output sts-adapter
  lattice-tune lora train topics.jsonl --model all-minilm-l6-v2 --objective classification --output topics-adapter
  lattice-tune lora eval test.jsonl --model smollm2.gguf --adapter my-adapter
  lattice-tune lora merge smollm2.gguf my-adapter --output smollm2-mine.gguf
  lattice-tune lora blend style-adapter:0.7 facts-adapter:0.3 --output both-adapter
  lattice-tune lora convert my-adapter --to gguf --base smollm2.gguf --output my-adapter.gguf

A row of a JSONL file has messages; prompt and completion; or text. For an encoder, ranking needs anchor
and positive; triplet needs a negative, too; cosent and cosine need sentence1, sentence2 and score; classification needs text
and label. For a cross-encoder, bce needs sentence1, sentence2 and score, and ce a label. With --folder, a training that was
ended goes on when the command runs again.
"""

Actions = argparse._SubParsersAction

OBJECTIVES = ("tokens", "ranking", "cosent", "cosine", "triplet", "classification", "bce", "ce")


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``lora`` with its actions."""
    command = commands.add_parser(
        "lora",
        help="train adapters of low rank: train, measure, merge, blend, convert",
        description="Train adapters of low rank (LoRA) on the program that runs the model, over weights of any format.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = command.add_subparsers(
        title="actions", metavar="ACTION", required=True, dest="action", parser_class=ConfiguredParser
    )
    add_config({"train": _add_train(actions), "eval": _add_eval(actions)})
    _add_merge(actions)
    _add_blend(actions)
    _add_convert(actions)


def _add_train(actions: Actions[ConfiguredParser]) -> ConfiguredParser:
    train = _add(actions, "train", "train an adapter", "Train an adapter and write it as PEFT does.", "lora_training")
    train.add_argument("data", metavar="DATA", help="a .jsonl file of examples")
    _add_model(train)
    train.add_argument("--adapter", metavar="PATH", help="begin with this adapter of the same linears and rank")
    train.add_argument("--output", required=True, metavar="FOLDER", help="the adapter's folder")
    train.add_argument("--gguf", metavar="FILE", help="write it for llama.cpp, too")
    train.add_argument("--overwrite", action="store_true", help="replace FOLDER if it holds an adapter")
    train.add_argument("--validation", metavar="FILE", help="examples that are only measured")
    train.add_argument(
        "--folder", metavar="FOLDER", help="keep checkpoints and metrics.jsonl here, and go on from them"
    )
    group = train.add_argument_group("the adapter")
    group.add_argument("--rank", type=int, metavar="N", default=16, help="(default: 16)")
    group.add_argument("--alpha", type=float, metavar="X", help="the scale is alpha / rank (default: 2 rank)")
    group.add_argument("--rank-stabilized", action="store_true", help="the scale is alpha / sqrt(rank)")
    group.add_argument("--targets", metavar="A,B", default="all", help="all, attention, or endings of linears' paths")
    group.add_argument("--layers", metavar="FIRST-LAST", help="only these layers, counted from 0")
    group.add_argument("--dropout", type=float, metavar="X", default=0.0, help="part of A's inputs set to zero")
    group = train.add_argument_group("training")
    group.add_argument("--epochs", type=int, metavar="N", default=3, help="passes over the examples (default: 3)")
    group.add_argument("--max-steps", type=int, metavar="N", help="most updates")
    group.add_argument("--batch-size", type=int, metavar="N", default=8, help="examples of an update (default: 8)")
    group.add_argument("--learning-rate", type=float, metavar="X", default=2e-4, help="(default: 0.0002)")
    group.add_argument("--optimizer", default="adamw", metavar="NAME", help="adamw, adam, sgd, sgd_momentum or rmsprop")
    group.add_argument("--weight-decay", type=float, metavar="X", default=0.0, help="(default: 0)")
    group.add_argument("--schedule", default="linear", metavar="NAME", help="linear, cosine or constant")
    group.add_argument("--warmup", type=float, metavar="X", default=0.05, help="part of the updates (default: 0.05)")
    group.add_argument("--b-rate-ratio", type=float, metavar="X", default=1.0, help="B's rate by A's (LoRA+)")
    group.add_argument("--gradient-clip", type=float, metavar="X", default=1.0, help="longest gradient; 0 clips none")
    group.add_argument("--noise", type=float, metavar="X", default=0.0, help="alpha of NEFTune's noise (default: 0)")
    group.add_argument("--patience", type=int, metavar="N", help="end after so many rounds without a better loss")
    group.add_argument("--eval-interval", type=int, metavar="N", help="updates of a round (default: an epoch)")
    group.add_argument("--checkpoint-interval", type=int, metavar="N", help="updates between checkpoints")
    group.add_argument("--seed", type=int, metavar="N", default=42, help="of all draws (default: 42)")
    _add_sizes(train)
    train.add_argument("--dry-run", action="store_true", help="read model and examples, say what would be done")
    _add_json(train)
    return train


def _add_eval(actions: Actions[ConfiguredParser]) -> ConfiguredParser:
    measure = _add(actions, "eval", "measure an adapter", "Measure loss and accuracy of an adapter.", "lora_training")
    measure.add_argument("data", metavar="DATA", help="a .jsonl file of examples")
    _add_model(measure)
    measure.add_argument("--adapter", required=True, metavar="PATH", help="its folder, or a GGUF file")
    measure.add_argument("--batch-size", type=int, metavar="N", default=8, help="examples compared with each other")
    _add_sizes(measure)
    _add_json(measure)
    return measure


def _add_merge(actions: Actions[ConfiguredParser]) -> None:
    from lattice_inference.cli.merge_adapter_command import add_arguments, run

    merge = actions.add_parser(
        "merge",
        help="write a model with an adapter in its weights",
        description="Write a model with an adapter merged into its weights, as `lattice merge-adapter` does.",
    )
    add_arguments(merge)
    merge.set_defaults(run=run)


def _add_blend(actions: Actions[ConfiguredParser]) -> None:
    blend = _add(actions, "blend", "add up adapters", "Write the weighted sum of adapters as one.", "lora_files")
    blend.add_argument(
        "adapters", nargs="+", metavar="ADAPTER[:WEIGHT]", help="folders or GGUF files; weight 1 by default"
    )
    blend.add_argument("--output", required=True, metavar="FOLDER", help="the folder to write")
    blend.add_argument("--overwrite", action="store_true", help="replace FOLDER if it holds an adapter")
    _add_json(blend)


def _add_convert(actions: Actions[ConfiguredParser]) -> None:
    convert = _add(actions, "convert", "write an adapter in another format", "Write an adapter anew.", "lora_files")
    convert.add_argument("adapter", metavar="ADAPTER", help="a folder of PEFT's or mlx-lm's, or a GGUF file")
    convert.add_argument("--to", required=True, choices=("peft", "mlx", "gguf"), help="the format")
    convert.add_argument("--output", required=True, metavar="PATH", help="the folder, or the .gguf file")
    convert.add_argument("--base", metavar="PATH|NAME", help="the model; needed where a GGUF file is read or written")
    convert.add_argument("--overwrite", action="store_true", help="replace PATH if it is an adapter")
    _add_json(convert)


def _add(actions: Actions[ConfiguredParser], name: str, short: str, description: str, module: str) -> ConfiguredParser:
    parser = actions.add_parser(name, help=short, description=description)
    parser.set_defaults(run=_later(module, name))
    return parser


def _later(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        status: int = getattr(importlib.import_module(f"lattice_tune.cli.{module}"), f"run_{name}")(options)
        return status

    return run


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="PATH|NAME", help="a directory, a GGUF file or a name")
    parser.add_argument("--objective", choices=OBJECTIVES, default="tokens", help="what is learned (default: tokens)")
    parser.add_argument("--prompt", metavar="TEXT", default="", help="put before every text of an encoder")
    parser.add_argument("--pooling", choices=("cls", "mean", "last"), help="of an encoder whose files state none")


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("time and memory")
    group.add_argument("--max-tokens", type=int, metavar="N", default=1024, help="longest example (default: 1024)")
    group.add_argument(
        "--micro-batch-tokens", type=int, metavar="N", default=2048, help="computed at a time (default: 2048)"
    )
    group.add_argument("--keep", choices=("all", "products", "layers"), default="products", help="layers: least memory")
    group.add_argument("--activations", choices=("float32", "bfloat16"), default="float32", help="what is multiplied")
    group.add_argument("--threads", type=int, metavar="N", help="most threads (default: all)")


def _add_json(parser: argparse.ArgumentParser) -> None:
    from lattice_tune.cli.options import add_json

    add_json(parser)
