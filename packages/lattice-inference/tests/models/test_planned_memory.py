"""What is said of an encoder's memory before it is loaded is what its compiled program takes."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from drawn_checkpoints import write_directory
from lattice_inference.backends.cpu import CpuBackend
from lattice_inference.memory.fit import estimate_memory
from lattice_inference.quantize.model_program import open_model_program

CASES = json.loads((Path(__file__).parents[1] / "data" / "architectures" / "cases.json").read_text())["cases"]


@pytest.mark.parametrize("case", ["roberta", "dense-tanh", "cross-encoder-xlm-roberta-old-identity"])
def test_a_precision_takes_what_was_told(case, tmp_path):
    path = write_directory(tmp_path / "model", CASES[case])
    for told in estimate_memory(path).precisions:
        with ExitStack() as stack:
            model = open_model_program(path, stack)
            compiled = CpuBackend(precision=told.precision).compile(model.program, model.tensors)
        assert told.weights_bytes == sum(weight.nbytes for weight in compiled.weight_sizes), told.precision
    if (path / "model.safetensors").exists():
        assert estimate_memory(path / "model.safetensors").precisions == estimate_memory(path).precisions
