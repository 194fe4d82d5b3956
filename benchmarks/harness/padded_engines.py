"""Peers that take a padded batch of token ids: ONNX Runtime, OpenVINO and CTranslate2."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.engines import MAX_TOKENS, PEER_BATCH, Engine, Float32Array, Precision

__all__ = ["CTranslate2Engine", "OnnxRuntimeEngine", "OpenVinoEngine"]


class PaddedEngine(Engine):
    """Tokenizes all texts of a call, then runs them in batches of similar length."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)

    @abstractmethod
    def _run(self, ids: list[list[int]], lengths: npt.NDArray[np.int32]) -> Float32Array:
        """Return the vectors of one batch."""

    def embed(self, texts: Sequence[str]) -> Float32Array:
        """Tokenize all texts, then run them in batches of similar length."""
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]
        lengths = np.array([len(row) for row in ids], np.int32)
        order = np.argsort(-lengths, kind="stable")
        batches = [order[start : start + PEER_BATCH] for start in range(0, len(order), PEER_BATCH)]
        if len(batches) == 1:
            return self._run(ids, lengths)
        vectors: Float32Array | None = None
        for rows in batches:
            part = self._run([ids[row] for row in rows], lengths[rows])
            if vectors is None:
                vectors = np.empty((len(ids), part.shape[1]), np.float32)
            vectors[rows] = part
        assert vectors is not None
        return vectors


def padded(ids: list[list[int]], lengths: npt.NDArray[np.int32], dtype: type[np.integer[Any]]) -> npt.NDArray[Any]:
    """Return the ids as one array, zeros after each text."""
    longest = int(lengths.max())
    if not (lengths < longest).any():
        return np.array(ids, dtype)
    array = np.zeros((len(ids), longest), dtype)
    for row, values in enumerate(ids):
        array[row, : len(values)] = values
    return array


def export_inputs(ids: list[list[int]], lengths: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[Any]]:
    """Return what the exported graph takes."""
    array = padded(ids, lengths, np.int64)
    mask = np.arange(array.shape[1]) < lengths[:, None]
    return {"input_ids": array, "attention_mask": mask.astype(np.int64), "token_type_ids": np.zeros_like(array)}


class OnnxRuntimeEngine(PaddedEngine):
    """ONNX Runtime on the CPU, default options but for the number of threads."""

    def __init__(self, directory: Path, graphs: Path, candidate: str, threads: int) -> None:
        super().__init__(directory)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3

        def session(path: Path) -> Any:
            return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

        self._session = session(graphs / f"{candidate}.onnx")
        unmasked = graphs / f"{candidate}-unmasked.onnx"
        self._unmasked = session(unmasked) if unmasked.exists() else None
        self._takes_lengths = any(field.name == "lengths" for field in self._session.get_inputs())

    def _run(self, ids: list[list[int]], lengths: npt.NDArray[np.int32]) -> Float32Array:
        if not self._takes_lengths:
            vectors: Float32Array = self._session.run(None, export_inputs(ids, lengths))[0]
            return vectors
        array = padded(ids, lengths, np.int32)
        if self._unmasked is not None and not (lengths < array.shape[1]).any():
            vectors = self._unmasked.run(None, {"input_ids": array})[0]
        else:
            vectors = self._session.run(None, {"input_ids": array, "lengths": lengths})[0]
        return vectors


class OpenVinoEngine(PaddedEngine):
    """OpenVINO on the CPU, tuned for latency, on the plain export.

    For int8, on the export as ONNX Runtime quantized it.
    """

    def __init__(self, directory: Path, graphs: Path, threads: int, precision: Precision) -> None:
        super().__init__(directory)
        import openvino

        options = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        graph = "plain-int8.onnx" if precision == "int8" else "plain.onnx"
        model = openvino.Core().compile_model(str(graphs / graph), "CPU", options)
        self._request = model.create_infer_request()

    def _run(self, ids: list[list[int]], lengths: npt.NDArray[np.int32]) -> Float32Array:
        (vectors,) = self._request.infer(export_inputs(ids, lengths)).values()
        return np.array(vectors, np.float32)


class CTranslate2Engine(PaddedEngine):
    """CTranslate2's encoder; the mean over tokens is taken here, as its documentation shows."""

    def __init__(self, directory: Path, graphs: Path, threads: int, precision: Precision) -> None:
        super().__init__(directory)
        import ctranslate2

        self._encoder = ctranslate2.Encoder(
            str(graphs / "ctranslate2"),
            device="cpu",
            compute_type="int8_float32" if precision == "int8" else "float32",
            intra_threads=threads,
            inter_threads=1,
        )

    def _run(self, ids: list[list[int]], lengths: npt.NDArray[np.int32]) -> Float32Array:
        states = np.array(self._encoder.forward_batch(ids).last_hidden_state)
        mask = np.arange(states.shape[1]) < lengths[:, None]
        vectors: Float32Array = np.einsum("btd,bt->bd", states, mask.astype(np.float32), optimize=True)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors
