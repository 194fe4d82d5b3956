"""Every format gives back the bits of float32 weights that it stores: signed zeros, subnormals, the largest and smallest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lattice_fann import Activation, FormatError, InvalidNetworkError, Layer, Network

SPECIAL = np.array(
    [0.0, -0.0, 2**-149, -(2**-149), 2**-126 - 2**-149, 2**-126, -(2**-126), 3.4028234663852886e38,
     -3.4028234663852886e38, 1.0, -1.0, 1 + 2**-23, 0.1, 1 / 3, 1e-45, 16777217.0],
    dtype=np.float32,
)  # fmt: skip
WRITTEN = [".fann", ".bin", ".safetensors", ".net"]


def bits(network: Network) -> bytes:
    return network.parameter_vector().tobytes()


@pytest.mark.parametrize("suffix", WRITTEN)
@pytest.mark.parametrize("activation", [Activation.LINEAR, Activation.SIGMOID, Activation.TANH], ids=repr)
def test_special_weights_come_back_bit_for_bit(suffix: str, activation: Activation, tmp_path: Path) -> None:
    weights = np.tile(SPECIAL, 4).reshape(16, 4)
    network = Network([Layer(weights, SPECIAL, activation), Layer(SPECIAL.reshape(1, 16), [-0.0], activation)])
    network.save(tmp_path / f"n{suffix}")
    assert bits(Network.load(tmp_path / f"n{suffix}")) == bits(network)


@pytest.mark.parametrize("suffix", WRITTEN)
def test_any_finite_weights_come_back_bit_for_bit(suffix: str, tmp_path: Path) -> None:
    generator = np.random.RandomState(3)
    values = generator.randint(0, 2**32, 400, dtype=np.uint64).astype(np.uint32).view(np.float32)
    values = values[np.isfinite(values)][:380]
    network = Network([Layer(values[:361].reshape(19, 19), values[361:380], Activation.TANH)])
    network.save(tmp_path / f"n{suffix}")
    assert bits(Network.load(tmp_path / f"n{suffix}")) == bits(network)


@pytest.mark.parametrize("version", [1, 2, "safetensors"])
@pytest.mark.parametrize("alpha", [-0.0, 0.0, 2**-149, -0.25, 0.1])
def test_the_slope_of_a_leaky_layer_comes_back(version: int | str, alpha: float, tmp_path: Path) -> None:
    network = Network([Layer([[1.0]], [0.0], Activation.leaky_relu(alpha))])
    if version == "safetensors":
        network.save(tmp_path / "n.safetensors")
        read = Network.load(tmp_path / "n.safetensors")
    else:
        read = Network.from_bytes(network.to_bytes(version))  # type: ignore[arg-type]
    assert read.layers[0].activation.alpha.hex() == network.layers[0].activation.alpha.hex()
    assert read.forward([-1.0]).tobytes() == network.forward([-1.0]).tobytes()


@pytest.mark.parametrize("suffix", WRITTEN)
def test_weights_that_are_not_finite_are_not_stored(suffix: str, tmp_path: Path) -> None:
    for value in (np.nan, np.inf, -np.inf):
        network = Network([Layer([[1.0]], [0.0])])
        network.layers[0].weights[0, 0] = value
        with pytest.raises(InvalidNetworkError, match="not finite"):
            network.save(tmp_path / f"n{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1e39", "1_0", "0x1p3", "1e", "", "+-1", "1 2", "١"])
def test_texts_that_are_no_finite_number_are_refused_in_net_files(text: str, tmp_path: Path) -> None:
    Network([Layer([[7.0]], [0.0])]).save(tmp_path / "n.net")
    content = (tmp_path / "n.net").read_text()
    assert content.count("7.00000000000000000000e+00") == 1
    (tmp_path / "n.net").write_text(content.replace("7.00000000000000000000e+00", text), encoding="utf-8")
    with pytest.raises(FormatError):
        Network.load(tmp_path / "n.net")


def test_a_connection_that_net_files_leave_out_is_zero(tmp_path: Path) -> None:
    Network([Layer([[7.0, -0.0]], [-0.0])]).save(tmp_path / "n.net")
    content = (tmp_path / "n.net").read_text()
    without = content.replace("(0, 7.00000000000000000000e+00) ", "").replace("(3, 0, 5", "(2, 0, 5")
    without = without.replace("(3, 0, 1.0", "(2, 0, 1.0")
    assert without.count("(2, 0, 1.0") == 1
    (tmp_path / "n.net").write_text(without)
    assert Network.load(tmp_path / "n.net").parameter_vector().tolist() == [0.0, -0.0, -0.0]
    assert np.signbit(Network.load(tmp_path / "n.net").parameter_vector()).tolist() == [False, True, True]
