"""Updates against PyTorch (tools/goldens/lora_training.py), rates, draws and the layout of the parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lattice_tune import LRSchedule, OptimizerConfig, TrainingError
from lattice_tune.lora.draws import epoch_order, first_factor
from lattice_tune.lora.flat_optimizer import FlatOptimizer
from lattice_tune.lora.parameters import TrainedParameters
from lattice_tune.training.optimizer import Optimizer

GOLDENS = Path(__file__).parents[1] / "data" / "lora" / "torch.npz"


@pytest.fixture(scope="module")
def torch_results() -> dict[str, np.ndarray]:
    with np.load(GOLDENS) as archive:
        return {name: archive[name] for name in archive.files}


def small_parameters() -> TrainedParameters:
    """A is (3, 16), and B (16, 3): 48 numbers each."""
    return TrainedParameters({"layer": (16, 16)}, 3)


def test_a_hundred_steps_of_adamw_are_those_of_pytorch(torch_results: dict[str, np.ndarray]) -> None:
    parameters = small_parameters()
    parameters.values[:] = torch_results["adamw_start"]
    config = OptimizerConfig(learning_rate=1e-2, beta1=0.9, beta2=0.99, weight_decay=0.05)
    optimizer = FlatOptimizer(config, parameters, b_rate_ratio=4.0, gradient_clip=1.0)
    norms = []
    for row in torch_results["adamw_gradients"]:
        parameters.gradients[:] = 8.0 * row  # the sum over a weight of 8
        norms.append(optimizer.update(1e-2, 8.0).gradient_norm)
    assert min(norms) < 1.0 < max(norms)  # some were clipped
    off = np.abs(parameters.values - torch_results["adamw_end"]).max()
    assert off <= 1e-4 * np.abs(torch_results["adamw_end"]).max()


def test_sgd_is_the_textbooks() -> None:
    parameters = small_parameters()
    parameters.draw(3)
    before = parameters.values.copy()
    parameters.gradients[:] = np.arange(96, dtype=np.float32)
    config = OptimizerConfig(optimizer=Optimizer.SGD, learning_rate=0.5, weight_decay=0.0)
    FlatOptimizer(config, parameters).update(0.5, 4.0)
    np.testing.assert_allclose(parameters.values, before - 0.5 / 4.0 * np.arange(96), rtol=1e-6)


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    parameters = small_parameters()
    parameters.draw(3)
    before = parameters.values.copy()
    parameters.gradients[7] = np.nan
    with pytest.raises(TrainingError, match="not finite"):
        FlatOptimizer(OptimizerConfig(), parameters).update(0.1, 1.0)
    assert np.array_equal(parameters.values, before)


def test_a_head_lies_behind_the_matrices_and_its_bias_does_not_decay() -> None:
    parameters = TrainedParameters({"b": (5, 7), "a": (7, 3)}, 2, (3, 5))
    assert parameters.count == 2 * (7 + 3) + 2 * (5 + 7) + 3 * 5 + 3
    parameters.draw(1)
    sizes = {site: (a.shape, b.shape) for site, a, b in parameters.factors()}
    assert sizes == {"a": ((2, 3), (7, 2)), "b": ((2, 7), (5, 2))}
    parameters.view(parameters.values, "", "weight")[:] = 1.0
    parameters.view(parameters.values, "", "bias")[:] = 1.0
    FlatOptimizer(OptimizerConfig(weight_decay=0.5), parameters).update(0.1, 1.0)
    assert parameters.view(parameters.values, "", "weight") == pytest.approx(0.95)
    assert parameters.view(parameters.values, "", "bias") == pytest.approx(1.0)


def test_first_matrices_are_within_the_bound_of_peft_and_depend_on_seed_and_site() -> None:
    a = first_factor(5, "layer.0", 8, 400)
    assert abs(a).max() <= 1 / 20
    assert abs(a).max() > 0.049
    assert abs(a.mean()) < 0.002
    assert a.std() == pytest.approx(1 / 20 / np.sqrt(3), rel=0.05)
    assert np.array_equal(a, first_factor(5, "layer.0", 8, 400))
    assert not np.array_equal(a, first_factor(6, "layer.0", 8, 400))
    assert not np.array_equal(a, first_factor(5, "layer.1", 8, 400))


def test_orders_are_permutations_that_differ_by_epoch() -> None:
    orders = [epoch_order(7, epoch, 50) for epoch in range(3)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(50))
    assert not np.array_equal(orders[0], orders[1])
    assert np.array_equal(orders[2], epoch_order(7, 2, 50))


def test_rates_rise_in_the_warmup_and_fall_to_nothing() -> None:
    line, curve = LRSchedule.linear_decay(4, 20), LRSchedule.cosine_decay(4, 20)
    assert [line.get_lr(1.0, step, 0) for step in range(4)] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert line.get_lr(1.0, 3 + 8, 0) == pytest.approx(1 - 8 / 17)
    assert line.get_lr(1.0, 20, 0) == line.get_lr(1.0, 30, 0) == 0.0
    assert curve.get_lr(1.0, 3, 0) == 1.0
    assert curve.get_lr(1.0, 20, 0) == pytest.approx(0.0, abs=1e-12)
    assert curve.get_lr(2.0, 12, 0) == pytest.approx(1 + np.cos(np.pi * 9 / 17))
