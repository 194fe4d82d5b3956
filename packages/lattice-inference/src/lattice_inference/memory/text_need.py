"""The memory of a text that a language model embeds in one step, told before loading."""

from __future__ import annotations

from contextlib import ExitStack

from lattice_inference.backends.opening import token_bytes
from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.errors import LatticeError
from lattice_inference.memory.precisions import PRECISIONS, path_of_model
from lattice_inference.models.family import vectors
from lattice_inference.models.opened_model import open_model

__all__ = ["text_token_bytes"]


def text_token_bytes(checkpoint: Checkpoint) -> int | None:
    """Return the bytes of activations of a token of a text that is embedded.

    It is those of the precision where they are largest. None for what is no language model, or does not embed.
    """
    with ExitStack() as stack:
        try:
            model = stack.enter_context(open_model(path_of_model(checkpoint.directory)))
            if not (model.family.is_causal and model.family.encodes):
                return None
            head = vectors("last")
            program, tensors = model.program(head), model.tensors(head)
        except LatticeError:
            return None
        return max(token_bytes(program, tensors, precision) for precision in PRECISIONS)
