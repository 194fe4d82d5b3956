"""Parser of ``lattice-tune registry``; the work is done by :mod:`registry_actions`."""

from __future__ import annotations

import argparse

__all__ = ["add_commands"]

DEFAULT_FOLDER = "lattice-registry"

_EXAMPLES = """\
examples:
  lattice-tune registry register intent 1.0.0 student.safetensors --kind student --metric macro_f1=0.91
  lattice-tune registry list
  lattice-tune registry show intent champion
  lattice-tune registry promote intent 1.0.0 --to validated
  lattice-tune registry promote intent 1.0.0 --to staged
  lattice-tune registry promote intent 1.0.0 --min-metric macro_f1=0.9
  lattice-tune registry rollback intent --reason "accuracy fell after the release"
  lattice-tune registry lineage intent 1.0.0 --dot | dot -Tsvg > lineage.svg
  lattice-tune registry export intent 1.0.0 intent-1.0.0.zip
  lattice-tune registry import intent-1.0.0.zip --registry other-registry
  lattice-tune registry verify && lattice-tune registry gc

A registry is a folder: --registry, by default ./lattice-registry. Versions follow SemVer 2.0.0. A version may be given by an
alias; `champion` is the version in production. Statuses: pending -> validated -> staged -> production -> archived or
deprecated.
"""

