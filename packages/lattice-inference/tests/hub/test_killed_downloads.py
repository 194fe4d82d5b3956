"""A download that is killed, at any point, never leaves a model that loads and is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lattice_inference
from drawn_checkpoints import write_directory
from lattice_inference import load_encoder

SOURCE = Path(lattice_inference.__file__).parents[1]  # the package under test, installed or not
CASES = Path(__file__).parents[1] / "data" / "architectures" / "cases.json"
KILLS = 25

# One process imports everything once and forks a child for each download, so that many of them take some seconds.
KILL = """
import json, os, signal, sys, time
from pathlib import Path

import huggingface_hub
import lattice_inference
from lattice_inference import load_encoder
from lattice_inference.files.hub import find_model

kills, folder, text = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
huggingface_hub.snapshot_download, huggingface_hub.hf_hub_download  # both are imported when they are first named


def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        except Exception:
            pass
        os._exit(0)
    return child


def load(name):
    # In a child as well: the parent stays without threads, so that forking it is safe.
    report = folder / f"{name}.json"

    def work():
        try:
            with load_encoder("org/name", offline=True) as encoder:
                vector = encoder.encode([text]).vectors[0].tobytes().hex()
            report.write_text(json.dumps(vector))
        except Exception as error:
            report.write_text(json.dumps([type(error).__name__, str(error)]))

    os.waitpid(in_child(work), 0)
    return json.loads(report.read_text())


def download(cache):
    os.environ["HF_HUB_CACHE"] = str(folder / cache)
    return in_child(lambda: find_model("org/name"))


durations = []
for cache in ("first", "second", "whole"):
    began = time.monotonic()
    os.waitpid(download(cache), 0)
    durations.append(time.monotonic() - began)
duration = min(durations)  # without what else went on, so that kills are not after the end
results = {"whole": load("whole"), "finished": [], "killed": []}
for number in range(kills):
    child = download(f"cache{number}")
    time.sleep(duration * 0.8 * number / kills)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    result = load(f"killed{number}")
    if number % 8 == 7:  # what was left is no hindrance to the next try
        os.waitpid(download(f"cache{number}"), 0)
        results["finished"].append(load(f"finished{number}"))
    results["killed"].append(result)
print(json.dumps(results))
"""


@pytest.mark.slow
def test_kills_at_any_moment_leave_either_no_model_or_the_right_one(hub, tmp_path, monkeypatch):
    folder, address, _ = hub
    case = json.loads(CASES.read_text())["cases"]["dense-tanh"]
    directory = write_directory(folder / "org" / "name", case)
    (directory / ".slow").touch()
    with load_encoder(directory) as encoder:
        right = encoder.encode(["the cat"]).vectors[0].tobytes().hex()
    work = tmp_path / "work"
    work.mkdir()
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(SOURCE),
        "HF_ENDPOINT": address,
        "HF_HUB_DISABLE_XET": "1",
        "LATTICE_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", KILL, str(KILLS), str(work), "the cat"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["whole"] == right
    assert results["finished"] == [right] * 3
    incomplete = [result for result in results["killed"] if result != right]
    assert all(result[0] == "ModelNotFoundError" for result in incomplete), incomplete
    # Proof that the kills fell into the download: most leave it unfinished, and at different points.
    assert len(incomplete) >= KILLS // 2
    assert len({message.rpartition("hf_cache")[2].partition(" To get")[0] for _, message in incomplete}) >= 3
