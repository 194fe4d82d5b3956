"""lattice-fann beside NumPy, ONNX Runtime, PyTorch, scikit-learn and the C library FANN.

    python benchmarks/fann.py [--threads N] [--seconds F] [--json FILE]

Every measurement alternates between the candidates, round by round, in one process; the figures are medians over
rounds, the ratio is that of the fastest peer's median to lattice-fann's. Peers that are not installed are left out and
named. Needs numpy, onnxruntime, onnx, torch and scikit-learn to compare with all; libfann is found through ctypes.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

Call = Callable[[], object]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each forward comparison")
    parser.add_argument("--json", metavar="FILE", help="write the record: machine, versions, load, medians")
    return parser.parse_args()


OPTIONS = arguments()
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LATTICE_NUM_THREADS"):
    os.environ[name] = str(OPTIONS.threads)

import numpy as np  # noqa: E402

import lattice_fann  # noqa: E402
from lattice_fann import Activation, BackpropTrainer, Network, NetworkBuilder, Optimizer, TrainingConfig  # noqa: E402


def alternate(candidates: dict[str, Call], seconds: float, inner: int) -> dict[str, float]:
    """Median microseconds a call, the candidates taking turns and starting each round with another one."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        for _ in range(inner):
            call()
    names = list(candidates)
    finish = time.perf_counter() + seconds
    turn = 0
    while time.perf_counter() < finish or turn < 5:
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call = candidates[name]
            began = time.perf_counter()
            for _ in range(inner):
                call()
            times[name].append((time.perf_counter() - began) / inner * 1e6)
        turn += 1
    return {name: statistics.median(values) for name, values in times.items()}


def mnist_network() -> Network:
    builder = NetworkBuilder().input(784).hidden(128, Activation.RELU).hidden(64, Activation.RELU)
    return builder.output(10, Activation.SOFTMAX).build(seed=0)


def numpy_forward(network: Network, x: np.ndarray) -> Call:
    layers = [(np.ascontiguousarray(layer.weights.T), layer.biases.copy()) for layer in network.layers]

    def call() -> np.ndarray:
        value = x
        for weights, biases in layers[:-1]:
            value = np.maximum(value @ weights + biases, 0)
        weights, biases = layers[-1]
        z = value @ weights + biases
        e = np.exp(z - z.max(axis=-1, keepdims=True))
        return np.asarray(e / e.sum(axis=-1, keepdims=True))

    return call


def torch_forward(network: Network, x: np.ndarray, *, scripted: bool) -> Call:
    import torch

    torch.set_num_threads(OPTIONS.threads)
    model = torch_model(torch, network)
    model.append(torch.nn.Softmax(dim=-1))
    model.eval()
    tensor = torch.from_numpy(x)
    if scripted:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = torch.jit.freeze(torch.jit.trace(model, tensor))

    def call() -> object:
        with torch.inference_mode():
            return model(tensor)

    for _ in range(5):
        call()
    return call


def torch_model(torch: Any, network: Network) -> Any:
    parts: list[Any] = []
    for i, layer in enumerate(network.layers):
        linear = torch.nn.Linear(layer.num_inputs, layer.num_outputs)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(np.ascontiguousarray(layer.weights)))
            linear.bias.copy_(torch.from_numpy(layer.biases.copy()))
        parts += [linear] if i == len(network.layers) - 1 else [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*parts)


def onnx_forward(network: Network, x: np.ndarray) -> Call:
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    nodes, initializers, value = [], [], "x"
    for i, layer in enumerate(network.layers):
        initializers += [
            numpy_helper.from_array(np.ascontiguousarray(layer.weights), f"w{i}"),
            numpy_helper.from_array(layer.biases.copy(), f"b{i}"),
        ]
        nodes.append(helper.make_node("Gemm", [value, f"w{i}", f"b{i}"], [f"z{i}"], transB=1))
        last = i == len(network.layers) - 1
        nodes.append(helper.make_node("Softmax" if last else "Relu", [f"z{i}"], [f"y{i}"]))
        value = f"y{i}"
    batch = x.reshape(-1, network.num_inputs)
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(batch.shape))],
        [helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, [len(batch), network.num_outputs])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = OPTIONS.threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {"x": batch}
    return lambda: session.run(None, feed)


def fann_forward(network: Network, x: np.ndarray) -> Call:
    """The C library through ctypes, with tanh and sigmoid in place of ReLU and softmax, which it does not have."""
    found = ctypes.util.find_library("fann")
    if found is None:
        raise ImportError("libfann")
    library = ctypes.CDLL(found)
    library.fann_create_from_file.restype = ctypes.c_void_p
    library.fann_run.restype = ctypes.c_void_p
    library.fann_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    builder = NetworkBuilder().input(network.num_inputs)
    for layer in network.layers[:-1]:
        builder.hidden(layer.num_outputs, Activation.TANH)
    twin = builder.output(network.num_outputs, Activation.SIGMOID).build(seed=0)
    with tempfile.TemporaryDirectory() as folder:
        twin.save(Path(folder) / "twin.net")
        theirs = library.fann_create_from_file(os.fsencode(Path(folder) / "twin.net"))
    pointer = x.ctypes.data
    return lambda: library.fann_run(theirs, pointer)


