"""The interface of training: sites, factors in the order of transformers, and refusals of what does not fit."""

from __future__ import annotations

import subprocess
import sys
import weakref

import numpy as np
import pytest

from drawn_checkpoints import write_directory
from lattice_inference import InvalidInputError, NonFiniteError, UnsupportedError
from lattice_inference.training import Dropout, Noise, open_training_program
from training_cases import RANK, base_case, drawn_batch

REFERENCE = {"backend": "reference"}


@pytest.fixture
def program(open_case):
    with open_case("llama", **REFERENCE) as opened:
        yield opened


@pytest.fixture
def batch():
    return drawn_batch("llama")


def test_sites_are_named_by_the_ends_of_their_paths(open_case):
    def names(sites):
        with open_case("llama", sites=sites, **REFERENCE) as program:
            return [site.name for site in program.sites]

    assert len(names("all-linear")) == 21
    assert names(["layers.1.mlp.up_proj"]) == ["model.layers.1.mlp.up_proj"]
    assert names(["model.layers.1.mlp.up_proj", "v_proj"]) == [
        "model.layers.0.self_attn.v_proj",
        "model.layers.1.self_attn.v_proj",
        "model.layers.1.mlp.up_proj",
        "model.layers.2.self_attn.v_proj",
    ]
    for sites, message in (
        (["proj"], "'proj' is the end of no linear"),
        (["q_proj", "x_proj"], "'x_proj' is the end of no linear of .*; its linears end in q_proj, k_proj"),
        ([], "expected names of linears"),
        ("q_proj", "expected names of linears, or 'all-linear'"),
        ([""], "is the end of no linear"),
        ([3], "is the end of no linear"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            names(sites)
    with pytest.raises(UnsupportedError, match=r"lm_head\.weight is the output matrix"):
        names(["lm_head"])


@pytest.mark.parametrize(
    ("base", "loss", "query"),
    [
        # PEFT and sentence-transformers adapt AutoModel, whatever class wrote the file
        ("camembert", "vectors", "encoder.layer.0.attention.self.query"),
        ("cross-encoder-bert", "scores", "bert.encoder.layer.0.attention.self.query"),
        ("cross-encoder-bert", "vectors", "encoder.layer.0.attention.self.query"),
        ("cross-encoder-xlm-roberta", "scores", "roberta.encoder.layer.0.attention.self.query"),
        ("qwen3", "vectors", "layers.0.self_attn.q_proj"),
        ("qwen3", "tokens", "model.layers.0.self_attn.q_proj"),
    ],
)
def test_sites_have_the_paths_of_the_class_that_transformers_loads(tmp_path, base, loss, query):
    directory = write_directory(tmp_path / "base", base_case(base))
    pooling = {"pooling": "mean"} if loss == "vectors" else {}
    with open_training_program(directory, sites="all-linear", rank=2, scaling=1.0, loss=loss, **pooling) as program:
        assert query in {site.name for site in program.sites}
        program.write_factors(query, *program.read_factors(query))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rank": 0}, InvalidInputError, "rank must be from 1"),
        ({"rank": 2.5}, InvalidInputError, "rank must be an int"),
        ({"scaling": 0}, InvalidInputError, "scaling is 0; expected a number other than 0"),
        ({"scaling": float("inf")}, InvalidInputError, "scaling is inf"),
        ({"scaling": "1"}, InvalidInputError, "scaling is '1'"),
        ({"loss": "logits"}, InvalidInputError, "loss"),
        ({"keep": "some"}, InvalidInputError, "keep"),
        ({"activations": "int8"}, InvalidInputError, "activations"),
        ({"backend": "gpu"}, UnsupportedError, "backend"),
        ({"activations": "bfloat16"}, UnsupportedError, "rounds no weights to bfloat16"),
        ({"threads": 2}, UnsupportedError, "takes no threads=2"),
        ({"pooling": "mean"}, InvalidInputError, "pooling and normalize are for loss='vectors'"),
        ({"loss": "vectors"}, UnsupportedError, "model_type is 'llama'; built are"),
    ],
)
def test_options_that_do_not_fit_are_refused(open_case, options, error, message):
    with pytest.raises(error, match=message):
        open_case("llama", **{**REFERENCE, **options})


def test_a_pooling_that_is_none_is_refused(open_case):
    with pytest.raises(InvalidInputError, match="pooling"):
        open_case("bert", pooling="sum", **REFERENCE)
    with pytest.raises(UnsupportedError, match="has no classification head"):
        open_case("roberta", loss="scores", pooling=None, normalize=None, **REFERENCE)


def test_a_path_that_is_none_is_refused(tmp_path):
    options = {"sites": "all-linear", "rank": 2, "scaling": 1.0, "loss": "tokens"}
    with pytest.raises(InvalidInputError, match="path"):
        open_training_program(None, **options, **REFERENCE)
    with pytest.raises(OSError, match="no-such"):
        open_training_program(tmp_path / "no-such", **options, **REFERENCE)


