"""``lattice doctor``: what would be used on this machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
from typing import Any

import lattice_inference
from lattice_inference.cli.model_path import model_path
from lattice_inference.cli.options import add_device, add_json
from lattice_inference.errors import DeviceUnavailableError, InvalidInputError
from lattice_inference.memory.device_need import DeviceNeed, device_need
from lattice_inference.memory.fit import MemoryNeed, estimate_memory
from lattice_inference.memory.use import OUTSIDE, sizes_by_layer

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = """\
examples:
  lattice doctor
  lattice doctor --json > report.json
  lattice doctor model.gguf --context 8192
  lattice doctor model.gguf --device wgpu

With a model, it says before anything is loaded whether weights and context fit into the memory that is available now,
what each layer takes, and what the weights would take in other precisions. Of a language model that embeds it also says
what one text of the context's length takes: text_bytes. With --device it says so of a GPU, and whether the model runs
there. Vulkan does not say how much memory of a GPU is free, Metal how much to use at most.
"""

DEPENDENCIES = ("numpy", "jinja2", "huggingface_hub", "regex", "wgpu")
VARIABLES = (
    "LATTICE_MODEL_CACHE",
    "LATTICE_OFFLINE",
    "HF_HUB_OFFLINE",
    "HF_HOME",
    "LATTICE_NUM_THREADS",
    "OMP_NUM_THREADS",
    "LATTICE_ISA",
    "LATTICE_CONFIG",
    "LATTICE_DEVICE",
    "LATTICE_WGPU_SOFTWARE",
    "LATTICE_MAP_WEIGHTS",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument(
        "model", nargs="?", metavar="FILE|DIR|NAME", help="a model to be weighed against the memory here"
    )
    parser.add_argument(
        "--context", type=int, metavar="N", help="tokens of context (default: the model's, at most 4,096)"
    )
    add_device(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the report."""
    need: MemoryNeed | None = None
    on_device: DeviceNeed | None = None
    if options.model is not None:
        need = estimate_memory(model_path(options.model), context=options.context)
    elif options.context is not None:
        raise InvalidInputError("--context is of use with a model only")
    report = _report()  # after the files are checked: to list devices may take seconds
    if need is not None:
        report["memory"] = _memory(need)
        if options.device != "cpu" and (on_device := device_need(need, options.device)) is not None:
            report["device"] = _device(on_device)
    if options.json:
        tables = {} if need is None else {"layers": _layers(need), "precisions": _precisions(need, on_device)}
        print(json.dumps(report | tables))
        return 0
    for title, section in report.items():
        print(title)
        for name, value in section.items():
            print(f"  {name:<20} {_for_people(value)}")
    if need is not None:
        print("\n".join([*_table(_layers(need)), "", *_precision_table(_precisions(need, on_device))]))
    return 0


def _for_people(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "not set" if value is None else str(value)


def _report() -> dict[str, dict[str, Any]]:
    return {
        "versions": {
            "lattice-inference": lattice_inference.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in DEPENDENCIES},
            "numerics": lattice_inference.NUMERICS_VERSION,
        },
        "platform": {"system": platform.platform(), "machine": platform.machine()},
        "cpu": dict(lattice_inference.cpu_info()),
        "devices": devices(),
        "environment": {name: os.environ.get(name) for name in VARIABLES},
    }


def devices() -> dict[str, str]:
    """Return what each kind of device is here, or why it is not taken."""
    from lattice_inference.backends.metal.device import open_device
    from lattice_inference.backends.wgpu.adapters import list_adapters

    found = {"cpu": "computes by default"}
    try:
        adapters = list_adapters()
    except DeviceUnavailableError as error:
        found["wgpu"] = str(error)
    else:
        for index, adapter in enumerate(adapters):
            found["wgpu" if index == 0 else f"wgpu ({index + 1})"] = adapter.describe()
        if not adapters:
            found["wgpu"] = "no Vulkan adapter: install the driver of your GPU, such as mesa-vulkan-drivers"
    try:
        found["metal"] = open_device().describe()
    except DeviceUnavailableError as error:
        found["metal"] = str(error)
    return found


