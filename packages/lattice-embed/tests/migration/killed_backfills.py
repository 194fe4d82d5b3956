"""Runs a backfill with writes in child processes and kills them: ``killed_backfills.py FOLDER SEED SOURCE TARGET KILLS``.

Every second child is killed by its parent after a random time, every other one kills itself at a random line of the
library. After each, and at the end, the stores are compared with what the children wrote down: texts that were embedded
(``log``), and writes that returned (``acknowledged``). A backfill that is done before it is killed is followed by a new
one. Prints one JSON object; fails by an assertion.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from hash_service import HashService, vector_of

from lattice_embed.migration import BackfillConfig, BackfillCoordinator, MigrationController, MigrationState
from lattice_embed.stores import (
    DocumentEmbedder,
    VectorSpace,
    VectorStore,
    create_store,
    durable_files,
    open_store,
    sqlite_database,
)
from lattice_inference.files import shared_database

DOCUMENTS = 400
BATCH = 10
# a kill leaves what the system has been given: forcing it to the disk only costs the test its time
sqlite_database.SYNCHRONOUS = "OFF"
os.fsync = lambda handle: None
LIBRARY = (str(Path(durable_files.__file__).parent.parent), shared_database.__file__)


class Stage:
    """The files of one test."""

    def __init__(self, folder: Path, source: str, target: str) -> None:
        self.log, self.acknowledged, self.journal = folder / "log", folder / "acknowledged", folder / "journal"
        self.paths = (folder / source, folder / target)

    def prepare(self) -> None:
        """Fill the source and plan the migration."""
        old, new = HashService("old"), HashService("new")
        with create_store(self.paths[0], VectorSpace.of(old)) as source:
            documents = [(f"d{number:03}", f"d{number:03} first") for number in range(DOCUMENTS)]
            source.put(DocumentEmbedder(old, source.space).embed(documents))
            with create_store(self.paths[1], VectorSpace.of(new)) as target:
                BackfillCoordinator.create(
                    self.journal, source=source, target=target, config=BackfillConfig(batch_size=BATCH)
                ).close()
        self.log.touch()
        self.acknowledged.touch()

    def work(self, round_number: int, rng: random.Random) -> None:
        """Run the backfill, and write a document after each batch."""
        handle = os.open(self.acknowledged, os.O_WRONLY | os.O_APPEND)
        number = 0
        with (
            open_store(self.paths[0]) as source,
            open_store(self.paths[1]) as target,
            BackfillCoordinator(
                self.journal,
                source=source,
                target=target,
                source_service=HashService("old", log=self.log),
                target_service=HashService("new", log=self.log),
            ) as coordinator,
        ):

            def disturb(progress: object) -> None:
                nonlocal number
                number += 1
                document = f"d{rng.randrange(DOCUMENTS + 20):03}"
                text = f"{document} round {round_number} write {number}"
                os.write(handle, f"try\t{document}\t{text}\n".encode())
                coordinator.write([(document, text)])
                os.write(handle, f"done\t{document}\t{text}\n".encode())

            coordinator.run(on_progress=disturb)
        os.close(handle)

    def texts(self, side: int) -> dict[str, str]:
        """Return the texts of the embedded documents of a store; checks every vector."""
        name = ("old", "new")[side]
        with open_store(self.paths[side]) as store:
            return {document.id: document.text for document in documents_of(store, name)}


def documents_of(store: VectorStore, name: str) -> list[Any]:
    found = []
    after = ""
    while page := store.scan(after=after):
        for document in store.get([version.id for version in page]):
            assert document is not None
            assert document.vectors.tobytes() == vector_of(name, document.text).tobytes(), document.id
            found.append(document)
        after = page[-1].id
    return found


def kill_at_line(line: int) -> None:
    """Kill this process when so many lines of the library have been executed."""
    left = line

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        if event == "line":
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def lines_of(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines() if line.count("\t")]


class Killer:
    """Kills children that run backfills, one backfill after the other, until so many have been killed."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.rounds = self.killed = 0

    def run(self, stage: Stage, kills: int) -> None:
        """Kill children until the migration is complete, or enough have been killed; then complete it and check it."""
        stage.prepare()
        embedded = 0
        committed: dict[str, str] = {}
        complete = False
        while not complete and self.killed < kills:
            complete = not self.child_is_killed(stage)
            # what the target held before this round was not embedded again in it
            log = lines_of(stage.log)
            fresh = [text for name, text in log[embedded:] if name == "new"]
            assert not set(fresh) & set(committed.values()), sorted(set(fresh) & set(committed.values()))[:5]
            assert len(fresh) == len(set(fresh)), "a text was embedded twice in one round"
            embedded = len(log)
            committed = stage.texts(1)
        stage.work(self.rounds, self.rng)
        check_end(stage)

    def child_is_killed(self, stage: Stage) -> bool:
        """Let a child go on with the backfill; whether it was killed before it was done."""
        self.rounds += 1
        itself = self.rounds % 2
        line, delay, child_seed = self.rng.randrange(1, 20_000), self.rng.uniform(0.002, 0.06), self.rng.random()
        child = os.fork()
        if child == 0:
            try:
                if itself:
                    kill_at_line(line)
                stage.work(self.rounds, random.Random(child_seed))
                os._exit(0)
            except BaseException:
                import traceback

                traceback.print_exc()
            os._exit(1)
        if not itself:
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a child failed"
        self.killed += os.WIFSIGNALED(status)
        return os.WIFSIGNALED(status)


def main() -> None:
    folder, seed, source, target, kills = Path(sys.argv[1]), *sys.argv[2:5], int(sys.argv[5])
    killer = Killer(seed)
    backfills = embedded = 0
    while killer.killed < kills:
        part = folder / str(backfills)
        part.mkdir()
        stage = Stage(part, source, target)
        killer.run(stage, kills)
        backfills += 1
        embedded += len(lines_of(stage.log))
    print(json.dumps({"kills": killer.killed, "backfills": backfills, "embedded": embedded}))


def check_end(stage: Stage) -> None:
    """The migration is complete, the stores agree, and every write that returned is in them."""
    source, target = stage.texts(0), stage.texts(1)
    assert source == target
    possible = {f"d{number:03}": {f"d{number:03} first"} for number in range(DOCUMENTS)}
    for what, document, text in lines_of(stage.acknowledged):
        if what == "done":
            possible[document] = {text}  # this write returned: nothing older may come back
        else:
            possible.setdefault(document, set()).add(text)  # a write that was killed may have happened or not
    for document, texts in possible.items():
        assert source.get(document) in texts or (document not in source and document >= f"d{DOCUMENTS}"), document
    with MigrationController(stage.journal) as controller:
        progress = controller.progress()
        assert progress.state is MigrationState.COMPLETED
        assert (progress.pending, progress.processed) == (0, len(source))
    assert not list(stage.journal.parent.glob("journal-claims-*")), "claims of dead processes lie about"


if __name__ == "__main__":
    main()
