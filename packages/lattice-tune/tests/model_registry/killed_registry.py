"""Eight processes change one registry at random and are killed at random: ``killed_registry.py FOLDER SEED ROUNDS CALLS``.

In each round eight children make CALLS calls each. Most are killed on the way: every second one at a random line of the
library, the others after a random time of the processor, wherever they are then. Each child notes a call before it begins
and after it has returned. After each round the registry is opened anew and compared with the notes. Prints one JSON object;
fails by an assertion.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from lattice_inference.files import shared_database
from lattice_tune import (
    DuplicateModelError,
    InvalidTransitionError,
    LineageError,
    ModelNotFoundError,
    ModelRegistry,
    ModelStatus,
    RegistryCorruptError,
    RegistryError,
    RollbackController,
    StorageError,
    WeightIntegrityError,
)
from lattice_tune.registry import database

PROCESSES = 8
CONTENTS = 40
NAMES = ("alpha", "beta", "gamma")
VERSIONS = [f"{major}.{minor}.0" for major in range(1, 3) for minor in range(6)] + ["2.0.0-rc.1"]
LIBRARY = (str(Path(database.__file__).parent), shared_database.__file__)
FAULTS = (StorageError, RegistryCorruptError, WeightIntegrityError)
REFUSALS = (DuplicateModelError, InvalidTransitionError, LineageError, ModelNotFoundError, RegistryError)
EVENT_OF = {
    "register": "registered",
    "status": "status",
    "promote": "promoted",
    "rollback": "rolled_back",
    "delete": "deleted",
    "alias": "alias_set",
    "no alias": "alias_removed",
}
RETIRED = ("archived", "deprecated")

# a kill leaves what the system has been given: forcing it to the disk only costs the test its time
database.SYNCHRONOUS = "OFF"
os.fsync = lambda handle: None


def content_of(number: int) -> bytes:
    """Return one of a few contents, so that versions share files."""
    return f"content {number} ".encode() * (1 + number * 100)


def write_folder(place: Path, number: int) -> None:
    """Write a folder of two contents, the second of which other versions have too."""
    (place / str(number) / "deep").mkdir(parents=True)
    (place / str(number) / "a").write_bytes(b"only of folder %d" % number)
    (place / str(number) / "deep" / "b").write_bytes(content_of(number))


def digest_of_folder(number: int) -> str:
    """Return the digest that a version of such a folder must have."""
    files = {"a": b"only of folder %d" % number, "deep/b": content_of(number)}
    lines = [f"{hashlib.sha256(content).hexdigest()} {len(content)} {path}\n" for path, content in files.items()]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class Child:
    """Calls of one process, noted in a file."""

    def __init__(self, folder: Path, notes: Path, seed: str) -> None:
        self.rng = random.Random(seed)
        self.registry = ModelRegistry(folder)
        self.folders = folder.parent / "folders"
        self.handle = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.seed = seed

    def note(self, *fields: str) -> None:
        os.write(self.handle, ("\t".join(fields) + "\n").encode())

    def run(self, calls: int) -> None:
        for number in range(calls):
            token = f"{self.seed}/{number}"
            call = self.rng.choice(
                ["register", "register", "up", "up", "up", "promote", "rollback", "delete", "gc", "alias"]
            )
            self.note("try", token)
            try:
                self.note("done", token, *getattr(self, f"_{call}")(token))
            except FAULTS:
                raise
            except REFUSALS as error:
                self.note("refused", token, type(error).__name__)
        self.registry.close()

    def _register(self, token: str) -> tuple[str, ...]:
        number = self.rng.randrange(CONTENTS)
        name, version = self.rng.choice(NAMES), self.rng.choice(VERSIONS)
        parents = [self._any().reference] if self.rng.random() < 0.2 else []
        if self.rng.random() < 0.3:
            source, digest = self.folders / str(number), digest_of_folder(number)
        else:
            source, digest = content_of(number), hashlib.sha256(content_of(number)).hexdigest()
        model = self.registry.register(name, version, source, parents=parents, registered_by=token)
        assert model.digest == digest
        return "register", name, version, model.digest

    def _up(self, token: str) -> tuple[str, ...]:
        """Take a version one step further, or retire one that is not live."""
        model = self._any()
        following = {ModelStatus.PENDING: "validated", ModelStatus.VALIDATED: "staged", ModelStatus.ARCHIVED: "staged"}
        wanted = "archived" if self.rng.random() < 0.1 else following.get(model.status, "validated")
        if model.status is ModelStatus.PRODUCTION:
            raise ModelNotFoundError(model.name, "to move")
        self.registry.set_status(model, wanted, actor=token)
        return "status", model.name, str(model.version), wanted

    def _promote(self, token: str) -> tuple[str, ...]:
        candidates = [model for model in self.registry.list() if model.status is ModelStatus.STAGED]
        if not candidates:
            raise ModelNotFoundError("any", "staged")
        model = self.registry.promote(self.rng.choice(candidates), actor=token)
        return "promote", model.name, str(model.version), "production"

    def _rollback(self, token: str) -> tuple[str, ...]:
        record = RollbackController(self.registry).rollback(self.rng.choice(NAMES), reason="at random", actor=token)
        return "rollback", record.name, record.to_version, "production"

    def _delete(self, token: str) -> tuple[str, ...]:
        model = self._any()
        self.registry.delete(model, actor=token)
        return "delete", model.name, str(model.version), model.id

    def _alias(self, token: str) -> tuple[str, ...]:
        """Set or remove one of two aliases."""
        model, alias = self._any(), self.rng.choice(("canary", "nightly"))
        if self.rng.random() < 0.5:
            self.registry.set_alias(model, alias, actor=token)
            return "alias", model.name, str(model.version), alias
        named = self.registry.remove_alias(model.name, alias, actor=token)
        return "no alias", named.name, str(named.version), alias

    def _gc(self, token: str) -> tuple[str, ...]:
        return "gc", str(self.registry.gc(grace_seconds=0, actor=token).blobs)

    def _any(self) -> Any:
        models = self.registry.list(self.rng.choice(NAMES))
        if not models:
            raise ModelNotFoundError("any")
        return self.rng.choice(models)


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


def run_child(folder: Path, notes: Path, seed: str, calls: int, number: int) -> int:
    """Start a child that makes its calls, or is killed on the way."""
    rng = random.Random(f"{seed} kill")
    line, seconds = rng.randrange(200, 12_000), rng.uniform(0.005, 0.15)
    process = os.fork()
    if process:
        return process
    try:
        if number % 4 == 0:
            kill_at_line(line)
        elif number % 4 != 3:  # every fourth child goes on to its end
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, seconds)
        Child(folder, notes, seed).run(calls)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def statuses_of(events: list[Any]) -> dict[tuple[str, str], str]:
    """Return what the events say every version's status is. Knows nothing of how the registry checks itself."""
    statuses: dict[tuple[str, str], str] = {}
    for event in events:
        key = (event.name, event.version)
        if event.kind == "registered":
            assert key not in statuses, f"{key} was registered twice"
            statuses[key] = "pending"
        elif event.kind == "deleted":
            assert statuses.pop(key) != "production"
        elif event.kind == "status":
            assert statuses[key] == event.detail["from"]
            statuses[key] = event.detail["to"]
        elif event.kind in ("promoted", "rolled_back"):
            live = [other for other, status in statuses.items() if other[0] == event.name and status == "production"]
            assert [(event.name, event.detail["from"])] * (event.detail["from"] is not None) == live
            assert statuses[key] == ("staged" if event.kind == "promoted" else "archived")
            for other in live:
                statuses[other] = RETIRED[event.kind == "rolled_back"]
            statuses[key] = "production"
    return statuses


