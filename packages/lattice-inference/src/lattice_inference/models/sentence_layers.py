"""The layers of a sentence-transformers model after the pooling.

They are Dense, LayerNorm and Normalize. Each has its folder with a small ``config.json`` and, if it has weights, a
``model.safetensors``. The tensors are named ``FOLDER/NAME`` here. A Dropout does nothing after training, so it
becomes no layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.errors import UnsupportedError
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import View
from lattice_inference.models.config_fields import ConfigFields

__all__ = [
    "DenseLayer",
    "NormLayer",
    "SentenceLayer",
    "UnitLayer",
    "add_sentence_layer",
    "read_sentence_layer",
    "weight_folders",
]

#: The widest input or output of a module.
MAX_WIDTH = 2**20

#: The epsilon of sentence-transformers' LayerNorm module: PyTorch's default, which no file states.
LAYER_NORM_EPSILON = 1e-5

DenseActivation = Literal["identity", "tanh", "relu", "gelu", "silu"]

_ACTIVATIONS: Mapping[str, DenseActivation] = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
}


@dataclass(frozen=True)
class DenseLayer:
    """y = activation(W x + b), plus x or its projection if ``residual`` says so.

    The projection is to the new width.
    """

    folder: str
    input_width: int
    output_width: int
    bias: bool
    activation: DenseActivation
    residual: bool


@dataclass(frozen=True)
class NormLayer:
    """LayerNorm with a scale and a shift."""

    folder: str
    width: int


@dataclass(frozen=True)
class UnitLayer:
    """Scaling to length 1 before another layer; at the end it is the model's ``normalize``."""


SentenceLayer = DenseLayer | NormLayer | UnitLayer


def read_sentence_layer(kind: str, directory: Path, folder: str) -> SentenceLayer:
    """Read a module with weights, Dense or LayerNorm.

    It is in ``folder`` of the model's ``directory``.

    Raises:
        ModelNotFoundError: it has no config.
        ModelConfigError: its config is malformed.
        UnsupportedError: an option is not built.
    """
    path = directory / folder / "config.json"
    config = load_json_object(path)
    fields = ConfigFields(config, str(path))
    if kind == "LayerNorm":
        return NormLayer(folder, fields.integer("dimension", 1, MAX_WIDTH))
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, "sentence_embedding"):
            raise UnsupportedError(f"{path}: {name} is {config[name]!r}; only 'sentence_embedding' is built")
    # Without a stated activation, it is the module's default.
    name = fields.text("activation_function", default="torch.nn.modules.activation.Tanh")
    if name not in _ACTIVATIONS:
        raise UnsupportedError(f"{path}: activation_function is {name!r:.100}; built are {', '.join(_ACTIVATIONS)}")
    return DenseLayer(
        folder,
        fields.integer("in_features", 1, MAX_WIDTH),
        fields.integer("out_features", 1, MAX_WIDTH),
        fields.flag("bias", default=True),
        _ACTIVATIONS[name],
        fields.flag("use_residual", default=False),
    )


def weight_folders(layers: Iterable[SentenceLayer]) -> tuple[str, ...]:
    """Return the folders of the layers that have weights."""
    return tuple(layer.folder for layer in layers if isinstance(layer, (DenseLayer, NormLayer)))


def add_sentence_layer(g: GraphBuilder, x: View, layer: SentenceLayer) -> View:
    """Add a layer's ops to a program and return its output.

    Raises:
        InvalidInputError: the layer does not take vectors of this width.
    """
    match layer:
        case UnitLayer():
            return g.l2_normalize(x)
        case NormLayer():
            scale, shift = (
                g.weight(f"{layer.folder}/norm.{part}", (layer.width,), use="vector") for part in ("weight", "bias")
            )
            return g.layer_norm(x, scale, shift, epsilon=LAYER_NORM_EPSILON)
        case DenseLayer():
            shape = (layer.output_width, layer.input_width)
            weight = g.weight(f"{layer.folder}/linear.weight", shape)
            bias = g.weight(f"{layer.folder}/linear.bias", shape[:1], use="vector") if layer.bias else None
            y = _ADD_ACTIVATION[layer.activation](g, g.linear(x, weight, bias))
            if not layer.residual:
                return y
            same = layer.input_width == layer.output_width
            return g.add(y, x if same else g.linear(x, g.weight(f"{layer.folder}/residual.weight", shape)))


_ADD_ACTIVATION: Mapping[DenseActivation, Callable[[GraphBuilder, View], View]] = {
    "identity": lambda g, x: x,
    "tanh": lambda g, x: g.tanh(x),
    "relu": lambda g, x: g.relu(x),
    "gelu": lambda g, x: g.gelu(x),
    "silu": lambda g, x: g.silu(x),
}
assert set(_ADD_ACTIVATION) == set(get_args(DenseActivation))
