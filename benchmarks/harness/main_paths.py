"""The most frequent calls of users, on fixed inputs: no change may slow them unnoticed.

Each path is set up once and then called again and again. Inputs are drawn from seeds, so that two commits do the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from harness.corpus import make_texts

__all__ = ["PATHS", "Path"]

Path = Callable[[], object]
"""One call of a path."""

MODEL = "all-minilm-l6-v2"


def _embedding(lengths: Sequence[int]) -> Path:
    from lattice_embed import NativeEmbeddingService

    service = NativeEmbeddingService(MODEL).load()
    return partial(service.embed, make_texts(lengths, seed=7))


def _tokenizing() -> Path:
    from lattice_inference.files.hub import find_model
    from lattice_inference.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(find_model(MODEL, offline=True).directory)
    return partial(tokenizer.encode_packed, make_texts([5 + 11 * number % 60 for number in range(200)], seed=7))


def _pair_of_vectors() -> Path:
    from lattice_embed.vectors import cosine_similarity

    first, second = np.random.default_rng(0).standard_normal((2, 384), np.float32)
    return lambda: [cosine_similarity(first, second) for _ in range(1000)]


def _search() -> Path:
    from lattice_embed.vectors import top_k

    draw = np.random.default_rng(0)
    return partial(top_k, draw.standard_normal(384, np.float32), draw.standard_normal((10_000, 384), np.float32), 10)


def _network() -> Path:
    from lattice_fann import Activation, NetworkBuilder

    network = NetworkBuilder().input(784).hidden(128, Activation.RELU).output(10, Activation.SOFTMAX).build(seed=0)
    rows = np.random.default_rng(0).random((64, 784), np.float32)
    return partial(network.forward_batch, rows)


def _training() -> Path:
    from lattice_fann import Activation, BackpropTrainer, NetworkBuilder, TrainingConfig

    draw = np.random.default_rng(0)
    rows, labels = draw.random((256, 64), np.float32), np.eye(10, dtype=np.float32)[draw.integers(0, 10, 256)]

    def train() -> object:
        network = NetworkBuilder().input(64).hidden(32, Activation.RELU).output(10, Activation.SOFTMAX).build(seed=0)
        return BackpropTrainer(network, TrainingConfig(max_epochs=2, batch_size=32, seed=0)).train(rows, labels)

    return train


def _transport() -> Path:
    from lattice_transport import solve

    cost = np.random.default_rng(0).random((128, 128), np.float32)
    return partial(solve, None, None, cost, epsilon=0.05)


PATHS: dict[str, Callable[[], Path]] = {
    "embed one text of 10 tokens": partial(_embedding, [10]),
    "embed 4 texts of 4 to 40 tokens": partial(_embedding, [4, 12, 24, 40]),
    "tokenize 200 texts": _tokenizing,
    "cosine of 1,000 pairs": _pair_of_vectors,
    "ten best of 10,000 vectors": _search,
    "a network on 64 rows": _network,
    "train a network": _training,
    "transport between 128 points": _transport,
}
"""What sets up each path, by name."""
