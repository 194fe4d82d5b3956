"""Every writer of the package on a disk that fails: old or new content, never half of one, and a typed error."""

from __future__ import annotations

from pathlib import Path

import pytest
from disk_faults import run

SCRIPT = Path(__file__).with_name("failing_stores.py")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    [
        "put in a file",
        "put in a folder",
        "delete from a file",
        "delete from a folder",
        "new file",
        "new folder",
        "upgrade",
        "journal",
        "baseline",
    ],
)
def test_failing_disk_leaves_the_old_or_the_new(name: str, tmp_path: Path) -> None:
    run(SCRIPT, name, tmp_path)
