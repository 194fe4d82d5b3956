"""How many calls of our own Python functions a load and a token take: counts, which no busy machine changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

COUNTING = '''
import json, sys

class Calls:
    """Counts calls of functions in files of lattice_inference."""

    def __enter__(self):
        self.count = 0
        sys.setprofile(self._note)
        return self

    def _note(self, frame, event, argument):
        if event == "call" and "/lattice_inference/" in frame.f_code.co_filename:
            self.count += 1

    def __exit__(self, *error):
        sys.setprofile(None)

import lattice_inference
'''
ENCODER = """
with Calls() as cold:
    encoder = lattice_inference.load_encoder(sys.argv[1])
    encoder.encode(["A text."])
with Calls() as warm:
    encoder.encode(["Another text."])
print(json.dumps({"cold": cold.count, "warm": warm.count}))
"""
DECODER = """
with Calls() as start:
    model = lattice_inference.load_model(sys.argv[1])
    session = lattice_inference.Session(model)
stream = session.stream("The capital of France is", lattice_inference.GenerateConfig.greedy(16))
for _ in range(4):
    next(stream)
tokens = []
for _ in range(8):
    with Calls() as token:
        next(stream)
    tokens.append(token.count)
print(json.dumps({"start": start.count, "token": max(tokens)}))
"""


def counted(program: str, path: Path) -> dict[str, int]:
    """Run a program in a process of its own, where no module has been imported yet."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTING + program, str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


@pytest.mark.model
def test_a_real_encoder_is_loaded_and_used_in_few_calls(minilm_directory: Path) -> None:
    calls = counted(ENCODER, minilm_directory)
    assert 100 < calls["cold"] <= 10_200  # 45,354 once; 10,095 with AMX, 9,973 with AVX2
    assert 10 < calls["warm"] <= 36


@pytest.mark.model
def test_a_real_decoder_is_started_and_gives_tokens_in_few_calls(smollm2: Path) -> None:
    calls = counted(DECODER, smollm2)
    assert 1_000 < calls["start"] <= 50_000  # 159,659 once, of which 49,152 for the vocabulary's table
    assert 20 < calls["token"] <= 68  # 119 once
