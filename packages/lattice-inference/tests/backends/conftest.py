import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def recorded_bits():
    return json.loads((Path(__file__).parent / "recorded_bits.json").read_text())
