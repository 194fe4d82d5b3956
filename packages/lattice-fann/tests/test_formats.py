"""Format 2, safetensors, and the C library FANN's text format."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from lattice_fann import (
    Activation,
    FormatError,
    InvalidInputError,
    Layer,
    Network,
    NetworkBuilder,
    UnsupportedError,
)

FANN = Path(__file__).parent / "data" / "fann"


def sample_network() -> Network:
    network = (
        NetworkBuilder()
        .input(20)
        .hidden(17, Activation.GELU)
        .hidden(9, Activation.leaky_relu(0.2))
        .output(3, Activation.SOFTMAX)
        .build(seed=1)
    )
    network.layers[1].biases = np.arange(9) / 7
    network.input_scaling = (np.arange(20) / 3, np.ones(20) * 0.5)
    network.metadata = {"labels": '["ä", "b"]', "": "empty key"}
    return network


def same(a: Network, b: Network) -> bool:
    x = np.random.RandomState(0).standard_normal((5, a.num_inputs))
    return (
        a.architecture() == b.architecture()
        and [layer.activation for layer in a.layers] == [layer.activation for layer in b.layers]
        and bool((a.forward_batch(x) == b.forward_batch(x)).all())
    )


def test_version_2_keeps_everything() -> None:
    network = sample_network()
    read = Network.from_bytes(network.to_bytes())
    assert same(read, network)
    assert read.metadata == network.metadata
    assert read.to_bytes() == network.to_bytes()


def test_version_2_has_the_documented_layout() -> None:
    content = sample_network().to_bytes(2)
    magic, version, header_bytes, payload_bytes = struct.unpack_from("<4sIIQ", content)
    assert (magic, version) == (b"FANN", 2)
    assert len(content) == 20 + header_bytes + payload_bytes + 4
    assert json.loads(content[20 : 20 + header_bytes])["layers"][1] == {
        "inputs": 17, "outputs": 9, "activation": "LeakyReLU", "alpha": pytest.approx(0.2),
    }  # fmt: skip
    assert struct.unpack("<I", content[-4:])[0] == zlib.crc32(content[:-4])
    means = np.frombuffer(content, "<f4", 20, 20 + header_bytes)
    assert means == pytest.approx(np.arange(20) / 3)


@pytest.mark.parametrize(("kind", "bound"), [("float16", 2**-11), ("int8", 1 / 254)])
def test_small_weights_stay_within_their_bound(kind: str, bound: float) -> None:
    network = sample_network()
    content = network.to_bytes(weights=kind)  # type: ignore[arg-type]
    assert len(content) < 0.7 * len(network.to_bytes())
    read = Network.from_bytes(content)
    for mine, exact in zip(read.layers, network.layers, strict=True):
        largest = np.abs(exact.weights).max(axis=1, keepdims=True)
        assert (np.abs(mine.weights - exact.weights) <= bound * largest * 1.0001).all()
        assert (mine.biases == exact.biases).all()


def test_int8_keeps_zero_rows() -> None:
    network = Network([Layer([[0, 0], [1, -1]], [0, 0])])
    assert Network.from_bytes(network.to_bytes(weights="int8")).layers[0].weights.tolist() == [[0, 0], [1, -1]]


def test_weights_beyond_float16_are_refused() -> None:
    network = Network([Layer([[1e6]], [0])])
    with pytest.raises(UnsupportedError, match="65504"):
        network.to_bytes(weights="float16")
    with pytest.raises(InvalidInputError, match="float32 weights only"):
        network.to_bytes(1, weights="int8")


def sealed(header: object, payload: bytes, claimed: int | None = None) -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    whole = struct.pack("<4sIIQ", b"FANN", 2, len(encoded), len(payload) if claimed is None else claimed)
    whole += encoded + payload
    return whole + struct.pack("<I", zlib.crc32(whole))


def header(**changes: object) -> dict[str, object]:
    layer = {"inputs": 1, "outputs": 1, "activation": "Linear"}
    return {"weights": "float32", "layers": [layer], "input_scaling": False, "metadata": {}, **changes}


PAYLOAD = struct.pack("<2f", 1, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (sealed(header(), PAYLOAD)[:-1], "ask for"),
        (sealed(header(), PAYLOAD) + b"\0", "ask for"),
        (sealed(header(), PAYLOAD, 2**63), "ask for"),
        (b"FANN\x02\0\0\0" + b"\xff" * 12 + b"\0" * 8, "header claims"),
        (sealed(header(), PAYLOAD + b"abcd"), "4 bytes follow"),
        (sealed(header(), PAYLOAD[:4]), "ends early"),
        (sealed(header(), struct.pack("<2f", np.nan, 0)), "not finite"),
        (sealed(header(weights="float64"), PAYLOAD), "float64"),
        (sealed(header(layers=[]), PAYLOAD), "no layers"),
        (sealed(header(layers=[{"inputs": 2**40, "outputs": 2**40, "activation": "Linear"}]), PAYLOAD), "elements"),
        (sealed(header(layers=[{"inputs": -1, "outputs": 1, "activation": "Linear"}]), PAYLOAD), "at least 1"),
        (sealed(header(layers=[{"inputs": 1.0, "outputs": 1, "activation": "Linear"}]), PAYLOAD), "integer"),
        (sealed(header(layers=[{"inputs": 1, "outputs": 1, "activation": "ReLU6"}]), PAYLOAD), "no activation"),
        (sealed(header(layers=[{"inputs": 1}]), PAYLOAD), "outputs"),
        (sealed(header(extra=1), PAYLOAD), "unknown fields"),
        (sealed(header(metadata=[1]), PAYLOAD), "no valid network"),
        (sealed(b"[" * 100_000, PAYLOAD), "no JSON"),
        (sealed(b"{", PAYLOAD), "no JSON"),
        (sealed(b"3", PAYLOAD), "no valid network"),
    ],
)
def test_hostile_version_2_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Network.from_bytes(content)


def test_every_changed_byte_of_version_2_is_noticed() -> None:
    content = bytearray(sealed(header(), PAYLOAD))
    for position in range(len(content)):
        content[position] ^= 0x10
        with pytest.raises(FormatError):
            Network.from_bytes(content)
        content[position] ^= 0x10
    Network.from_bytes(content)


def test_safetensors_are_read_by_their_library(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    network = sample_network()
    network.save(tmp_path / "n.safetensors")
    tensors = library.load_file(tmp_path / "n.safetensors")
    for i, layer in enumerate(network.layers):
        assert (tensors[f"layers.{i}.weight"] == layer.weights).all()
        assert (tensors[f"layers.{i}.bias"] == layer.biases).all()


def test_safetensors_are_read_back(tmp_path: Path) -> None:
    network = sample_network()
    network.save(tmp_path / "n.safetensors")
    read = Network.load(tmp_path / "n.safetensors")
    assert same(read, network)
    assert read.metadata == network.metadata


def test_damaged_safetensors_are_refused(tmp_path: Path) -> None:
    from lattice_fann.formats.safetensors import from_safetensors, to_safetensors

    content = to_safetensors(sample_network())
    for damaged in (content[:-1], content + b"\0", content[:7], b"\xff" * 8 + content[8:], b"\x02" + b"\0" * 7 + b"{}"):
        with pytest.raises(FormatError):
            from_safetensors(damaged)
    generator = np.random.RandomState(0)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[generator.randint(400)] = generator.randint(256)
        try:
            from_safetensors(bytes(damaged))
        except FormatError:
            continue


@pytest.mark.parametrize("name", ["tanh_sigmoid.net", "sigmoid_linear.net", "sparse.net", "default.net"])
def test_networks_of_the_c_library_compute_the_same(name: str) -> None:
    network = Network.load(FANN / name)
    # the default network's functions are stepwise, FANN's straight-line approximation
    bound = 0.02 if name == "default.net" else 1e-6
    for sample in json.loads((FANN / "outputs.json").read_text())[name]:
        assert network.forward(sample["x"]) == pytest.approx(sample["y"], abs=bound)
    assert ("stepwise" in network.metadata.get("fann_text", "")) == (name == "default.net")


def test_a_decimal_comma_is_read() -> None:
    """FANN prints numbers in the locale of the program that saves."""
    from lattice_fann.formats.fann_text import from_fann_text

    text = (FANN / "tanh_sigmoid.net").read_text()
    german = text.partition("\n")[0] + "\n" + text.partition("\n")[2].replace(".", ",")
    assert german != text
    assert from_fann_text(german.encode()).to_bytes() == from_fann_text(text.encode()).to_bytes()


def test_the_text_format_is_written_and_read_back(tmp_path: Path) -> None:
    network = (
        NetworkBuilder().input(3).hidden(4, Activation.TANH).hidden(5, Activation.SIGMOID).output(2, Activation.LINEAR)
    ).build(seed=0)
    network.layers[0].biases = [0.1, 0.2, 0.3, 0.4]
    network.save(tmp_path / "n.net")
    assert Network.load(tmp_path / "n.net").to_bytes() == network.to_bytes()


def test_the_c_library_reads_what_is_written(tmp_path: Path) -> None:
    found = ctypes.util.find_library("fann")
    if found is None:
        pytest.skip("the C library FANN is not installed")
    library = ctypes.CDLL(found)
    library.fann_create_from_file.restype = ctypes.c_void_p
    library.fann_run.restype = ctypes.POINTER(ctypes.c_float)
    library.fann_run.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_float)]
    network = NetworkBuilder().input(3).hidden(4, Activation.TANH).output(2, Activation.SIGMOID).build(seed=0)
    network.layers[0].biases = [0.1, 0.2, 0.3, 0.4]
    network.save(tmp_path / "n.net")
    theirs = library.fann_create_from_file(os.fsencode(tmp_path / "n.net"))
    assert theirs
    for x in np.random.RandomState(0).standard_normal((5, 3)).astype(np.float32):
        y = library.fann_run(theirs, x.ctypes.data_as(ctypes.POINTER(ctypes.c_float)))
        assert [y[0], y[1]] == pytest.approx(network.forward(x).tolist(), abs=1e-6)
    library.fann_destroy(ctypes.c_void_p(theirs))


def text_with(old: str, new: str) -> bytes:
    text = (FANN / "tanh_sigmoid.net").read_text()
    assert old in text
    return text.replace(old, new, 1).encode()


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        ((FANN / "fixed.net").read_bytes(), UnsupportedError, "FANN_FIX_2.0.*FANN_FLO_2.0 and FANN_FLO_2.1"),
        ((FANN / "shortcut.net").read_bytes(), UnsupportedError, "shortcut"),
        ((FANN / "gaussian.net").read_bytes(), UnsupportedError, "function number 7"),
        (text_with("FLO_2.1", "FLO_3.0"), FormatError, "FANN_FLO_3.0.*FANN_FLO_2.1"),
        (text_with("learning_rate", "learning_speed"), FormatError, "learning_speed.*FANN_FLO_2.1"),
        (text_with("num_layers=4", "num_layers=5"), FormatError, "num_layers is 5"),
        (text_with("num_layers=4", "num_layers=-4"), FormatError, "no count"),
        (text_with("layer_sizes=4", "layer_sizes=999999999999"), FormatError, "neurons"),
        (text_with("layer_sizes=4", "layer_sizes=" + "9" * 5000), FormatError, "no count"),
        (text_with("scale_included=0", "scale_included=1"), UnsupportedError, "scaling"),
        (text_with("(0, 0, 0.0", "(1, 0, 0.0"), FormatError, "connections"),
        (text_with("(4, 5, 5.0", "(4, 3, 5.0"), UnsupportedError, "mixes"),
        (text_with("connected_to_neuron, weight)=(0,", "connected_to_neuron, weight)=(99,"), FormatError, "99"),
        (
            text_with("weight)=(0, -9", "weight)=(4, -9"),
            FormatError,
            "neuron 0 of layer 1 .* to 4, not in the layer before",
        ),
        (text_with("connected_to_neuron, weight)=(0, ", "connected_to_neuron, weight)=(0, nan"), FormatError, "number"),
        ((FANN / "tanh_sigmoid.net").read_bytes()[:-40], FormatError, "cut off|connections"),
        ((FANN / "tanh_sigmoid.net").read_bytes()[:500], FormatError, "ends early|name=value"),
        (b"FANN_FLO_2.1\n\xff", FormatError, "ASCII"),
    ],
)
def test_other_text_files_are_refused(content: bytes, kind: type[Exception], message: str, tmp_path: Path) -> None:
    (tmp_path / "x.net").write_bytes(content)
    with pytest.raises(kind, match=message):
        Network.load(tmp_path / "x.net")


def test_connections_of_a_bias_neuron_are_refused(tmp_path: Path) -> None:
    """They are as many as the neurons ask for: one neuron has one less. A bias with connections has no meaning."""
    content = text_with("(4, 5, ", "(3, 5, ").replace(b"(0, 5, ", b"(1, 5, ", 1)
    (tmp_path / "x.net").write_bytes(content)
    with pytest.raises(FormatError, match="bias neuron of layer 1 has connections"):
        Network.load(tmp_path / "x.net")


def test_weights_that_are_not_numbers_are_refused() -> None:
    from lattice_fann.formats.fann_text import from_fann_text

    text = (FANN / "sigmoid_linear.net").read_text()
    start = text.rindex("(0, ") + 4
    end = text.index(")", start)
    for value in ("nan", "inf", "1e999", "0x10", ""):
        with pytest.raises(FormatError):
            from_fann_text((text[:start] + value + text[end:]).encode())


@pytest.mark.parametrize("activation", [Activation.SOFTMAX, Activation.RELU])
def test_what_the_text_format_cannot_say_is_refused(activation: Activation, tmp_path: Path) -> None:
    network = NetworkBuilder().input(3).output(2, activation).build(seed=0)
    with pytest.raises(UnsupportedError, match=activation.name):
        network.save(tmp_path / "n.net")
    assert not list(tmp_path.iterdir())


def test_saving_and_loading_by_suffix(tmp_path: Path) -> None:
    network = NetworkBuilder().input(3).output(2, Activation.TANH).build(seed=0)
    for name in ("a.fann", "b.bin", "c.safetensors", "d.net"):
        network.save(tmp_path / name)
        assert same(Network.load(tmp_path / name), network)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.fann", "b.bin", "c.safetensors", "d.net"]
    network.save(tmp_path / "small.fann", weights="int8")
    assert (tmp_path / "small.fann").read_bytes()[4] == 2
    with pytest.raises(InvalidInputError, match="float32"):
        network.save(tmp_path / "x.safetensors", weights="int8")


def test_loading_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "no.fann").write_bytes(b"no network at all")
    with pytest.raises(FormatError, match=r"no\.fann"):
        Network.load(tmp_path / "no.fann")
    with pytest.raises(FileNotFoundError):
        Network.load(tmp_path / "missing.fann")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    network = NetworkBuilder().input(3).output(2, Activation.TANH).build(seed=0)
    network.save(tmp_path / "n.fann")
    before = (tmp_path / "n.fann").read_bytes()
    network.layers[0].weights[0, 0] = np.nan
    with pytest.raises(ValueError):
        network.save(tmp_path / "n.fann")
    assert (tmp_path / "n.fann").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["n.fann"]
