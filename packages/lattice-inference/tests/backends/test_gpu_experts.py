"""Mixtures of experts on a GPU: the reference's results, the same bits in any company, weights as the file has them."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_inference.backends import reference
from lattice_inference.errors import NonFiniteError

from .bodies import GPU_BODIES, gpu_backend
from .programs import batch_of
from .test_blocks import StoredTensors
from .test_moe import mixture, row_alone

if not GPU_BODIES:
    pytest.skip("no GPU, nor one that is emulated", allow_module_level=True)

pytestmark = pytest.mark.slow


def compiled(drawn, **options):
    return gpu_backend(precision="stored", **options).compile(drawn.program, StoredTensors(drawn.tensors))


def as_decoder(monkeypatch):
    """Let programs without pages have kernels of few rows too."""
    from lattice_inference.backends.gpu import launches

    plain = launches.Lowering.__init__

    def init(self, *args, **options):
        plain(self, *args, **options)
        self.is_encoder = False

    monkeypatch.setattr(launches.Lowering, "__init__", init)


@pytest.mark.parametrize(
    ("experts", "chosen", "hidden", "inner", "normalized", "shared"),
    [
        (8, 2, 44, 20, True, 0),
        (5, 5, 33, 7, False, 12),
        (1, 1, 16, 16, False, 0),
        (130, 9, 20, 3, True, 12),
    ],
)
def test_a_mixture_is_what_the_reference_says(experts, chosen, hidden, inner, normalized, shared, monkeypatch):
    drawn = mixture(
        61, experts=experts, chosen=chosen, hidden=hidden, inner=inner, normalized=normalized, shared=shared
    )
    tiled = compiled(drawn)
    as_decoder(monkeypatch)
    both, cut = compiled(drawn), compiled(drawn, max_binding_bytes=experts * hidden * 4)
    for rows in (1, 2, 61):
        want = reference.run(drawn.program, drawn.tensors, batch_of([rows]))["y"]
        got = both.run(batch_of([rows]))["y"]
        assert np.abs(got - want).max() <= 4e-6, rows
        assert np.abs(tiled.run(batch_of([rows]))["y"] - want).max() <= 4e-6, rows
        assert cut.run(batch_of([rows]))["y"].tobytes() == got.tobytes(), rows


@pytest.mark.parametrize(("form", "inner"), [("Q8_0", 96), ("Q4_K", 256), ("Q5_1", 96)])
def test_blocks_are_multiplied_as_the_file_has_them(form, inner, monkeypatch):
    drawn = mixture(24, hidden=256, inner=inner, form=form)
    as_decoder(monkeypatch)
    ready = compiled(drawn)
    assert {size.dtype for size in ready.weight_sizes} == {"float32", form}
    exact = {name: tensor for name, tensor in drawn.tensors.items() if not isinstance(tensor, tuple)}
    source = StoredTensors(drawn.tensors)
    exact |= {name: source.float32(name) for name in drawn.tensors if name not in exact}
    for rows in (3, 24):
        want = reference.run(drawn.program, exact, batch_of([rows]))["y"]
        np.testing.assert_allclose(ready.run(batch_of([rows]))["y"], want, atol=3e-6 * np.abs(want).max(), rtol=0)


def test_a_row_has_the_same_bits_alone_and_in_company():
    drawn = mixture(70, hidden=64, inner=96, shared=32)
    ready = compiled(drawn)
    together = ready.run(batch_of([70]))["y"]
    for row in range(0, 70, 13):
        assert ready.run(row_alone(row))["y"].tobytes() == together[row : row + 1].tobytes(), row
    assert compiled(drawn, fused=False).run(batch_of([70]))["y"].tobytes() == together.tobytes()


def test_equal_logits_choose_the_experts_with_the_lowest_numbers():
    drawn = mixture(7, experts=9, chosen=3)
    drawn.tensors["router"][:] = 0
    want = reference.run(drawn.program, drawn.tensors, batch_of([7]))["y"]
    assert np.abs(compiled(drawn).run(batch_of([7]))["y"] - want).max() <= 2e-6


def test_all_rows_to_one_expert_and_none_to_the_others():
    drawn = mixture(64, chosen=1)
    drawn.tensors["x"][:, 0], drawn.tensors["router"][:, 0] = 1, 0
    drawn.tensors["router"][6, 0] = 100
    want = reference.run(drawn.program, drawn.tensors, batch_of([64]))["y"]
    assert np.abs(compiled(drawn).run(batch_of([64]))["y"] - want).max() <= 4e-6


def test_a_router_is_never_rounded():
    """Two experts whose rows differ by less than bfloat16 can hold: the larger one is chosen all the same."""
    drawn = mixture(6, chosen=1, hidden=64, inner=32)
    drawn.tensors["router"][:] = -1e-3 * np.abs(drawn.tensors["x"][0])
    drawn.tensors["router"][2:4] = drawn.tensors["x"][0] * np.float32(0.05)
    drawn.tensors["router"][3] *= np.float32(1 + 2**-18)

    def run():
        backend = gpu_backend(precision="bfloat16")
        return backend.compile(drawn.program, StoredTensors(drawn.tensors)).run(row_alone(0))["y"].tobytes()

    got = run()
    drawn.tensors["router"][2] = 0
    assert run() == got


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_named(poison):
    drawn = mixture(5)
    drawn.tensors["x"][3, 7] = poison
    with pytest.raises(NonFiniteError) as error:
        compiled(drawn).run(batch_of([5]))
    assert error.value.rows == (3,)
