"""kill -9 at any point of a backfill loses nothing and repeats nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("killed_backfills.py")
KILLS = 50


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), [("a.db", "folder"), ("folder", "b.db")])
def test_no_kill_loses_a_write_or_repeats_an_embedding(source: str, target: str, tmp_path: Path) -> None:
    """The script asserts after each kill; see there."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), str(tmp_path), f"{source} {target}", source, target, str(KILLS)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**__import__("os").environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kills"] == KILLS
    assert report["embedded"] > 400 * report["backfills"]
