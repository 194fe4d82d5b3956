"""Whether a model fits into this machine's memory, told before anything of it is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice_inference.backends.cpu.state import slot_bytes
from lattice_inference.backends.protocol import WeightSize
from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.formats import open_weights
from lattice_inference.checkpoint.gguf_header import GgufArray
from lattice_inference.errors import InvalidInputError, LatticeError, ModelConfigError
from lattice_inference.memory.precisions import PrecisionNeed, needs_by_precision
from lattice_inference.memory.text_need import text_token_bytes
from lattice_inference.models.config_fields import MAX_LAYERS, ConfigFields
from lattice_inference.models.opened_model import kept_in_directory, kept_in_gguf

__all__ = ["DEFAULT_CONTEXT", "MemoryNeed", "available_memory", "estimate_memory"]

#: The most tokens of context that are counted unless the caller names a number.
DEFAULT_CONTEXT = 4_096

_MAX_COUNT = 2**31 - 1

#: Slots of recurrent state that one generation uses: the present one, the one that it writes, and the prompt's mark.
_SLOTS = 3

#: What keys and values are kept in by default: float16.
_KV_BYTES = 2


@dataclass(frozen=True)
class MemoryNeed:
    """What a model needs and what there is, in bytes.

    Attributes:
        path: the model.
        weights_bytes: its tensors as the files hold them.
        context: the tokens of context that are counted, or None for a model without (or whose files do not say).
        kv_bytes: their keys and values in all layers, in float16.
        available_bytes: see :func:`available_memory`.
        weights: each tensor.
        kv_layer_bytes: the keys and values of each layer; empty for a model without.
        precisions: what the weights would take once loaded, in each precision.
        state_bytes: the state of recurrent layers of one generation, whatever its context.
        text_bytes: what embedding one text of ``context`` tokens takes beside the weights: a text is one step. None for a
            model that is no language model, or does not embed.
    """

    path: Path
    weights_bytes: int
    context: int | None
    kv_bytes: int
    available_bytes: int | None
    weights: Sequence[WeightSize] = ()
    kv_layer_bytes: Sequence[int] = ()
    precisions: Sequence[PrecisionNeed] = ()
    state_bytes: int = 0
    text_bytes: int | None = None

    @property
    def text_fits(self) -> bool | None:
        """Whether the weights and such a text are less than what is available; None if unknown."""
        if self.text_bytes is None or self.available_bytes is None:
            return None
        return self.weights_bytes + self.text_bytes <= self.available_bytes

    @property
    def needed_bytes(self) -> int:
        """Weights, keys and values, and recurrent state together.

        A step needs some dozens of megabytes more.
        """
        return self.weights_bytes + self.kept_bytes

    @property
    def kept_bytes(self) -> int:
        """Keys and values, and recurrent state."""
        return self.kv_bytes + self.state_bytes

    @property
    def fits(self) -> bool | None:
        """Whether that is less than what is available; None where the system does not say."""
        return self.fits_with(self.weights_bytes)

    def fits_with(self, weights_bytes: int) -> bool | None:
        """Whether weights of so many bytes would fit, with the same keys and values."""
        return None if self.available_bytes is None else weights_bytes + self.kept_bytes <= self.available_bytes


def estimate_memory(path: str | os.PathLike[str], *, context: int | None = None) -> MemoryNeed:
    """Work out what a model needs.

    Args:
        path: a GGUF file, a safetensors file, or a directory of the latter.
        context: tokens of context; by default what the model was trained for, at most :data:`DEFAULT_CONTEXT`.

    Raises:
        ModelNotFoundError, CheckpointError: the files are missing or malformed.
        ModelConfigError: a GGUF file's sizes are out of range.
        InvalidInputError: ``context`` is not at least 1, or the model has none.
    """
    if context is not None and not 1 <= context <= _MAX_COUNT:
        raise InvalidInputError(f"the context is {context}; it must be from 1 to {_MAX_COUNT:,} tokens")
    with open_weights(path) as checkpoint:
        precisions = needs_by_precision(checkpoint)
        infos = {name: checkpoint.info(name) for name in checkpoint.names()}
        weights = tuple(WeightSize(name, info.dtype, info.nbytes) for name, info in infos.items())
        trained, token_bytes, state_bytes = (*_context(checkpoint.metadata, str(path)), 0)
        if _is_recurrent(checkpoint.metadata) or not token_bytes:
            trained, token_bytes, state_bytes = _context_of_model(Path(path), checkpoint) or (trained, token_bytes, 0)
        of_a_text = text_token_bytes(checkpoint)
    nbytes = sum(weight.nbytes for weight in weights)
    if sum(token_bytes) == 0:
        if context is not None:
            raise InvalidInputError(f"{path}: does not say what a token of context takes: leave the context out")
        return MemoryNeed(Path(path), nbytes, None, 0, available_memory(), weights, precisions=precisions)
    tokens = min(trained, DEFAULT_CONTEXT) if context is None else context
    layers = tuple(tokens * layer for layer in token_bytes)
    return MemoryNeed(
        Path(path),
        nbytes,
        tokens,
        sum(layers),
        available_memory(),
        weights,
        layers,
        precisions,
        state_bytes,
        None if of_a_text is None else tokens * of_a_text,
    )


def available_memory() -> int | None:
    """Return the bytes available without swapping.

    It is Linux's estimate, within the control group's limit. None where the system does not say.
    """
    found = [value for value in (_system_memory(), _group_memory()) if value is not None]
    return min(found, default=None)


def _context(metadata: Mapping[str, object], source: str) -> tuple[int, list[int]]:
    """Return a decoder's trained context, and a token's key and value bytes by layer.

    Zero and none for others.
    """
    fields = ConfigFields(metadata, source)
    if not fields.has("general.architecture"):
        return 0, []
    prefix = fields.text("general.architecture")
    if not fields.has(f"{prefix}.attention.head_count") or not fields.flag(f"{prefix}.attention.causal", default=True):
        return 0, []

    def size(name: str, default: int | None = None) -> int:
        return fields.integer(f"{prefix}.{name}", 1, _MAX_COUNT, default=default)

    layers = fields.integer(f"{prefix}.block_count", 1, MAX_LAYERS)
    heads = _per_layer(metadata, f"{prefix}.attention.head_count", layers, source)
    kv_key = f"{prefix}.attention.head_count_kv"
    kv_heads = _per_layer(metadata, kv_key, layers, source) if kv_key in metadata else heads
    width = size("embedding_length") // max(heads, default=1) if any(heads) else 0
    key, value = size("attention.key_length", width or None), size("attention.value_length", width or None)
    return size("context_length"), [count * (key + value) * _KV_BYTES for count in kv_heads]


def _is_recurrent(metadata: Mapping[str, object]) -> bool:
    """Whether a GGUF file's model has recurrent layers, whose sizes follow from its program."""
    return f"{metadata.get('general.architecture')}.ssm.state_size" in metadata


