"""``lattice-embed backfill``: embed a store's documents again with another model.

The vectors go into another store.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lattice_embed.cli.backfill_request import (
    check_action_options,
    check_begun,
    check_plan,
    new_chunking,
    new_config,
)
from lattice_embed.cli.progress import progress_bar
from lattice_embed.cli.store_command import open_service
from lattice_embed.errors import InvalidInputError
from lattice_embed.migration import (
    BackfillCoordinator,
    BackfillProgress,
    DriftVerdict,
    MigrationController,
    read_verdict,
)
from lattice_embed.migration.migration_journal import LATEST
from lattice_embed.migration.states import MigrationState
from lattice_embed.model_source import default_model, resolve_model
from lattice_embed.native_service import NativeEmbeddingService
from lattice_embed.output_files import check_store_place
from lattice_embed.stores import DocumentEmbedder, VectorSpace, VectorStore, create_store, open_store
from lattice_embed.stores.opening import SQLITE_SUFFIXES

__all__ = ["run"]

JOURNAL_SUFFIX = ".migration"
SAMPLE = 64
"""Documents that a dry run embeds to find out how long the rest would take."""


def run(options: argparse.Namespace) -> int:
    """Do what the action says."""
    check_action_options(options)
    verdict = None if options.if_drift is None else read_verdict(options.if_drift)
    journal = _journal_path(options)
    if verdict is not None:
        _check_verdict(verdict, options, journal)
        if not verdict.wants_backfill:
            return _print_verdict(verdict, options)
    if options.action in ("run", "resume"):
        return _run(options, journal)
    with MigrationController(journal) as controller:
        check_plan(options, journal, controller.plan)
        if options.action == "pause":
            controller.pause(options.reason or "")
        elif options.action == "cancel":
            controller.cancel()
        elif options.action == "rollback":
            controller.rollback()
        elif options.action == "close-window":
            controller.close_rollback_window()
        _print(controller.progress(), controller, journal, options)
    return 0


def _run(options: argparse.Namespace, journal: Path) -> int:
    if options.dry_run:
        return _dry_run(options, journal)
    with ExitStack() as stack:
        coordinator = (_open if journal.exists() else _create)(options, journal, stack)
        if options.action == "resume":
            coordinator.resume()
        if coordinator.state is MigrationState.COMPLETED and coordinator.progress().rollback_until is None:
            _print(coordinator.progress(), coordinator, journal, options)
            return 0
        with progress_bar(coordinator.progress().pending) as bar:
            done = _settled(coordinator.progress())

            def show(progress: BackfillProgress) -> None:
                nonlocal done
                bar.update(_settled(progress) - done)
                done = _settled(progress)

            progress = coordinator.run(on_progress=show)
        _print(progress, coordinator, journal, options)
    return 0


def _check_verdict(verdict: DriftVerdict, options: argparse.Namespace, journal: Path) -> None:
    """Refuse a drift report that compared other vectors than those of the source store."""
    with ExitStack() as stack:
        if journal.exists():
            space = stack.enter_context(MigrationController(journal)).plan.source
        else:
            space = _open_source(options, stack).space
    verdict.check_source(space)


def _print_verdict(verdict: DriftVerdict, options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps({"started": False, "decision": verdict.decision, "reasons": list(verdict.reasons)}))
    else:
        print(f"the verdict is {verdict.decision}, not reindex: nothing is embedded again")
        for reason in verdict.reasons:
            print(f"  {reason}")
    return 0


def _settled(progress: BackfillProgress) -> int:
    return progress.processed + progress.skipped


def _create(options: argparse.Namespace, journal: Path, stack: ExitStack) -> BackfillCoordinator:
    if options.action == "resume":
        raise InvalidInputError(f"there is no migration to resume: no {journal}")
    source = _open_source(options, stack)
    config, chunking = new_config(options), new_chunking(options)
    path = _target_path(options)
    for place in (path, journal):
        check_store_place(place)
    existing = stack.enter_context(open_store(path)) if path.exists() else None
    service = stack.enter_context(open_service(options, None, _truncate(options)))
    space = VectorSpace.of(service, chunking=chunking)
    target = stack.enter_context(create_store(path, space)) if existing is None else existing
    if target.space != space:
        raise InvalidInputError(
            f"{path} holds vectors of {target.space.model or 'no model'} made in another way than asked for: name "
            "another --to-store"
        )
    return stack.enter_context(
        BackfillCoordinator.create(journal, source=source, target=target, target_service=service, config=config)
    )


def _open(options: argparse.Namespace, journal: Path, stack: ExitStack) -> BackfillCoordinator:
    """Open a migration that was begun; its stores are those of its plan."""
    with MigrationController(journal) as controller:
        plan = controller.plan
        check_plan(options, journal, plan)
        check_begun(options, journal, plan, controller.config)
    for place in (Path(plan.target_path), journal):
        check_store_place(place)
    return stack.enter_context(
        BackfillCoordinator(
            journal,
            source=stack.enter_context(open_store(plan.source_path)),
            target=stack.enter_context(open_store(plan.target_path)),
            target_service=stack.enter_context(open_service(options, plan.target, _truncate(options))),
        )
    )


def _dry_run(options: argparse.Namespace, journal: Path) -> int:
    with ExitStack() as stack:
        source = _open_source(options, stack)
        new_config(options)  # a number that the migration would refuse is refused now
        service = stack.enter_context(open_service(options, None, _truncate(options)))
        space = VectorSpace.of(service, chunking=new_chunking(options))
        report = {
            "source": options.from_store,
            "target": str(_target_path(options)),
            "journal": str(journal),
            "begun": journal.exists(),
            "source_model": source.space.model,
            "target_model": space.model,
            "dimensions": space.dimensions,
            "chunking": space.to_fields()["chunking"],
            "documents": len(source),
            **_sample(source, service, space),
        }
    if options.json:
        print(json.dumps(report))
        return 0
    for name, value in report.items():
        print(f"{name:<24} {'-' if value is None or value == '' else value}")
    return 0


def _sample(source: VectorStore, service: NativeEmbeddingService, space: VectorSpace) -> dict[str, Any]:
    """Embed some documents, and say what that means for all of them."""
    documents = [one for one in source.get([version.id for version in source.scan(limit=SAMPLE)]) if one is not None]
    if not documents:
        return {"sampled": 0, "sample_truncated": 0, "sample_skipped": 0, "vectors_bytes": 0, "eta_seconds": 0.0}
    start = time.perf_counter()
    embedded = DocumentEmbedder(service, space).embed([(document.id, document.text) for document in documents])
    share = len(source) / len(documents)
    return {
        "sampled": len(documents),
        "sample_truncated": sum(document.truncated for document in embedded),
        "sample_skipped": sum(bool(document.reason) for document in embedded),
        "vectors_bytes": round(share * sum(document.vectors.nbytes for document in embedded)),
        "eta_seconds": round(share * (time.perf_counter() - start), 3),
    }


def _print(
    progress: BackfillProgress, controller: MigrationController, journal: Path, options: argparse.Namespace
) -> None:
    plan = controller.plan
    places = {"source": plan.source_path, "target": plan.target_path, "journal": str(journal)}
    if options.json:
        report = {**progress.to_fields(), **places}
        if options.skipped:
            report["skipped_documents"] = [
                {"id": document_id, "kind": reason.kind.value, "detail": reason.detail}
                for document_id, reason in controller.skipped()
            ]
        print(json.dumps(report))
        return
    print(f"{progress.state.value}: {plan.source_model or 'texts'} -> {plan.target_model}, {places['target']}")
    cut = f", {progress.truncated} cut at the model's limit" if progress.truncated else ""
    print(
        f"{progress.processed} of {progress.effective_total} documents embedded, {progress.pending} pending, "
        f"{progress.skipped} skipped{cut}"
    )
    print(f"queries are answered by {progress.queries.value}, phase {progress.phase.value}")
    if progress.eta_seconds is not None and progress.throughput is not None:
        print(f"{progress.throughput:.1f} documents/s, {progress.eta_seconds:.0f} s to go")
    if progress.rollback_until is not None:
        until = datetime.fromtimestamp(min(progress.rollback_until, LATEST), UTC)
        print(f"rollback is possible until {until:%Y-%m-%d %H:%M:%S} UTC")
    if progress.reason:
        print(f"reason: {progress.reason}")
    if progress.errors:
        print(f"{progress.errors} errors, the last: {progress.last_error}")
    if options.skipped:
        for document_id, reason in controller.skipped():
            print(f"skipped {document_id}: {reason}")


def _open_source(options: argparse.Namespace, stack: ExitStack) -> VectorStore:
    if options.from_store is None:
        raise InvalidInputError("--from-store is missing: name the store whose documents are to be embedded")
    return stack.enter_context(open_store(options.from_store))


def _truncate(options: argparse.Namespace) -> str:
    return "error" if options.long == "skip" else "right"


def _journal_path(options: argparse.Namespace) -> Path:
    if options.journal is not None:
        return Path(options.journal)
    target = _named(_target_path(options))
    return target.with_name(target.name + JOURNAL_SUFFIX)


def _named(path: Path) -> Path:
    """Return a path that has a name, so that other files can lie beside it.

    A folder such as ``.`` is returned as an absolute path.

    Raises:
        InvalidInputError: it is the root.
    """
    if path.name in ("", ".."):
        path = Path(os.path.abspath(path))
    if not path.name:
        raise InvalidInputError(f"{path} is no place for a store: name a file or folder in it")
    return path


def _target_path(options: argparse.Namespace) -> Path:
    """Return ``--to-store``, or the source's path with the model's name before the suffix."""
    if options.to_store is not None:
        return Path(options.to_store)
    if options.from_store is None:
        raise InvalidInputError("which migration? name it by --to-store, --journal, or --from-store and --model")
    source = _named(Path(options.from_store))
    name = resolve_model(default_model() if options.model is None else options.model).name.replace("/", "--")
    if options.output_dim is not None:
        name += f"-{options.output_dim}"
    suffix = source.suffix if source.suffix.lower() in SQLITE_SUFFIXES else ""
    stem = source.name.removesuffix(suffix) if suffix else source.name
    return source.with_name(f"{stem}.{name}{suffix}")
