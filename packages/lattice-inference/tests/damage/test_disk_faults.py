"""Every writer of the package on a disk that fails: old or new content, never half of one, and a typed error."""

from __future__ import annotations

from pathlib import Path

import failing_writers
import pytest
from disk_faults import run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", list(failing_writers.WRITERS))
def test_failing_disk_leaves_the_old_or_the_new(name: str, tmp_path: Path) -> None:
    run(Path(failing_writers.__file__), name, tmp_path)
