"""The list of kernels and the records of ops: what Python says by name is what C has, and nothing else is taken."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from lattice_inference.backends.cpu import _cpu
from lattice_inference.graph.fusion import BIT_NEUTRAL_RULES, Fusion
from lattice_inference.graph.reverse_ops import TRAINING_OPS

SOURCES = Path(_cpu.__file__).parent
LISTS = (
    "KERNELS",
    "ROW_KINDS",
    "IDS",
    "ACTIVATIONS",
    "PAIRINGS",
    "POOLS",
    "FUNCTIONS",
    "BFLOAT16_PRODUCTS",
    "KV_TYPES",
)
ROWS = {"rows": "tokens", "inputs": [(0, 16, 0)], "output": (1, 16, 0), "k": 16, "n": 16}


@pytest.fixture
def plan():
    return _cpu.Plan("baseline")


@pytest.mark.parametrize("name", LISTS)
def test_the_numbers_of_a_list_are_its_order(name):
    numbers = getattr(_cpu, name)
    assert list(numbers.values()) == list(range(len(numbers))) != []


def test_formats_of_blocks_follow_the_other_types_of_weights():
    numbers = list(_cpu.WEIGHT_TYPES.values())
    assert numbers == list(range(len(numbers)))
    assert tuple(_cpu.WEIGHT_TYPES)[-len(_cpu.BLOCK_FORMATS) :] == _cpu.BLOCK_FORMATS


def test_every_kernel_is_that_of_an_op_or_said_by_its_name():
    """A kernel without a record is found by its op's name; the others stand in the lowering or in a form of weights."""
    said = "".join(path.read_text() for path in [*SOURCES.glob("*lowering.py"), *(SOURCES / "forms").glob("*.py")])
    fused = {rule.name for rule in BIT_NEUTRAL_RULES if isinstance(rule, Fusion)} | {"round_rows", "quantize_blocks"}
    found = {kind for kind in {*TRAINING_OPS, *fused} if _cpu.RECORDS.get(kind) == "none"}
    assert set(_cpu.KERNELS) - found <= set(re.findall(r'"(\w+)"', said))
    assert set(re.findall(r'return "(\w+)", ', said)) <= set(_cpu.KERNELS)


def test_what_a_kernel_does_not_take_is_refused(plan):
    with pytest.raises(TypeError, match="add takes no epsilon"):
        plan.append("add", **ROWS, epsilon=1e-5)
    with pytest.raises(KeyError, match="no_such_kernel"):
        plan.append("no_such_kernel", **ROWS)
    with pytest.raises(KeyError, match="epsilon"):
        plan.append("rms_norm", **ROWS, weight=np.ones(16, np.float32))
    with pytest.raises(ValueError, match="weight has 15 elements, 16 are needed"):
        plan.append("rms_norm", **ROWS, weight=np.ones(15, np.float32), epsilon=1e-5)


def test_an_operand_outside_the_slots_is_refused(plan):
    with pytest.raises(ValueError, match=f"slot {_cpu.MAX_SLOTS} is not one of the"):
        plan.append("add", **{**ROWS, "output": (_cpu.MAX_SLOTS, 16, 0)})
    norm = {"weight": np.ones(16, np.float32), "bias": np.ones(16, np.float32), "epsilon": 1e-5}
    with pytest.raises(ValueError, match="slot -1 is not one of the"):
        plan.append("layer_norm", **ROWS, **norm, quantized=(-1, 16, 0))


def test_a_step_that_does_not_fit_is_refused(plan):
    ids = np.zeros(4, np.int32)
    step = {
        "token_ids": ids,
        "token_type_ids": ids,
        "positions": ids,
        "cu_seqlens": np.array([0, 4], np.int32),
        "max_seqlen": 4,
        "arena": _cpu.Memory(4096),
        "slot_offsets": [0],
        "scratch_offset": 1024,
        "scratch_bytes": 1024,
        "threads": 3,
        "bookkeeping_offset": 4032,
    }
    assert plan.run(_cpu.Step(**step)) is None
    assert plan.run(_cpu.Step(**step | {"slot_offsets": [0] * 1000})) is None
    plan.append("add", **{**ROWS, "output": (4, 16, 0)})
    with pytest.raises(ValueError, match="a step with 1 slots is given to ops that need 5"):
        plan.run(_cpu.Step(**step))
    with pytest.raises(ValueError, match="too small to cut this step"):
        plan.run(_cpu.Step(**step | {"slot_offsets": [0] * 5, "bookkeeping_offset": 4096}))
    for wrong, message in (
        ({"threads": 4}, "too small for the scratch"),
        ({"logit_rows": np.array([4], np.int32)}, "logit row 4 is not one of 4 rows"),
        ({"slot_offsets": [0] * (_cpu.MAX_SLOTS + 1)}, "slots are more than"),
        ({"positions": ids[:3]}, "positions has 3 entries, 4 are needed"),
    ):
        with pytest.raises(ValueError, match=message):
            _cpu.Step(**step | wrong)
