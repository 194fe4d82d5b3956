"""What may be written on the command line, and its help."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable

from lattice_fann._version import __version__
from lattice_fann.cli.completion import add_completion
from lattice_fann.errors import UnsupportedError

__all__ = ["build_parser"]

MAX_THREADS = 256
"""The most threads that the process's pool may have; the kernels check it too."""

_MAIN_EXAMPLES = """\
examples:
  lattice-fann train iris.csv --target species --output iris.fann
  lattice-fann predict iris.fann new.csv
  lattice-fann info iris.fann
  lattice-fann bench
"""

_TRAIN_EXAMPLES = """\
examples:
  lattice-fann train iris.csv --target species --output iris.fann
  lattice-fann train houses.csv --target price --hidden 64,32 --activation silu --epochs 500 --output houses.fann
  lattice-fann train digits.npz --target y --inputs x --validation 0.2 --patience 20 --output digits.fann
  lattice-fann train data.csv --target label --plot loss.png --json
  lattice-fann train people.csv --target income --drop name --text postcode --output people.fann

A .csv file has a header line; every column but the target is an input. A column without any number holds texts: each of
its values becomes an input, 1 where the cell is that value (one-hot), and the summary says which. A .npz file holds the
inputs, one row a sample, and the target as arrays. Texts, and integers of at most 100 different values, are classes;
other targets are numbers to predict; --task says otherwise. Inputs are scaled to mean 0 and deviation 1 unless
--no-scaling; the network keeps the scaling, the names of the columns and the labels.
"""

_PREDICT_EXAMPLES = """\
examples:
  lattice-fann predict iris.fann new.csv
  lattice-fann predict iris.fann new.csv --probabilities --output predicted.csv
  lattice-fann predict iris.fann new.csv --json | jq '.predictions[0]'
  cat new.csv | lattice-fann predict iris.fann -

Columns of a .csv file are found by the names that the network was trained with; other columns are not read. Without a
header of those names, columns are taken in order and must be as many as the network's inputs.
"""

