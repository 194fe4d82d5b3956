"""A backfill by hand: states, routing, progress, skips, failures and several workers."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest

from lattice_embed import InvalidInputError, InvalidTransitionError, SpaceMismatchError, StoreCorruptError, StoreError
from lattice_embed.migration import (
    BackfillConfig,
    BackfillCoordinator,
    BackfillProgress,
    MigrationController,
    MigrationPhase,
    MigrationState,
    Route,
    Side,
)
from lattice_embed.migration.claims import Claimant
from lattice_embed.migration.migration_journal import MigrationJournal
from lattice_embed.stores import (
    DocumentEmbedder,
    DocumentState,
    SkipKind,
    StoredDocument,
    VectorSpace,
    create_store,
    open_store,
)

from .hash_service import HashService, vector_of

pytestmark = pytest.mark.usefixtures("no_sync")

DAY = 86_400.0


class Bench:
    """A source of 25 documents, an empty target, their services, and a clock."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.folder = folder
        self.now = 1_000_000.0
        self.old, self.new = HashService("old"), HashService("new")
        self.source = create_store(folder / "source.db", VectorSpace.of(self.old))
        self.target = create_store(folder / "target", VectorSpace.of(self.new))
        documents = [(f"d{number:02}", f"text {number}") for number in range(25)]
        self.source.put(DocumentEmbedder(self.old, self.source.space).embed(documents))
        self.old.seen.clear()
        self.coordinator = BackfillCoordinator.create(
            folder / "journal", config=BackfillConfig(**{"batch_size": 10, **config}), **self.arguments()
        )

    def arguments(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "target": self.target,
            "source_service": self.old,
            "target_service": self.new,
            "clock": lambda: self.now,
        }

    def close(self) -> None:
        self.coordinator.close()
        self.source.close()
        self.target.close()

    def target_text(self, document_id: str) -> str | None:
        (found,) = self.target.get([document_id])
        return None if found is None else found.text


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def build(**config: Any) -> Bench:
        made.append(Bench(tmp_path, **config))
        return made[-1]

    yield build
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()


def test_every_document_is_embedded_once(bench: Bench) -> None:
    progress = bench.coordinator.run()
    assert (progress.state, progress.processed, progress.pending) == (MigrationState.COMPLETED, 25, 0)
    assert sorted(bench.new.seen) == sorted(f"text {number}" for number in range(25))
    assert bench.old.seen == []
    for document in bench.target.get([f"d{number:02}" for number in range(25)]):
        assert document is not None
        assert document.vectors[0].tobytes() == vector_of("new", document.text).tobytes()
        assert document.fingerprint == "hash-new"


def test_states_are_those_of_the_reference(bench: Bench) -> None:
    coordinator = bench.coordinator
    assert coordinator.state is MigrationState.PLANNED
    assert coordinator.plan.total_embeddings == 25
    assert (coordinator.plan.source_model, coordinator.plan.target_model) == ("old", "new")
    coordinator.start()
    coordinator.pause("lunch")
    assert coordinator.progress().reason == "lunch"
    with pytest.raises(InvalidTransitionError, match="cannot run the backfill: the migration is paused; resume it"):
        coordinator.run()
    coordinator.resume()
    coordinator.fail("disk full")
    assert (coordinator.progress().errors, coordinator.progress().last_error) == (1, "disk full")
    coordinator.resume()
    coordinator.cancel()
    for action in (coordinator.start, coordinator.resume, coordinator.cancel, coordinator.rollback, coordinator.run):
        with pytest.raises(InvalidTransitionError, match="is cancelled"):
            action()


def test_transition_errors_survive_pickling(bench: Bench) -> None:
    with pytest.raises(InvalidTransitionError) as caught:
        bench.coordinator.pause()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.state, copy.action) == (str(caught.value), "planned", "pause")


