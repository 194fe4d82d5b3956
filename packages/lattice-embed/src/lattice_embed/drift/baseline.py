"""Texts and the vectors that they had once, frozen in a file.

The file is JSON, one text and one vector a line, so that a change of one shows as one line in a diff. Vectors are written
as the shortest decimals that give the float32 back. A digest over everything else is part of the file: a baseline that was
damaged, or edited by hand, is not compared with.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, BinaryIO, Self

import blake3
import numpy as np

from lattice_embed.argument_checks import check_kind, check_number, check_path, check_word, shown
from lattice_embed.arrays import float32_array
from lattice_embed.catalogue import Role
from lattice_embed.errors import InvalidInputError, LatticeEmbedError
from lattice_embed.result import Float32Array
from lattice_embed.service import EmbeddingService
from lattice_embed.validation import check_iterable, check_limit, check_role, check_text
from lattice_inference import NUMERICS_VERSION
from lattice_inference.checkpoint.atomic_file import atomic_file

__all__ = ["DriftBaseline", "DriftBaselineError", "DriftTolerance"]

FORMAT = "lattice-embed drift baseline"
FORMAT_VERSION = 1
LARGEST_FILE = 256 << 20
"""Bytes from which a file is no baseline."""


class DriftBaselineError(LatticeEmbedError, ValueError):
    """A file is no baseline, or not a whole one, or not the one that was written."""


@dataclass(frozen=True)
class DriftTolerance:
    """How far vectors may be from the baseline's.

    Args:
        max_abs_difference: of any component. 0 asks for the same bits.
        max_cosine_distance: 1 - cosine of any text's two vectors.

    Raises:
        InvalidInputError: a number is negative or not finite.
    """

    max_abs_difference: float = 1e-6
    max_cosine_distance: float = 1e-6

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            check_number(field.name, value, lowest=0.0)


@dataclass(frozen=True, eq=False)
class DriftBaseline:
    """Frozen vectors.

    Attributes:
        model: name of the model that gave them.
        texts: what was embedded.
        vectors: float32 array of shape (texts, dim).
        fingerprint: identifies what the bits of the vectors depended on.
        numerics_version: ``lattice_inference.NUMERICS_VERSION`` of the release that gave them.
        role: what the texts were embedded as.
        precision: what the weights were kept in.
        output_dim: the shorter length that was requested, or ``None``.
        tolerance: how far a later release may be from them.

    Raises:
        InvalidInputError: the vectors are masked, no real numbers, or not one a text.
    """

    model: str
    texts: tuple[str, ...]
    vectors: Float32Array
    fingerprint: str
    numerics_version: int
    role: Role = Role.GENERIC
    precision: str = "float32"
    output_dim: int | None = None
    tolerance: DriftTolerance = DriftTolerance()

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", tuple(_checked_texts(self.texts)))
        for name in ("model", "fingerprint", "precision"):
            check_word(name, getattr(self, name))
        check_kind("numerics_version", self.numerics_version, int)
        if self.output_dim is not None:
            check_limit("output_dim", self.output_dim)
        object.__setattr__(self, "role", check_role(self.role))
        check_kind("tolerance", self.tolerance, DriftTolerance)
        vectors = float32_array(self.vectors, "vectors")
        if vectors.ndim != 2 or len(vectors) != len(self.texts):
            raise InvalidInputError(
                f"vectors have shape {vectors.shape}; there must be one for each of {len(self.texts)} texts"
            )
        object.__setattr__(self, "vectors", vectors)

    @classmethod
    def of(
        cls,
        service: EmbeddingService,
        texts: Sequence[str],
        *,
        role: Role = Role.GENERIC,
        tolerance: DriftTolerance | None = None,
    ) -> Self:
        """Embed ``texts`` with a service, and freeze what it gives.

        Raises:
            InvalidInputError: no texts.
        """
        check_kind("service", service, EmbeddingService)
        if tolerance is not None:
            check_kind("tolerance", tolerance, DriftTolerance)
        role = check_role(role)
        listed = tuple(_checked_texts(texts))
        if not listed:
            raise InvalidInputError("a baseline of no texts would pass every release: give at least one")
        results = list(service.embed_batches(listed, role=role))
        return cls(
            model=results[0].model or service.model_config().description.slug,
            texts=listed,
            vectors=np.concatenate([result.vectors for result in results]),
            fingerprint=results[0].fingerprint,
            numerics_version=NUMERICS_VERSION,
            role=role,
            precision=str(getattr(service, "precision", "float32")),
            output_dim=service.model_config().output_dim,
            tolerance=tolerance or DriftTolerance(),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the baseline to a file that is either whole or not there.

        Raises:
            WriteError: it cannot be written. A file that was there before is as it was.
        """
        with atomic_file(check_path("path", path)) as file:
            self.write_to(file)

    def write_to(self, file: BinaryIO) -> None:
        """Write the baseline to a file that is open for bytes.

        Raises:
            InvalidInputError: it is no file, or open for text.
        """
        if isinstance(file, type | io.TextIOBase) or not hasattr(file, "writelines"):
            raise InvalidInputError(f"file is {shown(file)}; it must be a file that is open for bytes")
        file.writelines(line.encode() for line in self._lines())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a baseline.

        Raises:
            DriftBaselineError: it is missing, damaged, edited, or of another format.
        """
        source = check_path("path", path)
        try:
            size = source.stat().st_size
            if size > LARGEST_FILE:
                raise DriftBaselineError(f"{source} has {size:,} bytes; a baseline has at most {LARGEST_FILE:,}")
            document = json.loads(source.read_bytes())
        except OSError as error:
            raise DriftBaselineError(f"no baseline can be read from {source}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            if isinstance(error, DriftBaselineError):
                raise
            raise DriftBaselineError(f"{source} is no whole JSON: {error}") from None
        try:
            return cls._from_document(document)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise DriftBaselineError(
                f"{source} is no usable baseline: {reason}; write it again with --update-baseline"
            ) from None

    def _facts(self) -> dict[str, Any]:
        """Return everything but texts, vectors and the digest, as JSON has it."""
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "numerics_version": self.numerics_version,
            "role": self.role.value,
            "precision": self.precision,
            "output_dim": self.output_dim,
            "dimensions": int(self.vectors.shape[1]),
            "tolerance": asdict(self.tolerance),
        }

    def _digest(self) -> str:
        """Digest of the facts, the texts and the bits of the vectors, each preceded by its length."""
        digest = blake3.blake3()
        facts = json.dumps(self._facts(), sort_keys=True)
        for part in (facts, *self.texts):
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
        digest.update(self.vectors.astype("<f4").tobytes())
        return digest.hexdigest(16)

    def _lines(self) -> Iterator[str]:
        yield "{\n"
        for name, value in {**self._facts(), "digest": self._digest()}.items():
            yield f"{json.dumps(name)}: {json.dumps(value)},\n"
        yield '"texts": [\n'
        yield ",\n".join(json.dumps(text, ensure_ascii=False) for text in self.texts)
        yield '\n],\n"vectors": [\n'
        for index, vector in enumerate(self.vectors):
            numbers = ",".join(str(value) for value in vector)
            yield f"[{numbers}]{'' if index + 1 == len(self.vectors) else ','}\n"
        yield "]\n}\n"

    @classmethod
    def _from_document(cls, document: Mapping[str, Any]) -> Self:
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        if document["version"] != FORMAT_VERSION:
            raise ValueError(f"its version is {document['version']!r}, this release reads {FORMAT_VERSION}")
        texts, rows = document["texts"], document["vectors"]
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError("texts is no list of texts")
        if not isinstance(rows, list) or len(rows) != len(texts):
            raise ValueError(f"it has {len(texts)} texts and another number of vectors")
        if not all(isinstance(row, list) and set(map(type, row)) <= {float, int} for row in rows):
            raise ValueError("vectors holds something else than lists of numbers")
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused below
            vectors = np.array(rows, np.float64).astype(np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != document["dimensions"] or not vectors.any():
            raise ValueError(f"vectors are not {len(texts)} of {document['dimensions']} dimensions")
        if not np.isfinite(vectors).all():
            raise ValueError("vectors holds NaN or infinity")
        baseline = cls(
            model=_typed(document, "model", str),
            texts=tuple(texts),
            vectors=vectors,
            fingerprint=_typed(document, "fingerprint", str),
            numerics_version=_typed(document, "numerics_version", int),
            role=Role(document["role"]),
            precision=_typed(document, "precision", str),
            output_dim=None if document["output_dim"] is None else _typed(document, "output_dim", int),
            tolerance=DriftTolerance(**document["tolerance"]),
        )
        if baseline._digest() != document["digest"]:
            raise ValueError("its digest is not that of its content, so it was damaged or edited")
        return baseline


def _checked_texts(texts: object) -> Iterator[str]:
    for index, text in enumerate(check_iterable(texts)):
        yield check_text(text, index, max_chars=sys.maxsize)


def _typed(document: Mapping[str, Any], name: str, kind: type) -> Any:
    value = document[name]
    if type(value) is not kind:
        raise ValueError(f"{name} is {value!r}, not of type {kind.__name__}")
    return value
