"""What may be written on the command line, and its help."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable

from lattice_transport._version import __version__
from lattice_transport.cli.completion import add_completion
from lattice_transport.errors import MissingDependencyError

__all__ = ["build_parser"]

MAX_THREADS = 256
"""The most threads that the process's pool may have; the kernels check it too."""

_MAIN_EXAMPLES = """\
examples:
  lattice-transport distance monday.npy tuesday.npy
  lattice-transport drift reference.npy current.npy --plot drift.png
  lattice-transport barycenter a.npy b.npy c.npy --points 100 --output mean.npy

Every input is a NumPy file of vectors, one a row.
"""

_DISTANCE_EXAMPLES = """\
examples:
  lattice-transport distance a.npy b.npy
  lattice-transport distance a.npy b.npy --method emd --metric euclidean
  lattice-transport distance a.npy b.npy --epsilon 0.1 --json | jq .divergence
  lattice-transport distance a.npy b.npy --method sliced --projections 500

methods:
  divergence  debiased Sinkhorn divergence: zero between equal sets (default)
  sinkhorn    entropic transport cost
  emd         exact transport cost, for up to a few thousand vectors
  sliced      mean of exact distances along random directions
  gaussian    distance between the Gaussians with the sets' means and covariances
"""

_DRIFT_EXAMPLES = """\
examples:
  lattice-transport drift reference.npy current.npy
  lattice-transport drift reference.npy current.npy --false-alarm-rate 0.01 --json > report.json
  lattice-transport drift reference.npy current.npy --plot drift.png --worst 20
  lattice-transport drift reference.npy current.npy --exit-code || start-reindexing

The p-value comes from permuting the pooled vectors: with no drift, drift is reported at the false-alarm rate.
The verdict is stable, watch (drift, but small) or reindex.
"""

_BARYCENTER_EXAMPLES = """\
examples:
  lattice-transport barycenter a.npy b.npy --points 50 --output mean.npy
  lattice-transport barycenter a.npy b.npy --lambdas 3,1 --points 50 --output mean.npy
  lattice-transport barycenter a.npy b.npy --support grid.npy --output weights.npy --debiased

With --points the result is that many vectors of equal weight; with --support it is a weight for each given vector.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; the chosen command is the parsed options' ``run``."""
    parser = argparse.ArgumentParser(
        prog="lattice-transport",
        description="Optimal transport between sets of vectors, and tests for drift.",
        epilog=_MAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lattice-transport {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    distance = _add_command(commands, "distance", "measure how far two sets of vectors are apart", _DISTANCE_EXAMPLES)
    distance.add_argument("source", metavar="A.npy", help="vectors, one a row")
    distance.add_argument("target", metavar="B.npy", help="vectors of the same length")
    distance.add_argument(
        "--method",
        choices=("divergence", "sinkhorn", "emd", "sliced", "gaussian"),
        default="divergence",
        help="what is computed, see below (default: divergence)",
    )
    _add_metric(distance)
    _add_epsilon(distance, "0.05 of the median cost")
    distance.add_argument("--max-iterations", type=int, default=2000, metavar="N", help="of a solve (default: 2000)")
    distance.add_argument(
        "--threshold", type=float, default=1e-5, metavar="F", help="marginal residual to stop at (default: 1e-5)"
    )
    distance.add_argument(
        "--projections", type=int, default=128, metavar="N", help="of the sliced distance (default: 128)"
    )
    distance.add_argument("--seed", type=_seed, default=0, metavar="N", help="of the projections (default: 0)")
    distance.add_argument("--plan", metavar="FILE.npy", help="write the transport plan (sinkhorn and emd)")
    _add_common(distance)

    drift = _add_command(
        commands, "drift", "test whether a set of vectors has drifted from a reference", _DRIFT_EXAMPLES
    )
    drift.add_argument("reference", metavar="REFERENCE.npy", help="vectors, one a row")
    drift.add_argument("current", metavar="CURRENT.npy", help="vectors of the same length")
    _add_metric(drift)
    _add_epsilon(drift, "half of the mean cost")
    drift.add_argument("--false-alarm-rate", type=float, default=0.05, metavar="F", help="(default: 0.05)")
    drift.add_argument("--permutations", type=int, default=199, metavar="N", help="(default: 199)")
    drift.add_argument(
        "--reindex-effect",
        type=float,
        default=0.5,
        metavar="F",
        help="shift, in units of the reference's spread, that calls for a new index (default: 0.5)",
    )
    drift.add_argument("--max-samples", type=int, default=1000, metavar="N", help="vectors a set (default: 1000)")
    drift.add_argument("--seed", type=_seed, default=0, metavar="N", help="of permutations and thinning (default: 0)")
    drift.add_argument("--reference-model", metavar="NAME", help="fingerprint of the reference's model")
    drift.add_argument("--current-model", metavar="NAME", help="fingerprint of the current vectors' model")
    drift.add_argument("--worst", type=int, default=5, metavar="N", help="items to list, dearest first (default: 5)")
    drift.add_argument("--plot", metavar="FILE.png", help="draw the test (.png, .svg or .pdf); needs the plot extra")
    drift.add_argument("--exit-code", action="store_true", help="exit with 1 when there is drift")
    _add_common(drift)

    mean = _add_command(
        commands, "barycenter", "find the mean of sets of vectors under transport", _BARYCENTER_EXAMPLES
    )
    mean.add_argument("measures", nargs="+", metavar="SET.npy", help="vectors, one a row")
    kind = mean.add_mutually_exclusive_group(required=True)
    kind.add_argument("--points", type=int, metavar="N", help="vectors of the barycentre, which move")
    kind.add_argument("--support", metavar="FILE.npy", help="vectors of the barycentre, which stay")
    mean.add_argument("--lambdas", metavar="F,F,...", help="importance of each set (default: equal)")
    mean.add_argument("--debiased", action="store_true", help="take off the entropic blur (with --support)")
    _add_metric(mean)
    _add_epsilon(mean, "0.05 of the median cost")
    mean.add_argument("--seed", type=_seed, default=0, metavar="N", help="of the vectors to start from (default: 0)")
    mean.add_argument("--output", required=True, metavar="FILE.npy", help="where the vectors or weights go")
    _add_common(mean)
    add_completion(commands, parser, "lattice-transport[completion]", MissingDependencyError)
    return parser


def _add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, examples: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=_lazily(name))
    return command


def _lazily(command: str) -> Callable[[argparse.Namespace], int]:
    """Return the command's function.

    Its module is imported at the call: --help needs none of it.
    """

    def run(options: argparse.Namespace) -> int:
        status: int = importlib.import_module(f"lattice_transport.cli.{command}_command").run(options)
        return status

    return run


def _seed(text: str) -> int:
    """Return the number that ``--seed`` gives."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative; a seed is an integer of at least 0")
    return value


def _add_metric(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--metric",
        choices=("sqeuclidean", "euclidean", "cosine"),
        default="sqeuclidean",
        help="cost between two vectors (default: sqeuclidean)",
    )


def _add_epsilon(command: argparse.ArgumentParser, default: str) -> None:
    command.add_argument(
        "--epsilon",
        type=float,
        metavar="F",
        help=f"strength of the entropic term, in units of the cost (default: {default})",
    )


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--threads",
        type=_thread_count,
        metavar="N",
        help="threads to compute with, 1 to 256 (default: all allowed CPUs)",
    )
    command.add_argument(
        "--json", action="store_true", help="print one JSON object, and nothing else, on standard output"
    )


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
