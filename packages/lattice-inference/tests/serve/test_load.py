"""A short run of the load that ``nox -s serve_load`` puts on a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

ROOT = Path(__file__).parents[4]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it reads /proc")
def test_nothing_is_wrong_lost_or_left():
    models = str(ROOT / "packages" / "lattice-inference" / "tests" / "models")
    paths = os.pathsep.join([models, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "ci/serve_load.py", "--seconds", "2", "--clients", "16"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert json.loads(done.stdout)["answers"]["right"] >= 80
