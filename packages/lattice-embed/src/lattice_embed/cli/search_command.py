"""``lattice-embed search``: the texts nearest to a query, in a file of vectors or a store."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lattice_embed.arrays import float32_array
from lattice_embed.catalogue import Role
from lattice_embed.cli import store_command
from lattice_embed.cli.service_options import open_service
from lattice_embed.cli.table_input import read_column
from lattice_embed.errors import InvalidInputError
from lattice_embed.vectors import top_k

__all__ = ["run"]

SHOWN_TEXT = 100


def run(options: argparse.Namespace) -> int:
    """Embed the query and print what is nearest: score, place, text."""
    if options.top < 1:
        raise InvalidInputError(f"--top is {options.top}; it must be at least 1")
    if Path(options.vectors).suffix != ".npy":
        return _search_store(options)
    if options.texts is None:
        raise InvalidInputError("--texts FILE is missing: the texts that the vectors were made of, one for each")
    vectors = _read_vectors(options.vectors)
    texts = read_column(options.texts, options.column)
    if len(texts) != len(vectors):
        raise InvalidInputError(
            f"{options.vectors} holds {len(vectors):,} vectors, {options.texts} {len(texts):,} texts"
        )
    with open_service(options) as service:
        dim = service.model_config().dimensions
        if dim != vectors.shape[1]:
            raise InvalidInputError(
                f"{options.vectors} holds vectors of {vectors.shape[1]}, the model's have {dim}: name the one that made them"
            )
        result = service.embed([options.query], role=Role.QUERY if options.retrieval else Role.GENERIC)
    nearest = top_k(result.vectors[0], vectors, options.top)
    if not np.isfinite(nearest.scores).all():  # they come last, and JSON has no NaN
        row = int(nearest.indices[~np.isfinite(nearest.scores)][0])
        raise InvalidInputError(
            f"{options.vectors}: row {row} holds NaN or infinity: leave it out, and its text, or ask for fewer by --top"
        )
    found = [
        {"index": int(index), "score": round(float(score), 6), "text": texts[index]}
        for index, score in zip(nearest.indices, nearest.scores, strict=True)
    ]
    if options.json:
        print(json.dumps({"model": result.model, "metric": "cosine", "query": options.query, "matches": found}))
        return 0
    for match in found:
        shown = " ".join(str(match["text"]).split())
        shown = shown if len(shown) <= SHOWN_TEXT else f"{shown[: SHOWN_TEXT - 3]}..."
        print(f"{match['score']:8.5f}  {match['index']:>6}  {shown}")
    return 0


def _search_store(options: argparse.Namespace) -> int:
    """Search a store with its own model; it holds the texts too."""
    for name in ("texts", "column", "base_url", "api_key_variable"):
        if getattr(options, name) is not None:
            raise InvalidInputError(
                f"--{name.replace('_', '-')} goes with VECTORS.npy: a store holds its texts and names its model"
            )
    if options.retrieval:
        raise InvalidInputError("--retrieval goes with VECTORS.npy: a store knows what its texts were embedded as")
    options.action, options.store, options.text = "query", options.vectors, options.query
    return store_command.run(options)


def _read_vectors(name: str) -> npt.NDArray[np.float32]:
    """Return the vectors of a file, mapped: a search reads them once.

    Raises:
        InvalidInputError: it holds no float vectors of shape (n, dim).
        OSError: it cannot be read.
    """
    try:
        array = np.load(name, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InvalidInputError(f"{name}: no .npy file of numbers ({error})") from None
    if array.ndim != 2 or array.dtype.kind != "f" or not array.size:
        raise InvalidInputError(f"{name} holds {array.dtype} of the shape {array.shape}; vectors are floats (n, dim)")
    return float32_array(array, name)
