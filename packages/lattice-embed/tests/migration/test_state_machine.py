"""Every invariant of a migration under any sequence of writes, steps, transitions, crashes and passing time."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lattice_embed import InvalidInputError, InvalidTransitionError, StoreError
from lattice_embed.migration import BackfillConfig, BackfillCoordinator, MigrationState, Side
from lattice_embed.stores import DocumentEmbedder, DocumentState, StoredDocument, VectorSpace, create_store, open_store
from lattice_embed.vectors import cosine_similarity

from .hash_service import HashService, vector_of

MEMORY = Path("/dev/shm")
WINDOW = 100.0
NAMES = {Side.SOURCE: "old", Side.TARGET: "new"}
IDS = st.sampled_from([f"d{number}" for number in range(12)])
TEXTS = st.sampled_from(["", "poison-new ", "poison-old ", "poison "])
ACTIONS = ["start", "pause", "resume", "fail", "cancel", "rollback", "close_rollback_window"]
OVER = {MigrationState.CANCELLED, MigrationState.ROLLED_BACK}
BEFORE_COMPLETION = {
    MigrationState.PLANNED,
    MigrationState.IN_PROGRESS,
    MigrationState.PAUSED,
    MigrationState.FAILED,
}


class CrashError(BaseException):
    """The process dies here: nothing after this point happens, and whoever comes next opens the files again."""


class Fuse:
    """Counts down at every store operation and embedding; at 0 it burns."""

    def __init__(self) -> None:
        self.left = 0

    def touch(self) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                raise CrashError


class FragileStore:
    """A store that may crash before and after each write."""

    def __init__(self, store: Any, fuse: Fuse) -> None:
        self.store = store
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def __len__(self) -> int:
        return len(self.store)

    def put(self, documents: Sequence[Any]) -> None:
        self._fuse.touch()
        self.store.put(documents)
        self._fuse.touch()

    def delete(self, ids: Sequence[str]) -> int:
        self._fuse.touch()
        count: int = self.store.delete(ids)
        self._fuse.touch()
        return count


class Migration(RuleBasedStateMachine):
    """``allowed`` holds what a document's text may be: one text, or several after a write that crashed."""

    @initialize(
        count=st.integers(0, 12),
        folders=st.tuples(st.booleans(), st.booleans()),
        batch_size=st.integers(1, 5),
        dual_write=st.booleans(),
        threshold=st.sampled_from([1.0, 1.0, 0.5]),
        started=st.booleans(),
    )
    def begin(
        self, count: int, folders: tuple[bool, bool], batch_size: int, dual_write: bool, threshold: float, started: bool
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lattice-migration-", dir=MEMORY if MEMORY.is_dir() else None))
        self.now = 1_000.0
        self.number = 0
        self.fuse = Fuse()
        self.interlude: Callable[[], object] | None = None
        self.unknown: set[str] = set()
        self.paths = {
            side: self.folder / (side.value if in_folder else f"{side.value}.db")
            for side, in_folder in zip(Side, folders, strict=True)
        }
        self.config = BackfillConfig(
            batch_size=batch_size,
            dual_write=dual_write or threshold < 1,
            target_query_threshold=threshold,
            rollback_window_secs=WINDOW,
        )
        self.services = {side: HashService(name, before=self.before_embedding) for side, name in NAMES.items()}
        for side, path in self.paths.items():
            create_store(path, VectorSpace.of(self.services[side])).close()
        self.allowed: dict[str, set[str | None]] = {}
        self.coordinator: BackfillCoordinator | None = None
        self.open_stores()
        documents = [(f"d{number}", self.new_text("")) for number in range(count)]
        if documents:
            self.stores[Side.SOURCE].put(self.embedder(Side.SOURCE).embed(documents))
        self.allowed = {document: {text} for document, text in documents}
        self.plan()
        if started:
            self.coordinator.run(max_batches=1)

    def before_embedding(self) -> None:
        """What happens between the moment when a batch's texts are read and the moment when they are embedded."""
        interlude, self.interlude = self.interlude, None
        if interlude is not None:
            interlude()
        self.fuse.touch()

    def open_stores(self) -> None:
        self.stores = {side: FragileStore(open_store(path), self.fuse) for side, path in self.paths.items()}

    def arguments(self) -> dict[str, Any]:
        return {
            "source": self.stores[Side.SOURCE],
            "target": self.stores[Side.TARGET],
            "source_service": self.services[Side.SOURCE],
            "target_service": self.services[Side.TARGET],
            "clock": lambda: self.now,
        }

    def plan(self) -> None:
        (self.folder / "journal").unlink(missing_ok=True)
        self.coordinator = BackfillCoordinator.create(self.folder / "journal", config=self.config, **self.arguments())

    def embedder(self, side: Side) -> DocumentEmbedder:
        return DocumentEmbedder(self.services[side], self.stores[side].space)

    def new_text(self, kind: str) -> str:
        self.number += 1
        return f"{kind}text {self.number}"

    @property
    def state(self) -> MigrationState:
        assert self.coordinator is not None
        return self.coordinator.state

    def guarded(self, action: Callable[[BackfillCoordinator], object], fuse: int) -> bool:
        """Do ``action``; with a fuse the process may die in it. Return whether it came to its end."""
        assert self.coordinator is not None
        self.fuse.left = fuse
        try:
            action(self.coordinator)
        except CrashError:
            self.reopen()
            return False
        finally:
            self.fuse.left = 0
        return True

    def reopen(self) -> None:
        """Another process takes over."""
        self.teardown_objects()
        self.fuse.left = 0
        self.open_stores()
        self.coordinator = BackfillCoordinator(self.folder / "journal", **self.arguments())

    # What users do

    @rule(document=IDS, kind=TEXTS, fuse=st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5, 6]))
    def write(self, document: str, kind: str, fuse: int) -> None:
        assert self.coordinator is not None
        text = self.new_text(kind)
        primary = NAMES[self.coordinator.routing_config().query]
        refused = kind.strip() in {"poison", f"poison-{primary}"}
        before = self.allowed.get(document, {None})
        self.allowed[document] = before | {text}
        try:
            finished = self.guarded(lambda coordinator: coordinator.write([(document, text)]), fuse)
        except InvalidInputError:
            assert refused
            self.allowed[document] = before
            return
        if finished:
            assert not refused
            self.allowed[document] = {text}

    @rule(document=IDS, fuse=st.sampled_from([0, 0, 0, 1, 2, 3, 4]))
    def delete(self, document: str, fuse: int) -> None:
        self.allowed[document] = self.allowed.get(document, {None}) | {None}
        if self.guarded(lambda coordinator: coordinator.delete([document]), fuse):
            self.allowed[document] = {None}

    @precondition(lambda self: self.state in BEFORE_COMPLETION)
    @rule(document=IDS, gone=st.booleans())
    def write_past_the_coordinator(self, document: str, gone: bool) -> None:
        """Not what is asked of users; the survey before completion makes up for it all the same."""
        self.unknown.add(document)
        source = self.stores[Side.SOURCE].store
        if gone:
            source.delete([document])
            self.allowed[document] = {None}
        else:
            text = self.new_text("")
            source.put(self.embedder(Side.SOURCE).embed([(document, text)]))
            self.allowed[document] = {text}

    @precondition(lambda self: self.state in BEFORE_COMPLETION)
    @rule(document=IDS)
    def skip(self, document: str) -> None:
        assert self.coordinator is not None
        with contextlib.suppress(InvalidInputError):  # there is no such document
            self.coordinator.skip([document])

    # What the backfill does

    @rule(batches=st.integers(0, 3), fuse=st.sampled_from([0, 0, 1, 2, 3]))
    def run_some(self, batches: int, fuse: int) -> None:
        runs = self.state in (MigrationState.PLANNED, MigrationState.IN_PROGRESS, MigrationState.COMPLETED)
        with contextlib.nullcontext() if runs else pytest.raises(InvalidTransitionError):
            self.guarded(lambda coordinator: coordinator.run(max_batches=batches), fuse)

    @precondition(lambda self: self.state is MigrationState.IN_PROGRESS)
    @rule(document=IDS, past_the_coordinator=st.booleans())
    def write_overtakes_a_batch(self, document: str, past_the_coordinator: bool) -> None:
        """The backfill has read a document's old text when the new one is written."""
        assert self.coordinator is not None
        for side in Side:
            self.coordinator._endpoints.embedder(side)  # each asks its service once, which is no batch
        text = self.new_text("")
        self.allowed[document] = self.allowed.get(document, {None}) | {text}

        def overtake() -> None:
            assert self.coordinator is not None
            if past_the_coordinator:
                if self.coordinator._journal.states([document]) != {document: "pending"}:
                    self.unknown.add(document)  # what is settled is compared again before completion only
                stored = StoredDocument.embedded(document, text, vector_of("old", text), fingerprint="hash-old")
                self.stores[Side.SOURCE].store.put([stored])
            else:
                self.coordinator.write([(document, text)])
            self.allowed[document] = {text}

        self.interlude = overtake
        self.coordinator.run(max_batches=1)
        if self.interlude is not None:  # there was nothing to embed
            self.interlude = None
            self.allowed[document] -= {text}

    @rule()
    def run_to_the_end(self) -> None:
        assert self.coordinator is not None
        if self.state in (MigrationState.PAUSED, MigrationState.FAILED):
            self.coordinator.resume()
        if self.state not in OVER:
            progress = self.coordinator.run()
            if progress.rollback_until is not None:
                self.unknown.clear()  # the stores were compared
            assert (progress.state, progress.pending) == (MigrationState.COMPLETED, 0)

    @rule()
    def crash(self) -> None:
        self.reopen()

    @precondition(lambda self: self.state is MigrationState.IN_PROGRESS)
    @rule(document=IDS)
    def model_of_the_target_fails(self, document: str) -> None:
        assert self.coordinator is not None
        service = self.services[Side.TARGET]
        service.failure = ConnectionError("no route")
        primary = self.coordinator.routing_config().query
        text = self.new_text("")
        try:
            if primary is Side.SOURCE:
                self.coordinator.write([(document, text)])
                self.allowed[document] = {text}
            else:
                with pytest.raises(ConnectionError):
                    self.coordinator.write([(document, text)])
        finally:
            service.failure = None

    # What operators do

    def is_legal(self, action: str) -> bool:
        assert self.coordinator is not None
        state, window = self.state, self.coordinator.progress().rollback_until is not None
        return {
            "start": state is MigrationState.PLANNED,
            "pause": state is MigrationState.IN_PROGRESS,
            "fail": state is MigrationState.IN_PROGRESS,
            "resume": state in (MigrationState.PAUSED, MigrationState.FAILED),
            "cancel": state in BEFORE_COMPLETION,
            "rollback": state is MigrationState.COMPLETED and window,
            "close_rollback_window": state is MigrationState.COMPLETED,
        }[action]

    @precondition(lambda self: self.state not in OVER)
    @rule(data=st.data())
    def transition(self, data: st.DataObject) -> None:
        action = data.draw(st.sampled_from([action for action in ACTIONS if self.is_legal(action)]))
        getattr(self.coordinator, action)(*(["it broke"] if action == "fail" else []))

    @rule(data=st.data())
    def transition_that_leads_nowhere(self, data: st.DataObject) -> None:
        action = data.draw(st.sampled_from([action for action in ACTIONS if not self.is_legal(action)]))
        state = self.state
        with pytest.raises(InvalidTransitionError):
            getattr(self.coordinator, action)(*(["it broke"] if action == "fail" else []))
        assert self.state is state

    @rule(seconds=st.sampled_from([1.0, WINDOW / 2, WINDOW, -WINDOW]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.state in OVER)
    @rule()
    def plan_again(self) -> None:
        """The target is used again; what it has is not embedded again, what the source has lost must be removed by hand."""
        assert self.coordinator is not None
        self.coordinator.close()
        target, source = self.stores[Side.TARGET].store, self.stores[Side.SOURCE].store
        extra = [one.id for one in target.scan() if source.get([one.id]) == [None]]
        if extra:
            with pytest.raises(StoreError, match="the source does not"):
                self.plan()
            target.delete(extra)
        self.plan()

    # What always holds

    @invariant()
    def queries_go_where_writes_go(self) -> None:
        assert self.coordinator is not None
        routing = self.coordinator.routing_config()
        assert routing.query in routing.writes
        if self.state not in (MigrationState.IN_PROGRESS, MigrationState.COMPLETED):
            assert routing.writes == (Side.SOURCE,)

    @invariant()
    def the_answering_store_has_every_write(self) -> None:
        assert self.coordinator is not None
        side = self.coordinator.routing_config().query
        texts = {document: None if found is None else found.text for document, found in self.documents(side).items()}
        early = self.state is MigrationState.IN_PROGRESS and side is Side.TARGET
        for document, allowed in self.allowed.items():
            if not early:  # a threshold below 1 lets the target answer before it has everything
                assert texts[document] in allowed, (document, texts[document], allowed)

    @invariant()
    def the_way_back_loses_nothing(self) -> None:
        """Within the rollback window the source has every write too, so that rolling back is as good as before."""
        assert self.coordinator is not None
        if self.coordinator.progress().rollback_until is None:
            return
        for document, found in self.documents(Side.SOURCE).items():
            assert (None if found is None else found.text) in self.allowed.get(document, {None}), document

    @invariant()
    def each_store_holds_one_models_vectors(self) -> None:
        for side in Side:
            for found in self.documents(side).values():
                if found is not None and found.state is DocumentState.EMBEDDED:
                    assert found.vectors.tobytes() == vector_of(NAMES[side], found.text).tobytes()

    @invariant()
    def what_is_settled_is_so(self) -> None:
        """A document that the journal calls done has in the target the text that the source has."""
        assert self.coordinator is not None
        progress = self.coordinator.progress()
        if progress.state in OVER or (progress.state is MigrationState.COMPLETED and progress.rollback_until is None):
            return
        source, target = self.documents(Side.SOURCE), self.documents(Side.TARGET)
        for document, state in self.coordinator._journal.states(list(source)).items():
            if state == "done" and document not in self.unknown:
                assert source[document] is not None, document
                assert target[document] is not None, document
                assert source[document].text == target[document].text, document

    @invariant()
    def numbers_add_up(self) -> None:
        assert self.coordinator is not None
        progress = self.coordinator.progress()
        assert progress.processed + progress.skipped + progress.pending == progress.total
        assert 0 <= progress.effective_coverage <= 1

    @rule(text=st.sampled_from(["text 1", "something else"]), k=st.integers(1, 13))
    def query(self, text: str, k: int) -> None:
        assert self.coordinator is not None
        answer = self.coordinator.query(text, k)
        side = self.coordinator.routing_config().query
        assert (answer.side, answer.model) == (side, NAMES[side])
        wanted = vector_of(NAMES[side], text)
        best = [
            (-cosine_similarity(wanted, found.vectors[0]), found.id)
            for found in self.documents(side).values()
            if found is not None and found.state is DocumentState.EMBEDDED
        ]
        assert [match.id for match in answer.matches] == [name for _, name in sorted(best)[:k]]

    def documents(self, side: Side) -> dict[str, Any]:
        names = [f"d{number}" for number in range(12)]
        return dict(zip(names, self.stores[side].store.get(names), strict=True))

    def teardown_objects(self) -> None:
        if self.coordinator is not None:
            self.coordinator.close()
        for store in self.stores.values():
            store.store.close()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.teardown_objects()
            shutil.rmtree(self.folder)


@pytest.mark.slow
@pytest.mark.usefixtures("no_sync")
def test_invariants_hold_under_any_sequence() -> None:
    run_state_machine_as_test(
        Migration,
        settings=settings(
            max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
