"""What is in a registry after its processes were killed at random."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("killed_registry.py")


@pytest.mark.slow
def test_eight_processes_killed_at_random_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path), "seed", "6", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["killed"] >= 12
    assert report["calls"] >= 900
    kinds = {"registered", "status", "promoted", "rolled_back", "deleted", "collected", "alias_set", "alias_removed"}
    assert set(report["events"]) == kinds
