"""Times models on a GPU, beside llama.cpp on the same GPU and our CPU backend.

Decoding, prompts and an encoder are timed. One command for a machine with a GPU, about ten minutes; it needs the extra wgpu
and the GPU's driver. Models are drawn weights in the shape of Llama 3.2 1B, made first. Decoding is greedy: a token takes
the slope between the 32nd and the 256th token. llama.cpp takes turns where llama-cpp-python is installed and built with its
Vulkan backend:

  CMAKE_ARGS=-DGGML_VULKAN=on pip install llama-cpp-python

With --device metal it is a Mac's GPU, and Qwen3.5-0.8B is a second shape. llama.cpp has its Metal backend there by default.
mlx-lm takes turns with a model that mlx_lm.convert wrote to FILE.mlx beside FILE.gguf. Loading the mapped file is timed too.

For every token decoding reads every weight, so its speed is also given as a share of what a copy on the device reaches. On
an adapter that a CPU computes the record says "software" and no limit holds: that shows that the script runs, and no speed.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from decode import DRAWN, load_random_llama, weight_bytes
from harness.corpus import make_texts
from harness.decoder_peers import MlxDecoder
from harness.decoder_worker import LatticeDecoder, LlamaCppDecoder
from harness.decoders import Decoder
from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "render"]

SCRIPT = "gpu"
OURS, PEER, MLX = "lattice", "llama.cpp", "mlx-lm"
ENCODER = "all-minilm-l6-v2"
CPU_THREADS = 2  # of the encoder on the CPU that is compared with

EXAMPLES = """
examples:
  python benchmarks/gpu.py --check
  python benchmarks/gpu.py --device metal --check
  python benchmarks/gpu.py --types Q4_0 --repeats 3
  LATTICE_WGPU_SOFTWARE=1 python benchmarks/gpu.py --shape tiny --early 2 --late 4 --prompt 20 --json /tmp/gpu.json
"""


class GpuDecoder(LatticeDecoder):
    """Ours on a GPU by Vulkan."""

    device = "wgpu"


class MetalDecoder(LatticeDecoder):
    """Ours on a Mac's GPU."""

    device = "metal"


