"""Writes a BERT sentence encoder as ONNX by hand: the fastest known form for ONNX Runtime.

It reads the safetensors file. No PyTorch is needed. The graph uses ONNX Runtime's own fused operators (domain
``com.microsoft``):

    input_ids (B, S) int32, lengths (B) int32
      EmbedLayerNormalization        word + position table, the type-0 row folded into the positions, LayerNorm
      for each layer:
        Attention                    one GEMM for q, k and v, all heads, padding masked by lengths
        MatMul, SkipLayerNormalization (bias, residual and LayerNorm in one)
        MatMul, BiasGelu, MatMul, SkipLayerNormalization
      mean over a text's tokens as one small MatMul, LpNormalization
    embedding (B, hidden) float32, of length 1

A second graph without ``lengths`` serves batches in which all texts are equally long (one text alone is such a batch):
it masks nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["build_graph", "main"]

OPSET = 17
IR_VERSION = 9
MICROSOFT = "com.microsoft"


class _Graph:
    """Nodes and initializers of a graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._constants: set[str] = set()

    def constant(self, name: str, array: npt.NDArray[Any]) -> str:
        """Add an initializer under a new name and return the name."""
        from onnx import numpy_helper

        if name not in self._constants:
            self._constants.add(name)
            self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(
        self, kind: str, inputs: list[str], output: str, *, domain: str = "", more: int = 0, **attributes: Any
    ) -> str:
        """Add a node and return its first output.

        ``more`` outputs that nothing reads are named after it.
        """
        from onnx import helper

        outputs = [output, *(f"{output}.{index + 1}" for index in range(more))]
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=output, domain=domain, **attributes))
        return output


def build_graph(directory: Path, *, masked: bool = True) -> Any:
    """Return the ``onnx.ModelProto`` of a BERT checkpoint with mean pooling.

    Args:
        directory: holds ``config.json`` and ``model.safetensors``.
        masked: take ``lengths``, for batches with padding.

    Raises:
        ValueError: the configuration is not one that this graph computes.
        ImportError: ``onnx`` or ``safetensors`` is not installed.
    """
    from onnx import TensorProto, helper
    from safetensors.numpy import load_file

    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "bert" or config["hidden_act"] != "gelu":
        raise ValueError(
            f"{directory} is {config['model_type']} with {config['hidden_act']}; only bert with gelu is written"
        )
    tensors = load_file(directory / "model.safetensors")
    epsilon = float(config["layer_norm_eps"])
    g = _Graph()

    def vector(name: str) -> str:
        return g.constant(name, tensors[name])

    def matrix(name: str) -> str:
        return g.constant(name, tensors[f"{name}.weight"].T)

    positions = tensors["embeddings.position_embeddings.weight"] + tensors["embeddings.token_type_embeddings.weight"][0]
    x = g.node(
        "EmbedLayerNormalization",
        [
            "input_ids",
            "",
            g.constant("words", tensors["embeddings.word_embeddings.weight"]),
            g.constant("positions", positions),
            "",
            vector("embeddings.LayerNorm.weight"),
            vector("embeddings.LayerNorm.bias"),
        ],
        "embedded",
        domain=MICROSOFT,
        more=1,
        epsilon=epsilon,
    )
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        parts = [f"{at}.attention.self.{name}" for name in ("query", "key", "value")]
        weight = g.constant(f"{at}.qkv.weight", np.concatenate([tensors[f"{part}.weight"].T for part in parts], axis=1))
        bias = g.constant(f"{at}.qkv.bias", np.concatenate([tensors[f"{part}.bias"] for part in parts]))
        context = g.node(
            "Attention",
            [x, weight, bias, *(["lengths"] if masked else [])],
            f"{at}.context",
            domain=MICROSOFT,
            num_heads=config["num_attention_heads"],
        )
        projected = g.node("MatMul", [context, matrix(f"{at}.attention.output.dense")], f"{at}.projected")
        x = _skip_layer_norm(g, projected, x, f"{at}.attention.output", tensors, epsilon)
        wide = g.node("MatMul", [x, matrix(f"{at}.intermediate.dense")], f"{at}.wide")
        active = g.node("BiasGelu", [wide, vector(f"{at}.intermediate.dense.bias")], f"{at}.active", domain=MICROSOFT)
        narrow = g.node("MatMul", [active, matrix(f"{at}.output.dense")], f"{at}.narrow")
        x = _skip_layer_norm(g, narrow, x, f"{at}.output", tensors, epsilon)
    _pool(g, x, masked=masked)

    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT32, ["batch", "tokens"])]
    if masked:
        inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"]))
    output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", config["hidden_size"]])
    graph = helper.make_graph(g.nodes, "sentence_encoder", inputs, [output], g.initializers)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="lattice-benchmarks")


def _skip_layer_norm(
    g: _Graph, x: str, residual: str, at: str, tensors: dict[str, npt.NDArray[Any]], epsilon: float
) -> str:
    """LayerNorm(x + bias + residual) as one node."""
    names = [f"{at}.LayerNorm.weight", f"{at}.LayerNorm.bias", f"{at}.dense.bias"]
    constants = [g.constant(name, tensors[name]) for name in names]
    return g.node(
        "SkipLayerNormalization", [x, residual, *constants], f"{at}.normalized", domain=MICROSOFT, epsilon=epsilon
    )


def _pool(g: _Graph, x: str, *, masked: bool) -> None:
    """The mean of each text's token states, scaled to length 1."""
    if masked:
        column = g.node("Unsqueeze", ["lengths", g.constant("axis_1", np.array([1]))], "lengths_column")  # (B, 1)
        width = g.node("Gather", [g.node("Shape", ["input_ids"], "shape"), g.constant("one", np.array(1))], "width")
        ends = [g.constant("range_start", np.array(0)), width, g.constant("range_step", np.array(1))]
        columns = g.node("Cast", [g.node("Range", ends, "range")], "columns", to=6)  # int32
        inside = g.node("Cast", [g.node("Less", [columns, column], "is_token")], "token_weight", to=1)  # (B, S) float32
        count = g.node("Cast", [column], "token_count", to=1)
        share = g.node("Div", [inside, count], "share")
        shares = g.node("Unsqueeze", [share, "axis_1"], "share_row")  # (B, 1, S)
        mean = g.node("Squeeze", [g.node("MatMul", [shares, x], "mean_row"), "axis_1"], "mean")
    else:
        mean = g.node("ReduceMean", [x], "mean", axes=[1], keepdims=0)
    g.node("LpNormalization", [mean], "embedding", axis=1, p=2)


def main() -> int:
    """Write both graphs of a model directory."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python benchmarks/minilm_onnx.py path/to/all-MiniLM-L6-v2 graphs/\n"
        "writes graphs/hand.onnx and graphs/hand-unmasked.onnx",
    )
    parser.add_argument("directory", type=Path, help="model directory with config.json and model.safetensors")
    parser.add_argument("output", type=Path, help="folder to write to")
    options = parser.parse_args()
    try:
        import onnx

        options.output.mkdir(parents=True, exist_ok=True)
        for name, masked in (("hand.onnx", True), ("hand-unmasked.onnx", False)):
            onnx.save(build_graph(options.directory, masked=masked), options.output / name)
            print(options.output / name)
    except (ImportError, OSError, ValueError, KeyError) as error:
        print(f"minilm_onnx: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