def forward(rows: int) -> tuple[dict[str, float], list[str]]:
    network = mnist_network()
    x = np.random.RandomState(0).uniform(0, 1, (rows, 784)).astype(np.float32)
    x = x[0].copy() if rows == 1 else x
    out = np.empty((rows, 10) if rows > 1 else 10, dtype=np.float32)
    candidates: dict[str, Call] = {
        "lattice-fann": (lambda: network.forward(x, out)) if rows == 1 else (lambda: network.forward_batch(x, out)),
        "numpy": numpy_forward(network, x),
    }
    absent = []
    makers: dict[str, Callable[[], Call]] = {
        "onnxruntime": lambda: onnx_forward(network, x),
        "torch": lambda: torch_forward(network, x, scripted=False),
        "torch scripted": lambda: torch_forward(network, x, scripted=True),
    }
    if rows == 1:
        makers["libfann"] = lambda: fann_forward(network, x)
    for name, make in makers.items():
        try:
            candidates[name] = make()
        except ImportError as error:
            absent.append(f"{name} ({error})")
    return alternate(candidates, OPTIONS.seconds, 200 if rows == 1 else 20), absent


def epoch_candidates(x: np.ndarray, labels: np.ndarray, hidden: tuple[int, ...], batch: int) -> dict[str, Call]:
    """One epoch of Adam each, carried on from call to call."""
    classes = int(labels.max()) + 1
    builder = NetworkBuilder().input(x.shape[1])
    for size in hidden:
        builder.hidden(size, Activation.RELU)
    network = builder.output(classes, Activation.SOFTMAX).build(seed=0)
    config = TrainingConfig(
        optimizer=Optimizer.ADAM,
        learning_rate=1e-3,
        weight_decay=0.0,
        batch_size=batch,
        max_epochs=1,
        target_error=None,
    )
    trainer = BackpropTrainer(network, config)
    candidates: dict[str, Call] = {"lattice-fann": lambda: trainer.train(x, labels)}
    try:
        from sklearn.neural_network import MLPClassifier
    except ImportError:
        pass
    else:
        theirs = MLPClassifier(hidden, solver="adam", alpha=0.0, batch_size=batch, max_iter=1, random_state=0)
        theirs.partial_fit(x, labels, classes=np.arange(classes))
        candidates["scikit-learn"] = lambda: theirs.partial_fit(x, labels)
    try:
        import torch
    except ImportError:
        return candidates
    torch.set_num_threads(OPTIONS.threads)
    model = torch_model(torch, network)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(labels.astype(np.int64))

    def torch_epoch() -> None:
        order = torch.randperm(len(inputs))
        for start in range(0, len(inputs), batch):
            rows = order[start : start + batch]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()

    candidates["torch"] = torch_epoch
    return candidates


def report(title: str, medians: dict[str, float], unit: str, divisor: float) -> dict[str, Any]:
    own = medians["lattice-fann"]
    peers = {name: value for name, value in medians.items() if name != "lattice-fann"}
    fastest = min(peers, key=lambda name: peers[name]) if peers else None
    print(f"\n{title}")
    for name, value in sorted(medians.items(), key=lambda item: item[1]):
        print(f"  {name:<16}{value / divisor:10.2f} {unit}")
    if fastest is not None:
        print(f"  {peers[fastest] / own:.2f} times as fast as {fastest}")
    return {
        "unit": unit,
        "medians": {name: round(value / divisor, 4) for name, value in medians.items()},
        "fastest_peer": fastest,
        "ratio": None if fastest is None else round(peers[fastest] / own, 3),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("lattice-fann", "numpy", "onnxruntime", "torch", "scikit-learn"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "from the source tree" if name == "lattice-fann" else "absent"
    return found


def main() -> int:
    lattice_fann.set_num_threads(OPTIONS.threads)
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {
        "command": " ".join(sys.argv),
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "machine": {"processor": processor(), "threads": OPTIONS.threads, "load_at_start": os.getloadavg()[0]},
        "versions": versions(),
        "isa": mnist_network().isa,
    }
    single, absent = forward(1)
    results["forward 784-128-64-10, one sample"] = report("forward 784-128-64-10, one sample", single, "us", 1)
    batch, _ = forward(64)
    results["forward 784-128-64-10, 64 samples"] = report("forward 784-128-64-10, 64 samples", batch, "us", 1)
    generator = np.random.RandomState(0)
    x = generator.uniform(0, 1, (10_000, 784)).astype(np.float32)
    labels = generator.randint(0, 10, 10_000)
    medians = alternate(epoch_candidates(x, labels, (128, 64), 64), OPTIONS.seconds * 2, 1)
    title = "Adam epoch, 10,000 x 784, batch 64, 784-128-64-10"
    results[title] = report(title, medians, "ms", 1e3)
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        absent.append("digits (scikit-learn)")
    else:
        digits = load_digits()
        medians = alternate(
            epoch_candidates((digits.data / 16).astype(np.float32), digits.target, (128, 64), 32), OPTIONS.seconds, 1
        )
        title = "Adam epoch, digits 1,797 x 64, batch 32, 64-128-64-10"
        results[title] = report(title, medians, "ms", 1e3)
    if absent:
        print(f"\nleft out: {', '.join(absent)}")
    results["left_out"] = absent
    if OPTIONS.json:
        Path(OPTIONS.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