def test_routes_follow_the_state(bench: Bench) -> None:
    def route() -> tuple[Side, tuple[Side, ...], MigrationPhase]:
        config = bench.coordinator.routing_config()
        return config.query, config.writes, config.phase

    source_only = (Side.SOURCE, (Side.SOURCE,), MigrationPhase.STABLE)
    both = (Side.SOURCE, Side.TARGET)
    coordinator = bench.coordinator
    assert route() == source_only
    coordinator.start()
    assert route() == (Side.SOURCE, both, MigrationPhase.MIGRATING)
    coordinator.pause()
    assert route() == source_only
    coordinator.resume()
    coordinator.run()
    assert route() == (Side.TARGET, both, MigrationPhase.ROLLBACK_WINDOW)
    assert coordinator.routing_config().route_query is Route.TARGET
    assert coordinator.routing_config().route_request is Route.DUAL_WRITE
    bench.now += DAY - 1
    assert route() == (Side.TARGET, both, MigrationPhase.ROLLBACK_WINDOW)
    bench.now += 1
    assert route() == (Side.TARGET, (Side.TARGET,), MigrationPhase.STABLE)


def test_rollback_window_is_measured_by_the_clock_on_the_wall(bench: Bench) -> None:
    """The reference's window ended with the process."""
    bench.coordinator.run()
    bench.coordinator.write([("d00", "written in the window")])
    bench.coordinator.close()
    bench.now += DAY / 2
    bench.coordinator = BackfillCoordinator(bench.folder / "journal", **bench.arguments())
    assert bench.coordinator.progress().rollback_until == 1_000_000.0 + DAY
    bench.coordinator.rollback()
    answer = bench.coordinator.query("written in the window", 1)
    assert (answer.side, answer.model, answer.matches[0].id) == (Side.SOURCE, "old", "d00")


def test_no_rollback_after_the_window(bench: Bench) -> None:
    bench.coordinator.run()
    bench.now += DAY
    with pytest.raises(InvalidTransitionError, match="its rollback window is over; migrate back"):
        bench.coordinator.rollback()
    bench.coordinator.write([("d00", "passes the source by")])
    assert bench.source.get(["d00"])[0].text == "text 0"  # type: ignore[union-attr]
    bench.now -= DAY  # a clock that is set back must not bring back a store that has missed a write
    with pytest.raises(InvalidTransitionError):
        bench.coordinator.rollback()


def test_window_can_be_closed_early(bench: Bench) -> None:
    with pytest.raises(InvalidTransitionError, match="cannot close the rollback window: the migration is planned"):
        bench.coordinator.close_rollback_window()
    bench.coordinator.run()
    bench.old.failure = ConnectionError("the old model is gone")
    with pytest.raises(ConnectionError) as caught:
        bench.coordinator.write([("x", "text")])
    assert "until the rollback window is closed" in caught.value.__notes__[0]
    assert bench.target_text("x") is None
    bench.coordinator.close_rollback_window()
    bench.coordinator.write([("x", "text")])
    assert bench.target_text("x") == "text"


def test_writes_while_paused_are_neither_lost_nor_late(bench: Bench) -> None:
    """The reference forgot them: its total was fixed, and a pause stopped dual writes for good."""
    coordinator = bench.coordinator
    coordinator.run(max_batches=1)
    coordinator.pause()
    coordinator.write([("new", "written while paused"), ("d00", "changed while paused")])
    coordinator.delete(["d01"])
    assert bench.target_text("d00") == "text 0"
    assert coordinator.progress().total == 26
    assert coordinator.query("changed while paused", 1).matches[0].id == "d00"
    coordinator.resume()
    progress = coordinator.run()
    assert bench.target_text("new") == "written while paused"
    assert bench.target_text("d00") == "changed while paused"
    assert bench.target_text("d01") is None
    assert (progress.processed, progress.skipped, progress.pending) == (25, 1, 0)


def test_dual_write_reaches_both_at_once(bench: Bench) -> None:
    bench.coordinator.run(max_batches=1)
    bench.coordinator.write([("x", "both")])
    for store in (bench.source, bench.target):
        assert store.get(["x"])[0].text == "both"  # type: ignore[union-attr]
    assert bench.coordinator.delete(["x", "no such"]) == 1
    assert [store.get(["x"]) for store in (bench.source, bench.target)] == [[None], [None]]


