"""Trains a router ("gate") from rewards, one decision at a time.

REINFORCE, and its leave-one-out form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_fann._engine import StepEngine
from lattice_fann.arguments import instance, real, shown, whole
from lattice_fann.arrays import float32_of, number_array
from lattice_fann.errors import GradientError, InvalidInputError, NumericInstability
from lattice_fann.initialization import random_generator
from lattice_fann.layer import MAX_ALLOWED_ELEMENTS
from lattice_fann.network import Network
from lattice_fann.one_thread import one_thread
from lattice_fann.training.config import Optimizer
from lattice_fann.training.gradients import Gradients

__all__ = ["RlooConfig", "RlooStep", "RlooTrainer"]

Float64Array = npt.NDArray[np.float64]

_GIVEN_GRADIENT = 5
_SMALLEST_PROBABILITY = 1e-9


@dataclass(frozen=True, kw_only=True)
class RlooConfig:
    """How a router learns.

    Attributes:
        learning_rate: of plain gradient descent.
        aux_weight: of the load-balance loss of the decision, sum (p_j - 1/K)^2 / K.
        z_weight: of the router z-loss, log(sum exp(logits))^2.
        entropy_weight: of the decision's entropy, which is raised: it keeps the router from settling too soon.
    """

    learning_rate: float = 1e-3
    aux_weight: float = 0.01
    z_weight: float = 0.001
    entropy_weight: float = 0.0

    def __post_init__(self) -> None:
        real(self.learning_rate, "learning_rate", "above 0", above=0)
        for name in ("aux_weight", "z_weight", "entropy_weight"):
            real(getattr(self, name), name, "of at least 0", least=0)


@dataclass(frozen=True)
class RlooStep:
    """What :meth:`RlooTrainer.rloo_step` saw.

    Attributes:
        mean_reward: over the samples, from -1 to 1.
        probabilities: (experts,) of the gate before the step.
    """

    mean_reward: float
    probabilities: Float64Array


_alone = one_thread("this gate", of=lambda trainer: trainer.gate)


class RlooTrainer:
    """Trains ``gate``, whose linear outputs are the logits of the experts.

    Both steps add the load-balance, z and entropy terms of the configuration, so that neither lets the router collapse
    onto one expert by itself. A step beside another thread's raises :class:`BusyError`.

    Args:
        gate: changed in place.
        config: rates and weights.
        seed: of the samples that :meth:`rloo_step` draws.

    Raises:
        InvalidInputError: the gate's output is not Linear, or it has a single expert.
    """

    def __init__(self, gate: Network, config: RlooConfig | None = None, *, seed: int | None = None) -> None:
        last = instance(gate, "gate", Network).layers[-1]
        if last.activation.name != "Linear":
            raise InvalidInputError(f"a gate gives logits: its output must be Linear, not {last.activation.name}")
        if last.num_outputs < 2:
            raise InvalidInputError("a gate with one expert has nothing to decide")
        self.gate = gate
        self.config: RlooConfig = RlooConfig() if config is None else instance(config, "config", RlooConfig)
        self._generator = random_generator(seed)
        self._engine = StepEngine(gate, 1, _GIVEN_GRADIENT, 1.0)
        self._order = np.zeros(1, dtype=np.int64)
        self._one = np.ones(1, dtype=np.float32)

    def probabilities(self, context: npt.ArrayLike) -> Float64Array:
        """Return the experts' probabilities for a context, (experts,)."""
        return _softmax(self.gate.forward(context).astype(np.float64))[0]

    @_alone
    def step(self, context: npt.ArrayLike, action: int, reward: float) -> float:
        """Learn that ``action`` in ``context`` earned ``reward``.

        Returns -reward * log p(action) before the step.

        Raises:
            InvalidInputError: no such expert, or a reward that is not finite.
            NumericInstability, GradientError: a value is not finite; the gate is as it was.
        """
        action = self._expert(action, "action")
        reward = real(reward, "reward", "")
        logits = self.gate.forward(context).astype(np.float64)
        p, log_sum = _softmax(logits)
        gradient = reward * p
        gradient[action] -= reward
        self._descend(context, gradient + self._regularizers(p, log_sum))
        return -reward * math.log(max(float(p[action]), _SMALLEST_PROBABILITY))

    @_alone
    def rloo_step(self, context: npt.ArrayLike, preferred: int, *, k: int = 1, samples: int = 8) -> RlooStep:
        """Learn that ``preferred`` is the right expert in ``context``.

        It samples choices of ``k`` experts. Draws ``samples`` ordered choices without replacement (Gumbel top-k),
        and rewards those that hold the preferred expert with 1 and the others with -1. Each sample's baseline is the
        mean of the other samples' rewards [Ahmadian et al. 2024; Kool et al. 2019]. The gradient is that of the
        choice's own probability, the product over positions of softmax among the experts not yet taken, for any
        ``k``.

        Raises:
            InvalidInputError: no such expert, ``k`` not from 1 to experts - 1, or fewer than two samples.
            NumericInstability, GradientError: a value is not finite; the gate is as it was.
        """
        experts = self.gate.num_outputs
        preferred = self._expert(preferred, "preferred")
        k = whole(k, "k", least=1, most=experts - 1)  # or every choice holds every expert
        samples = whole(samples, "samples", least=2, most=MAX_ALLOWED_ELEMENTS // experts)
        logits = self.gate.forward(context).astype(np.float64)
        p, log_sum = _softmax(logits)
        noise = self._generator.gumbel(size=(samples, experts))
        chosen = np.argsort(-(logits + noise), axis=1, kind="stable")[:, :k]
        rewards = np.where((chosen == preferred).any(axis=1), 1.0, -1.0)
        advantages = (rewards - (rewards.sum() - rewards) / (samples - 1)) / samples
        gradient = np.zeros(experts)
        for choice, advantage in zip(chosen, advantages, strict=True):
            if advantage:
                gradient -= advantage * _score(logits, choice)
        self._descend(context, gradient + self._regularizers(p, log_sum))
        return RlooStep(float(rewards.mean()), p)

    def _expert(self, expert: int, name: str) -> int:
        last = self.gate.num_outputs - 1
        if not isinstance(expert, (int, np.integer)) or isinstance(expert, bool) or not 0 <= expert <= last:
            raise InvalidInputError(f"{name} is {shown(expert)}; there is no such expert, there are 0 to {last}")
        return int(expert)

    def _regularizers(self, p: Float64Array, log_sum: float) -> Float64Array:
        experts = p.size
        c = float((p * p).sum()) - 1.0 / experts
        gradient = self.config.aux_weight * (2.0 / experts) * p * (p - 1.0 / experts - c)
        gradient += self.config.z_weight * 2.0 * log_sum * p
        if self.config.entropy_weight:
            log_p = np.log(np.maximum(p, _SMALLEST_PROBABILITY))
            # d(sum p log p)/dz_j = p_j (log p_j - sum p log p)
            gradient += self.config.entropy_weight * p * (log_p - float((p * log_p).sum()))
        return gradient

    def _descend(self, context: npt.ArrayLike, gradient: Float64Array) -> None:
        x = float32_of(number_array(context, "context")).reshape(1, -1)
        target = float32_of(gradient).reshape(1, -1)
        status, _, _, fault = self._engine.gradient(x, target, self._order, self._one, False)
        if status == 0:
            assert fault is not None
            raise NumericInstability(fault[0], fault[2])
        if status != 1 or not np.isfinite(target).all():
            raise GradientError("the gate's gradient is not finite: rewards or weights are too large")
        self._engine.update(Optimizer.SGD.value, self.config.learning_rate)

    def last_gradients(self) -> Gradients:
        """Return the gradients of the last step, for observers such as :class:`DiagonalFisher`."""
        views = [self.gate._views(self._engine.gradients, i) for i in range(len(self.gate.layers))]
        return Gradients(0.0, [np.ascontiguousarray(w) for w, _ in views], [b.copy() for _, b in views])


def _softmax(logits: Float64Array) -> tuple[Float64Array, float]:
    """The probabilities and log(sum exp(logits))."""
    largest = float(logits.max())
    e = np.exp(logits - largest)
    total = float(e.sum())
    return np.asarray(e / total), largest + math.log(total)


def _score(logits: Float64Array, choice: npt.NDArray[np.int64]) -> Float64Array:
    """Return the gradient by the logits of log p of an ordered choice (Plackett-Luce).

    The choice is without replacement.
    """
    left = logits.copy()
    score = np.zeros_like(logits)
    for expert in choice:
        score -= _softmax(left)[0]
        score[expert] += 1.0
        left[expert] = -np.inf
    return score
