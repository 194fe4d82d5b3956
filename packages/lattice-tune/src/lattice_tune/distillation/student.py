"""A student: texts in, calibrated labels out.

One file holds all of it but the encoder, which it names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lattice_fann import FannError, Network
from lattice_inference import load_encoder
from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.errors import WriteError
from lattice_tune.arguments import instance, listed, number_rows, path_of, real, text_of
from lattice_tune.datasets.labels import LabelSet
from lattice_tune.distillation.temperature_scaling import calibrated_network
from lattice_tune.errors import EncoderMismatchError, InvalidInputError, StudentFileError, TuneError, shown
from lattice_tune.training.json_object import json_object, to_json

__all__ = ["EncoderRecord", "Predictions", "StudentModel", "VectorEncoder", "load_student"]

MOST_FILE_BYTES = 4 << 30
_VERSION = 1
_KEY = "lattice_tune_student"

Float32Array = npt.NDArray[np.float32]


class VectorEncoder(Protocol):
    """Protocol of an encoder: what turns texts into vectors.

    An encoder of lattice_inference has these three members.
    """

    @property
    def fingerprint(self) -> str:
        """What the vectors depend on."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    def encode(self, texts: Sequence[str], *, prompt: str = "") -> Any:
        """Return an object whose ``vectors`` are (texts, dimension) float32."""


@dataclass(frozen=True, kw_only=True)
class EncoderRecord:
    """Which encoder a student needs.

    Attributes:
        fingerprint: what its vectors depend on.
        source: the model's name or path, to load it again; empty if it is not known.
        dimension: length of a vector.
        prompt: put before every text.
    """

    fingerprint: str
    source: str
    dimension: int
    prompt: str = ""


@dataclass(frozen=True)
class Predictions:
    """Labels of some texts, in their order.

    Attributes:
        labels: the most probable label of each.
        probabilities: (texts, labels) float32, calibrated.
        confidence: (texts,) float32, the most probable label's probability.
        passed_back: (texts,) bool, whether the confidence is below the student's threshold: ask the teacher.
    """

    labels: list[str]
    probabilities: Float32Array
    confidence: Float32Array
    passed_back: npt.NDArray[np.bool_]