def test_without_dual_write_the_backfill_brings_writes_over(make: Callable[..., Bench]) -> None:
    bench = make(dual_write=False)
    bench.coordinator.run(max_batches=1)
    bench.coordinator.write([("x", "source first"), ("d00", "changed")])
    assert (bench.target_text("x"), bench.target_text("d00")) == (None, "text 0")
    bench.coordinator.run()
    assert (bench.target_text("x"), bench.target_text("d00")) == ("source first", "changed")


def test_target_may_answer_before_it_has_everything(make: Callable[..., Bench]) -> None:
    bench = make(target_query_threshold=0.8)
    bench.coordinator.skip([f"d{number:02}" for number in range(5)])  # raw progress would never reach 0.8 here
    bench.coordinator.run(max_batches=1)
    assert bench.coordinator.progress().queries is Side.SOURCE
    bench.coordinator.run(max_batches=1)
    progress = bench.coordinator.progress()
    assert (progress.state, progress.queries) == (MigrationState.IN_PROGRESS, Side.TARGET)
    assert bench.coordinator.query("text 7", 1).matches[0].id == "d07"
    bench.coordinator.pause()
    assert bench.coordinator.query("text 7", 1).side is Side.SOURCE


def test_target_answers_once_it_has_exactly_the_share_asked_for(make: Callable[..., Bench]) -> None:
    bench = make(target_query_threshold=0.8)  # of 25: 20, two batches
    bench.coordinator.run(max_batches=1)
    assert bench.coordinator.progress().queries is Side.SOURCE
    bench.coordinator.run(max_batches=1)
    assert bench.coordinator.progress().processed == 20
    assert bench.coordinator.progress().queries is Side.TARGET


@pytest.mark.parametrize(
    "config",
    [
        {"batch_size": 0},
        {"max_concurrent": 0},
        {"max_concurrent": 257},
        {"max_concurrent": 1.0},
        {"target_query_threshold": 0.0},
        {"target_query_threshold": float("nan")},
        {"target_query_threshold": 0.5, "dual_write": False},
        {"rollback_window_secs": -1.0},
        {"rollback_window_secs": float("nan")},
    ],
)
def test_impossible_configurations_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        BackfillConfig(**config)


def test_document_that_the_new_model_refuses_is_skipped_with_a_reason(bench: Bench) -> None:
    bench.source.put(DocumentEmbedder(bench.old, bench.source.space).embed([("bad", "poison-new stuff")]))
    progress = bench.coordinator.run()
    assert (progress.processed, progress.skipped) == (25, 1)
    assert progress.effective_coverage == 1
    ((name, reason),) = bench.coordinator.skipped()
    assert (name, reason.kind, reason.detail) == ("bad", SkipKind.INVALID_ENCODING, "holds poison")
    (kept,) = bench.target.get(["bad"])
    assert kept is not None
    assert (kept.state, kept.text) == (DocumentState.SKIPPED, "poison-new stuff")  # the text outlives the source
    bench.coordinator.write([("bad", "now it is fine")])
    assert bench.coordinator.progress().skipped == 0


def test_skip_by_hand(bench: Bench) -> None:
    bench.coordinator.skip(["d03"], SkipKind.PERMANENT_API_ERROR, "the provider refuses it")
    bench.coordinator.run()
    assert [(name, str(reason)) for name, reason in bench.coordinator.skipped()] == [
        ("d03", "permanent_api_error: the provider refuses it")
    ]
    assert "text 3" not in bench.new.seen
    with pytest.raises(InvalidTransitionError):
        bench.coordinator.skip(["d04"])


def test_write_that_the_answering_model_refuses_changes_nothing(bench: Bench) -> None:
    bench.coordinator.start()
    with pytest.raises(InvalidInputError, match="'x' cannot be embedded: invalid_encoding: holds poison"):
        bench.coordinator.write([("d00", "fine"), ("x", "poison-old")])
    assert bench.source.get(["d00", "x"])[0].text == "text 0"  # type: ignore[union-attr]
    with pytest.raises(InvalidInputError, match="same id"):
        bench.coordinator.write([("x", "1"), ("x", "2")])
    with pytest.raises(InvalidInputError, match="letter by letter"):
        bench.coordinator.delete("d00")