class LlamaCppGpuDecoder(LlamaCppDecoder):
    """llama.cpp with all layers on the GPU.

    Raises:
        RuntimeError: it is not installed, or was built without a GPU backend.
    """

    layers_on_gpu = -1

    def __init__(self, path: str, threads: int) -> None:
        if importlib.util.find_spec("llama_cpp") is None:
            raise RuntimeError("llama-cpp-python is not installed")
        import llama_cpp

        if not llama_cpp.llama_supports_gpu_offload():
            raise RuntimeError("llama-cpp-python was built without a GPU backend")
        super().__init__(path, threads)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["wgpu", "metal"], default="wgpu", help="(default: wgpu)")
    parser.add_argument("--shape", nargs="+", metavar="NAME", help="(default: llama-3.2-1b; metal: qwen3.5-0.8b too)")
    parser.add_argument("--types", nargs="+", default=["Q4_0", "Q8_0"], metavar="TYPE", help="(default: Q4_0 Q8_0)")
    parser.add_argument("--encoder", default=ENCODER, metavar="NAME|DIR", help=f"(default: {ENCODER})")
    parser.add_argument("--repeats", type=positive_int, default=5, metavar="N", help="turns of each (default: 5)")
    parser.add_argument("--early", type=positive_int, default=32, metavar="N", help="(default: 32)")
    parser.add_argument("--late", type=positive_int, default=256, metavar="N", help="(default: 256)")
    parser.add_argument("--prompt", type=positive_int, default=512, metavar="N", help="tokens of it (default: 512)")
    parser.add_argument("--texts", type=positive_int, default=32, metavar="N", help="for the encoder (default: 32)")
    parser.add_argument("--copy-mb", type=positive_int, default=256, metavar="N", help="of the copy (default: 256)")
    parser.add_argument("--folder", type=Path, default=DRAWN, metavar="DIR", help="where the drawn models lie")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    if not options.early < options.late:
        parser.error("--early must be below --late")
    if options.shape is None:
        options.shape = ["llama-3.2-1b", *(["qwen3.5-0.8b"] if options.device == "metal" else [])]
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record."""
    opened = _open_device(options.device)
    device = opened.description
    record = describe_run(SCRIPT, distributions=["wgpu", "llama-cpp-python", "mlx-lm"])
    record |= {"kind": device.kind, "device": device.name, "driver": device.driver}
    # a stand-in that runs a Mac's kernels is no GPU either
    record["software"] = device.is_software or device.name.startswith("EMULATED")
    record |= {"early": options.early, "late": options.late, "prompt": options.prompt, "texts": options.texts}
    record |= {"absent": {}, "samples": [], "loads": []}
    record["copy"] = [_copied(opened, options.copy_mb << 20) for _ in range(options.repeats)]
    for shape, kind in product(options.shape, options.types):
        samples, loads = _decoded(options, shape, kind, record["absent"]), []
        if options.device == "metal":
            loads = _loaded(options, shape, kind)
        for each in (*samples, *loads):
            each["type"] = kind if len(options.shape) == 1 else f"{shape}, {kind}"
        record["samples"] += samples
        record["loads"] += loads
    record["encoder"] = _encoded(options)
    report()
    return record


def _open_device(kind: str) -> Any:
    if kind == "metal":
        from lattice_inference.backends.metal.device import open_device as open_metal

        return open_metal()
    from lattice_inference.backends.wgpu.device import open_device

    return open_device()


def _copied(device: Any, nbytes: int) -> float:
    """Return the bytes a second that a copy on the device reads and writes."""
    from lattice_inference.backends.gpu.device import Span

    report("copying on the device")
    nbytes = min(nbytes, device.max_binding_bytes)
    source, target = device.buffer(nbytes), device.buffer(nbytes)
    taken = []
    for count in (1, 1, 9):  # the first one is not timed; the slope leaves the fixed cost of a submission out
        start = time.perf_counter()
        device.copy([(Span(source, 0, nbytes), target, 0)] * count)
        device.read([Span(target, 0, 4)])
        taken.append(time.perf_counter() - start)
    return 2 * 8 * nbytes / max(taken[2] - taken[1], 1e-9)


def _decoded(options: argparse.Namespace, shape: str, kind: str, absent: dict[str, str]) -> list[dict[str, Any]]:
    """Return the samples of a shape and a type of weights; the engines take turns."""
    path = _path(options, shape, kind)
    if not path.exists():
        report(f"writing {path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        tool = load_random_llama()
        if shape not in tool.SHAPES:
            raise ValueError(f"--shape must be one of {', '.join(tool.SHAPES)}")
        tool.write_random_llama(path, tool.SHAPES[shape], kind)
    engines: dict[str, Decoder] = {}
    starts: dict[str, Callable[[str, int], Decoder]] = {OURS: GpuDecoder, PEER: LlamaCppGpuDecoder}
    if options.device == "metal":
        starts |= {OURS: MetalDecoder, MLX: MlxDecoder}
    for name, start in starts.items():
        report(f"{path.name}: loading {name}")
        try:
            engines[name] = start(str(path), CPU_THREADS)
        except RuntimeError as error:
            if name == OURS:
                raise
            absent[name] = str(error)
    samples = []
    nbytes = weight_bytes(path)
    for engine in engines.values():  # kernels are compiled at their first use
        engine.prefill(options.prompt)
        engine.decode(1, 2, 0)
    for turn in range(options.repeats):
        for name, engine in engines.items():
            report(f"{path.name}: turn {turn + 1} of {options.repeats}, {name}")
            decoding = engine.decode(options.early, options.late, 0)
            seconds = engine.prefill(options.prompt)
            samples.append(
                {
                    "bytes": nbytes,
                    "engine": name,
                    "token_seconds": decoding.seconds,
                    "prompt_seconds": seconds,
                }
            )
    return samples


def _path(options: argparse.Namespace, shape: str, kind: str) -> Path:
    path: Path = options.folder / f"{shape}-{kind.lower()}.gguf"
    return path


def _loaded(options: argparse.Namespace, shape: str, kind: str) -> list[dict[str, Any]]:
    """Return the seconds of loading, the file in the system's cache and kernels compiled."""
    from lattice_inference import load_model

    path = _path(options, shape, kind)
    loads = []
    for turn in range(options.repeats):
        report(f"{path.name}: loading, turn {turn + 1} of {options.repeats}")
        start = time.perf_counter()
        with load_model(path, device=options.device, threads=CPU_THREADS):
            loads.append({"bytes": path.stat().st_size, "seconds": time.perf_counter() - start})
    return loads


