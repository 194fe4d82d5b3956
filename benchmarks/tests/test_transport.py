"""What transport.py concludes from a record, and its command line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import transport_tables
from harness.record import describe_run

SCRIPT = Path(__file__).resolve().parents[1] / "transport.py"


def transport_record(*, pot_ms: float = 40.0, exact_ms: float = 2.0, check_ms: float = 1.0) -> dict[str, Any]:
    """Our processor time is 1 ms for whatever has a peer."""
    cell = {"n": 256, "epsilon": 0.05, "error": 1e-7}
    sinkhorn = [
        {**cell, "system": "lattice float32", "cpu_ms": 1.0},
        {**cell, "system": "POT sinkhorn_log float64", "cpu_ms": pot_ms},
    ]
    emd = [
        {"n": 256, "system": "lattice emd", "cpu_ms": 1.0},
        {"n": 256, "system": "POT emd", "cpu_ms": exact_ms},
    ]
    online = {"window": 256, "dimension": 384, "check_cpu_ms": check_ms}
    nulls = {"kind": "false alarms", "nulls": 100, "stated": 0.05, "band": [0.02, 0.08], "divergence": 0.05}
    nulls |= {"mmd": 0.05, "classifier": 0.05, "online": 0.05}
    record = {"threads": 2, "sinkhorn": sinkhorn, "emd": emd, "online": online, "power": [nulls]}
    return {**describe_run("transport"), **record}


def test_transport_has_limits_for_peers_checks_and_false_alarms() -> None:
    assert transport_tables.misses(transport_record()) == []
    record = transport_record(pot_ms=29.0, exact_ms=0.9, check_ms=float("nan"))
    record["power"][0]["divergence"] = 0.09
    assert transport_tables.misses(record) == [
        "256 points, epsilon 0.05: 29.0 times POT sinkhorn_log float64, 30 is the limit",
        "256 points, exact: 0.90 times POT, 1 is the limit",
        "online: nan ms, 5 is the limit",
        "divergence: 9.0% false alarms, 2.0% to 8.0% is the limit",
    ]
    text = transport_tables.render(record)
    assert "| 256 | 0.05 | POT sinkhorn_log float64 | 29.0 | 29.0 | 1.0e-07 |" in text
    assert "| 256 | POT emd | 0.9 | 0.90 |" in text


@pytest.mark.slow
def test_transport_is_measured_and_written_as_a_record(tmp_path: Path) -> None:
    path = tmp_path / "transport.json"
    command = [sys.executable, str(SCRIPT), "--only", "online", "--quick", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "An online check with a window of 256 vectors" in done.stdout
    assert json.loads(path.read_text(encoding="utf-8"))["script"] == "transport"
    refused = subprocess.run([*command, "--only", "nothing"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "'nothing' is not one of sinkhorn" in refused.stderr
