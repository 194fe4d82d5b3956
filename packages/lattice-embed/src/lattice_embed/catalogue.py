"""The models that lattice_embed knows by name, and what is known about each.

The facts (dimensions, prompts, pooling, token limits, licences) are those that the models' authors publish. A model's
files take precedence at load time. The catalogue serves what must be known before a file is read, and models whose
cached copy holds weights only. Where the files are, and their digests, is the knowledge of lattice_inference (its
``hub`` and ``known_models``).
"""

from __future__ import annotations

import difflib
import operator
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NoReturn, get_args

__all__ = ["EmbeddingModel", "ModelDescription", "Pooling", "Role", "fold_name"]

Pooling = Literal["cls", "mean", "last"]


class Role(Enum):
    """What a text is for.

    Models trained for retrieval use different prompts for queries and passages.
    """

    QUERY = "query"
    """A search query: the model's query prompt is put before the text."""

    PASSAGE = "passage"
    """A text to be found: the model's passage prompt is put before the text."""

    GENERIC = "generic"
    """Neither: the text is embedded as it is."""


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """Facts about one model.

    Catalogue members carry one (``EmbeddingModel.X.description``). A model in your directory gets one when it is
    loaded. A service that you write for your model makes one.

    Attributes:
        slug: short name, used by the command line and in results.
        model_id: id on the Hugging Face hub (or at the provider, for a remote model), or the directory's path.
        native_dimensions: length of the vectors that the model produces.
        max_tokens: the longest input in tokens, special tokens included.
        pooling: how token vectors become one vector; ``None`` where the provider does not say.
        query_prompt: put before a text in the role of a query; empty for none.
        passage_prompt: put before a text in the role of a passage; empty for none.
        supports_output_dim: trained so that a leading part of the vector is an embedding too (Matryoshka, MRL).
        is_remote: runs at a provider, has no weights to load.
        key_version: version of the embedding space, part of cache keys.
        license: licence of the weights (an SPDX identifier, or the provider's terms).
        architecture: name of the network's family, as in the model's config.
        tokenizer: kind of the tokenizer's model.
        weights_bytes: size of the float32 weights' file on the hub where known.
    """

    slug: str
    model_id: str
    native_dimensions: int
    max_tokens: int
    pooling: Pooling | None
    query_prompt: str = ""
    passage_prompt: str = ""
    supports_output_dim: bool = False
    is_remote: bool = False
    key_version: str = ""
    license: str = ""
    architecture: str = ""
    tokenizer: str = ""
    weights_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, kinds in _KINDS.items():
            value = getattr(self, name)
            if int in kinds and not isinstance(value, bool) and hasattr(value, "__index__"):
                try:
                    value = operator.index(value)  # of NumPy's integers too
                except TypeError:  # an array of one dimension or more
                    self._refuse(name, "must be an int")
                object.__setattr__(self, name, value)
            if type(value) not in kinds and not (str in kinds and isinstance(value, str)):
                self._refuse(
                    name, f"must be {' or '.join('None' if kind is _NONE else kind.__name__ for kind in kinds)}"
                )
        for name in ("native_dimensions", "max_tokens", "weights_bytes"):
            value = getattr(self, name)
            if value is not None and not value >= 1:
                self._refuse(name, "must be at least 1")
        if self.pooling not in (None, *get_args(Pooling)):
            self._refuse("pooling", f"must be one of {', '.join(map(repr, get_args(Pooling)))}, or None")

    def _refuse(self, name: str, reason: str) -> NoReturn:
        from lattice_embed.errors import InvalidInputError

        value = getattr(self, name)
        shown = f"an int of {value.bit_length():,} bits" if type(value) is int and value.bit_length() > 256 else value
        raise InvalidInputError(f"{name} of a model's description is {shown!r:.80}; it {reason}")

    def prompt(self, role: Role) -> str:
        """Return the prompt for ``role``: the query prompt, the passage prompt, or nothing.

        Raises:
            InvalidInputError: there is no such role.
        """
        prompts = {Role.QUERY: self.query_prompt, Role.PASSAGE: self.passage_prompt, Role.GENERIC: ""}
        found = prompts.get(role) if isinstance(role, Role) else None
        if found is None:
            from lattice_embed.validation import check_role

            return prompts[check_role(role)]
        return found


_NONE = type(None)
_KINDS: dict[str, tuple[type, ...]] = {
    "slug": (str,),
    "model_id": (str,),
    "native_dimensions": (int,),
    "max_tokens": (int,),
    "pooling": (str, _NONE),
    "query_prompt": (str,),
    "passage_prompt": (str,),
    "supports_output_dim": (bool,),
    "is_remote": (bool,),
    "key_version": (str,),
    "license": (str,),
    "architecture": (str,),
    "tokenizer": (str,),
    "weights_bytes": (int, _NONE),
}
"""The types of a description's fields."""


_BGE_QUERY = "Represent this sentence for searching relevant passages: "
_QWEN_QUERY = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "  # ends in a space
)