def _encoded(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of each turn of the encoder, on the GPU and on the CPU."""
    from lattice_inference import load_encoder

    texts = make_texts([128] * options.texts, seed=1)
    device = options.device
    seconds: dict[str, list[float]] = {device: [], "cpu": []}
    with (
        load_encoder(options.encoder, device=device, threads=CPU_THREADS) as gpu,
        load_encoder(options.encoder, threads=CPU_THREADS) as cpu,
    ):
        for turn in range(options.repeats + 1):
            for name, encoder in ((device, gpu), ("cpu", cpu)):
                report(f"encoder: turn {turn} of {options.repeats}, {name}")
                start = time.perf_counter()
                encoder.encode(texts)
                if turn:  # the first one compiles kernels
                    seconds[name].append(time.perf_counter() - start)
    return seconds


def figures(record: Mapping[str, Any], kind: str) -> dict[str, float]:
    """Return the medians of a type: speeds, ratios to peers and a copy, seconds a GB."""
    times = {
        (name, field): [float(s[field]) for s in record["samples"] if (s["type"], s["engine"]) == (kind, name)]
        for name in (OURS, PEER, MLX)
        for field in ("token_seconds", "prompt_seconds")
    }
    token, prompt = (median(times[OURS, field]) for field in ("token_seconds", "prompt_seconds"))
    nbytes = next(float(s["bytes"]) for s in record["samples"] if s["type"] == kind)
    found = {"decode": 1 / token, "prompt": record["prompt"] / prompt}
    found["share"] = nbytes / token / median(record["copy"])
    if times[PEER, "token_seconds"]:
        found["decode ratio"] = median(times[PEER, "token_seconds"]) / token
        found["prompt ratio"] = median(times[PEER, "prompt_seconds"]) / prompt
    if times[MLX, "token_seconds"]:
        found["mlx ratio"] = median(times[MLX, "token_seconds"]) / token
    loads = [1e9 * each["seconds"] / each["bytes"] for each in record.get("loads", []) if each["type"] == kind]
    if loads:
        found["load"] = median(loads)
    return found


def _kinds(record: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(sample["type"] for sample in record["samples"]))


def _device(record: Mapping[str, Any]) -> str:
    return str(record.get("kind", "wgpu"))


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record."""
    software = ", software: a CPU computes, so these figures say nothing of a GPU" if record["software"] else ""
    more = {"mlx ratio": "decode / mlx-lm", "load": "loading, s/GB"} if _device(record) == "metal" else {}
    rows = []
    for kind in _kinds(record):
        found = figures(record, kind)
        ratios = [f"{found[name]:.2f}" if name in found else "-" for name in ("decode ratio", "prompt ratio", *more)]
        rows.append([kind, f"{found['decode']:.1f}", f"{found['prompt']:.0f}", f"{found['share']:.2f}", *ratios])
    titles = ["weights", "tokens/s", f"prompt of {record['prompt']}, tokens/s", "share of a copy"]
    table = markdown_table([*titles, "decode / llama.cpp", "prompt / llama.cpp", *more.values()], rows)
    gpu, cpu = (median(record["encoder"][name]) for name in (_device(record), "cpu"))
    encoder = (
        f"Encoder, {record['texts']} texts of 128 tokens: {1e3 * gpu:.1f} ms, {cpu / gpu:.2f} times the CPU's speed."
    )
    absent = "".join(f" {name} is left out: {why}." for name, why in record["absent"].items())
    return f"{record['device']} ({record['driver']}{software}).{absent}\n\n{table}\n\n{encoder}\n\n{provenance(record)}"


def misses(record: Mapping[str, Any]) -> list[str]:
    """Say which limits the record misses.

    A record of software misses them all: only a GPU is measured.
    """
    if record["software"]:
        return [f"{record['device']} is software: the limits are a GPU's"]
    device = _device(record)
    least = limits(SCRIPT) if device == "wgpu" else limits(SCRIPT)[device]
    names = {"decode ratio": "decode", "prompt ratio": "prompt", "mlx ratio": "mlx", "share": "share"}
    missed = []
    for kind in _kinds(record):
        found = figures(record, kind)
        for name, what in names.items():
            if name in found and what in least and not found[name] >= least[what]:
                missed.append(f"{kind}, {name}: {found[name]:.2f}, {least[what]:g} is the limit")
        if "load" in found and not found["load"] <= least["load"]:
            missed.append(f"{kind}, loading: {found['load']:.2f} s/GB, {least['load']:g} is the limit")
    ratio = median(record["encoder"]["cpu"]) / median(record["encoder"][device])
    if not ratio >= least["encoder"]:
        missed.append(f"encoder: {ratio:.2f} times the CPU's speed, {least['encoder']:g} is the limit")
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