def _layers(need: MemoryNeed) -> list[dict[str, int | None]]:
    """Return each layer's bytes by weight type, and its keys and values.

    The first entry is what lies outside of layers.
    """
    layers: dict[int | None, dict[str, int | None]] = {
        layer: dict(sizes) for layer, sizes in sizes_by_layer(need.weights).items()
    }
    for layer, nbytes in enumerate(need.kv_layer_bytes):
        layers.setdefault(layer, {})["keys, values"] = nbytes
    return [{"layer": layer, **sizes} for layer, sizes in layers.items()]


def _table(layers: list[dict[str, int | None]]) -> list[str]:
    """Return the lines of the table by layer, in MB, with sums of rows and columns."""
    kinds = sorted({kind for layer in layers for kind in layer} - {"layer", "keys, values"})
    kinds += ["keys, values"] if any("keys, values" in layer for layer in layers) else []
    lines = [f"{'layer':<20}" + "".join(f"{title:>14}" for title in [*kinds, "MB"])]
    rows = [
        (OUTSIDE if layer["layer"] is None else str(layer["layer"]), [layer.get(kind) or 0 for kind in kinds])
        for layer in layers
    ]
    rows.append(("together", [sum(sizes[column] for _, sizes in rows) for column in range(len(kinds))]))
    return lines + [
        f"{name:<20}" + "".join(f"{size / 1e6:>14,.1f}" for size in [*sizes, sum(sizes)]) for name, sizes in rows
    ]


def _device(need: DeviceNeed) -> dict[str, Any]:
    return {
        "name": need.name,
        "binds_bytes": need.binding_bytes,
        **({} if need.working_set_bytes is None else {"working_set_bytes": need.working_set_bytes}),
        "largest_weight_bytes": need.largest_weight_bytes,
        "largest_weight_parts": -(-need.largest_weight_bytes // need.binding_bytes),
        "largest_keys_bytes": need.largest_keys_bytes,
        "runs": "yes" if need.problem is None else need.problem,
        "keys_fit": need.largest_keys_bytes <= need.binding_bytes,
    }


def _precisions(need: MemoryNeed, on_device: DeviceNeed | None) -> list[dict[str, Any]]:
    """Return the weights' size in each precision, and whether it fits with the keys and values."""
    return [
        {
            "precision": each.precision,
            "layer_bytes": each.layer_bytes,
            "weights_bytes": each.weights_bytes,
            "needed_bytes": each.weights_bytes + need.kept_bytes,
            "fits": need.fits_with(each.weights_bytes)
            if on_device is None
            else on_device.fits_with(each.weights_bytes + need.kept_bytes),
        }
        for each in (need.precisions if on_device is None else on_device.precisions)
    ]


def _precision_table(precisions: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table by precision, in MB."""
    titles = ("a layer", "weights", "needed", "fits")
    lines = [f"{'weights kept as':<20}" + "".join(f"{title:>14}" for title in titles)]
    for each in precisions:
        sizes = [each[field] / 1e6 for field in ("layer_bytes", "weights_bytes", "needed_bytes")]
        fits = {True: "yes", False: "no", None: "unknown"}[each["fits"]]
        lines.append(f"{each['precision']:<20}" + "".join(f"{size:>14,.1f}" for size in sizes) + f"{fits:>14}")
    return lines


def _memory(need: MemoryNeed) -> dict[str, Any]:
    return {
        "model": str(need.path),
        "weights_bytes": need.weights_bytes,
        "context": need.context,
        "kv_bytes": need.kv_bytes,
        **({"state_bytes": need.state_bytes} if need.state_bytes else {}),
        **({"text_bytes": need.text_bytes} if need.text_bytes is not None else {}),
        "needed_bytes": need.needed_bytes,
        "available_bytes": need.available_bytes,
        "fits": need.fits,
        **({"text_fits": need.text_fits} if need.text_bytes is not None else {}),
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
