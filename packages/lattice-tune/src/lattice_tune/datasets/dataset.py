"""A dataset: examples in memory or files that can be iterated any number of times."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lattice_fann.initialization import random_generator
from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.errors import WriteError
from lattice_tune.arguments import flag, instance, path_of, whole
from lattice_tune.datasets.config import DatasetConfig
from lattice_tune.datasets.csv_table import csv_rows
from lattice_tune.datasets.duplicates import Duplicate, DuplicateFinder, find_duplicates, find_overlap
from lattice_tune.datasets.example import TrainingExample
from lattice_tune.datasets.folder import folder_rows
from lattice_tune.datasets.jsonl import json_line, jsonl_rows
from lattice_tune.datasets.labels import LabelSet
from lattice_tune.datasets.npz_arrays import npz_rows
from lattice_tune.datasets.rows import SkippedRows, examples_of_rows
from lattice_tune.datasets.split import SplitRule, checked_parts
from lattice_tune.datasets.stats import DatasetStats, dataset_stats
from lattice_tune.errors import DatasetError, InvalidInputError, shown

__all__ = ["Dataset"]

Source = Callable[[SkippedRows], Iterator[TrainingExample]]
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_EPOCH_STREAM = 4


class Dataset:
    """Examples that can be iterated any number of times.

    Reading a file streams it: a row at a time is in memory.

    Args:
        examples: TrainingExample objects, mappings of their fields, or pairs (text, label). A function that returns a
            new iterator over such at each call is streamed. Anything else that can be iterated is read at once.
        config: how it is gone through.

    Attributes:
        config: how it is read and gone through.
        skipped: the rows that the last pass left out.

    >>> data = Dataset([("What is it?", "question"), ("It is a book.", "statement")])
    >>> data.label_set().names
    ('question', 'statement')
    """

    def __init__(
        self, examples: Iterable[object] | Callable[[], Iterator[object]], *, config: DatasetConfig | None = None
    ) -> None:
        self.config: DatasetConfig = DatasetConfig() if config is None else instance(config, "config", DatasetConfig)
        self.skipped: SkippedRows = SkippedRows()
        self._loaded: tuple[TrainingExample, ...] | None = None
        if callable(examples) and not isinstance(examples, type):
            make = examples
            self._source: Source = lambda _: _made_of(make())
            return
        if isinstance(examples, (str, bytes, Mapping, np.ndarray)) or not isinstance(examples, Iterable):
            raise InvalidInputError(
                f"examples is {shown(examples)}; it must be examples, or a function that yields them"
            )
        self._loaded = tuple(_made_of(examples))
        self._source = lambda _: iter(self._loaded or ())

    @classmethod
    def open(cls, path: Paths, *, config: DatasetConfig | None = None) -> Dataset:
        """Return the dataset of a file, or of several shards in order.

        The suffix names the format.

        ``.jsonl`` or ``.ndjson``, ``.csv``, ``.tsv``, ``.npz``; a directory holds a folder a class. Rows are read, and
        checked, when the dataset is gone through.

        Raises:
            DatasetError: a path is not there, or its suffix names no format.
        """
        given = (
            [path] if isinstance(path, (str, os.PathLike)) else list(path) if isinstance(path, (list, tuple)) else []
        )
        if not given:
            raise InvalidInputError(f"path is {shown(path)}; it must be a path or a list of paths")
        shards = [path_of(shard) for shard in given]
        for shard in shards:
            _check_format(shard)
        dataset = cls((), config=config)
        chosen = dataset.config

        def read(skipped: SkippedRows) -> Iterator[TrainingExample]:
            for shard in shards:
                yield from _read(shard, chosen, skipped)

        dataset._loaded, dataset._source = None, read
        return dataset

    def __iter__(self) -> Iterator[TrainingExample]:
        self.skipped = SkippedRows()
        most = self.config.max_examples
        for count, example in enumerate(self._source(self.skipped)):
            if most is not None and count >= most:
                return
            yield example

    def count(self) -> int:
        """Return how many examples there are, by going over them."""
        return sum(1 for _ in self)

    def load(self) -> Dataset:
        """Return the dataset in memory."""
        loaded = Dataset(self, config=replace(self.config, max_examples=None))
        loaded.skipped = self.skipped
        return loaded

    def epoch(self, number: int) -> Iterator[TrainingExample]:
        """Yield the examples in the order of epoch ``number``.

        Each number gives another order, the same at each call. A loaded dataset is shuffled as a whole, a streamed
        one within ``config.shuffle_buffer`` examples.
        """
        whole(number, "number", most=2**53)
        if not self.config.shuffle:
            yield from self
            return
        draws = random_generator(self.config.seed, _EPOCH_STREAM, number)
        if self._loaded is not None and self.config.max_examples is None:
            yield from (self._loaded[index] for index in draws.permutation(len(self._loaded)))
            return
        buffer: list[TrainingExample] = []
        for example in self:
            if len(buffer) < self.config.shuffle_buffer:
                buffer.append(example)
                continue
            place = draws.randint(len(buffer))
            yield buffer[place]
            buffer[place] = example
        yield from (buffer[index] for index in draws.permutation(len(buffer)))

    def batches(self, epoch: int = 0) -> Iterator[list[TrainingExample]]:
        """Yield the batches of an epoch."""
        batch: list[TrainingExample] = []
        for example in self.epoch(epoch):
            batch.append(example)
            if len(batch) == self.config.batch_size:
                yield batch
                batch = []
        if batch and not self.config.drop_last:
            yield batch

    def split(
        self, parts: Mapping[str, float], *, seed: int = 0, group: str | None = None, stratify: bool = False
    ) -> dict[str, Dataset]:
        """Return the parts of a split by hash; see :class:`SplitRule`.

        Args:
            parts: the share of each, such as ``{"train": 0.9, "test": 0.1}``.
            seed: another seed gives another split.
            group: a field of the metadata whose values are kept together.
            stratify: deal out each label exactly; without, its shares are those of a draw.
        """
        rule = SplitRule(checked_parts(parts), seed, group)
        if flag(stratify, "stratify"):
            rule = rule.stratified(self)
        return {name: self._part(rule, name) for name in rule.parts}

    def _part(self, rule: SplitRule, name: str) -> Dataset:
        part = Dataset((), config=replace(self.config, max_examples=None))
        if self._loaded is not None:
            part._loaded = tuple(example for example in self if rule.part_of(example) == name)
            return part
        outer = self

        def read(skipped: SkippedRows) -> Iterator[TrainingExample]:
            for example in outer:
                if rule.part_of(example) == name:
                    yield example
            skipped.count, skipped.errors = outer.skipped.count, outer.skipped.errors

        part._loaded, part._source = None, read
        return part

    def label_set(self) -> LabelSet:
        """Return all labels that occur, in the order of their names.

        Raises:
            DatasetError: no example has one.
        """
        names: set[str] = set()
        for example in self:
            if example.label is not None:
                names.add(example.label)
            names.update(example.labels or ())
        if not names:
            raise DatasetError("no example has a label")
        return LabelSet(sorted(names))

    def class_weights(self) -> dict[str, float]:
        """Return label weights that balance the hard labels: n / (labels * examples of the label)."""
        counts = Counter(label for example in self if (label := example.hard_label) is not None)
        total = sum(counts.values())
        return {label: total / (len(counts) * counts[label]) for label in sorted(counts)}

    def texts(self) -> list[str]:
        """Return all texts.

        Raises:
            DatasetError: an example has none.
        """
        texts = []
        for index, example in enumerate(self):
            if example.text is None:
                raise DatasetError(f"example {index} has no text")
            texts.append(example.text)
        return texts

    def targets(self, labels: LabelSet) -> npt.NDArray[np.float32]:
        """Return probabilities (examples, labels): an example's, else 1 for its label.

        NaN in rows without either.

        Raises:
            InvalidInputError: an example has a label that is none of ``labels``.
        """
        instance(labels, "labels", LabelSet)
        return _rows(self, labels, soft=True)

    def gold(self, labels: LabelSet) -> npt.NDArray[np.float32]:
        """Return (examples, labels) with 1 for the hard label; NaN in rows without a ``label``."""
        instance(labels, "labels", LabelSet)
        return _rows(self, labels, soft=False)

    def stats(self) -> DatasetStats:
        """Return what the dataset holds, in numbers."""
        found = dataset_stats(self)
        return replace(found, skipped=self.skipped.count, skipped_errors=tuple(self.skipped.errors[:10]))

    def duplicates(self, *, near: float | None = None) -> list[Duplicate]:
        """Return the examples that repeat an earlier one; see :class:`DuplicateFinder` for ``near``."""
        return list(find_duplicates(self, near=near))

    def overlap(self, other: Dataset, *, near: float | None = None) -> list[Duplicate]:
        """Return the examples of ``other``, say of a test set, that repeat one of this dataset."""
        return list(find_overlap(self, instance(other, "other", Dataset), near=near))

    def without_duplicates(self, *, near: float | None = None) -> Dataset:
        """Return the first of each kind of examples, in memory."""
        finder = DuplicateFinder(near)
        kept = [example for index, example in enumerate(self) if finder.find(index, example) is None]
        return Dataset(kept, config=replace(self.config, max_examples=None))

    def digest(self) -> str:
        """Return 128 bits, in hex, over all examples in their order."""
        digest = blake2b(digest_size=16)
        for example in self:
            line = json_line(example)
            digest.update(len(line).to_bytes(8, "little") + line)
        return digest.hexdigest()

    def write_jsonl(self, path: str | os.PathLike[str]) -> int:
        """Write the dataset as JSONL, whole or not at all, and return how many examples it has.

        Raises:
            DatasetError: it cannot be written, or metadata hold something that JSON has not.
        """
        target = path_of(path)
        count = 0
        try:
            with atomic_file(target) as file:
                for example in self:
                    file.write(json_line(example))
                    count += 1
        except WriteError as error:
            raise DatasetError(str(error)) from error
        return count


def _made_of(examples: Iterable[object]) -> Iterator[TrainingExample]:
    for index, given in enumerate(examples):
        try:
            if isinstance(given, TrainingExample):
                yield given
            elif isinstance(given, Mapping):
                yield TrainingExample(**given)
            elif isinstance(given, (tuple, list)) and len(given) == 2:
                yield TrainingExample(text=given[0], label=given[1])
            else:
                raise InvalidInputError(
                    f"it is {shown(given)}; pass a TrainingExample, a mapping or a pair (text, label)"
                )
        except (InvalidInputError, TypeError) as error:
            raise InvalidInputError(f"example {index}: {error}") from None


_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv", ".npz": "npz"}


def _check_format(path: Path) -> None:
    if not os.path.exists(path):
        raise DatasetError(f"{path}: there is no such file or folder")
    if not path.is_dir() and path.suffix.lower() not in _FORMATS:
        raise DatasetError(
            f"{path}: the suffix names no format; the formats are {', '.join(_FORMATS)} and a folder a class"
        )


def _read(path: Path, config: DatasetConfig, skipped: SkippedRows) -> Iterator[TrainingExample]:
    if path.is_dir():
        return examples_of_rows(path, folder_rows(path, config), config, skipped, unit="file")
    match _FORMATS[path.suffix.lower()]:
        case "jsonl":
            return examples_of_rows(path, jsonl_rows(path, config.max_line_bytes), config, skipped)
        case "csv":
            return examples_of_rows(path, csv_rows(path, config), config, skipped)
        case _:
            return examples_of_rows(path, npz_rows(path, config), config, skipped, unit="row")


def _rows(examples: Iterable[TrainingExample], labels: LabelSet, *, soft: bool) -> npt.NDArray[np.float32]:
    rows = []
    nothing = np.full(len(labels), np.nan, dtype=np.float32)
    for index, example in enumerate(examples):
        try:
            if soft and example.labels is not None:
                rows.append(labels.row(example.labels))
            elif example.label is not None:
                rows.append(labels.row({example.label: 1.0}))
            else:
                rows.append(nothing)
        except InvalidInputError as error:
            raise InvalidInputError(f"example {index}: {error}") from None
    return np.array(rows, dtype=np.float32).reshape(len(rows), len(labels))
