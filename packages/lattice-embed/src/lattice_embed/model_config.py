"""A model together with the length of the vectors asked of it."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Self

from lattice_embed.catalogue import EmbeddingModel, ModelDescription
from lattice_embed.embedding_key import DistanceMetric, EmbeddingKey, VectorDType, VectorNorm
from lattice_embed.errors import InvalidModelConfigError

__all__ = ["MIN_MRL_OUTPUT_DIM", "ModelConfig"]

MIN_MRL_OUTPUT_DIM = 32
"""The shortest vector that may be asked of a model trained for shorter vectors."""


@dataclass(frozen=True)
class ModelConfig:
    """A model and, where it was trained for that (Matryoshka), a shorter output dimension.

    Vectors of different dimensions are different embedding spaces: never put them in one index.

    Args:
        model: a catalogue member, or the description of a model of your own.
        output_dim: length of the vectors; ``None`` for the model's native length.

    Raises:
        InvalidModelConfigError: the model was not trained for shorter vectors, or ``output_dim`` is outside
            ``[MIN_MRL_OUTPUT_DIM, native dimensions]``.

    >>> from lattice_embed import EmbeddingModel
    >>> ModelConfig(EmbeddingModel.QWEN3_EMBEDDING_0_6B, output_dim=256).dimensions
    256
    >>> ModelConfig(EmbeddingModel.QWEN3_EMBEDDING_0_6B).dimensions
    1024
    """

    model: EmbeddingModel | ModelDescription
    output_dim: int | None = None

    def __post_init__(self) -> None:
        self.validate()

    @classmethod
    def try_new(cls, model: EmbeddingModel | ModelDescription, output_dim: int | None = None) -> Self:
        """Return the configuration, as the constructor does.

        The Rust crate has this name for it.

        Raises:
            ModelConfigError: as the constructor.
        """
        return cls(model, output_dim)

    def validate(self) -> None:
        """Check the fields again.

        They may be wrong only if the configuration was altered by force.

        Raises:
            ModelConfigError: as the constructor.
        """
        if not isinstance(self.model, EmbeddingModel | ModelDescription):
            raise InvalidModelConfigError(
                f"model is a {type(self.model).__name__}; pass an EmbeddingModel (EmbeddingModel.parse reads names)"
            )
        if self.output_dim is None:
            return
        slug = self.description.slug
        if isinstance(self.output_dim, bool):
            raise InvalidModelConfigError("output_dim is a bool; pass a number of dimensions or None")
        try:
            dimension = operator.index(self.output_dim)
        except TypeError:
            raise InvalidModelConfigError(f"output_dim is {self.output_dim!r}; pass an integer or None") from None
        object.__setattr__(self, "output_dim", dimension)
        if not self.description.supports_output_dim:
            raise InvalidModelConfigError(
                f"{slug} was not trained for shorter vectors (output_dim={dimension}): leave output_dim out "
                f"for its {self.description.native_dimensions} dimensions"
            )
        if not MIN_MRL_OUTPUT_DIM <= dimension <= self.description.native_dimensions:
            raise InvalidModelConfigError(
                f"output_dim={dimension} is outside [{MIN_MRL_OUTPUT_DIM}, {self.description.native_dimensions}], "
                f"the range that {slug} allows"
            )

    @property
    def description(self) -> ModelDescription:
        """What is known about the model."""
        return self.model.description if isinstance(self.model, EmbeddingModel) else self.model

    @property
    def dimensions(self) -> int:
        """Length of the vectors: ``output_dim``, or the model's native dimensions."""
        return self.output_dim if self.output_dim is not None else self.description.native_dimensions

    def to_embedding_key(
        self,
        *,
        revision: str | None = None,
        metric: DistanceMetric = DistanceMetric.COSINE,
        dtype: VectorDType = VectorDType.FLOAT32,
        norm: VectorNorm = VectorNorm.UNIT,
    ) -> EmbeddingKey:
        """Return the key of the embedding space: different output dimensions have different keys.

        Args:
            revision: the weights' revision; by default the catalogue's version of the space.
            metric, dtype, norm: how the vectors are compared and stored.
        """
        version = self.description.key_version if revision is None else revision
        return EmbeddingKey(self.description.slug, version, self.dimensions, metric, dtype, norm)
