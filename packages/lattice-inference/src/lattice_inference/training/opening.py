"""Opens a model for training: chooses the sites, and compiles the program and its reverse."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from lattice_inference.training.training_program import TrainingProgram

__all__ = ["open_training_program"]


def open_training_program(
    path: str | os.PathLike[str],
    *,
    sites: Sequence[str] | Literal["all-linear"],
    rank: int,
    scaling: float,
    loss: Literal["tokens", "vectors", "scores"],
    pooling: Literal["cls", "mean", "last"] | None = None,
    normalize: bool | None = None,
    keep: Literal["all", "products", "layers"] = "products",
    activations: Literal["float32", "bfloat16"] = "float32",
    backend: Literal["cpu", "reference"] = "cpu",
    threads: int | None = None,
) -> TrainingProgram:
    """Open a model whose weights stay as they are, with low-rank factors that can be trained.

    Args:
        path: the model's directory or GGUF file, with weights of any format.
        sites: which linears get factors: the ends of their paths in transformers, on whole names between dots
            (``"q_proj"``, ``"attention.self.query"``, ``"layers.0.mlp.up_proj"``). ``"all-linear"`` is every linear but the
            output matrix, as in PEFT.
        rank: rows of A of each site.
        scaling: the factor of the product B A.
        loss: ``"tokens"`` for the cross-entropy of a language model's next tokens; ``"vectors"`` for the vectors of an
            encoder, whose gradients come from outside; ``"scores"`` for the logits of a classifier or cross-encoder, in
            the place of vectors.
        pooling: for vectors, how those of tokens become one. By default what the model's files state, else ``"mean"``.
        normalize: for vectors, whether they are scaled to length 1. By default as ``load_encoder`` does.
        keep: what the forward pass keeps for the reverse: everything (``"all"``), all but what norms, activations and
            rotations give (``"products"``), or the input of each layer (``"layers"``). The rest is computed again. The
            choice changes memory and time, and no bit of a result.
        activations: what linears multiply: float32 rows, or rows rounded to bfloat16.
        backend: ``"cpu"``, or ``"reference"``: NumPy in float64, slow and readable.
        threads: the most threads that a run may use; by default all of the process's pool.

    Returns:
        The program. A's and B's are zeros until :meth:`TrainingProgram.write_factors`.

    Raises:
        InvalidInputError: an option has an invalid value, or a site matches no linear of the model.
        ModelNotFoundError, CheckpointError, ModelConfigError: a file is missing or malformed.
        UnsupportedError: adapters are not built for the family, the model does not give what ``loss`` needs, a site is the
            output matrix, or a gradient would have to pass an op that has no reverse; the message names the op.
    """
    raise NotImplementedError
