"""What encoders and cross-encoders share: a program over whole texts, and the tokenizer that makes them tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

from lattice_inference.hub import ModelFiles
from lattice_inference.loaded_model import LoadedModel
from lattice_inference.model_fingerprint import ModelSnapshot
from lattice_inference.precision import Precision
from lattice_inference.text_program import TextProgram
from lattice_inference.tokenizer import Tokenizer

__all__ = ["TextModel"]


class TextModel(LoadedModel[TextProgram]):
    """A model of whole texts."""

    def __init__(
        self,
        *,
        files: ModelFiles,
        snapshot: ModelSnapshot,
        tokenizer: Tokenizer,
        program: TextProgram,
        precision: Precision,
        reload: partial[Any],
    ) -> None:
        super().__init__(files=files, snapshot=snapshot, program=program, precision=precision, reload=reload)
        self._name = files.repo_id or str(files.directory)
        self.tokenizer = tokenizer
        self._fingerprint: str | None = None
