"""What the script for sampling concludes from a record, and that it compares what it times."""

from typing import Any

import numpy as np
import pytest

import sampling
from harness.record import describe_run


def sampling_record(*, kernels: float = 1e-4, greedy: float = 2e-5) -> dict[str, Any]:
    rows = [
        {"vocabulary": 49_152, "settings": "greedy", "kernels": [greedy, greedy, 1.0], "numpy": [3e-5]},
        {"vocabulary": 49_152, "settings": "temperature 1", "kernels": [kernels], "numpy": [2e-3, 2e-3, 0.0]},
    ]
    return describe_run("sampling") | {"rows": rows}


def test_the_forms_are_compared_with_the_limits() -> None:
    assert sampling.misses(sampling_record()) == []
    assert "| 49,152: temperature 1 | 0.100 ms | 2.00 ms | 0.050 |" in sampling.render(sampling_record()).splitlines()
    for record in (sampling_record(kernels=1e-3), sampling_record(greedy=1.0), sampling_record(kernels=np.nan)):
        assert len(sampling.misses(record)) == 1


def test_forms_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    row = sampling._compare(500, "temperature 1", 1)
    assert [len(row[form]) for form in ("kernels", "numpy")] == [1, 1]
    monkeypatch.setattr("lattice_inference.generate.sampler.Sampler.sample", lambda *_: -1)
    with pytest.raises(SystemExit, match="the two forms differ: 500 logits, temperature 1"):
        sampling._compare(500, "temperature 1", 1)
