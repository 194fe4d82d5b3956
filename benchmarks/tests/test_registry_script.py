"""What the script for the model registry concludes from a record."""

from typing import Any

import registry
from harness.record import describe_run


def registry_record(
    latest: float = 0.5e-3, wall: float = 50e-3, wait: float = 40e-3, cpu: float = 8e-3
) -> dict[str, Any]:
    samples = {"get_latest": [[latest, 0.0, latest]] * 3, "register": [[wall, wait, cpu]] * 3}
    return {**describe_run("registry"), "count": 10_000, **samples}


def test_registry_is_timed_beside_the_disk() -> None:
    assert registry.misses(registry_record()) == []
    assert "| `register` of 1 MB | 50.00 | 40.00 | 10.00 | 8.00 |" in registry.render(registry_record()).splitlines()
    for record in (registry_record(wall=61e-3), registry_record(cpu=21e-3), registry_record(latest=1.1e-3)):
        assert len(registry.misses(record)) == 1
    assert len(registry.misses(registry_record(wall=float("nan")))) == 1
