"""Texts to vectors as a step of scikit-learn."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

from lattice_embed.argument_checks import check_flag
from lattice_embed.catalogue import Role
from lattice_embed.errors import InvalidInputError
from lattice_embed.integrations.missing_library import missing_library
from lattice_embed.integrations.service_choice import ModelOrService, choose_service
from lattice_embed.result import Float32Array
from lattice_embed.validation import check_iterable, check_role
from lattice_inference.precision import Precision

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted
except ModuleNotFoundError as _error:
    raise missing_library(_error, "scikit-learn") from _error

if TYPE_CHECKING:
    from lattice_embed.native_service import Truncate

__all__ = ["LatticeVectorizer"]

SERVICE_OPTIONS: dict[str, Any] = {
    "output_dim": None,
    "precision": "float32",
    "threads": None,
    "truncate": "right",
    "max_tokens": None,
    "cache": None,
}
"""Parameters that are options of a service, with their defaults."""


class LatticeVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Transforms a column of texts into vectors, in a ``Pipeline`` or ``ColumnTransformer``.

    Nothing is learned: :meth:`fit` makes the service and checks that there are texts. A clone or a pickled copy loads
    the model again when it is used. A service given as ``model`` is not shared among clones.

    Args:
        model: a name, hub id, directory, or any :class:`~lattice_embed.EmbeddingService`; ``None`` takes the default model.
        role: ``"generic"``, ``"query"`` or ``"passage"``: which of the model's prompts is put before each text.
        normalize: scale the vectors to length 1.
        output_dim, precision, threads, truncate, max_tokens, cache: as for :class:`~lattice_embed.NativeEmbeddingService`;
            not beside a service.

    Attributes:
        service_: the service; close it when you are done.
    """

    def __init__(
        self,
        model: ModelOrService | None = None,
        *,
        role: Role | str = "generic",
        normalize: bool = True,
        output_dim: int | None = None,
        precision: Precision = "float32",
        threads: int | None = None,
        truncate: Truncate = "right",
        max_tokens: int | None = None,
        cache: str | os.PathLike[str] | bool | None = None,
    ) -> None:
        self.model = model
        self.role = role
        self.normalize = normalize
        self.output_dim = output_dim
        self.precision = precision
        self.threads = threads
        self.truncate = truncate
        self.max_tokens = max_tokens
        self.cache = cache

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803
        """Make the service. The texts are looked at, not embedded.

        Raises:
            InvalidInputError: ``X`` is no column of texts, or a parameter is wrong.
            ModelNotFoundError, UnsupportedModelError: the model cannot be loaded.
        """
        _texts(X)
        check_role(self.role)
        check_flag("normalize", self.normalize)
        given = {name: getattr(self, name) for name in SERVICE_OPTIONS}
        options: Any = {name: value for name, value in given.items() if value != SERVICE_OPTIONS[name]}
        service = choose_service(self.model, options)
        self._n_features_out = service.model_config().dimensions
        self.service_ = service
        return self

    def transform(self, X: Any) -> Float32Array:  # noqa: N803
        """Return the vectors of texts.

        Args:
            X: a list, an array or a column of n texts; a table or an array of one column is read as that column.

        Returns:
            float32 array of shape (n, dim), or what ``set_output`` asks for.

        Raises:
            NotFittedError: :meth:`fit` was not called.
            InvalidTextError: a text is missing, or no str; it is named by its position.
        """
        check_is_fitted(self)
        return self.service_.encode(_texts(X), role=check_role(self.role), normalize=self.normalize)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags


def _texts(column: Any) -> list[Any]:
    """Return a column of texts as a list."""
    shape = getattr(column, "shape", None)
    if isinstance(shape, tuple) and len(shape) == 2 and shape[1] == 1:
        if hasattr(column, "iloc"):  # pandas
            column = column.iloc[:, 0]
        else:  # polars, NumPy
            column = column.to_series(0) if hasattr(column, "to_series") else column[:, 0]
    elif isinstance(shape, tuple) and len(shape) > 1 and not hasattr(column, "columns"):
        raise InvalidInputError(f"X has shape {shape}: pass one column of texts")
    return list(check_iterable(column))
