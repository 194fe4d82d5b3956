"""One dense network in lattice-fann, NumPy, ONNX Runtime, PyTorch, scikit-learn and FANN."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lattice_fann import Activation, BackpropTrainer, Network, NetworkBuilder, Optimizer, TrainingConfig

__all__ = ["OURS", "Call", "epoch_calls", "forward_calls"]

OURS = "lattice-fann"

Call = Callable[[], object]


def forward_calls(rows: int, threads: int) -> tuple[dict[str, Call], dict[str, str]]:
    """Return a forward of 784-128-64-10 over ``rows`` samples in every engine.

    Also returns why engines are missing.
    """
    network = _network(784, (128, 64), 10)
    x = np.random.RandomState(0).uniform(0, 1, (rows, 784)).astype(np.float32)
    x = x[0].copy() if rows == 1 else x
    out = np.empty((rows, 10) if rows > 1 else 10, dtype=np.float32)
    makers: dict[str, Callable[[], Call]] = {
        OURS: lambda: (lambda: network.forward(x, out)) if rows == 1 else (lambda: network.forward_batch(x, out)),
        "numpy": lambda: _numpy_forward(network, x),
        "onnxruntime": lambda: _onnx_forward(network, x, threads),
        "torch": lambda: _torch_forward(network, x, threads, scripted=False),
        "torch, scripted": lambda: _torch_forward(network, x, threads, scripted=True),
    }
    if rows == 1:
        makers["libfann"] = lambda: _libfann_forward(network, x)
    return _made(makers)


def epoch_calls(
    x: np.ndarray, labels: np.ndarray, *, hidden: tuple[int, ...], batch: int, threads: int
) -> tuple[dict[str, Call], dict[str, str]]:
    """Return an epoch of Adam in every engine, continued from call to call.

    Also returns why engines are missing.
    """
    network = _network(x.shape[1], hidden, int(labels.max()) + 1)
    return _made(
        {
            OURS: lambda: _our_epoch(network, x, labels, batch),
            "scikit-learn": lambda: _sklearn_epoch(x, labels, hidden, batch),
            "torch": lambda: _torch_epoch(network, x, labels, batch, threads),
        }
    )


def _made(makers: dict[str, Callable[[], Call]]) -> tuple[dict[str, Call], dict[str, str]]:
    calls: dict[str, Call] = {}
    absent: dict[str, str] = {}
    for name, make in makers.items():
        try:
            calls[name] = make()
        except ImportError as error:
            absent[name] = str(error)
    return calls, absent


def _network(inputs: int, hidden: tuple[int, ...], outputs: int) -> Network:
    builder = NetworkBuilder().input(inputs)
    for size in hidden:
        builder.hidden(size, Activation.RELU)
    return builder.output(outputs, Activation.SOFTMAX).build(seed=0)


def _numpy_forward(network: Network, x: np.ndarray) -> Call:
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


def _onnx_forward(network: Network, x: np.ndarray, threads: int) -> Call:
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
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {"x": batch}
    return lambda: session.run(None, feed)


def _torch_forward(network: Network, x: np.ndarray, threads: int, *, scripted: bool) -> Call:
    import torch

    torch.set_num_threads(threads)
    model = _torch_model(torch, network)
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

    for _ in range(5):  # the first calls of a traced module compile it
        call()
    return call


def _torch_model(torch: Any, network: Network) -> Any:
    parts: list[Any] = []
    for i, layer in enumerate(network.layers):
        linear = torch.nn.Linear(layer.num_inputs, layer.num_outputs)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(np.ascontiguousarray(layer.weights)))
            linear.bias.copy_(torch.from_numpy(layer.biases.copy()))
        parts += [linear] if i == len(network.layers) - 1 else [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*parts)


def _libfann_forward(network: Network, x: np.ndarray) -> Call:
    """The C library through ctypes.

    It has no ReLU and softmax; tanh and sigmoid replace them.
    """
    found = ctypes.util.find_library("fann")
    if found is None:
        raise ImportError("the C library is not installed")
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


def _our_epoch(network: Network, x: np.ndarray, labels: np.ndarray, batch: int) -> Call:
    config = TrainingConfig(
        optimizer=Optimizer.ADAM,
        learning_rate=1e-3,
        weight_decay=0.0,
        batch_size=batch,
        max_epochs=1,
        target_error=None,
    )
    trainer = BackpropTrainer(network, config)
    return lambda: trainer.train(x, labels)


def _sklearn_epoch(x: np.ndarray, labels: np.ndarray, hidden: tuple[int, ...], batch: int) -> Call:
    from sklearn.neural_network import MLPClassifier

    theirs = MLPClassifier(hidden, solver="adam", alpha=0.0, batch_size=batch, max_iter=1, random_state=0)
    theirs.partial_fit(x, labels, classes=np.arange(int(labels.max()) + 1))
    return lambda: theirs.partial_fit(x, labels)


def _torch_epoch(network: Network, x: np.ndarray, labels: np.ndarray, batch: int, threads: int) -> Call:
    import torch

    torch.set_num_threads(threads)
    model = _torch_model(torch, network)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(labels.astype(np.int64))

    def call() -> None:
        order = torch.randperm(len(inputs))
        for start in range(0, len(inputs), batch):
            rows = order[start : start + batch]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()

    return call
