"""The engines that embed.py compares, each behind one method: texts in, float32 vectors of length 1 out.

Every peer is used as its documentation tells a careful user to: padded to the longest text of a batch, batches of 32
made from texts sorted by length, tokenized by Hugging Face ``tokenizers``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ENGINES", "Engine", "open_engine"]

Float32Array = npt.NDArray[np.float32]

PEER_BATCH = 32
MAX_TOKENS = 256

ENGINES: dict[str, tuple[str, tuple[str, ...]]] = {
    "lattice": ("Lattice", ()),
    "ort-plain": ("ONNX Runtime, plain export", ("onnxruntime", "onnx", "tokenizers", "torch", "transformers")),
    "ort-fused": ("ONNX Runtime, fused export", ("onnxruntime", "onnx", "tokenizers", "torch", "transformers")),
    "ort-hand": ("ONNX Runtime, graph by hand", ("onnxruntime", "onnx", "tokenizers", "safetensors")),
    "torch": ("PyTorch, sentence-transformers", ("torch", "sentence-transformers", "transformers", "tokenizers")),
}
"""Name, title in tables, and the distributions that the engine needs."""


class Engine(ABC):
    """Something that embeds texts."""

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> Float32Array:
        """Return the vectors of ``texts`` in their order, each of length 1."""


def open_engine(name: str, directory: Path, *, graphs: Path, threads: int) -> Engine:
    """Load an engine by its name in :data:`ENGINES`; only what it needs is imported.

    Args:
        name: the engine.
        directory: the model.
        graphs: folder with the ONNX candidates.
        threads: the most threads it may use.
    """
    match name.split("-"):
        case ["lattice"]:
            return LatticeEngine(threads)
        case ["ort", candidate]:
            return OnnxRuntimeEngine(directory, graphs, candidate, threads)
        case ["torch"]:
            return SentenceTransformersEngine(directory, threads)
    raise ValueError(f"there is no engine {name!r}; there are {', '.join(ENGINES)}")


class LatticeEngine(Engine):
    """Our own, as a user calls it."""

    def __init__(self, threads: int) -> None:
        from lattice_embed import NativeEmbeddingService

        self._service = NativeEmbeddingService("all-minilm-l6-v2", threads=threads)

    def embed(self, texts: Sequence[str]) -> Float32Array:
        """Embed through the service: at most 1,000 texts."""
        return self._service.embed(texts).vectors


class OnnxRuntimeEngine(Engine):
    """ONNX Runtime on the CPU, float32, default options but for the number of threads."""

    def __init__(self, directory: Path, graphs: Path, candidate: str, threads: int) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3

        def session(path: Path) -> Any:
            return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._session = session(graphs / f"{candidate}.onnx")
        unmasked = graphs / f"{candidate}-unmasked.onnx"
        self._unmasked = session(unmasked) if unmasked.exists() else None
        self._takes_lengths = any(field.name == "lengths" for field in self._session.get_inputs())

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

    def _run(self, ids: list[list[int]], lengths: npt.NDArray[np.int32]) -> Float32Array:
        longest = int(lengths.max())
        is_padded = bool((lengths < longest).any())
        dtype = np.int32 if self._takes_lengths else np.int64
        if is_padded:
            padded = np.zeros((len(ids), longest), dtype)
            for row, values in enumerate(ids):
                padded[row, : len(values)] = values
        else:
            padded = np.array(ids, dtype)
        feeds: dict[str, npt.NDArray[Any]] = {"input_ids": padded}
        session = self._session
        if not self._takes_lengths:
            mask = np.arange(longest) < lengths[:, None] if is_padded else np.ones(padded.shape, np.bool_)
            feeds |= {"attention_mask": mask.astype(np.int64), "token_type_ids": np.zeros_like(padded)}
        elif is_padded or self._unmasked is None:
            feeds["lengths"] = lengths
        else:
            session = self._unmasked
        vectors: Float32Array = session.run(None, feeds)[0]
        return vectors


class SentenceTransformersEngine(Engine):
    """PyTorch through sentence-transformers, which sorts by length and pads by itself."""

    def __init__(self, directory: Path, threads: int) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        self._model = SentenceTransformer(str(directory), device="cpu")

    def embed(self, texts: Sequence[str]) -> Float32Array:
        """Encode with the default call."""
        vectors = self._model.encode(
            list(texts), batch_size=PEER_BATCH, normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(vectors, np.float32)
