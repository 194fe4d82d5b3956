"""The reference's binary format, byte for byte."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from lattice_fann import Activation, FormatError, InvalidNetworkError, Layer, Network, NetworkBuilder, UnsupportedError


def handmade() -> bytes:
    """Written from the format's table, not by the code under test: 2 -> LeakyReLU(3) -> Softmax(2)."""
    first = struct.pack("<IIBf", 2, 3, 4, 0.25) + struct.pack("<6f", 1, 2, 3, 4, 5, 6) + struct.pack("<3f", 7, 8, 9)
    second = struct.pack("<IIB", 3, 2, 5) + struct.pack("<6f", *[0.1 * i for i in range(6)]) + struct.pack("<2f", -1, 1)
    return b"FANN" + struct.pack("<II", 1, 2) + first + second


def test_handmade_bytes_are_read_and_written_back() -> None:
    network = Network.from_bytes(handmade())
    assert network.architecture() == "2 -> LeakyReLU(3) -> Softmax(2)"
    assert network.layers[0].weights.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert network.layers[0].biases.tolist() == [7, 8, 9]
    assert network.layers[0].activation.alpha == 0.25
    assert network.to_bytes() == handmade()


@pytest.mark.parametrize("alpha", [0.01, 0.1, -0.3])
def test_slopes_survive_in_bits(alpha: float) -> None:
    network = NetworkBuilder().input(2).output(1, Activation.leaky_relu(alpha)).build(seed=0)
    assert struct.pack("<f", alpha) in network.to_bytes()
    assert Network.from_bytes(network.to_bytes()).to_bytes() == network.to_bytes()


def test_bytearrays_and_views_are_read() -> None:
    for content in (bytearray(handmade()), memoryview(handmade())):
        assert Network.from_bytes(content).to_bytes() == handmade()


def change(offset: int, replacement: bytes) -> bytes:
    content = handmade()
    return content[:offset] + replacement + content[offset + len(replacement) :]


NAN, INFINITY = struct.pack("<f", float("nan")), struct.pack("<f", float("inf"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "take 8"),
        (b"FANN", "take 8"),
        (change(0, b"FANM"), "begin with"),
        (change(4, struct.pack("<I", 0)), "version 0"),
        (change(4, struct.pack("<I", 7)), "version 7"),
        (change(8, struct.pack("<I", 0)), "no layers"),
        (change(8, struct.pack("<I", 0xFFFFFFFF)), "claims 4294967295 layers"),
        (change(8, struct.pack("<I", 3)), "ends within the header of layer 2"),
        (change(8, struct.pack("<I", 1)), "follow the last layer"),
        (change(12, struct.pack("<I", 0)), "at least 1"),
        (change(12, struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF)), "elements"),
        (change(12, struct.pack("<II", 6_000_000, 16)), "needs"),
        (change(20, b"\x06"), "activation tag 6"),
        (change(20, b"\xff"), "activation tag 255"),
        (change(21, NAN), "alpha"),
        (change(25, NAN), "not finite"),
        (change(49, INFINITY), "not finite"),
        (change(61, struct.pack("<I", 4)), "needs"),
        (handmade() + b"\0", "1 bytes follow"),
    ],
)
def test_hostile_bytes_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Network.from_bytes(content)


def test_every_truncation_is_refused() -> None:
    for length in range(len(handmade())):
        with pytest.raises(FormatError):
            Network.from_bytes(handmade()[:length])


@pytest.mark.slow
def test_random_damage_is_refused_or_gives_a_network() -> None:
    generator = np.random.RandomState(0)
    for _ in range(2000):
        content = bytearray(handmade())
        for _ in range(generator.randint(1, 4)):
            content[generator.randint(len(content))] = generator.randint(256)
        try:
            network = Network.from_bytes(bytes(content))
        except FormatError:
            continue
        assert Network.from_bytes(network.to_bytes(1)).to_bytes(1) == network.to_bytes(1)


def test_a_softmax_that_is_not_last_is_refused() -> None:
    layer = struct.pack("<IIB", 1, 1, 5) + struct.pack("<2f", 1, 0)
    with pytest.raises(FormatError, match="only the last"):
        Network.from_bytes(b"FANN" + struct.pack("<II", 1, 2) + layer + layer)


def test_what_version_1_cannot_say_is_refused_by_name() -> None:
    network = NetworkBuilder().input(2).output(1, Activation.GELU).build(seed=0)
    with pytest.raises(UnsupportedError, match="GELU"):
        network.to_bytes(1)
    assert network.to_bytes()[4] == 2
    network = NetworkBuilder().input(2).output(1).build(seed=0)
    network.input_scaling = ([0, 0], [1, 1])
    with pytest.raises(UnsupportedError, match="scaling"):
        network.to_bytes(1)


def test_weights_that_are_not_finite_are_not_written() -> None:
    network = Network([Layer([[1.0]], [0.0])])
    network.layers[0].weights[0, 0] = np.nan
    for version in (1, 2):
        with pytest.raises(InvalidNetworkError, match="not finite"):
            network.to_bytes(version)
