"""``lattice-fann bench``: how fast a network runs on this machine."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from lattice_fann._engine import get_num_threads
from lattice_fann.activation import Activation
from lattice_fann.arguments import whole
from lattice_fann.builder import NetworkBuilder
from lattice_fann.errors import InvalidInputError
from lattice_fann.layer import MAX_ALLOWED_ELEMENTS
from lattice_fann.network import Network

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Measure one sample and a batch, from Python, and print the times."""
    if not 0 < options.seconds <= 600:
        raise InvalidInputError(f"--seconds is {options.seconds}; it must be above 0 and at most 600")
    network = _default() if options.model is None else Network.load(options.model)
    whole(options.batch, "--batch", least=1, most=MAX_ALLOWED_ELEMENTS // max(network.num_inputs, network.num_outputs))
    generator = np.random.RandomState(0)
    x = generator.standard_normal((options.batch, network.num_inputs)).astype(np.float32)
    if network.input_scaling is not None:
        x = (x / network.input_scaling.scale + network.input_scaling.mean).astype(np.float32)
    row, one = x[0].copy(), np.empty(network.num_outputs, np.float32)
    many = np.empty((len(x), network.num_outputs), np.float32)
    single = _measure(lambda: network.forward(row, one), options.seconds)
    batch = _measure(lambda: network.forward_batch(x, many), options.seconds)
    report = {
        "architecture": network.architecture(),
        "parameters": network.total_params,
        "isa": network.isa,
        "threads": get_num_threads(),
        "single_us": {"median": single[0], "min": single[1]},
        "batch": {"rows": options.batch, "median_us": batch[0], "min_us": batch[1]},
    }
    if options.json:
        print(json.dumps(report))
        return 0
    print(f"{network.architecture()}, {network.total_params} parameters, {network.isa}, {get_num_threads()} threads")
    print(f"one sample:   {single[0]:9.2f} us (fastest {single[1]:.2f})")
    each = batch[0] / options.batch
    print(f"{options.batch:>4} samples: {batch[0]:9.2f} us (fastest {batch[1]:.2f}), {each:.3f} us each")
    return 0


def _default() -> Network:
    builder = NetworkBuilder().input(784).hidden(128, Activation.RELU).hidden(64, Activation.RELU)
    return builder.output(10, Activation.SOFTMAX).build(seed=0)


def _measure(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Return median and minimum of a call's microseconds, over rounds of about a millisecond."""
    call()
    began = time.perf_counter()
    call()
    repetitions = max(1, round(1e-3 / max(time.perf_counter() - began, 1e-7)))
    rounds: list[float] = []
    finish = time.perf_counter() + seconds
    while time.perf_counter() < finish or len(rounds) < 3:
        began = time.perf_counter()
        for _ in range(repetitions):
            call()
        rounds.append((time.perf_counter() - began) / repetitions * 1e6)
    return round(statistics.median(rounds), 3), round(min(rounds), 3)
