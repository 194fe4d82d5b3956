"""Base of encoders and cross-encoders: a program over whole texts, and a tokenizer."""

from __future__ import annotations

from functools import partial
from typing import Any

from lattice_inference.argument_checks import checked_flag
from lattice_inference.encode.text_program import TextProgram
from lattice_inference.files.fingerprint import ModelSnapshot
from lattice_inference.files.hub import ModelFiles
from lattice_inference.loaded_model import LoadedModel
from lattice_inference.models.adapter_sites import AdapterBase
from lattice_inference.precision import Precision
from lattice_inference.tokenizer import Tokenizer
from lattice_inference.tokenizer.limits import Side

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
        special_tokens_in_text: bool,
        cut_from: Side,
        adapter_base: AdapterBase,
        reload: partial[Any],
    ) -> None:
        super().__init__(
            files=files,
            snapshot=snapshot,
            program=program,
            precision=precision,
            adapter_base=adapter_base,
            reload=reload,
        )
        self._name = files.repo_id or str(files.directory)
        self.tokenizer = tokenizer
        self.special_tokens_in_text = special_tokens_in_text
        self._cut_from: Side = cut_from
        self._fingerprint: str | None = None

    @property
    def fingerprint(self) -> str:
        """What results depend on, as text."""
        raise NotImplementedError

    def fingerprint_with(self, adapter: str) -> str:
        """Return what results with an adapter depend on.

        These are ``fingerprint`` and the digest of the adapter's content.

        Raises:
            CheckpointError: as ``fingerprint`` does.
            InvalidInputError: no adapter of that name is attached.
        """
        return f"{self.fingerprint}:lora{self._named_adapter(adapter).sha256}"

    def _finds_special_tokens(self, asked: bool | None) -> bool:
        """Return whether special tokens that a text spells out become those tokens in a call."""
        return self.special_tokens_in_text if asked is None else checked_flag("special_tokens_in_text", asked)

    @property
    def _text_mark(self) -> str:
        """Return the fingerprint's part on how texts are read.

        It is empty if they are read as by Hugging Face's library, and long ones are cut at their ends.
        """
        return ("" if self._cut_from == "right" else ":cut-left") + ("" if self.special_tokens_in_text else ":plain")
