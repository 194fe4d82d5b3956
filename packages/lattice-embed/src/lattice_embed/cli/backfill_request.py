"""The options of ``lattice-embed backfill``.

Options without effect on the chosen action are refused.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lattice_embed.errors import InvalidInputError
from lattice_embed.migration import BackfillConfig, MigrationPlan
from lattice_embed.model_source import resolve_model
from lattice_embed.stores import Chunking

__all__ = ["check_action_options", "check_begun", "check_plan", "new_chunking", "new_config"]

WORK_OPTIONS: dict[str, object] = {
    "threads": None,
    "precision": "float32",
    "long": None,
    "chunk_tokens": None,
    "chunk_overlap": None,
    "batch_size": None,
    "concurrent": None,
    "rollback_window": None,
}
"""Options that count where documents are embedded, and their defaults."""

CONFIG_OPTIONS = {
    "batch_size": "batch_size",
    "concurrent": "max_concurrent",
    "rollback_window": "rollback_window_secs",
}
"""Options and the fields of :class:`BackfillConfig` that they set."""


def check_action_options(options: argparse.Namespace) -> None:
    """Refuse options that the action does not look at.

    Raises:
        InvalidInputError: there is one.
    """
    if options.reason is not None and options.action != "pause":
        raise InvalidInputError("--reason goes with pause only")
    if options.dry_run and options.action != "run":
        raise InvalidInputError("--dry-run goes with run only")
    if options.if_drift is not None and options.action != "run":
        raise InvalidInputError("--if-drift goes with run only")
    if options.dry_run and options.skipped:
        raise InvalidInputError("--skipped does not go with --dry-run, which skips nothing yet")
    if options.action not in ("run", "resume"):
        for name, default in WORK_OPTIONS.items():
            if getattr(options, name) != default:
                raise InvalidInputError(f"--{_written(name)} goes with run and resume, not with {options.action}")


def check_plan(options: argparse.Namespace, journal: Path, plan: MigrationPlan) -> None:
    """Refuse stores and a model that are not those of a migration that was begun.

    Raises:
        InvalidInputError: one is another.
    """
    for name, given, planned in (
        ("from-store", options.from_store, plan.source_path),
        ("to-store", options.to_store, plan.target_path),
    ):
        if given is not None and planned and not _is_one_place(given, planned):
            raise InvalidInputError(f"{journal} migrates {planned}, not --{name} {given}: name another --journal")
    if options.model is not None and resolve_model(options.model).location != plan.target.location:
        raise InvalidInputError(
            f"{journal} migrates to {plan.target_model}, not to {options.model}: name another --to-store"
        )
    if options.output_dim not in (None, plan.target.dimensions):
        raise InvalidInputError(
            f"{journal} migrates to {plan.target.dimensions} dimensions, not to --output-dim {options.output_dim}: name "
            "another --to-store"
        )


def check_begun(options: argparse.Namespace, journal: Path, plan: MigrationPlan, config: BackfillConfig) -> None:
    """Refuse settings that differ from the settings at the migration's start.

    They would have no effect.

    Raises:
        InvalidInputError: one differs.
    """
    for name, field in CONFIG_OPTIONS.items():
        given, planned = getattr(options, name), getattr(config, field)
        if given is not None and given != planned:
            raise InvalidInputError(f"{journal} was begun with --{_written(name)} {planned}, not {given}: leave it out")
    chunked = plan.target.chunking
    if options.long is not None and (options.long == "chunk") != (chunked is not None):
        begun = "with" if chunked is not None else "without"
        raise InvalidInputError(
            f"{journal} was begun {begun} --long chunk, not with --long {options.long}: leave it out"
        )
    for name, planned in (
        ("chunk_tokens", None if chunked is None else chunked.tokens),
        ("chunk_overlap", None if chunked is None else chunked.overlap),
    ):
        if getattr(options, name) not in (None, planned):
            raise InvalidInputError(
                f"{journal} was begun with {planned} for --{_written(name)}, not {getattr(options, name)}: leave it out"
            )


def new_config(options: argparse.Namespace) -> BackfillConfig:
    """Return how a new migration works.

    Raises:
        InvalidInputError: a number is out of range.
    """
    given = {field: getattr(options, name) for name, field in CONFIG_OPTIONS.items()}
    return BackfillConfig(**{field: value for field, value in given.items() if value is not None})


def new_chunking(options: argparse.Namespace) -> Chunking | None:
    """Return how a new migration cuts long documents.

    Raises:
        InvalidInputError: options of chunks without ``--long chunk``, or numbers that do not go together.
    """
    if options.long == "chunk":
        if options.chunk_overlap is None:
            return Chunking(options.chunk_tokens)
        return Chunking(options.chunk_tokens, options.chunk_overlap)
    for name in ("chunk_tokens", "chunk_overlap"):
        if getattr(options, name) is not None:
            raise InvalidInputError(f"--{_written(name)} goes with --long chunk only")
    return None


def _is_one_place(given: str, planned: str) -> bool:
    return os.path.abspath(given) == planned or os.path.realpath(given) == os.path.realpath(planned)


def _written(name: str) -> str:
    return name.replace("_", "-")