def _bge(slug: str, dimensions: int, weights_bytes: int) -> ModelDescription:
    return ModelDescription(
        slug=slug,
        model_id=f"BAAI/{slug}",
        native_dimensions=dimensions,
        max_tokens=512,
        pooling="cls",
        query_prompt=_BGE_QUERY,
        key_version="v1.5",
        license="MIT",
        architecture="bert",
        tokenizer="wordpiece",
        weights_bytes=weights_bytes,
    )


def _qwen3(slug: str, model_id: str, dimensions: int) -> ModelDescription:
    return ModelDescription(
        slug=slug,
        model_id=model_id,
        native_dimensions=dimensions,
        max_tokens=8192,
        pooling="last",
        query_prompt=_QWEN_QUERY,
        supports_output_dim=True,
        key_version="v3",
        license="Apache-2.0",
        architecture="qwen3",
        tokenizer="bpe",
    )


class EmbeddingModel(Enum):
    """The models known by name. A member's value is its slug.

    >>> model = EmbeddingModel("all-minilm-l6-v2")
    >>> model.model_id, model.native_dimensions, model.pooling
    ('sentence-transformers/all-MiniLM-L6-v2', 384, 'mean')
    >>> EmbeddingModel.MULTILINGUAL_E5_SMALL.query_prompt
    'query: '
    """

    BGE_SMALL_EN_V1_5 = "bge-small-en-v1.5"
    BGE_BASE_EN_V1_5 = "bge-base-en-v1.5"
    BGE_LARGE_EN_V1_5 = "bge-large-en-v1.5"
    MULTILINGUAL_E5_SMALL = "multilingual-e5-small"
    MULTILINGUAL_E5_BASE = "multilingual-e5-base"
    ALL_MINILM_L6_V2 = "all-minilm-l6-v2"
    PARAPHRASE_MULTILINGUAL_MINILM_L12_V2 = "paraphrase-multilingual-minilm-l12-v2"
    QWEN3_EMBEDDING_0_6B = "qwen3-embedding-0.6b"
    QWEN3_EMBEDDING_4B = "qwen3-embedding-4b"
    TEXT_EMBEDDING_3_SMALL = "text-embedding-3-small"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        from lattice_embed.errors import UnknownModelError

        raise UnknownModelError(f"{value!r:.60} is no slug of a model; EmbeddingModel.parse knows other names too")

    @classmethod
    def default(cls) -> EmbeddingModel:
        """Return the default model: BGE-small, small and English.

        See docs/choosing-a-model.md.
        """
        return cls.BGE_SMALL_EN_V1_5

    @classmethod
    def parse(cls, name: str) -> EmbeddingModel:
        """Return the model called ``name``: a slug, an alias, a member's name or a hub id.

        Case does not matter, nor whether words are joined by ``-``, ``_`` or ``.``: ``BAAI/bge-small-en-v1.5``,
        ``bge_small_en_v1_5``, ``BgeSmallEnV15`` and ``small`` are the same model.

        Raises:
            UnknownModelError: no model has that name; the message lists those that there are.
        """
        given: object = name
        if not isinstance(given, str):
            from lattice_embed.errors import UnknownModelError

            raise UnknownModelError(f"a model's name is a str, not a {type(given).__name__}")
        found = _BY_NAME.get(fold_name(name))
        if found is None:
            from lattice_embed.errors import UnknownModelError

            slugs = [model.value for model in cls]
            close = difflib.get_close_matches(name.strip().lower(), slugs, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UnknownModelError(f"no model is called {name!r}: {hint}known are {', '.join(slugs)}")
        return found

    @property
    def description(self) -> ModelDescription:
        """All that the catalogue says about the model."""
        return _DESCRIPTIONS[self]

    @property
    def slug(self) -> str:
        """Short name, such as ``"bge-small-en-v1.5"``."""
        return self.value

    @property
    def model_id(self) -> str:
        """Id on the Hugging Face hub, such as ``"BAAI/bge-small-en-v1.5"``.

        The provider's id for a remote model.
        """
        return self.description.model_id

    @property
    def native_dimensions(self) -> int:
        """Length of the vectors that the model produces."""
        return self.description.native_dimensions

    @property
    def max_tokens(self) -> int:
        """Longest input in tokens, special tokens included."""
        return self.description.max_tokens

    @property
    def pooling(self) -> Pooling | None:
        """Pooling of token vectors: ``"cls"``, ``"mean"`` or ``"last"``.

        ``None`` for a remote model.
        """
        return self.description.pooling

    @property
    def query_prompt(self) -> str:
        """What is put before a query; empty for none."""
        return self.description.query_prompt

    @property
    def passage_prompt(self) -> str:
        """What is put before a passage; empty for none."""
        return self.description.passage_prompt

    def query_instruction(self) -> str | None:
        """Return the query prompt, or None for a model without one (see ``query_prompt``)."""
        return self.description.query_prompt or None

    def document_instruction(self) -> str | None:
        """Return the passage prompt, or None for a model without one (see ``passage_prompt``)."""
        return self.description.passage_prompt or None

    @property
    def supports_output_dim(self) -> bool:
        """Whether shorter vectors may be requested (Matryoshka training)."""
        return self.description.supports_output_dim

    @property
    def is_remote(self) -> bool:
        """Whether the model runs at a provider, so that there are no weights to load."""
        return self.description.is_remote

    @property
    def key_version(self) -> str:
        """Version of the embedding space, part of cache keys."""
        return self.description.key_version

    @property
    def license(self) -> str:
        """Licence of the weights."""
        return self.description.license


_DESCRIPTIONS: dict[EmbeddingModel, ModelDescription] = {
    EmbeddingModel.BGE_SMALL_EN_V1_5: _bge("bge-small-en-v1.5", 384, 133_466_304),
    EmbeddingModel.BGE_BASE_EN_V1_5: _bge("bge-base-en-v1.5", 768, 437_955_512),
    EmbeddingModel.BGE_LARGE_EN_V1_5: _bge("bge-large-en-v1.5", 1024, 1_340_616_616),
    EmbeddingModel.MULTILINGUAL_E5_SMALL: ModelDescription(
        slug="multilingual-e5-small",
        model_id="intfloat/multilingual-e5-small",
        native_dimensions=384,
        max_tokens=512,
        pooling="mean",
        query_prompt="query: ",
        passage_prompt="passage: ",
        key_version="v1.5",
        license="MIT",
        architecture="bert",
        tokenizer="unigram",
        weights_bytes=470_641_600,
    ),
    EmbeddingModel.MULTILINGUAL_E5_BASE: ModelDescription(
        slug="multilingual-e5-base",
        model_id="intfloat/multilingual-e5-base",
        native_dimensions=768,
        max_tokens=512,
        pooling="mean",
        query_prompt="query: ",
        passage_prompt="passage: ",
        key_version="v1.5",
        license="MIT",
        architecture="xlm-roberta",
        tokenizer="unigram",
        weights_bytes=1_112_201_288,
    ),
    EmbeddingModel.ALL_MINILM_L6_V2: ModelDescription(
        slug="all-minilm-l6-v2",
        model_id="sentence-transformers/all-MiniLM-L6-v2",
        native_dimensions=384,
        max_tokens=256,
        pooling="mean",
        key_version="v2",
        license="Apache-2.0",
        architecture="bert",
        tokenizer="wordpiece",
        weights_bytes=90_868_376,
    ),
    EmbeddingModel.PARAPHRASE_MULTILINGUAL_MINILM_L12_V2: ModelDescription(
        slug="paraphrase-multilingual-minilm-l12-v2",
        model_id="sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
        native_dimensions=384,
        max_tokens=128,
        pooling="mean",
        key_version="v2",
        license="Apache-2.0",
        architecture="bert",
        tokenizer="unigram",
        weights_bytes=470_641_600,
    ),
    EmbeddingModel.QWEN3_EMBEDDING_0_6B: _qwen3("qwen3-embedding-0.6b", "Qwen/Qwen3-Embedding-0.6B", 1024),
    EmbeddingModel.QWEN3_EMBEDDING_4B: _qwen3("qwen3-embedding-4b", "Qwen/Qwen3-Embedding-4B", 2560),
    EmbeddingModel.TEXT_EMBEDDING_3_SMALL: ModelDescription(
        slug="text-embedding-3-small",
        model_id="text-embedding-3-small",
        native_dimensions=1536,
        max_tokens=8191,
        pooling=None,
        is_remote=True,
        key_version="v3",
        license="provider's terms of service",
    ),
}

_ALIASES: dict[str, EmbeddingModel] = {
    "small": EmbeddingModel.BGE_SMALL_EN_V1_5,
    "bge-small": EmbeddingModel.BGE_SMALL_EN_V1_5,
    "base": EmbeddingModel.BGE_BASE_EN_V1_5,
    "bge-base": EmbeddingModel.BGE_BASE_EN_V1_5,
    "large": EmbeddingModel.BGE_LARGE_EN_V1_5,
    "bge-large": EmbeddingModel.BGE_LARGE_EN_V1_5,
    "e5-small": EmbeddingModel.MULTILINGUAL_E5_SMALL,
    "e5-base": EmbeddingModel.MULTILINGUAL_E5_BASE,
    "minilm": EmbeddingModel.ALL_MINILM_L6_V2,
    "all-minilm": EmbeddingModel.ALL_MINILM_L6_V2,
    "paraphrase-multilingual": EmbeddingModel.PARAPHRASE_MULTILINGUAL_MINILM_L12_V2,
    "qwen3": EmbeddingModel.QWEN3_EMBEDDING_0_6B,
    "qwen3-0.6b": EmbeddingModel.QWEN3_EMBEDDING_0_6B,
    "qwen3-4b": EmbeddingModel.QWEN3_EMBEDDING_4B,
    "openai": EmbeddingModel.TEXT_EMBEDDING_3_SMALL,
}


def fold_name(name: str) -> str:
    """Return a name as names are compared: in lower case, without the marks between words."""
    return name.strip().lower().translate({ord(mark): None for mark in "-_."})


_BY_NAME: dict[str, EmbeddingModel] = {
    fold_name(name): model
    for model in EmbeddingModel
    for name in (model.value, model.model_id, *(alias for alias, target in _ALIASES.items() if target is model))
}
