"""A module for ``sentence_transformers.SentenceTransformer``, which some libraries need.

This module imports PyTorch and sentence-transformers; :mod:`~lattice_embed.integrations.sentence_transformers` imports
neither.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np

from lattice_embed.catalogue import Role
from lattice_embed.errors import InvalidInputError, InvalidTextError, ModelConfigError
from lattice_embed.integrations.missing_library import missing_library
from lattice_embed.integrations.service_choice import ModelOrService, ServiceOptions, choose_service, stored_name
from lattice_embed.native_service import NativeEmbeddingService
from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.models.sentence_modules import read_sentence_modules
from lattice_inference.tokenizer import Tokenizer

try:
    import torch
    from sentence_transformers.base.modules import InputModule
except ModuleNotFoundError as _error:
    raise missing_library(_error, "sentence-transformers") from _error

__all__ = ["LatticeModule"]

BATCH = 256
"""Texts of one call of the service; the vectors do not depend on it."""


class LatticeModule(InputModule):
    """The only module that ``SentenceTransformer(modules=[...])`` needs: texts in, vectors out.

    The vectors are those of the service, to the bit, and have length 1 if the model's own files say so. They are
    computed on the CPU and moved to where the other modules are. They are constants to PyTorch: modules after this one
    can be trained, the model itself cannot.

    ``SentenceTransformer.save`` stores the model's name and options, not its weights;
    ``SentenceTransformer(folder, trust_remote_code=True)`` reads them again. sentence-transformers demands that flag
    for a module that is not its own. Prompts of the model's files are in :attr:`prompts`; pass them on as
    ``SentenceTransformer(modules=[module], prompts=module.prompts)``.

    Args:
        model: a name, hub id or directory for :class:`~lattice_embed.NativeEmbeddingService`, or such a service.
        **options: of :class:`~lattice_embed.NativeEmbeddingService`, where ``model`` is no service.

    Attributes:
        service: the service; close it when you are done.

    Raises:
        InvalidInputError: another service than a native one, or a wrong option.
    """

    config_file_name = "lattice_module.json"
    save_in_root = False

    def __init__(self, model: ModelOrService | None = None, **options: Unpack[ServiceOptions]) -> None:
        super().__init__()
        service = choose_service(model, options)
        if not isinstance(service, NativeEmbeddingService):
            raise InvalidInputError(f"{service.name} runs elsewhere: a LatticeModule needs a NativeEmbeddingService")
        self.service: NativeEmbeddingService = service
        # Follows the whole model to its device, as the other modules' weights do. It is not saved.
        self.register_buffer("placement", torch.empty(0), persistent=False)

    # What SentenceTransformer asks its first module

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts of the model's files by name. Loads the model."""
        modules = read_sentence_modules(self.service.directory)
        return {} if modules is None else dict(modules.prompts)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer: a :class:`lattice_inference.tokenizer.Tokenizer`. Loads the model."""
        return self.service.tokenizer

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a text; the rest is cut off.

        May be set to fewer than the model takes.
        """
        return self.service.max_tokens

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        model, options = self.service.recipe()
        self.service = NativeEmbeddingService(model, **{**options, "max_tokens": value}).load()

    def get_embedding_dimension(self) -> int:
        """Return the length of the vectors."""
        return self.service.model_config().dimensions

    get_sentence_embedding_dimension = get_embedding_dimension
    get_word_embedding_dimension = get_embedding_dimension

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **options: Any) -> dict[str, Any]:
        """Return the texts as the features that :meth:`forward` takes, with the prompt before each.

        Raises:
            InvalidInputError: ``processing_kwargs``, which are of another library's tokenizer.
        """
        if options.get("processing_kwargs"):
            raise InvalidInputError(
                "processing_kwargs are options of another tokenizer: set max_seq_length, or options of LatticeModule"
            )
        return {"texts": [prompt + text if prompt and isinstance(text, str) else text for text in inputs]}

    def tokenize(self, texts: Sequence[str], **options: Any) -> dict[str, Any]:
        """Do :meth:`preprocess`, by its earlier name."""
        return self.preprocess(texts, **options)

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Return ``{"sentence_embedding": vectors}``, a float32 tensor of shape (texts, dim).

        Raises:
            InvalidInputError: features that are not those of :meth:`preprocess`, or a text that cannot be embedded.
        """
        if "texts" not in features:
            raise InvalidInputError(
                f"the features are {', '.join(map(str, features)) or 'empty'}: pass those of LatticeModule.preprocess()"
            )
        results = self.service.embed_batches(
            features["texts"], role=Role.GENERIC, normalize=self.service.normalizes, batch_size=BATCH
        )
        try:
            parts = [result.vectors for result in results]
        except InvalidTextError as error:  # its position is one in a batch that was sorted by length
            raise InvalidInputError(f"a text {error.reason}") from error
        vectors = np.concatenate(parts) if parts else np.empty((0, self.get_embedding_dimension()), np.float32)
        return _Features(sentence_embedding=torch.from_numpy(vectors).to(self.placement.device))

    # Saving and loading

    def get_config_dict(self) -> dict[str, Any]:
        """Return the model's name and the options: what :meth:`save` stores."""
        model, options = self.service.recipe()
        return {"model": stored_name(model), "options": dict(options)}

    def save(self, output_path: str, *arguments: Any, safe_serialization: bool = True, **options: Any) -> None:
        """Write the model's name and the options into ``output_path``, atomically.

        Raises:
            InvalidInputError: the service has a ``VectorCache``, which no file can name; give its folder instead.
            WriteError: the file cannot be written.
        """
        config = self.get_config_dict()
        try:
            content = json.dumps(config, indent=2, sort_keys=True)
        except TypeError:
            raise InvalidInputError(
                f"cache is {config['options'].get('cache')!r:.80}, which cannot be saved: pass its folder to LatticeModule"
            ) from None
        with atomic_file(Path(output_path) / self.config_file_name) as file:
            file.write(content.encode() + b"\n")

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> Self:
        """Make the module that :meth:`save` stored; called by ``SentenceTransformer(folder)``.

        Raises:
            ModelConfigError: the file is missing, or is none of ours.
        """
        of_hub = ("token", "cache_folder", "revision", "local_files_only")
        config = cls.load_config(
            model_name_or_path, subfolder=subfolder, **{name: options[name] for name in of_hub if name in options}
        )
        where = os.path.join(model_name_or_path, subfolder, cls.config_file_name)
        if set(config) != {"model", "options"} or not isinstance(config["options"], Mapping):
            raise ModelConfigError(f"{where} is missing, or holds no model and options: save the model again")
        try:
            return cls(config["model"], **config["options"])
        except TypeError as error:
            raise ModelConfigError(f"{where} has options of another version: {error}") from None


class _Features(dict[str, Any]):
    """Features that say why what later steps look up is not there."""

    def __missing__(self, name: str) -> Any:
        raise InvalidInputError(
            f"{name} is not computed: a LatticeModule gives sentence_embedding alone, the vector of the whole text"
        )