class StudentModel:
    """A trained student. Thread-safe for predictions.

    Args:
        network: from vectors to probabilities (softmax), before calibration.
        labels: the label set.
        encoder: which encoder it needs.
        temperature: of the calibration.
        threshold: confidence below which a prediction should be passed back to the teacher; 0 passes none back.
        report: what was measured, as JSON has it.

    Raises:
        InvalidInputError: parts that do not fit each other.
    """

    def __init__(
        self,
        network: Network,
        labels: LabelSet,
        encoder: EncoderRecord,
        *,
        temperature: float = 1.0,
        threshold: float = 0.0,
        report: Mapping[str, Any] | None = None,
    ) -> None:
        self.network: Network = instance(network, "network", Network)
        self.labels: LabelSet = instance(labels, "labels", LabelSet)
        self.encoder_record: EncoderRecord = instance(encoder, "encoder", EncoderRecord)
        self.temperature: float = real(temperature, "temperature", "from 0.05 to 20", least=0.049, most=20.2)
        self.threshold: float = real(threshold, "threshold", "from 0 to 1", least=0, most=1)
        if report is not None and not isinstance(report, Mapping):
            raise InvalidInputError(f"report is {shown(report)}; it must be a mapping")
        self.report: dict[str, Any] = dict(report or {})
        if network.num_outputs != len(labels) or network.num_inputs != encoder.dimension:
            raise InvalidInputError(
                f"the network takes {network.num_inputs} numbers and gives {network.num_outputs}; "
                f"there are vectors of {encoder.dimension} and {len(labels)} labels"
            )
        if not network.layers[-1].activation.is_softmax:
            raise InvalidInputError("the network's last layer must be a softmax")
        self._calibrated = calibrated_network(network, self.temperature)
        self._encoder: VectorEncoder | None = None

    def use_encoder(self, encoder: VectorEncoder | str | os.PathLike[str] | None = None) -> None:
        """Use ``encoder`` for predictions.

        It is an encoder, or the argument of :func:`lattice_inference.load_encoder`. Without one, the encoder that the
        student was trained with is loaded from where it was then.

        Raises:
            EncoderMismatchError: it is another one.
            LatticeError: it cannot be loaded.
        """
        if encoder is None:
            if not self.encoder_record.source:
                raise InvalidInputError("the student does not know where its encoder is: pass one")
            encoder = self.encoder_record.source
        if isinstance(encoder, (str, os.PathLike)):
            encoder = load_encoder(encoder)
        actual = getattr(encoder, "fingerprint", None)
        if not isinstance(actual, str):
            raise InvalidInputError(f"encoder is {shown(encoder)}; it must be an encoder, a path or a model's name")
        if actual != self.encoder_record.fingerprint:
            raise EncoderMismatchError(self.encoder_record.fingerprint, actual)
        self._encoder = encoder

    def predict(self, texts: Sequence[str]) -> Predictions:
        """Return the labels of texts. The encoder is loaded at the first call, if none was given.

        Raises:
            InvalidInputError: ``texts`` is no list of texts.
            EncoderMismatchError: the encoder's files are not those that the student was trained with.
        """
        if self._encoder is None:
            self.use_encoder()
            assert self._encoder is not None
        given = texts if type(texts) is list else listed(texts, "texts", "texts")
        for text in given:
            if type(text) is not str:
                text_of(text, "a text")
        prompt = self.encoder_record.prompt
        return self._predictions(self._encoder.encode(given, prompt=prompt).vectors)

    def predict_vectors(self, vectors: npt.ArrayLike, *, encoder_fingerprint: str) -> Predictions:
        """Return the labels of vectors, (texts, dimension), of the encoder with that fingerprint.

        Raises:
            EncoderMismatchError: they are of another encoder than the student was trained with.
            InvalidInputError: their dimension is another, or a value is not finite.
        """
        fingerprint = text_of(encoder_fingerprint, "encoder_fingerprint")
        if fingerprint != self.encoder_record.fingerprint:
            raise EncoderMismatchError(self.encoder_record.fingerprint, fingerprint)
        rows = number_rows(vectors, "vectors")
        if rows.shape[1] != self.encoder_record.dimension:
            raise InvalidInputError(
                f"vectors have {rows.shape[1]} dimensions, the student {self.encoder_record.dimension}"
            )
        return self._predictions(rows)

    def _predictions(self, vectors: Float32Array) -> Predictions:
        probabilities = self._calibrated.forward_batch(vectors)
        best = probabilities.argmax(axis=1)
        confidence = probabilities.max(axis=1)
        names = self.labels.names
        return Predictions([names[i] for i in best.tolist()], probabilities, confidence, confidence < self.threshold)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the student as one file, whole or not at all.

        It is a safetensors file: the tensor ``network`` holds the network's own format, the metadata the rest as JSON.

        Raises:
            StudentFileError: it cannot be written, or the report holds what JSON has not.
        """
        from safetensors.numpy import save

        target = path_of(path)
        record = self.encoder_record
        try:
            fields = {
                "version": _VERSION,
                "labels": list(self.labels.names),
                "temperature": self.temperature,
                "threshold": self.threshold,
                "encoder": {
                    "fingerprint": record.fingerprint,
                    "source": record.source,
                    "dimension": record.dimension,
                    "prompt": record.prompt,
                },
                "report": self.report,
            }
            metadata = {_KEY: to_json(fields).decode()}
            content = save({"network": np.frombuffer(self.network.to_bytes(2), np.uint8)}, metadata)
            with atomic_file(target) as file:
                file.write(content)
        except WriteError as error:
            raise StudentFileError(str(error)) from error
        except (FannError, TypeError, ValueError, RecursionError) as error:
            raise StudentFileError(f"{target}: the student cannot be written: {error}") from None

    def __repr__(self) -> str:
        return f"<StudentModel {self.network.architecture()}, labels {shown(list(self.labels))}>"


def load_student(
    path: str | os.PathLike[str], *, encoder: VectorEncoder | str | os.PathLike[str] | None = None
) -> StudentModel:
    """Read a student that :meth:`StudentModel.save` wrote.

    Args:
        path: the file.
        encoder: what :meth:`StudentModel.use_encoder` takes; by default the encoder is loaded at the first prediction.

    Raises:
        StudentFileError: the file cannot be read, or holds no student.
        EncoderMismatchError: ``encoder`` is another one than the student was trained with.
    """
    source = path_of(path)
    try:
        student = _read(source)
    except OSError as error:
        raise StudentFileError(f"{source}: {error.strerror or error}") from error
    except (FannError, TuneError, KeyError, TypeError, ValueError) as error:
        raise StudentFileError(f"{source}: no student: {error!s:.300}") from None
    if encoder is not None:
        student.use_encoder(encoder)
    return student


def _read(source: Path) -> StudentModel:
    from safetensors import SafetensorError, safe_open

    found = os.stat(source)
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_FILE_BYTES:
        raise StudentFileError("it is no regular file, or is larger than 4 GiB")
    try:
        with safe_open(source, framework="numpy") as file:
            metadata = file.metadata() or {}
            network = file.get_tensor("network")
    except SafetensorError as error:
        raise StudentFileError(f"no safetensors file: {error}") from None
    if _KEY not in metadata:
        raise StudentFileError("a safetensors file without a student")
    fields = json_object(metadata[_KEY].encode())
    if fields["version"] != _VERSION:
        raise StudentFileError(f"it is of version {shown(fields['version'])}; this package reads {_VERSION}")
    if network.dtype != np.uint8 or network.ndim != 1:
        raise StudentFileError("its network is no vector of bytes")
    record = fields["encoder"]
    encoder = EncoderRecord(
        fingerprint=text_of(record["fingerprint"], "fingerprint"),
        source=text_of(record["source"], "source"),
        dimension=record["dimension"],
        prompt=text_of(record["prompt"], "prompt"),
    )
    return StudentModel(
        Network.from_bytes(network.tobytes()),
        LabelSet(fields["labels"]),
        encoder,
        temperature=fields["temperature"],
        threshold=fields["threshold"],
        report=fields["report"],
    )
