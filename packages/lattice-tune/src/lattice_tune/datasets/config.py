"""How a dataset is read and gone through."""

from __future__ import annotations

from dataclasses import dataclass

from lattice_tune.arguments import choice, flag, text_of, whole
from lattice_tune.errors import ConfigError

__all__ = ["DatasetConfig"]


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """How a dataset is read and gone through.

    Attributes:
        batch_size: examples in a batch; the last one may have fewer.
        shuffle: a new order each epoch, drawn from ``seed`` and the epoch's number.
        seed: of these orders.
        shuffle_buffer: examples among which a streamed dataset is shuffled; a loaded one is shuffled as a whole.
        drop_last: leave out a last batch that is not full.
        max_examples: read no more than so many; None reads all.
        on_error: ``"raise"`` ends at a bad row; ``"skip"`` counts and lists it (``Dataset.skipped``).
        max_line_bytes: the longest line, or file of a folder, that is read.
        text_field, label_field, labels_field, vector_field, weight_field: names of JSONL fields and CSV columns:
            text, hard label, probabilities by label, vector, weight. All other fields become metadata.
    """

    batch_size: int = 32
    shuffle: bool = True
    seed: int = 0
    shuffle_buffer: int = 10_000
    drop_last: bool = False
    max_examples: int | None = None
    on_error: str = "raise"
    max_line_bytes: int = 16 << 20
    text_field: str = "text"
    label_field: str = "label"
    labels_field: str = "labels"
    vector_field: str = "vector"
    weight_field: str = "weight"

    def __post_init__(self) -> None:
        whole(self.batch_size, "batch_size", least=1, most=1 << 20, refusal=ConfigError)
        whole(self.seed, "seed", most=2**63 - 1, refusal=ConfigError)
        whole(self.shuffle_buffer, "shuffle_buffer", least=1, most=1 << 30, refusal=ConfigError)
        whole(self.max_line_bytes, "max_line_bytes", least=16, most=1 << 30, refusal=ConfigError)
        if self.max_examples is not None:
            whole(self.max_examples, "max_examples", refusal=ConfigError)
        flag(self.shuffle, "shuffle", refusal=ConfigError)
        flag(self.drop_last, "drop_last", refusal=ConfigError)
        choice(self.on_error, "on_error", ("raise", "skip"), refusal=ConfigError)
        names = [text_of(getattr(self, name), name, refusal=ConfigError) for name in _FIELDS]
        if len(set(names)) < len(names) or "" in names:
            raise ConfigError(f"the names of the fields are {names}; they must differ and not be empty")


_FIELDS = ("text_field", "label_field", "labels_field", "vector_field", "weight_field")
