"""Small files changed at random: nothing but our own errors, no crash, no hang, no balloon.

``LATTICE_FUZZ_ROUNDS`` sets how many files are tried, ``LATTICE_FUZZ_SEED`` the seed, and ``LATTICE_FUZZ_SECONDS`` when to
stop at the latest. A failure names seed and round, which make the same file again.
"""

import os
import random
import resource
import time
from pathlib import Path

import pytest
from weight_files import change_weight_file, use_weight_file, write_weight_files

from lattice_inference.errors import LatticeError

ROUNDS = int(os.environ.get("LATTICE_FUZZ_ROUNDS", "250"))
SEED = int(os.environ.get("LATTICE_FUZZ_SEED", "0"))
SECONDS = float(os.environ.get("LATTICE_FUZZ_SECONDS", "60"))


@pytest.fixture(scope="module")
def seeds(tmp_path_factory, data_directory) -> dict[str, bytes]:
    """The files that are changed, by name: one of each kind that a reader of ours takes."""
    folder = tmp_path_factory.mktemp("seeds")
    write_weight_files(folder, data_directory / "tiny_bert")
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def outcome(path: Path, what: str) -> str | None:
    """Return the message that a file was refused with, or None; fail for any other error than ours."""
    try:
        use_weight_file(path)
    except LatticeError as error:
        return str(error)
    except BaseException as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    return None


@pytest.mark.slow
def test_changed_files_give_our_errors_or_none(tmp_path, seeds):
    deadline = time.monotonic() + SECONDS
    names = list(seeds)
    for name in ("bert.gguf", "decoder.gguf"):  # what the first use of all imports is no file's fault
        use_weight_file(written(tmp_path / name, seeds[name]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = {"read": 0, "refused": 0}
    for number in range(ROUNDS):
        if time.monotonic() > deadline:
            break
        generator = random.Random(f"{SEED}:{number}")
        name = names[number % len(names)]
        path = written(tmp_path / name, change_weight_file(seeds[name], generator))
        start = time.thread_time()
        message = outcome(path, f"seed {SEED}, round {number}, {name}")
        outcomes["read" if message is None else "refused"] += 1
        assert len(message or "") < 4_000, (SEED, number)
        assert time.thread_time() - start < 1, (SEED, number)
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert now - peak < 100_000, (SEED, number)  # kilobytes on Linux
        peak = now
    assert outcomes["refused"] > 0
    assert outcomes["read"] > 0