_BENCH_EXAMPLES = """\
examples:
  lattice-fann bench
  lattice-fann bench iris.fann --batch 256 --json
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="lattice-fann",
        description="Train and run tiny neural networks.",
        epilog=_MAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lattice-fann {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_train(commands)
    _add_predict(commands)
    info = _command(commands, "info", "show what a network file holds", None)
    info.add_argument("model", metavar="MODEL", help="a network file of any format that is read")
    info.add_argument("--json", action="store_true", help="print one JSON object")
    _add_bench(commands)
    add_completion(commands, parser, "lattice-fann[completion]", UnsupportedError)
    return parser


def _add_train(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    train = _command(commands, "train", "train a network on a table", _TRAIN_EXAMPLES)
    train.add_argument("data", metavar="DATA", help="a .csv or .npz file")
    train.add_argument("--target", required=True, metavar="NAME", help="the column or array to predict")
    train.add_argument(
        "--inputs", metavar="NAME", help="the array of inputs in a .npz file (default: the only other one)"
    )
    train.add_argument(
        "--drop", action="append", default=[], metavar="NAME", help="leave a column out; may be repeated"
    )
    train.add_argument(
        "--text", action="append", default=[], metavar="NAME", help="read a column of numbers as texts; may be repeated"
    )
    train.add_argument("--task", choices=["auto", "classify", "regress"], default="auto", help="default: by the target")
    train.add_argument(
        "--output",
        metavar="FILE",
        help="where to write the network (.fann, .safetensors, .net); an old file is replaced",
    )
    train.add_argument(
        "--weights", choices=["float32", "float16", "int8"], default="float32", help="how FILE stores weights"
    )
    train.add_argument("--hidden", default="64", metavar="N,N,...", help="hidden layers (default 64; empty for none)")
    train.add_argument("--activation", default="relu", metavar="NAME", help="of the hidden layers (default relu)")
    train.add_argument(
        "--optimizer",
        choices=["adam", "adamw", "sgd", "nesterov", "rmsprop", "rprop"],
        default="adam",
        help="default adam",
    )
    train.add_argument("--learning-rate", type=float, default=1e-3, metavar="F", help="default 0.001")
    train.add_argument("--schedule", choices=["constant", "cosine", "linear"], default="constant", help="of the rate")
    train.add_argument("--weight-decay", type=float, default=1e-4, metavar="F", help="default 0.0001")
    train.add_argument("--epochs", type=int, default=200, metavar="N", help="most passes over the data (default 200)")
    train.add_argument("--batch-size", type=int, default=64, metavar="N", help="default 64")
    train.add_argument(
        "--validation", type=float, default=0.1, metavar="F", help="part kept out (default 0.1; 0 for none)"
    )
    train.add_argument(
        "--patience", type=int, default=20, metavar="N", help="stop after N epochs without gain (default 20)"
    )
    train.add_argument("--balanced", action="store_true", help="make all classes count alike")
    train.add_argument("--no-scaling", action="store_true", help="leave the inputs as they are")
    train.add_argument("--seed", type=int, default=0, metavar="N", help="default 0")
    train.add_argument(
        "--threads", type=_thread_count, metavar="N", help="1 to 256; default: the processors of this process"
    )
    train.add_argument("--plot", metavar="FILE.png", help="draw the loss; needs the extra lattice-fann[plot]")
    train.add_argument("--json", action="store_true", help="print one JSON object instead of a summary")


def _add_predict(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    predict = _command(commands, "predict", "run a network on a table", _PREDICT_EXAMPLES)
    predict.add_argument("model", metavar="MODEL", help="a network file")
    predict.add_argument("data", metavar="DATA", help="a .csv or .npz file, or - for CSV on standard input")
    predict.add_argument("--inputs", metavar="NAME", help="the array of inputs in a .npz file (default: the only one)")
    predict.add_argument("--probabilities", action="store_true", help="print every output, not only the answer")
    predict.add_argument(
        "--output", metavar="FILE.csv", help="write there instead of to standard output; an old file is replaced"
    )
    predict.add_argument(
        "--threads", type=_thread_count, metavar="N", help="1 to 256; default: the processors of this process"
    )
    predict.add_argument("--json", action="store_true", help="print one JSON object")


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = _command(commands, "bench", "measure how fast a network runs here", _BENCH_EXAMPLES)
    bench.add_argument("model", metavar="MODEL", nargs="?", help="a network file (default: 784-128-64-10)")
    bench.add_argument("--batch", type=int, default=64, metavar="N", help="rows of the batch (default 64)")
    bench.add_argument(
        "--seconds", type=float, default=0.5, metavar="F", help="time for each measurement (default 0.5)"
    )
    bench.add_argument(
        "--threads", type=_thread_count, metavar="N", help="1 to 256; default: the processors of this process"
    )
    bench.add_argument("--json", action="store_true", help="print one JSON object")


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, purpose: str, examples: str | None
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=purpose,
        description=f"{purpose[0].upper()}{purpose[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_runner(f"lattice_fann.cli.{name}_command"))
    return parser


def _runner(module: str) -> Callable[[argparse.Namespace], int]:
    """The command's function, imported when it runs: --help needs no NumPy."""

    def run(options: argparse.Namespace) -> int:
        if getattr(options, "threads", None) is not None:
            from lattice_fann._engine import set_num_threads

            set_num_threads(options.threads)
        status: int = importlib.import_module(module).run(options)
        return status

    return run


def _thread_count(text: str) -> int:
    """Return the number of threads in ``text``; the parser reports an invalid one."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if not 1 <= count <= MAX_THREADS:
        given = text if len(text) <= 80 else f"{text[:77]}..."
        raise argparse.ArgumentTypeError(
            f"the number of threads is {given!r}; it must be an integer from 1 to {MAX_THREADS}"
        )
    return count