def _context_of_model(path: Path, checkpoint: Checkpoint) -> tuple[int, list[int], int] | None:
    """Return what a supported language model keeps, or None for any other model.

    It is the trained context, a token's bytes by layer, and the bytes of recurrent state.
    """
    config = path / "config.json"
    try:
        if os.path.isfile(config):
            kept = kept_in_directory(config, checkpoint)
        elif checkpoint.metadata:
            kept = kept_in_gguf(checkpoint, str(path))
        else:
            return None
    except LatticeError:
        return None
    token_bytes = [2 * spec.kv_heads * spec.head_dim * _KV_BYTES for spec in kept.specs]
    return kept.context_length, token_bytes, _SLOTS * slot_bytes(kept.recurrent)


def _per_layer(metadata: Mapping[str, object], key: str, layers: int, source: str) -> list[int]:
    """Return a number for each layer; a file has one for all, or one each."""
    value = metadata[key]
    given = value.numbers().tolist() if isinstance(value, GgufArray) else [value]
    numbers = [number for number in given if type(number) is int and 0 <= number <= _MAX_COUNT]
    if len(numbers) != len(given):
        raise ModelConfigError(f"{source}: {key}: {value!r:.60} is not a number of heads")
    if isinstance(value, GgufArray):
        if len(numbers) < layers:
            raise ModelConfigError(f"{source}: {key}: {len(numbers)} numbers for {layers} layers")
        return numbers[:layers]
    return numbers * layers


def _system_memory() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _group_memory() -> int | None:
    """Return what the control group (version 2) leaves."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        return None if limit == "max" else max(int(limit) - int(used), 0)
    except (OSError, ValueError):
        return None