def test_failing_new_model_fails_no_write_but_the_backfill(bench: Bench) -> None:
    coordinator = bench.coordinator
    coordinator.run(max_batches=1)
    bench.new.failure = ConnectionError("no route")
    coordinator.write([("x", "kept")])
    assert coordinator.query("kept", 1).matches[0].id == "x"
    assert coordinator.progress().last_error == "writing to the target: no route"
    with pytest.raises(ConnectionError):
        coordinator.run()
    assert (coordinator.state, coordinator.progress().last_error) == (MigrationState.FAILED, "no route")
    bench.new.failure = None
    coordinator.resume()
    seen = len(bench.new.seen)
    coordinator.run()
    assert sorted(bench.new.seen[seen:]) == sorted(["kept", *(f"text {number}" for number in range(10, 25))])
    assert bench.target_text("x") == "kept"


def test_write_overtakes_a_batch_that_is_being_embedded(bench: Bench) -> None:
    """The backfill has read the old text when the new one is written: the old vector must not come out on top."""
    once = iter([True])

    def overtake() -> None:
        if next(once, False):
            bench.new._before = None
            bench.coordinator.write([("d00", "newer")])
            bench.source.put(  # and a writer that knows nothing of the migration
                DocumentEmbedder(bench.old, bench.source.space).embed([("d01", "from outside")])
            )

    bench.coordinator.run(max_batches=0)
    bench.coordinator.write([("z", "asks both services for their space")])
    bench.new._before = overtake
    bench.coordinator.run(max_batches=1)
    assert bench.target_text("d00") == "newer"
    assert bench.target_text("d01") is None
    assert (
        bench.coordinator.progress().pending == 25 - 10 + 1
    )  # what was overtaken from outside waits for its turn again
    bench.coordinator.run()
    assert (bench.target_text("d00"), bench.target_text("d01")) == ("newer", "from outside")


def test_a_document_that_another_writer_has_claimed_meanwhile_stays_that_ones(bench: Bench) -> None:
    """It has noted its intent and not written yet, so the texts still agree: only the claim tells."""
    journal, writer = MigrationJournal(bench.folder / "journal"), Claimant(bench.folder / "journal")
    claim = writer.new_claim()

    def claim_one() -> None:
        bench.new._before = None
        with journal.transaction():
            journal.mark_pending(["d00"], claim)

    bench.coordinator.run(max_batches=0)
    bench.coordinator.write([("d24", "asks both services for their space")])
    bench.new._before = claim_one
    bench.coordinator.run(max_batches=1)
    assert journal.still_claimed(claim, ["d00", "d01"]) == {"d00"}
    assert (bench.target_text("d00"), bench.target_text("d01")) == (None, "text 1")
    writer.close()
    journal.close()
    assert bench.coordinator.run().pending == 0
    assert bench.target_text("d00") == "text 0"


@pytest.mark.parametrize("deletes", [False, True])
def test_a_write_during_which_the_routes_change_is_done_anew(make: Callable[..., Bench], deletes: bool) -> None:
    """The migration is completed after the write has noted its intent and before it holds the journal's lock again."""
    bench = make(dual_write=False)
    bench.coordinator.run(max_batches=3)
    other, journal = MigrationJournal(bench.folder / "journal"), bench.coordinator._journal
    asked, transaction = itertools.count(), journal.transaction

    def complete_before_the_second() -> AbstractContextManager[None]:
        if next(asked) == 1:
            with other.transaction():
                other.update(state=MigrationState.COMPLETED.value, completed_at=bench.now)
        return transaction()

    assert bench.coordinator.routing_config().writes == (Side.SOURCE,)
    journal.transaction = complete_before_the_second  # type: ignore[method-assign]
    if deletes:
        assert bench.coordinator.delete(["d00"]) == 1
    else:
        assert bench.coordinator.write([("d00", "new text")]).writes == (Side.SOURCE, Side.TARGET)
    assert bench.target_text("d00") == (None if deletes else "new text")
    assert bench.source.get(["d00"])[0] is None or not deletes
    other.close()


def test_progress_counts_batches_of_a_window_only(bench: Bench) -> None:
    """Ten documents a second, before and after the window of 64 batches is full."""
    with closing(MigrationJournal(bench.folder / "journal")) as journal:
        journal.start_clock(bench.now)
        for second in range(1, 101):
            bench.now += 1
            journal.log_batch(bench.now, 10)
            if second in (1, 4, 63, 64, 65, 100):
                assert journal.throughput(bench.now) == 10.0


