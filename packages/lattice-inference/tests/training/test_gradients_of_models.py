"""Gradients of small models: those of PyTorch with PEFT, and the same bits whatever is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lattice_inference.training import Dropout, Noise
from training_cases import CASES, drawn_batch, path_stem, sample

GOLDENS = Path(__file__).parents[1] / "data" / "gradients" / "gradients.npz"
BACKENDS = ("reference", "cpu")
LIMIT = {"reference": 1e-6, "cpu": 1e-4}


def gradients_of(program, name, **draws):
    """Return the loss and the gradients of each site for the batch of a case."""
    batch = drawn_batch(name)
    if CASES[name].loss == "tokens":
        loss, _ = program.accumulate_tokens(batch.token_ids, batch.cu_seqlens, batch.targets, batch.weights, **draws)
    else:
        shape = program.vectors(batch.token_ids, batch.cu_seqlens).shape
        given = batch.d_vectors[:, : shape[1]]
        vectors = program.accumulate_vectors(batch.token_ids, batch.cu_seqlens, given, **draws)
        loss = float((vectors.astype(np.float64) * given).sum())
    return loss, {site.name: program.gradients(site.name) for site in program.sites}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_peft(open_case, name, backend):
    with open_case(name, backend=backend) as program, np.load(GOLDENS) as goldens:
        loss, gradients = gradients_of(program, name)
        names = {key.split("/")[1] for key in goldens.files if key.startswith(f"{name}/") and not key.endswith("/loss")}
        assert names == {path_stem(site.name) for site in program.sites}
        assert loss == pytest.approx(float(goldens[f"{name}/loss"]), rel=1e-5, abs=2e-5)
        largest = max(np.abs(part).max() for pair in gradients.values() for part in pair)
        for site, pair in gradients.items():
            for matrix, part in zip("ab", pair, strict=True):
                error = np.abs(sample(part) - goldens[f"{name}/{path_stem(site)}/{matrix}"]).max()
                assert error <= LIMIT[backend] * largest, (site, matrix)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["llama", "qwen3", "bert", "bert-scores"])
def test_what_is_kept_changes_no_bit(open_case, name, backend):
    draws = {"dropout": Dropout(0.2, 3, 4), "noise": Noise(5.0, 3, 4)}
    found = []
    peaks = []
    for keep in ("all", "products", "layers"):
        with open_case(name, backend=backend, keep=keep) as program:
            found.append(gradients_of(program, name, **draws))
            peaks.append(program.peak_bytes)
    for loss, gradients in found[1:]:
        assert loss == found[0][0]
        for site, pair in gradients.items():
            for part, expected in zip(pair, found[0][1][site], strict=True):
                assert np.array_equal(part, expected), site
    assert peaks == sorted(peaks, reverse=True)
    assert backend == "cpu" or len(set(peaks)) == 3  # arenas of small models are all of one size


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_add_up_and_begin_again(open_case, backend):
    with open_case("qwen2", backend=backend) as program:
        _, once = gradients_of(program, "qwen2")
        _, twice = gradients_of(program, "qwen2")
        program.zero_gradients()
        _, again = gradients_of(program, "qwen2")
    for site, pair in once.items():
        for single, double, later in zip(pair, twice[site], again[site], strict=True):
            assert np.array_equal(2 * single, double)
            assert np.array_equal(single, later)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_draws_depend_on_their_numbers_only(open_case, name, backend):
    def loss(draws):
        return gradients_of(program, name, **draws)[0]

    with open_case(name, backend=backend) as program:
        plain = loss({})
        assert loss({"dropout": Dropout(0.0, 1, 1), "noise": Noise(0.0, 1, 1)}) == plain
        for kind, amount in ((Dropout, 0.3), (Noise, 9.0)):
            key = kind.__name__.lower()
            first = loss({key: kind(amount, 1, 1)})
            assert first == loss({key: kind(amount, 1, 1)})
            assert len({plain, first, loss({key: kind(amount, 2, 1)}), loss({key: kind(amount, 1, 2)})}) == 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_dropout_and_noise_are_slopes(open_case, backend):
    draws = {"dropout": Dropout(0.3, 7, 1), "noise": Noise(5.0, 7, 1)}
    step = np.float32(2**-6)
    with open_case("llama", backend=backend) as program:
        _, gradients = gradients_of(program, "llama", **draws)
        for site in program.sites[::8]:
            a, b = program.read_factors(site.name)
            for matrix, gradient in zip((a, b), gradients[site.name], strict=True):
                place = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
                before, losses = matrix[place], []
                for change in (step, -step):
                    matrix[place] = before + change
                    program.write_factors(site.name, a, b)
                    losses.append(gradients_of(program, "llama", **draws)[0])
                matrix[place] = before
                program.write_factors(site.name, a, b)
                slope = (losses[0] - losses[1]) / (2 * step)
                assert slope == pytest.approx(gradient[place], rel=0.02), site.name


@pytest.mark.parametrize("name", ["qwen3", "bert-scores"])
def test_gradients_have_the_same_bits_for_any_threads(open_case, name):
    draws = {"dropout": Dropout(0.2, 3, 4), "noise": Noise(5.0, 3, 4)}
    found = []
    for threads in (1, 2, 5):
        with open_case(name, threads=threads) as program:
            found.append(gradients_of(program, name, **draws))
    for loss, gradients in found[1:]:
        assert loss == found[0][0]
        for site, pair in gradients.items():
            for part, expected in zip(pair, found[0][1][site], strict=True):
                assert np.array_equal(part, expected), site
