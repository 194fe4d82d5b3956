"""SmolLM2 and MiniLM: training reads the model that inference runs, and the CPU gives the gradients of the reference."""

from __future__ import annotations

import numpy as np
import pytest

from drawn_checkpoints import draw
from lattice_inference import Extension, load_encoder, load_model
from lattice_inference.lora import LoraAdapter, LoraSite
from lattice_inference.training import open_training_program

pytestmark = [pytest.mark.model, pytest.mark.slow]

TEXTS = ["The reverse of a program is a program.", "Cats sleep.", "A gradient says where a loss falls, and how fast."]
UPPER = [
    "layers.28.self_attn.q_proj",
    "layers.28.mlp.down_proj",
    "layers.29.self_attn.k_proj",
    "layers.29.mlp.gate_proj",
]
RANK, SCALING = 4, 1.5


def with_drawn_factors(program):
    """Write drawn factors into every site, and return them as an adapter."""
    sites = {}
    for site in program.sites:
        a = draw(f"{site.name}.a", (RANK, site.inputs))
        b = draw(f"{site.name}.b", (site.outputs, RANK)) * np.float32(0.1)
        program.write_factors(site.name, a, b)
        sites[site.name] = LoraSite(a, b, SCALING)
    return LoraAdapter(sites)


def largest_difference(programs):
    """Return the largest difference of two programs' gradients, relative to the largest gradient."""
    first, second = programs
    largest = worst = 0.0
    for site in first.sites:
        for one, other in zip(first.gradients(site.name), second.gradients(site.name), strict=True):
            largest = max(largest, float(np.abs(other).max()))
            worst = max(worst, float(np.abs(one - other).max()))
    return worst / largest


def test_a_language_model_is_trained_as_it_runs(smollm2):
    options = {"rank": RANK, "scaling": SCALING, "loss": "tokens"}
    with load_model(smollm2, activations="float32") as model:
        ids = [np.array(model.tokenizer.encode(text).ids, np.int32) for text in TEXTS[:2]]
        bounds = np.cumsum([0, *map(len, ids)]).astype(np.int32)
        targets = np.concatenate([[*sequence[1:], -100] for sequence in ids]).astype(np.int32)
        packed = np.concatenate(ids)
        with open_training_program(smollm2, sites="all-linear", **options) as program:
            model.attach_adapter(with_drawn_factors(program), "drawn")
            loss, count = program.loss_of_tokens(packed, bounds, targets)
            assert count == len(packed) - 2
            assert program.accumulate_tokens(packed, bounds, targets) == (loss, count)
        expected = 0.0
        with model.open_cache(tokens=64, dtype="float32") as cache:
            for sequence in ids:
                logits = model.forward([Extension(cache.sequence(adapter="drawn"), sequence, "all")]).astype(
                    np.float64
                )[:-1]
                logits -= logits.max(axis=1, keepdims=True)
                chosen = logits[np.arange(len(logits)), sequence[1:]]
                expected += float((np.log(np.exp(logits).sum(axis=1)) - chosen).sum())
        assert loss == pytest.approx(expected, rel=1e-5)
    with (
        open_training_program(smollm2, sites=UPPER, **options) as program,
        open_training_program(smollm2, sites=UPPER, backend="reference", **options) as reference,
    ):
        for each in (program, reference):
            with_drawn_factors(each)
            each.accumulate_tokens(packed, bounds, targets)
        assert largest_difference((program, reference)) <= 1e-4


def test_an_encoder_is_trained_as_it_runs(minilm_directory):
    options = {"sites": "all-linear", "rank": RANK, "scaling": SCALING, "loss": "vectors"}
    with (
        open_training_program(minilm_directory, **options) as program,
        open_training_program(minilm_directory, backend="reference", **options) as reference,
        load_encoder(minilm_directory) as encoder,
    ):
        encoder.attach_adapter(with_drawn_factors(program), "drawn")
        with_drawn_factors(reference)
        packed = encoder.tokenizer.encode_packed(TEXTS)
        vectors = program.vectors(packed.token_ids, packed.cu_seqlens)
        assert np.abs(vectors - encoder.encode(TEXTS, adapter="drawn").vectors).max() <= 1e-6
        gradient = draw("gradient", vectors.shape)
        for each in (program, reference):
            each.accumulate_vectors(packed.token_ids, packed.cu_seqlens, gradient)
        assert largest_difference((program, reference)) <= 1e-4