def test_cancelled_batch_is_thrown_away(bench: Bench) -> None:
    bench.coordinator.run(max_batches=0)
    bench.coordinator.write([("d00", "asks both services for their space")])
    bench.new._before = lambda: bench.coordinator.state is MigrationState.IN_PROGRESS and bench.coordinator.cancel()
    progress = bench.coordinator.run()
    assert (progress.state, len(bench.target)) == (MigrationState.CANCELLED, 1)


def test_migration_that_was_given_up_is_taken_up_again(bench: Bench) -> None:
    bench.coordinator.run(max_batches=2)
    bench.coordinator.cancel()
    bench.coordinator.close()
    bench.source.delete(["d00"])
    with pytest.raises(StoreError, match="the target holds document 'd00', which the source does not"):
        BackfillCoordinator.create(bench.folder / "second", **bench.arguments())
    assert not (bench.folder / "second").exists()
    bench.target.delete(["d00"])
    seen = len(bench.new.seen)
    with BackfillCoordinator.create(bench.folder / "second", **bench.arguments()) as again:
        assert again.run().processed == 24
    assert len(bench.new.seen) == seen + 5  # twenty were there


def test_progress_speed_and_time_to_go(bench: Bench) -> None:
    seen: list[BackfillProgress] = []

    def note(progress: BackfillProgress) -> None:
        seen.append(progress)

    def slow() -> None:
        bench.now += 2.0

    bench.coordinator.run(max_batches=0)
    bench.new._before = slow
    bench.coordinator.run(max_batches=1, on_progress=note)
    assert (seen[0].processed, seen[0].throughput) == (10, 10 / 4)  # the first call asks the service for its space
    assert seen[0].eta_seconds == pytest.approx(15 / 2.5)
    bench.coordinator.pause()
    bench.now += 1_000_000  # paused time is no time
    assert bench.coordinator.progress().eta_seconds is None
    bench.coordinator.resume()
    assert bench.coordinator.progress().eta_seconds is None
    bench.coordinator.run(on_progress=note)
    assert seen[1].throughput == 10 / 2
    final = bench.coordinator.progress()
    assert final.duration_secs == 8.0
    assert final.to_fields()["state"] == "completed"
    bench.now += 3600
    assert bench.coordinator.progress().throughput is None


def test_threads_share_the_work(make: Callable[..., Bench]) -> None:
    bench = make(batch_size=2, max_concurrent=4)
    names = set()
    bench.new._before = lambda: names.add(threading.current_thread().name)
    assert bench.coordinator.run().state is MigrationState.COMPLETED
    assert sorted(bench.new.seen) == sorted(f"text {number}" for number in range(25))
    assert all(name.startswith("lattice-backfill") for name in names)


def test_failure_of_one_thread_stops_all(make: Callable[..., Bench]) -> None:
    bench = make(batch_size=1, max_concurrent=3)
    bench.coordinator.run(max_batches=3)
    bench.new.failure = ConnectionError("no route")
    with pytest.raises(ConnectionError):
        bench.coordinator.run()
    assert bench.coordinator.state is MigrationState.FAILED
    assert bench.coordinator.progress().processed == 3


def test_pause_from_elsewhere_stops_a_running_backfill(bench: Bench) -> None:
    with MigrationController(bench.folder / "journal") as elsewhere:
        progress = bench.coordinator.run(on_progress=lambda progress: elsewhere.pause("stop"))
    assert (progress.state, progress.processed) == (MigrationState.PAUSED, 10)


def test_source_of_texts_only(tmp_path: Path) -> None:
    new = HashService("new")
    with (
        create_store(tmp_path / "texts") as source,
        create_store(tmp_path / "new.db", VectorSpace.of(new)) as target,
    ):
        source.put([StoredDocument.pending("a", "one"), StoredDocument.pending("b", "two")])
        with BackfillCoordinator.create(
            tmp_path / "j", source=source, target=target, target_service=new
        ) as coordinator:
            coordinator.write([("c", "three")])
            with pytest.raises(InvalidInputError, match="pass source_service"):
                coordinator.query("one")
            coordinator.run()
            assert coordinator.query("three", 1).matches[0].id == "c"