def test_factors_are_copies_that_are_checked(program):
    site = program.sites[0]
    a, b = program.read_factors(site.name)
    assert (a.shape, b.shape, a.dtype) == ((RANK, site.inputs), (site.outputs, RANK), np.float32)
    a[:] = 7
    assert not np.array_equal(program.read_factors(site.name)[0], a)
    b[2, 1] = np.nan
    for wrong_a, wrong_b, message in (
        (a.T, b, r"a has the shape \(64, 3\); expected \(3, 64\)"),
        (a, a, "b has the shape"),
        (a, b, "b holds NaN or infinity"),
        ("a", b, "a is 'a'; expected an array of numbers"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            program.write_factors(site.name, wrong_a, wrong_b)
    for call in (program.read_factors, program.gradients):
        for name in ("model.layers.9.mlp.up_proj", None):
            with pytest.raises(InvalidInputError, match="expected the name of one of the 21 sites"):
                call(name)


def test_batches_that_do_not_fit_are_refused(program, batch):
    ids, bounds, targets = batch.token_ids, batch.cu_seqlens, batch.targets

    def refused(message, *arguments, **options):
        for call in (program.accumulate_tokens, program.loss_of_tokens):
            if not options or call == program.accumulate_tokens:
                with pytest.raises(InvalidInputError, match=message):
                    call(*arguments, **options)

    refused("expected a one-dimensional array of integers", ids.astype(np.float32), bounds, targets)
    refused("expected a one-dimensional array of integers", ids[None], bounds, targets)
    refused("cu_seqlens must run from 0", ids, bounds[:-1], targets)
    refused(r"40 tokens have targets of shape \(39,\)", ids, bounds, targets[:-1])
    refused(r"weights of shape \(1,\)", ids, bounds, targets, np.ones(1))
    refused("no row is trained", ids, bounds, np.full(40, -100))
    refused("no row is trained", ids, bounds, targets, np.zeros(40))
    refused("weights holds -1.0; a weight is at least 0", ids, bounds, targets, -np.ones(40))
    refused("weights holds NaN or infinity", ids, bounds, targets, np.full(40, np.nan))
    refused("targets holds 128 for row 3", ids, bounds, np.where(np.arange(40) == 3, 128, targets))
    refused("targets holds -1 for row 0", ids, bounds, np.where(np.arange(40) == 0, -1, targets))
    refused("token_ids of sequence 0 holds 200", np.where(np.arange(40) == 3, 200, ids), bounds, targets)
    refused("no 32-bit integers", ids.astype(np.int64) + 2**40, bounds, targets)
    refused("dropout is 0.5; expected a Dropout", ids, bounds, targets, dropout=0.5)
    refused("noise is 3; expected a Noise", ids, bounds, targets, noise=3)
    with pytest.raises(InvalidInputError, match="loss='tokens', which has no vectors"):
        program.vectors(ids, bounds)
    assert not any(part.any() for site in program.sites for part in program.gradients(site.name))


def test_vectors_that_do_not_fit_are_refused(open_case):
    batch = drawn_batch("bert")
    with open_case("bert", **REFERENCE) as program:
        for wrong, message in (
            (batch.d_vectors[:2], r"d_vectors has the shape \(2, 64\); expected \(3, 64\)"),
            (batch.d_vectors * np.inf, "d_vectors holds NaN or infinity"),
            (None, "d_vectors is None; expected an array of numbers"),
        ):
            with pytest.raises(InvalidInputError, match=message):
                program.accumulate_vectors(batch.token_ids, batch.cu_seqlens, wrong)
        with pytest.raises(InvalidInputError, match="loss='vectors', which has no tokens"):
            program.loss_of_tokens(batch.token_ids, batch.cu_seqlens, batch.targets)
        with pytest.raises(InvalidInputError, match="cu_seqlens must run from 0"):
            program.vectors(batch.token_ids, np.array([0, 41]))


def test_draws_out_of_range_are_refused():
    for kind, arguments, name in (
        (Dropout, (1.0, 0, 0), "rate"),
        (Dropout, (-0.1, 0, 0), "rate"),
        (Dropout, (0.1, -1, 0), "seed"),
        (Dropout, (0.1, 0, 2**64), "step"),
        (Noise, (float("nan"), 0, 0), "alpha"),
        (Noise, (1.0, 1.5, 0), "seed"),
    ):
        with pytest.raises(InvalidInputError, match=name):
            kind(*arguments)


def test_a_loss_that_is_not_finite_is_an_error(open_case, batch):
    with open_case("llama") as program:
        for site in program.sites:
            a, b = program.read_factors(site.name)
            program.write_factors(site.name, a * np.float32(1e30), b * np.float32(1e30))
        for call in (program.loss_of_tokens, program.accumulate_tokens):
            with pytest.raises(NonFiniteError):
                call(batch.token_ids, batch.cu_seqlens, batch.targets)


def test_a_closed_program_refuses_calls(open_case, batch):
    program = open_case("llama", **REFERENCE)
    loss, count = program.loss_of_tokens(batch.token_ids, batch.cu_seqlens, batch.targets)
    assert count == 36
    assert 0 < loss < 36 * 10
    peak = program.peak_bytes
    assert peak > 0
    factors = weakref.ref(program._compiled.factors)
    program.close()
    program.close()
    assert factors() is None  # their memory is freed
    assert program.peak_bytes == peak
    for call in (
        lambda: program.loss_of_tokens(batch.token_ids, batch.cu_seqlens, batch.targets),
        lambda: program.gradients(program.sites[0].name),
        lambda: program.read_factors(program.sites[0].name),
        program.zero_gradients,
    ):
        with pytest.raises(InvalidInputError, match="the program is closed"):
            call()


@pytest.mark.slow
def test_the_package_imports_nothing_of_training():
    code = (
        "import lattice_inference, lattice_inference.lora, sys; from lattice_inference import load_model, load_encoder\n"
        "wrong = ('training', 'backward', 'reverse')\n"
        "print([name for name in sys.modules if name.startswith('lattice_inference') and any(w in name for w in wrong)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
