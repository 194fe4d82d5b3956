"""Elastic weight consolidation and router training."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lattice_fann import (
    Activation,
    BackpropTrainer,
    DiagonalFisher,
    InvalidInputError,
    Network,
    NetworkBuilder,
    NumericInstability,
    Optimizer,
    RlooConfig,
    RlooTrainer,
    SizeMismatchError,
    TrainingConfig,
    backpropagate,
    gradients,
    load_balance_aux_loss,
    router_z_loss,
)
from lattice_fann.online.rloo import _score


def gate(experts: int = 3, seed: int = 0) -> Network:
    return NetworkBuilder().input(4).hidden(8, Activation.TANH).output(experts).build(seed=seed)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


def test_fisher_is_a_moving_average_of_squares() -> None:
    fisher = DiagonalFisher(3, decay=0.9)
    fisher.observe_gradient([1, 2, 0])
    fisher.observe_gradient([0, 2, 1])
    assert fisher.values == pytest.approx([0.09, 0.76, 0.1])


def test_the_penalty_gradient_is_the_penaltys() -> None:
    generator = np.random.RandomState(0)
    fisher = DiagonalFisher(5)
    fisher.observe_gradient(generator.standard_normal(5))
    parameters = generator.standard_normal(5).astype(np.float32)
    assert fisher.penalty(parameters, 2.0) == 0
    assert (fisher.penalty_gradient(parameters, 2.0) == 0).all()
    fisher.set_anchor(generator.standard_normal(5))
    for i in range(5):
        step = np.zeros(5, dtype=np.float32)
        step[i] = 1e-2
        slope = (fisher.penalty(parameters + step, 2.0) - fisher.penalty(parameters - step, 2.0)) / 2e-2
        assert fisher.penalty_gradient(parameters, 2.0)[i] == pytest.approx(slope, rel=1e-3, abs=1e-6)


def test_projection_keeps_what_matters_most_in_place() -> None:
    fisher = DiagonalFisher(3, decay=0.5)
    assert fisher.project_delta([1, 2, 3]).tolist() == [1, 2, 3]
    fisher.observe_gradient([2, 1, 0])
    assert fisher.project_delta([1, 1, 1]) == pytest.approx([0, 0.75, 1])


def test_vectors_of_another_length_are_refused() -> None:
    """The reference worked on the common prefix without a word."""
    fisher = DiagonalFisher(3)
    for call in (fisher.observe_gradient, fisher.set_anchor, fisher.project_delta):
        with pytest.raises(SizeMismatchError):
            call([1, 2])
        with pytest.raises(InvalidInputError, match="not finite"):
            call([1, 2, math.nan])
    for decay in (0.0, 1.0, math.nan):
        with pytest.raises(InvalidInputError, match="decay"):
            DiagonalFisher(3, decay=decay)


def test_consolidation_remembers_the_first_task() -> None:
    """Two tasks that share a network: with the penalty, less of the first is lost while the second is learned."""
    generator = np.random.RandomState(0)
    x1, x2 = generator.standard_normal((200, 6)), generator.standard_normal((200, 6))
    x1[:, 3:] = 0
    y1, y2 = (x1[:, 0] > 0).astype(int), (x2.sum(axis=1) < 0).astype(int)
    first = NetworkBuilder().input(6).hidden(16, Activation.TANH).output(2, Activation.SOFTMAX).build(seed=0)
    config = TrainingConfig(optimizer=Optimizer.ADAM, max_epochs=30, target_error=None, seed=0)
    BackpropTrainer(first, config).train(x1, y1)
    fisher = DiagonalFisher(first.total_params, decay=0.9)
    for i in range(200):
        fisher.observe_gradient(gradients(first, x1[i : i + 1], y1[i : i + 1]).vector())
    fisher.set_anchor(first.parameter_vector())

    def second_task(strength: float) -> float:
        network = first.copy()
        for _ in range(200):
            step = gradients(network, x2, y2).vector() + fisher.penalty_gradient(network.parameter_vector(), strength)
            network.set_parameter_vector(network.parameter_vector() - 0.1 * step)
        return gradients(network, x1, y1).loss

    assert second_task(200.0) < 0.6 * second_task(0.0)


def test_parameter_vectors_are_laid_out_as_the_file_format() -> None:
    network = gate()
    vector = network.parameter_vector()
    stored = np.frombuffer(network.to_bytes(), "<f4", 40, 12 + 9)
    assert (vector[:40] == stored).all()
    other = gate(seed=1)
    other.set_parameter_vector(vector)
    assert other.to_bytes() == network.to_bytes()
    for bad in (vector[:-1], np.full_like(vector, np.nan)):
        with pytest.raises(ValueError):
            other.set_parameter_vector(bad)
    assert other.to_bytes() == network.to_bytes()


@pytest.mark.parametrize("output", [Activation.LINEAR, Activation.SIGMOID, Activation.SOFTMAX])
def test_backpropagation_of_a_given_gradient_is_the_chain_rule(output: Activation) -> None:
    network = NetworkBuilder().input(4).hidden(8, Activation.TANH).output(3, output).build(seed=0)
    generator = np.random.RandomState(0)
    x, t = generator.standard_normal((6, 4)), generator.standard_normal((6, 3)).astype(np.float32)
    given = backpropagate(network, x, 2 * (network.forward_batch(x) - t) / 18)
    from lattice_fann import Loss

    assert given.vector() == pytest.approx(gradients(network, x, t, loss=Loss.MSE).vector(), rel=1e-4, abs=1e-7)


def reference_step_gradient(z: np.ndarray, action: int, reward: float, aux: float, zeta: float) -> np.ndarray:
    """Central differences of -reward log p(action) + aux sum (p - 1/K)^2 / K + zeta LSE^2."""

    def loss(z: np.ndarray) -> float:
        p = softmax(z)
        lse = math.log(np.exp(z).sum())
        return -reward * math.log(p[action]) + aux * ((p - 1 / len(p)) ** 2).mean() + zeta * lse**2

    return np.array([(loss(z + d) - loss(z - d)) / 2e-5 for d in np.eye(len(z)) * 1e-5])


def test_a_step_descends_the_documented_loss() -> None:
    config = RlooConfig(learning_rate=0.1, aux_weight=0.7, z_weight=0.3)
    network = NetworkBuilder().input(2).output(3).build(seed=0)
    trainer = RlooTrainer(network, config)
    x = np.array([1.0, -2.0], dtype=np.float32)
    z = network.forward(x).astype(np.float64)
    before = network.layers[0].biases.copy()
    value = trainer.step(x, 1, 0.8)
    assert value == pytest.approx(-0.8 * math.log(softmax(z)[1]), rel=1e-5)
    wanted = reference_step_gradient(z, 1, 0.8, 0.7, 0.3)
    assert (before - network.layers[0].biases) / 0.1 == pytest.approx(wanted, rel=1e-3, abs=1e-5)
    assert trainer.last_gradients().biases[0] == pytest.approx(wanted, rel=1e-3, abs=1e-5)


def test_the_entropy_term_is_the_entropys_gradient() -> None:
    trainer = RlooTrainer(gate(), RlooConfig(aux_weight=0, z_weight=0, entropy_weight=1.0))
    z = np.array([0.3, -1.0, 2.0])

    def negative_entropy(z: np.ndarray) -> float:
        p = softmax(z)
        return float((p * np.log(p)).sum())

    slope = [(negative_entropy(z + d) - negative_entropy(z - d)) / 2e-5 for d in np.eye(3) * 1e-5]
    assert trainer._regularizers(softmax(z), 0.0) == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(("reward", "sign"), [(1.0, 1), (-1.0, -1)])
def test_rewards_have_their_polarity(reward: float, sign: int) -> None:
    network, x = gate(), np.array([0.5, -0.5, 1.0, 0.0])
    trainer = RlooTrainer(network, RlooConfig(learning_rate=0.1, aux_weight=0, z_weight=0))
    before = trainer.probabilities(x)[2]
    trainer.step(x, 2, reward)
    assert (trainer.probabilities(x)[2] - before) * sign > 0


@pytest.mark.parametrize("k", [1, 2, 3])
def test_scores_are_those_of_choices_without_replacement(k: int) -> None:
    """The reference used 1[j in S] - k p_j, which is exact for k = 1 only."""
    z = np.array([0.5, -0.3, 1.2, 0.0])

    def log_probability(z: np.ndarray, choice: tuple[int, ...]) -> float:
        left, total = list(range(len(z))), 0.0
        for expert in choice:
            total += z[expert] - math.log(np.exp(z[left]).sum())
            left.remove(expert)
        return total

    mean = np.zeros(4)
    for choice in itertools.permutations(range(4), k):
        slope = [(log_probability(z + d, choice) - log_probability(z - d, choice)) / 2e-5 for d in np.eye(4) * 1e-5]
        score = _score(z, np.array(choice))
        assert score == pytest.approx(slope, abs=1e-6)
        mean += math.exp(log_probability(z, choice)) * score
    assert mean == pytest.approx(np.zeros(4), abs=1e-12)  # the score's expectation is zero: the probabilities are right


def test_two_samples_are_each_others_baseline() -> None:
    """Of two experts with even odds, one sample right and one wrong: each advantage is 2 / 2, each score half a unit."""
    network = NetworkBuilder().input(1).output(2).build(seed=0)
    seen = set()
    trainer = RlooTrainer(network, RlooConfig(learning_rate=1e-12, aux_weight=0, z_weight=0), seed=1)
    for _ in range(20):
        network.layers[0].weights, network.layers[0].biases = np.zeros((2, 1)), np.zeros(2)
        step = trainer.rloo_step([0.0], 1, samples=2)
        seen.add((step.mean_reward, *trainer.last_gradients().biases[0].tolist()))
    assert seen == {(0.0, 1.0, -1.0), (1.0, 0.0, 0.0), (-1.0, 0.0, 0.0)}


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2])
def test_the_leave_one_out_estimate_is_unbiased(k: int) -> None:
    z = np.array([0.5, -0.3, 1.2, 0.0])
    network = NetworkBuilder().input(1).output(4).build(seed=0)
    network.layers[0].weights, network.layers[0].biases = np.zeros((4, 1)), z
    exact = np.zeros(4)
    for choice in itertools.permutations(range(4), k):
        left, probability = list(range(4)), 1.0
        for expert in choice:
            probability *= math.exp(z[expert]) / np.exp(z[left]).sum()
            left.remove(expert)
        reward = 1.0 if 1 in choice else -1.0
        exact -= probability * reward * _score(z, np.array(choice))
    trainer = RlooTrainer(network, RlooConfig(learning_rate=1e-12, aux_weight=0, z_weight=0), seed=1)
    estimates = []
    for _ in range(5000):  # of few samples each: a baseline that held the sample itself would halve the mean
        trainer.rloo_step([0.0], 1, k=k, samples=2)
        estimates.append(trainer.last_gradients().biases[0])
    error = np.std(estimates, axis=0) / math.sqrt(len(estimates))
    assert (np.abs(np.mean(estimates, axis=0) - exact) < 5 * error + 1e-6).all()


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2])
def test_routers_learn_from_preferences(k: int) -> None:
    generator = np.random.RandomState(0)
    network = gate(experts=4)
    trainer = RlooTrainer(network, RlooConfig(learning_rate=0.05), seed=0)
    for _ in range(1500):
        x = generator.standard_normal(4)
        trainer.rloo_step(x, int(np.argmax(x)), k=k)
    x = generator.standard_normal((500, 4))
    agreement = np.mean(network.forward_batch(x).argmax(axis=1) == x.argmax(axis=1))
    assert agreement > (0.8 if k == 1 else 0.5)


def test_router_steps_are_reproducible() -> None:
    def run(seed: int) -> bytes:
        network = gate()
        trainer = RlooTrainer(network, seed=seed)
        for i in range(20):
            trainer.rloo_step(np.ones(4) * i / 20, i % 3)
        return network.to_bytes()

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_router_losses_have_their_formulas() -> None:
    assert load_balance_aux_loss([0.25] * 4) == 0
    assert load_balance_aux_loss([1, 0]) == pytest.approx(0.25)
    assert load_balance_aux_loss([[1, 0], [0, 1]]) == 0
    assert router_z_loss([0, 0]) == pytest.approx(math.log(2) ** 2)
    assert router_z_loss([1000, 0]) == pytest.approx(1e6)
    for bad in ([], [math.nan, 0], [[[1]]]):
        with pytest.raises(InvalidInputError):
            router_z_loss(bad)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="must be Linear"):
        RlooTrainer(NetworkBuilder().input(2).output(3, Activation.SOFTMAX).build(seed=0))
    with pytest.raises(InvalidInputError, match="nothing to decide"):
        RlooTrainer(NetworkBuilder().input(2).output(1).build(seed=0))
    network = gate()
    before = network.to_bytes()
    trainer = RlooTrainer(network)
    x = np.zeros(4)
    for call in (
        lambda: trainer.step(x, 3, 1.0),
        lambda: trainer.step(x, 0, math.nan),
        lambda: trainer.rloo_step(x, 3),
        lambda: trainer.rloo_step(x, 0, k=3),
        lambda: trainer.rloo_step(x, 0, samples=1),
        lambda: trainer.rloo_step(x, 0, samples=10**9),
        lambda: trainer.step(np.zeros(5), 0, 1.0),
    ):
        with pytest.raises(InvalidInputError):
            call()
    with pytest.raises(NumericInstability):
        trainer.step(np.full(4, np.nan), 0, 1.0)
    assert network.to_bytes() == before
    for options in ({"learning_rate": 0.0}, {"aux_weight": -1.0}, {"z_weight": math.inf}):
        with pytest.raises(InvalidInputError, match=next(iter(options))):
            RlooConfig(**options)