def test_mistakes_of_setting_up_are_told(bench: Bench, tmp_path: Path) -> None:
    arguments = bench.arguments()
    with pytest.raises(StoreError, match="exists already"):
        BackfillCoordinator.create(bench.folder / "journal", **arguments)
    with pytest.raises(StoreError, match="there is no migration's journal"):
        BackfillCoordinator(bench.folder / "none", **arguments)
    with pytest.raises(StoreCorruptError, match="another program, not a migration's journal"):
        BackfillCoordinator(bench.folder / "source.db", **arguments)
    with pytest.raises(SpaceMismatchError):
        BackfillCoordinator(bench.folder / "journal", **{**arguments, "source": bench.target})
    with pytest.raises(InvalidInputError, match="same store"):
        BackfillCoordinator.create(tmp_path / "j", **{**arguments, "target": bench.source})
    with create_store(tmp_path / "texts") as texts, pytest.raises(InvalidInputError, match="texts only"):
        BackfillCoordinator.create(tmp_path / "j", **{**arguments, "target": texts})
    with (
        BackfillCoordinator(
            bench.folder / "journal", **{**arguments, "target_service": HashService("old")}
        ) as coordinator,
        pytest.raises(SpaceMismatchError),
    ):
        coordinator.run()
    assert not (tmp_path / "j").exists()


def test_service_whose_model_changes_is_found_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.coordinator.run(max_batches=1)
    other = HashService("old")
    monkeypatch.setattr(bench.new, "embed", other.embed)
    with pytest.raises(SpaceMismatchError, match="hash-new, not of hash-old"):
        bench.coordinator.run()
    assert bench.coordinator.progress().processed == 10


def test_damaged_text_stops_instead_of_being_embedded_for_ever(bench: Bench) -> None:
    bench.source._database.write("UPDATE documents SET text = 'flipped' WHERE id = 'd05'")  # type: ignore[union-attr]
    with pytest.raises(StoreCorruptError, match="'d05'"):
        bench.coordinator.run()
    assert bench.coordinator.state is MigrationState.FAILED


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
def test_two_processes_share_the_work(bench: Bench, kill: bool) -> None:
    """Each document is embedded by one of them; if one is killed, the other takes over what it was at."""
    log = bench.folder / "log"
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from hash_service import HashService\n"
        "from lattice_embed.migration import BackfillCoordinator; from lattice_embed.stores import open_store\n"
        "folder = Path(sys.argv[2]); service = HashService('new', log=folder / 'log', before=lambda: time.sleep(0.05))\n"
        "with open_store(folder / 'source.db') as source, open_store(folder / 'target') as target, BackfillCoordinator(\n"
        "        folder / 'journal', source=source, target=target, target_service=service) as coordinator:\n"
        "    coordinator.run()\n"
    )
    documents = [(f"e{number:02}", f"more {number}") for number in range(100)]
    bench.source.put(DocumentEmbedder(bench.old, bench.source.space).embed(documents))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "error", "-c", code, str(Path(__file__).parent), str(bench.folder)]
    children = [subprocess.Popen(command, env=environment) for _ in range(2)]
    if kill:
        while not log.exists():
            assert children[0].poll() is None
        children[0].kill()
    assert children[1].wait(timeout=60) == 0
    assert children[0].wait(timeout=60) == (-9 if kill else 0)
    texts = [line.split("\t")[1] for line in log.read_text().splitlines()]
    assert set(texts) == {f"text {number}" for number in range(25)} | {f"more {number}" for number in range(100)}
    assert len(texts) == 125 or (kill and len(texts) <= 135)
    progress = bench.coordinator.progress()
    assert (progress.state, progress.processed, len(bench.target)) == (MigrationState.COMPLETED, 125, 125)
    assert not list(bench.folder.glob("*claims*"))


def test_stores_opened_anew_agree(bench: Bench) -> None:
    bench.coordinator.run()
    with open_store(bench.folder / "target") as target:
        assert len(target) == 25
        assert target.verify() == 25
