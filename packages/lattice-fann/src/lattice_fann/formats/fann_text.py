"""The text format ``.net`` of the C library FANN, versions FANN_FLO_2.0 and 2.1.

A file is a list of ``name=value`` lines. FANN prints numbers in the locale of the program that saves, so a decimal
comma is read as well as a point; points are written. Each layer ends with a bias neuron, the last layer's without use.
A neuron computes f(s * sum) with its steepness s:

    FANN_LINEAR             s sum               Linear, weights times s
    FANN_SIGMOID            1 / (1 + exp(-2 s sum))   Sigmoid, weights times 2 s
    FANN_SIGMOID_SYMMETRIC  tanh(s sum)         Tanh, weights times s

The two STEPWISE functions, FANN's defaults, are its straight-line approximations of the last two; they are read as the
smooth functions, and the network's metadata say so (``fann_text``). Missing connections become zero weights. Training
parameters have no place in a network and are not kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lattice_fann.activation import Activation
from lattice_fann.errors import FannError, FormatError, InvalidNetworkError, UnsupportedError
from lattice_fann.layer import Layer, check_layer_shape

if TYPE_CHECKING:
    from lattice_fann.network import Network

__all__ = ["check_expressible", "from_fann_text", "to_fann_text"]

_VERSIONS = ("FANN_FLO_2.0", "FANN_FLO_2.1")

# number -> (name, activation, factor of the steepness); the order is fann_activationfunc_enum's
_FUNCTIONS = {
    0: ("FANN_LINEAR", Activation.LINEAR, 1.0),
    3: ("FANN_SIGMOID", Activation.SIGMOID, 2.0),
    4: ("FANN_SIGMOID_STEPWISE", Activation.SIGMOID, 2.0),
    5: ("FANN_SIGMOID_SYMMETRIC", Activation.TANH, 1.0),
    6: ("FANN_SIGMOID_SYMMETRIC_STEPWISE", Activation.TANH, 1.0),
}
_STEPWISE = (4, 6)

# What FANN 2.2.0 writes for a network that was not trained otherwise, in its order. Reading knows these names only.
_PARAMETERS = """\
learning_rate=0.700000
connection_rate=1.000000
network_type=0
learning_momentum=0.000000
training_algorithm=2
train_error_function=1
train_stop_function=0
cascade_output_change_fraction=0.010000
quickprop_decay=-0.000100
quickprop_mu=1.750000
rprop_increase_factor=1.200000
rprop_decrease_factor=0.500000
rprop_delta_min=0.000000
rprop_delta_max=50.000000
rprop_delta_zero=0.100000
cascade_output_stagnation_epochs=12
cascade_candidate_change_fraction=0.010000
cascade_candidate_stagnation_epochs=12
cascade_max_out_epochs=150
cascade_min_out_epochs=50
cascade_max_cand_epochs=150
cascade_min_cand_epochs=50
cascade_num_candidate_groups=2
bit_fail_limit=3.49999994039535522461e-01
cascade_candidate_limit=1.00000000000000000000e+03
cascade_weight_multiplier=4.00000005960464477539e-01
cascade_activation_functions_count=10
cascade_activation_functions=3 5 7 8 10 11 14 15 16 17\x20
cascade_activation_steepnesses_count=4
cascade_activation_steepnesses=2.5e-01 5.0e-01 7.5e-01 1.0e+00\x20
"""
_NEURONS = "neurons (num_inputs, activation_function, activation_steepness)"
_CONNECTIONS = "connections (connected_to_neuron, weight)"
_STRUCTURE = {"num_layers", "layer_sizes", "scale_included", _NEURONS, _CONNECTIONS}
_KNOWN = _STRUCTURE | {line.partition("=")[0] for line in _PARAMETERS.splitlines()}
_SCALING = re.compile(r"scale_(mean|deviation|new_min|factor)_(in|out)")

_NEURON = re.compile(r"\((\d+), (\d+), ([^()]*)\)")
_CONNECTION = re.compile(r"\((\d+), ([^()]*)\)")

_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")

_FREE_ELEMENTS = 1 << 20
_MOST_SPARSE = 64


@dataclass(frozen=True)
class _Neuron:
    inputs: int
    function: int
    steepness: float


def from_fann_text(content: bytes) -> Network:
    """Return the network in the content of a ``.net`` file.

    Raises:
        FormatError: it is malformed, of another version, or holds a key that FANN 2 does not write.
        UnsupportedError: fixed point, shortcut connections, scaling, or activations without a counterpart here.
    """
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError:
        raise FormatError("a .net file is ASCII text; this one is not") from None
    first, _, rest = text.partition("\n")
    version = first.strip()
    if version.startswith("FANN_FIX"):
        raise UnsupportedError(
            f"this file is {version}, a network in fixed point; this package reads {' and '.join(_VERSIONS)}: "
            "save it with fann_save, not fann_save_to_fixed"
        )
    if version not in _VERSIONS:
        raise FormatError(f"this file is {version[:40]!r}; this package reads {' and '.join(_VERSIONS)}")
    fields = _fields(rest, version)
    try:
        return _network(fields)
    except (FormatError, UnsupportedError):
        raise
    except FannError as error:
        raise FormatError(f"the file holds no valid network: {error}") from error


def _fields(text: str, version: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=2):
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise FormatError(f"line {number} is not name=value")
        if name in fields:
            raise FormatError(f"line {number} gives {name} once more")
        if name not in _KNOWN and not _SCALING.fullmatch(name):
            raise FormatError(
                f"line {number} has the key {name[:60]!r}, which {version} does not know; "
                f"this package reads {' and '.join(_VERSIONS)}"
            )
        fields[name] = value
    missing = [name for name in sorted(_STRUCTURE - {"scale_included"}) if name not in fields]
    if missing:
        raise FormatError(f"the file ends early: it lacks {', '.join(missing)}")
    return fields


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text.strip()):
        raise FormatError(f"{text.strip()[:40]!r} is no finite number")
    return float(text.strip().replace(",", "."))


def _whole(text: str, name: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text.strip()):
        raise FormatError(f"{name} is {text.strip()[:40]!r}, no count")
    return int(text)


def _network(fields: dict[str, str]) -> Network:
    from lattice_fann.network import Network

    if _whole(fields.get("network_type", "0"), "network_type") != 0:
        raise UnsupportedError("the network has shortcut connections (network_type=1); only layered ones can be read")
    if _whole(fields.get("scale_included", "0"), "scale_included") != 0:
        raise UnsupportedError(
            "the file holds scaling parameters, which FANN applies only where a program asks for it: "
            "remove them with fann_clear_scaling_params and set network.input_scaling"
        )
    sizes = [_whole(part, "layer_sizes") for part in fields["layer_sizes"].split()]
    if len(sizes) != _whole(fields["num_layers"], "num_layers") or len(sizes) < 2:
        raise FormatError(f"num_layers is {fields['num_layers'].strip()}, and there are {len(sizes)} layer_sizes")
    neurons = [_Neuron(int(n), int(f), _number(s)) for n, f, s in _items(fields[_NEURONS], _NEURON, "neurons")]
    if len(neurons) != sum(sizes):
        raise FormatError(f"layer_sizes ask for {sum(sizes)} neurons, the file has {len(neurons)}")
    connections = [(int(source), _number(w)) for source, w in _items(fields[_CONNECTIONS], _CONNECTION, "connections")]
    if len(connections) != sum(neuron.inputs for neuron in neurons):
        raise FormatError(f"the neurons ask for {sum(n.inputs for n in neurons)} connections, not {len(connections)}")
    elements = sum(a * b for a, b in pairwise(sizes))
    if elements > _FREE_ELEMENTS + _MOST_SPARSE * len(connections):
        raise FormatError(f"{len(connections)} connections are too few for layers of {elements} possible ones")
    layers = []
    first = below = next_connection = 0
    stepwise = False
    for i, size in enumerate(sizes):
        mine = neurons[first : first + size]
        if i > 0:
            count = sum(neuron.inputs for neuron in mine)
            part = connections[next_connection : next_connection + count]
            layers.append(_layer(i, mine, part, below, first))
            next_connection += count
            stepwise = stepwise or any(neuron.function in _STEPWISE for neuron in mine[:-1])
        elif any(neuron.inputs for neuron in mine):
            raise FormatError("a neuron of the first layer has connections")
        below, first = first, first + size
    note = {"fann_text": "stepwise sigmoids were read as smooth ones"} if stepwise else {}
    return Network(layers, metadata=note)


def _items(text: str, pattern: re.Pattern[str], name: str) -> list[tuple[str, ...]]:
    found = pattern.findall(text)
    if pattern.sub("", text).strip():
        raise FormatError(f"the list of {name} is malformed or cut off")
    if any(len(part) > 60 for item in found for part in item):
        raise FormatError(f"a number in the list of {name} is too long")
    return found


def _layer(index: int, neurons: list[_Neuron], connections: list[tuple[int, float]], below: int, first: int) -> Layer:
    """Neurons `below` to `first` - 1 are the layer before, the last of them its bias."""
    working, bias = neurons[:-1], neurons[-1]
    if bias.inputs:
        raise FormatError(f"the bias neuron of layer {index} has connections")
    num_inputs = first - below - 1
    check_layer_shape(num_inputs, len(working))
    functions = {neuron.function for neuron in working}
    if len(functions) > 1:
        raise UnsupportedError(
            f"layer {index} mixes the activation functions {sorted(functions)}; a layer has one here"
        )
    (function,) = functions
    if function not in _FUNCTIONS:
        raise UnsupportedError(
            f"layer {index} has the activation function number {function}; there are counterparts for "
            f"{', '.join(f'{number} {name}' for number, (name, _, _) in _FUNCTIONS.items())}"
        )
    _, activation, factor = _FUNCTIONS[function]
    # a sum begins at -0.0, which adds nothing: a lone weight of -0.0 stays what it is. Missing ones become 0.0.
    weights = np.full((len(working), num_inputs), -0.0)
    biases = np.full(len(working), -0.0)
    missing_weights, missing_biases = np.ones(weights.shape, np.bool_), np.ones(biases.shape, np.bool_)
    position = 0
    for row, neuron in enumerate(working):
        for source, weight in connections[position : position + neuron.inputs]:
            if not below <= source < first:
                raise FormatError(f"neuron {row} of layer {index} is connected to {source}, not in the layer before")
            if source == first - 1:
                biases[row] += weight * neuron.steepness * factor
                missing_biases[row] = False
            else:
                weights[row, source - below] += weight * neuron.steepness * factor
                missing_weights[row, source - below] = False
        position += neuron.inputs
    weights[missing_weights] = biases[missing_biases] = 0.0
    return Layer(weights, biases, activation)


_WRITTEN = {"Linear": (0, 1.0), "Sigmoid": (3, 0.5), "Tanh": (5, 1.0)}


def check_expressible(network: Network) -> None:
    """Refuse what :func:`to_fann_text` cannot say.

    Raises:
        UnsupportedError: an input scaling, or activations other than Linear, Sigmoid and Tanh.
    """
    if network.input_scaling is not None:
        raise UnsupportedError("a .net file has no place for an input scaling that is always applied")
    for i, layer in enumerate(network.layers):
        if layer.activation.name not in _WRITTEN:
            raise UnsupportedError(
                f"layer {i} is a {layer.activation.name}, which FANN 2.2 has no function for; a .net file holds "
                f"{', '.join(_WRITTEN)}"
            )


def to_fann_text(network: Network) -> str:
    """Return ``network`` as FANN_FLO_2.1.

    Raises:
        UnsupportedError: it has an input scaling, or activations other than Linear, Sigmoid and Tanh.
        InvalidNetworkError: a weight is not finite.
    """
    check_expressible(network)
    sizes = [network.num_inputs + 1, *(layer.num_outputs + 1 for layer in network.layers)]
    nothing = f"(0, 0, {0.0:.20e}) "
    neurons = [nothing * sizes[0]]
    connections: list[str] = []
    below = 0
    for i, layer in enumerate(network.layers):
        if not (np.isfinite(layer.weights).all() and np.isfinite(layer.biases).all()):
            raise InvalidNetworkError(f"a weight or bias of layer {i} is not finite: such a network is not stored")
        number, steepness = _WRITTEN[layer.activation.name]
        neurons.append(f"({sizes[i]}, {number}, {steepness:.20e}) " * layer.num_outputs + nothing)
        for weights, bias in zip(layer.weights.tolist(), layer.biases.tolist(), strict=True):
            connections.extend(f"({below + j}, {w:.20e}) " for j, w in enumerate([*weights, bias]))
        below += sizes[i]
    return "".join(
        [
            f"FANN_FLO_2.1\nnum_layers={len(sizes)}\n",
            _PARAMETERS,
            f"layer_sizes={' '.join(map(str, sizes))} \nscale_included=0\n",
            f"{_NEURONS}={''.join(neurons)}\n",
            f"{_CONNECTIONS}={''.join(connections)}\n",
        ]
    )
