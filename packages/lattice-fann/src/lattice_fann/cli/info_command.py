"""``lattice-fann info``: what a network file holds."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from lattice_fann.network import Network

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Print the network's layers, parameters and metadata."""
    network = Network.load(options.model)
    size = Path(options.model).stat().st_size
    layers = [
        {
            "inputs": layer.num_inputs,
            "outputs": layer.num_outputs,
            "activation": layer.activation.name,
            "alpha": layer.activation.alpha or None,
            "parameters": layer.num_params,
            "weight_min": float(layer.weights.min()),
            "weight_max": float(layer.weights.max()),
            "weight_std": float(np.std(layer.weights, dtype=np.float64)),
        }
        for layer in network.layers
    ]
    if options.json:
        print(
            json.dumps(
                {
                    "file": options.model,
                    "bytes": size,
                    "architecture": network.architecture(),
                    "parameters": network.total_params,
                    "input_scaling": network.input_scaling is not None,
                    "layers": layers,
                    "metadata": network.metadata,
                },
                ensure_ascii=False,
            )
        )
        return 0
    print(f"{options.model}: {size} bytes")
    print(f"{network.architecture()}, {network.total_params} parameters")
    print(f"input scaling: {'yes' if network.input_scaling is not None else 'no'}")
    for i, layer in enumerate(layers):
        print(
            f"  layer {i}: {layer['inputs']:>6} -> {layer['outputs']:<6} {layer['activation']:<10} "
            f"weights {layer['weight_min']:.4g} to {layer['weight_max']:.4g}, deviation {layer['weight_std']:.4g}"
        )
    for key, value in network.metadata.items():
        print(f"  {key}: {value if len(value) <= 100 else value[:97] + '...'}")
    return 0
