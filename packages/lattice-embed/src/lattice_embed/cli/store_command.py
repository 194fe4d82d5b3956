"""``lattice-embed store``: fill, look at and search a vector store."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from lattice_embed.cli.progress import progress_bar
from lattice_embed.cli.table_input import table_form
from lattice_embed.errors import InvalidInputError
from lattice_embed.model_source import resolve_model
from lattice_embed.native_service import NativeEmbeddingService
from lattice_embed.output_files import check_store_place
from lattice_embed.stores import (
    DocumentEmbedder,
    StoredDocument,
    StoreOnDisk,
    VectorSpace,
    VectorStore,
    create_store,
    open_store,
)
from lattice_embed.stores.document import DocumentState, digest_of_text
from lattice_inference.cli.text_input import read_lines

__all__ = ["open_service", "run"]

BATCH = 256
MOST_CHARACTERS = 1 << 24
"""Characters of a document; a service's own limit is for requests, and would refuse what the model's limit only cuts."""

SHOWN_TEXT = 72

EMBEDDING_OPTIONS: dict[str, object] = {
    "output_dim": None,
    "threads": None,
    "precision": "float32",
    "truncate": "right",
}
"""Options that count where texts are embedded, and their defaults."""


def run(options: argparse.Namespace) -> int:
    """Do what the action says."""
    if options.action == "import":
        return _import(options)
    with open_store(options.store) as store:
        return _info(store, options) if options.action == "info" else _query(store, options)


def open_service(options: argparse.Namespace, space: VectorSpace | None, truncate: str) -> NativeEmbeddingService:
    """Return the service of ``--model``, or of the store's model.

    Its vectors are as long as the store's space says.

    Raises:
        InvalidInputError: ``--output-dim`` is another length than the space has.
    """
    output_dim = getattr(options, "output_dim", None)
    model = options.model
    if space is not None and space.holds_vectors:
        if output_dim not in (None, space.dimensions):
            raise InvalidInputError(
                f"--output-dim {output_dim}: the vectors have {space.dimensions} dimensions, and only a new store may "
                "have others"
            )
        model = space.location if model is None else model
        member = resolve_model(model).model
        output_dim = space.dimensions if member is not None and member.supports_output_dim else None
    return NativeEmbeddingService(
        model,
        output_dim=output_dim,
        precision=options.precision,
        threads=options.threads,
        device=options.device,
        truncate="error" if truncate == "error" else "right",
        max_text_chars=MOST_CHARACTERS,
        special_tokens_in_text=not options.plain,
    )


def _import(options: argparse.Namespace) -> int:
    documents = _read_documents(options.input)
    check_store_place(Path(options.store))
    store = open_store(options.store) if Path(options.store).exists() else None
    unchanged = 0
    try:
        if store is not None and options.model is not None and not store.space.holds_vectors:
            raise InvalidInputError(
                f"{options.store} holds texts only: import without --model, and `lattice-embed backfill --model` embeds them"
            )
        if options.model is not None or (store is not None and store.space.holds_vectors):
            space = None if store is None else store.space
            unchanged = 0 if store is None else _leave_out_known(store, documents)
            if documents or options.model is not None or _embedding_options(options):
                with open_service(options, space, options.truncate) as service:
                    if store is None:
                        store = create_store(options.store, VectorSpace.of(service))
                    _put_all(store, documents, DocumentEmbedder(service, store.space))
        else:
            if given := _embedding_options(options):
                raise InvalidInputError(f"{given[0]} goes with --model: texts alone have no vectors")
            store = store if store is not None else create_store(options.store)
            unchanged = _leave_out_known(store, documents)
            _put_all(store, documents, None)
        report = {"store": options.store, "imported": len(documents), "documents": 0 if store is None else len(store)}
        if unchanged:
            report["unchanged"] = unchanged
    finally:
        if store is not None:
            store.close()
    if options.json:
        print(json.dumps(report))
    else:
        known = f", {unchanged} there already" if unchanged else ""
        print(f"{options.store}: {report['imported']} imported{known}, {report['documents']} documents")
    return 0


def _embedding_options(options: argparse.Namespace) -> list[str]:
    """Return the options given that count only where texts are embedded."""
    given = [name for name, default in EMBEDDING_OPTIONS.items() if getattr(options, name) != default]
    return [f"--{name.replace('_', '-')}" for name in given]


def _leave_out_known(store: VectorStore, documents: dict[str, str]) -> int:
    """Remove unchanged documents of the store from ``documents`` and return their count.

    A document with another text, without its vectors, or skipped, is imported again.
    """
    wanted = DocumentState.EMBEDDED if store.space.holds_vectors else DocumentState.PENDING
    ids = list(documents)
    known = 0
    for start in range(0, len(ids), BATCH):
        for version in store.versions(ids[start : start + BATCH]):
            if (
                version is not None
                and version.state is wanted
                and version.fingerprint == store.space.fingerprint
                and version.digest == digest_of_text(documents[version.id])
            ):
                del documents[version.id]
                known += 1
    return known


def _put_all(store: VectorStore, documents: dict[str, str], embedder: DocumentEmbedder | None) -> None:
    pairs = list(documents.items())
    with progress_bar(len(pairs)) as bar:
        for start in range(0, len(pairs), BATCH):
            batch = pairs[start : start + BATCH]
            if embedder is None:
                store.put([StoredDocument.pending(document_id, text) for document_id, text in batch])
            else:
                store.put(embedder.embed(batch))
            bar.update(len(batch))


def _read_documents(source: str) -> dict[str, str]:
    """Return texts by id; of two with one id the later holds.

    Raises:
        InvalidInputError: a table of cells, or a line of JSON that is no document.
    """
    form = table_form(source)
    if form in ("csv", "tsv"):
        raise InvalidInputError(
            f'{source} holds rows: a store takes lines of text, or a .jsonl file of objects with "id" and "text"'
        )
    lines = read_lines(source)
    if form is None:
        return {str(number): line for number, line in enumerate(lines, 1)}
    documents = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"{source}, line {number}: no JSON: {error}") from None
        if not isinstance(fields, dict) or not all(isinstance(fields.get(name), str) for name in ("id", "text")):
            raise InvalidInputError(f'{source}, line {number}: not an object with the strings "id" and "text"')
        documents[fields["id"]] = fields["text"]
    return documents


def _info(store: StoreOnDisk, options: argparse.Namespace) -> int:
    states: Counter[str] = Counter()
    after = ""
    while page := store.scan(after=after):
        states.update(version.state.value for version in page)
        after = page[-1].id
    space = store.space.to_fields()
    report: dict[str, Any] = {"store": options.store, **space, "documents": len(store), "states": dict(states)}
    if options.verify:
        report["verified"] = store.verify()
    if options.json:
        print(json.dumps(report))
        return 0
    for name, value in report.items():
        print(f"{name:<12} {_for_people(value)}")
    return 0


def _for_people(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{number} {name}" for name, number in value.items()) or "-"
    return "-" if value is None or value == "" else value


def _query(store: VectorStore, options: argparse.Namespace) -> int:
    if not store.space.holds_vectors:
        raise InvalidInputError(f"{options.store} holds texts only: `lattice-embed backfill` embeds them")
    if options.top < 1:
        raise InvalidInputError(f"--top is {options.top}; it must be at least 1")
    with open_service(options, store.space, options.truncate) as service:
        vector = DocumentEmbedder(service, store.space).embed_query(options.text)
    matches = store.query(vector, options.top, fingerprint=store.space.fingerprint)
    documents = store.get([match.id for match in matches])
    found = [
        {
            "id": match.id,
            "score": round(match.score, 6),
            "chunk": match.chunk,
            "start": match.start,
            "end": match.end,
            "text": "" if document is None else document.text[match.start : match.end],
        }
        for match, document in zip(matches, documents, strict=True)
    ]
    if options.json:
        report = {"model": store.space.model, "fingerprint": store.space.fingerprint, "matches": found}
        print(json.dumps(report))
        return 0
    for row in found:
        shown = " ".join(str(row["text"]).split())
        print(
            f"{row['score']:8.5f}  {row['id']}  {shown if len(shown) <= SHOWN_TEXT else shown[: SHOWN_TEXT - 3] + '...'}"
        )
    return 0