def check(folder: Path, notes: list[list[str]]) -> Counter[str]:
    """Compare the registry, opened anew, with what the children noted."""
    with ModelRegistry(folder, create=False) as registry:
        report = registry.verify()
        assert report.problems == ()
        events, models = registry.events(), registry.list()
        assert [event.id for event in events] == list(range(1, len(events) + 1))
        by_token: dict[str, list[Any]] = {}
        for event in events:
            by_token.setdefault(event.actor, []).append(event)
        tried = {token for what, token, *_ in notes if what == "try"}
        ended = {token: fields for what, token, *fields in notes if what != "try"}
        done = {token for what, token, *_ in notes if what == "done"}
        assert set(by_token) <= tried, "an event that no call has made"
        assert all(len(found) == 1 for token, found in by_token.items() if token != "check"), (
            "a call that has made two events"
        )
        for token in tried:
            found = by_token.get(token, [])
            if token not in ended:
                continue  # killed: all of it, or nothing
            if token not in done:
                assert found == [], "a call that was refused has changed something"
                continue
            call, *fields = ended[token]
            if call == "gc":
                assert sum(event.detail["blobs"] for event in found) == int(fields[0])
                continue
            (event,) = found
            assert (event.kind, event.name, event.version) == (EVENT_OF[call], *fields[:2])
            if call == "register":
                assert event.detail["digest"] == fields[2]
        expected = statuses_of(events)
        assert {(model.name, str(model.version)): model.status.value for model in models} == expected
        for name in {event.name for event in events if event.kind == "promoted"}:
            (live,) = [model for model in models if model.name == name and model.status is ModelStatus.PRODUCTION]
            assert registry.get(name, "champion") == live == registry.get_production(name)
        aliases = {}
        for event in events:
            if event.kind == "alias_set":
                aliases[event.name, event.detail["alias"]] = event.version
            elif event.kind == "alias_removed":
                del aliases[event.name, event.detail["alias"]]
        for (name, alias), version in aliases.items():
            assert str(registry.get(name, alias).version) == version
        possible = {digest_of_folder(number) for number in range(CONTENTS)}
        possible |= {hashlib.sha256(content_of(number)).hexdigest() for number in range(CONTENTS)}
        for model in models:
            assert model.digest in possible
            for file in model.files:
                content = registry.load_weights_verified(model, path=file.path)
                assert (hashlib.sha256(content).hexdigest(), len(content)) == (file.sha256, file.size)
        registry.gc(grace_seconds=0, actor="check")
    return Counter(event.kind for event in events)


