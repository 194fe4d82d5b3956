"""Search a folder of texts by meaning.

    python examples/search_folder.py notes "how do I get my money back?"

The vectors are kept beside the folder, in ``notes.db``. A later call embeds only new and changed files, and removes
deleted ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lattice_embed import NativeEmbeddingService
from lattice_embed.stores import Chunking, DocumentEmbedder, StoreOnDisk, VectorSpace, create_store, open_store

SUFFIXES = {".txt", ".md", ".rst"}
BATCH = 100  # documents that are stored at once


@dataclass(frozen=True)
class Passage:
    """A part of a file that answers a query: its score, the file's name and the text."""

    score: float
    name: str
    text: str


def texts_of(folder: Path) -> dict[str, str]:
    """Return the texts of the folder's files by their names below it."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8", errors="replace") for path in paths}


def ids_of(store: StoreOnDisk) -> Iterator[str]:
    """Yield the names of all documents of the store."""
    page = store.scan()
    while page:
        yield from (version.id for version in page)
        page = store.scan(after=page[-1].id)


def update(store: StoreOnDisk, service: NativeEmbeddingService, folder: Path) -> int:
    """Make the store hold what the folder holds; return how many files were embedded."""
    texts = texts_of(folder)
    store.delete([name for name in ids_of(store) if name not in texts])
    stored = store.get(list(texts))
    changed = [
        (name, text)
        for (name, text), document in zip(texts.items(), stored, strict=True)
        if document is None or document.text != text
    ]
    embedder = DocumentEmbedder(service, store.space)
    for start in range(0, len(changed), BATCH):
        store.put(embedder.embed(changed[start : start + BATCH]))
    return len(changed)


def search(store: StoreOnDisk, service: NativeEmbeddingService, query: str, top: int) -> list[Passage]:
    """Return the ``top`` passages nearest to the query, best first, at most one a file."""
    vector = DocumentEmbedder(service, store.space).embed_query(query)
    matches = store.query(vector, top, fingerprint=store.space.fingerprint)
    documents = store.get([match.id for match in matches])
    return [
        Passage(match.score, match.id, document.text[match.start : match.end].strip())
        for match, document in zip(matches, documents, strict=True)
        if document is not None
    ]


def open_folder(folder: Path, service: NativeEmbeddingService) -> StoreOnDisk:
    """Return the store of a folder, made if there is none."""
    path = folder.with_name(folder.name + ".db")
    if path.exists():
        return open_store(path)
    return create_store(path, VectorSpace.of(service, chunking=Chunking(tokens=100, overlap=20)))


def main() -> None:
    """Read the command line, update the store and print what was found."""
    parser = argparse.ArgumentParser(description="Search a folder of texts by meaning.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("query")
    parser.add_argument("--model", default="all-minilm-l6-v2")
    parser.add_argument("--top", type=int, default=3)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    with NativeEmbeddingService(arguments.model) as service, open_folder(folder, service) as store:
        print(f"{update(store, service, folder)} files embedded")
        for passage in search(store, service, arguments.query, arguments.top):
            print(f"{passage.score:.2f}  {passage.name}  {passage.text[:100]}")


if __name__ == "__main__":
    main()
