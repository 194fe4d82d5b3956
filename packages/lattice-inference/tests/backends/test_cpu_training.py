"""Programs for training on the CPU: what a step does not have is refused, before any kernel reads it."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.backends.reference_backend import ReferenceBackend
from lattice_inference.backends.training_protocol import SiteFactors
from lattice_inference.errors import InvalidInputError, NonFiniteError, UnsupportedError
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import Op, Program

from .programs import Tensors
from .reverse_programs import ReverseCase
from .test_blocks import StoredTensors, drawn_blocks


@pytest.fixture
def loss():
    """A compiled loss over 7 outputs of rows that the batch gives, and a batch for it."""
    case = ReverseCase([3])
    weight = case.weight("w", np.ones((7, 5), np.float32))
    (x,) = case.writer.append("input_rows", (), {}, {"name": "x", "rows": "logit_rows", "width": 5})
    (case.outputs["sums"],) = case.writer.append("linear_cross_entropy", (x,), {"weight": weight}, {"gradient": False})
    compiled = CpuBackend().compile_training({"p": case.program}, Tensors(case.tensors), {})
    given = {
        "logit_rows": np.array([0, 2], np.int32),
        "targets": np.array([0, 6], np.int32),
        "inputs": {"x": np.ones((2, 5), np.float32)},
    }
    return compiled, case, given


def test_a_target_that_is_no_output_is_refused(loss):
    compiled, case, given = loss
    assert compiled.run("p", case.batch(**given))["sums"][1].tolist() == [5.0, 7.0, 0.0, 5.0]
    for target in (-1, 7):
        with pytest.raises(ValueError, match=f"the target {target} of row 1 is not one of 7 outputs"):
            compiled.run("p", case.batch(**given | {"targets": np.array([0, target], np.int32)}))
    with pytest.raises(ValueError, match="a loss of 2 rows needs a target"):
        compiled.run("p", case.batch(**given | {"targets": None}))


def test_rows_that_are_missing_or_do_not_fit_are_refused(loss):
    compiled, case, given = loss
    for inputs in (None, {}, {"x": np.ones((3, 4), np.float32)}, {**given["inputs"], "y": np.ones((2, 5), np.float32)}):
        batch = case.batch(**given | {"inputs": inputs})
        for each in (compiled, ReferenceBackend().compile_training({"p": case.program}, Tensors(case.tensors), {})):
            with pytest.raises(InvalidInputError, match=r"reads inputs of the shapes \{'x': \(2, 5\)\}"):
                each.run("p", batch)
    with pytest.raises(NonFiniteError):
        compiled.run("p", case.batch(**given | {"inputs": {"x": np.full((2, 5), np.nan, np.float32)}}))


def test_a_closed_program_is_refused(loss):
    compiled, case, given = loss
    compiled.close()
    compiled.close()
    with pytest.raises(InvalidInputError, match="closed"):
        compiled.run("p", case.batch(**given))


def test_factors_of_other_sizes_are_refused():
    case = ReverseCase([4], site=(2, 5, 3))
    x = case.rows("x", np.ones((4, 5), np.float32))
    (case.outputs["u"],) = case.writer.append("low_rank_inner", (x,), {}, {"site": "s", "number": 0, "rank": 2})
    sizes = {"s": SiteFactors(2, 6, 3)}
    with pytest.raises(ValueError, match=r"an op reads 5 and writes 2 columns by factors of \(2, 6, 3\)"):
        CpuBackend().compile_training({"p": case.program}, Tensors(case.tensors), sizes)
    compiled = CpuBackend().compile_training({"p": case.program}, Tensors(case.tensors), {"s": SiteFactors(2, 5, 3)})
    with pytest.raises(InvalidInputError, match=r"factors of s have the shape \(2, 4\), not \(2, 5\)"):
        compiled.factors.write("s", np.ones((2, 4), np.float32), np.ones((3, 2), np.float32))
    with pytest.raises(ValueError, match="there are no factors of 0"):
        _cpu.TrainedFactors([(0, 5, 3)])


def test_a_plan_for_training_runs_with_factors_of_its_sizes_only():
    ids = np.zeros(1, np.int32)
    step = {
        **dict.fromkeys(("token_ids", "token_type_ids", "positions"), ids),
        "cu_seqlens": np.array([0, 1], np.int32),
        "max_seqlen": 1,
        "arena": _cpu.Memory(1 << 16),
        "slot_offsets": [0, 64],
        "scratch_offset": 1024,
        "scratch_bytes": 1 << 15,
        "threads": 1,
        "bookkeeping_offset": 1 << 15 | 1024,
    }
    plan = _cpu.Plan("baseline")
    plan.use_factors({"s": (2, 5, 3)})
    plan.append(
        "low_rank_inner", rows="tokens", inputs=[(0, 5, 0)], output=(1, 2, 0), k=5, n=2, site="s", number=0, rank=2
    )
    with pytest.raises(TypeError, match="this program is for training: pass factors"):
        plan.run(_cpu.Step(**step))
    with pytest.raises(ValueError, match="factors of other sizes"):
        plan.run(_cpu.Step(**step, training=_cpu.StepTraining(_cpu.TrainedFactors([(2, 5, 4)]))))
    assert plan.run(_cpu.Step(**step, training=_cpu.StepTraining(_cpu.TrainedFactors([(2, 5, 3)])))) is None


def test_rows_of_integers_are_refused():
    case = ReverseCase([2])
    (dy,) = case.writer.append("input_rows", (), {}, {"name": "dy", "rows": "tokens", "width": 45})
    weight = {"weight": GraphBuilder.weight("w", (45, 512))}
    (case.outputs["y"],) = case.writer.append("linear_input_grad", (dy,), weight, {})
    backend = CpuBackend(precision="stored")
    with pytest.raises(UnsupportedError, match="activations must be 'float32'"):
        backend.compile_training({"p": case.program}, StoredTensors({"w": drawn_blocks("Q4_1")}), {})


def test_an_op_without_a_kernel_is_refused_by_its_name():
    case = ReverseCase([2])
    x = case.rows("x", np.ones((2, 4), np.float32))
    (y,) = case.writer.append("add", (x, x), {}, {})
    unknown = Program((case.writer.ops[0], Op("adds", (x, x), {}, (y,))), {"y": y})
    with pytest.raises(UnsupportedError, match="no kernel for the op 'adds'"):
        CpuBackend().compile_training({"p": unknown}, Tensors(case.tensors), {})