def main() -> None:
    folder, seed, rounds, calls = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    place = folder / "registry"
    for number in range(CONTENTS):
        write_folder(folder / "folders", number)
    notes: list[list[str]] = [["try", "check"]]
    killed = 0
    kinds: Counter[str] = Counter()
    for round_number in range(rounds):
        paths = [folder / f"{round_number}-{number}" for number in range(PROCESSES)]
        children = [
            run_child(place, path, f"{seed}/{round_number}/{number}", calls, number)
            for number, path in enumerate(paths)
        ]
        for child in children:
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a child failed"
            killed += os.WIFSIGNALED(status)
        for path in paths:
            if path.exists():
                notes += [line.split("\t") for line in path.read_text().splitlines()]
        kinds = check(place, notes)
    with ModelRegistry(place) as registry:
        named = {file.sha256 for model in registry.list() for file in model.files}
        assert {sha256 for sha256, *_ in registry.store.blobs.scan()} == named, (
            "gc has left something, or taken too much"
        )
        assert registry.store.database.number("SELECT count(*) FROM claims") == 0
    assert [path.name for path in (place / "writers").iterdir()] == []
    left = [path.name for path in place.rglob("*") if path.name.endswith(".lattice-tmp")]
    assert left == []
    print(json.dumps({"killed": killed, "calls": sum(note[0] == "try" for note in notes), "events": dict(kinds)}))


if __name__ == "__main__":
    main()