Actions = argparse._SubParsersAction


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``registry`` with its actions."""
    command = commands.add_parser(
        "registry",
        help="keep versions of models: store, promote, roll back, check",
        description="Keep versions of models with their files, statuses, lineage and history.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    _add_looking(actions)
    _add_changing(actions)
    _add_moving(actions)


def _add_looking(actions: Actions[argparse.ArgumentParser]) -> None:
    listing = _add(
        actions,
        "list",
        "list versions",
        "List all versions, or those of one model.",
        "registry list\n  lattice-tune registry list intent --status archived\n"
        "  lattice-tune registry list --tag nightly --min-accuracy 0.9 --json",
    )
    listing.add_argument("name", nargs="?", metavar="NAME", help="of the model (default: all)")
    listing.add_argument("--status", metavar="STATUS", help="only versions with this status")
    listing.add_argument("--kind", metavar="KIND", help="only student, adapter, merged or other")
    listing.add_argument("--tag", action="append", default=[], metavar="TAG", help="only versions with this tag")
    listing.add_argument("--min-accuracy", type=float, metavar="F", help="only with at least this validation accuracy")
    listing.add_argument("--limit", type=int, metavar="N", help="at most so many")

    show = _add(
        actions,
        "show",
        "say all about a version",
        "Say all about a version: by default the latest that is no pre-release.",
        "registry show intent\n  lattice-tune registry show intent champion --events\n"
        "  lattice-tune registry show intent 1.0.0 --json | jq .metadata.metrics",
    )
    show.add_argument("name", metavar="NAME", help="of the model")
    show.add_argument("version", nargs="?", metavar="VERSION", help="or an alias (default: the latest)")
    show.add_argument("--events", action="store_true", help="also what happened to it")

    verify = _add(
        actions,
        "verify",
        "check the whole registry",
        "Check the database, replay every event, and compare every file with its SHA-256. Exit status 1 if anything is "
        "wrong.",
        "registry verify\n  lattice-tune registry verify --quick --json",
    )
    verify.add_argument("--quick", action="store_true", help="look at the sizes of files only")

    lineage = _add(
        actions,
        "lineage",
        "say what a version comes from, and what comes from it",
        "Say what a version comes from, and what comes from it.",
        "registry lineage intent 1.1.0\n  lattice-tune registry lineage intent 1.1.0 --dot | dot -Tsvg > lineage.svg",
    )
    _add_version(lineage)
    lineage.add_argument("--dot", action="store_true", help="print a graph for Graphviz")


def _add_changing(actions: Actions[argparse.ArgumentParser]) -> None:
    register = _add(
        actions,
        "register",
        "store a version",
        "Store a file or a folder as a version of a model; its status is pending.",
        "registry register intent 1.0.0 student.safetensors --kind student\n"
        "  lattice-tune registry register intent 1.1.0 out/ --parent intent@1.0.0 --teacher claude --metric macro_f1=0.93\n"
        "  lattice-tune registry register style 0.1.0 style.safetensors --kind adapter --manifest adapters.json "
        "--adapter style",
    )
    register.add_argument("name", metavar="NAME", help="of the model")
    register.add_argument("version", metavar="VERSION", help="by SemVer 2.0.0, such as 1.0.0 or 2.0.0-rc.1")
    register.add_argument("source", metavar="SOURCE", help="a file or a folder")
    register.add_argument("--kind", default="other", metavar="KIND", help="student, adapter, merged or other")
    register.add_argument("--metric", action="append", default=[], metavar="NAME=F", help="a measure; may be repeated")
    register.add_argument("--validation-accuracy", type=float, metavar="F", help="from 0 to 1")
    register.add_argument("--test-accuracy", type=float, metavar="F", help="from 0 to 1")
    register.add_argument("--tag", action="append", default=[], metavar="TAG", help="may be repeated")
    register.add_argument(
        "--parent", action="append", default=[], metavar="NAME@VERSION", help="a version that it comes from"
    )
    register.add_argument("--dataset-digest", metavar="TEXT", help="of the data that it learned from")
    register.add_argument("--teacher", metavar="TEXT", help="what labelled the data")
    register.add_argument("--base-model", metavar="TEXT", help="what was trained further, or makes the vectors")
    register.add_argument("--code", action="append", default=[], metavar="NAME=VERSION", help="a version of code")
    register.add_argument("--description", default="", metavar="TEXT", help="for people")
    register.add_argument("--manifest", metavar="FILE", help="a manifest of adapters that governs SOURCE")
    register.add_argument("--adapter", metavar="ID", help="which adapter of the manifest SOURCE is")
    _add_actor(register)

    promote = _add(
        actions,
        "promote",
        "move a version towards production",
        "Give a version another status. Into production go staged versions whose files are verified and that every gate "
        "lets pass; the version that was there is archived in the same step.",
        "registry promote intent 1.0.0 --to validated\n  lattice-tune registry promote intent 1.0.0 --to staged\n"
        "  lattice-tune registry promote intent 1.0.0 --min-metric macro_f1=0.9 --require-shadow",
    )
    _add_version(promote)
    promote.add_argument("--to", default="production", metavar="STATUS", help="(default: production)")
    promote.add_argument("--min-metric", action="append", default=[], metavar="NAME=F", help="refuse a lower measure")
    promote.add_argument("--max-metric", action="append", default=[], metavar="NAME=F", help="refuse a higher measure")
    promote.add_argument(
        "--not-worse", action="append", default=[], metavar="NAME", help="refuse a measure below the live version's"
    )
    promote.add_argument("--require-shadow", action="store_true", help="refuse without a shadow session that passed")
    _add_reason(promote)

    rollback = _add(
        actions,
        "rollback",
        "put the version before into production again",
        "Put an archived version into production again and deprecate the one that is there, in one step.",
        'registry rollback intent --reason "accuracy fell"\n'
        '  lattice-tune registry rollback intent --to 1.0.0 --reason "1.2.0 and 1.1.0 are both too slow"',
    )
    rollback.add_argument("name", metavar="NAME", help="of the model")
    rollback.add_argument("--to", metavar="VERSION", help="(default: the one that was live before)")
    _add_reason(rollback, required=True)

    delete = _add(
        actions,
        "delete",
        "remove a version",
        "Remove a version that is not in production, has no children and no aliases. Its events stay; gc removes its files.",
        'registry delete intent 0.9.0 --reason "trained on the wrong data"',
    )
    _add_version(delete)
    _add_reason(delete)

    gc = _add(
        actions,
        "gc",
        "remove files that no version names",
        "Remove files that no version and no running writer names.",
        "registry gc --dry-run\n  lattice-tune registry gc --grace-hours 1",
    )
    gc.add_argument("--grace-hours", type=float, default=24.0, metavar="F", help="younger files stay (default: 24)")
    gc.add_argument("--dry-run", action="store_true", help="only count")
    _add_actor(gc)


def _add_moving(actions: Actions[argparse.ArgumentParser]) -> None:
    export = _add(
        actions,
        "export",
        "write a version into one file",
        "Write a version with its files into one file.",
        "registry export intent 1.0.0 intent-1.0.0.zip",
    )
    _add_version(export)
    export.add_argument("file", metavar="FILE", help="where it goes")

    load = _add(
        actions,
        "import",
        "store an exported version",
        "Store the version of an exported file; its status is pending.",
        "registry import intent-1.0.0.zip\n  lattice-tune registry import intent-1.1.0.zip --detach",
    )
    load.add_argument("file", metavar="FILE", help="what export wrote")
    load.add_argument("--detach", action="store_true", help="leave out parents that are not here")
    _add_actor(load)


def _add(
    actions: Actions[argparse.ArgumentParser], name: str, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    action = actions.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"examples:\n  lattice-tune {examples}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    action.add_argument(
        "--registry", default=DEFAULT_FOLDER, metavar="FOLDER", help=f"the registry (default: {DEFAULT_FOLDER})"
    )
    action.add_argument("--json", action="store_true", help="print one JSON object")
    action.set_defaults(run=_run)
    return action


def _add_version(action: argparse.ArgumentParser) -> None:
    action.add_argument("name", metavar="NAME", help="of the model")
    action.add_argument("version", metavar="VERSION", help="or an alias, such as champion")


def _add_actor(action: argparse.ArgumentParser) -> None:
    action.add_argument("--by", default="", metavar="WHO", help="noted in the event")


def _add_reason(action: argparse.ArgumentParser, *, required: bool = False) -> None:
    action.add_argument("--reason", default="", required=required, metavar="TEXT", help="noted in the event")
    _add_actor(action)


def _run(options: argparse.Namespace) -> int:
    from lattice_tune.cli.registry_actions import run

    return run(options)
