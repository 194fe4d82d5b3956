"""How a model's files say that token states become one vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lattice_inference.argument_checks import check_limit
from lattice_inference.errors import InvalidInputError, ModelConfigError
from lattice_inference.models.family import TextConfig
from lattice_inference.models.opened_model import OpenedModel
from lattice_inference.models.sentence_layers import DenseLayer, NormLayer, SentenceLayer
from lattice_inference.models.sentence_modules import Pooling

if TYPE_CHECKING:
    from lattice_inference.tokenizer import Tokenizer

__all__ = ["LEAST_TOKENS", "EncoderRecipe", "encoder_recipe", "end_token_of"]

LEAST_TOKENS = 3
"""The two special ones and one between them."""


@dataclass(frozen=True)
class EncoderRecipe:
    """How a model directory turns text into a vector."""

    pooling: Pooling
    layers: tuple[SentenceLayer, ...]
    normalize: bool
    max_tokens: int
    lower_case: bool
    prompts: Mapping[str, str]
    dimension: int
    end_token: int | None = None  # what each text ends with, where the tokenizer does not write it
    words_only: bool = False  # whether special and unknown tokens are left out

    @property
    def options(self) -> dict[str, object]:
        """What the options of :func:`load_encoder` are called, and what they are here."""
        return {"pooling": self.pooling.value, "normalize": self.normalize, "max_tokens": self.max_tokens}


def encoder_recipe(
    model: OpenedModel,
    pooling: Literal["cls", "mean", "last"] | None,
    normalize: bool | None,
    max_tokens: int | None,
) -> EncoderRecipe:
    """Return the recipe of a model's files; the arguments are those of :func:`load_encoder`.

    Raises:
        InvalidInputError: no file says how to pool and neither does ``pooling``, or a limit is out of range.
        ModelConfigError: the files contradict each other.
    """
    directory, modules = model.path, model.modules
    config: TextConfig = model.config
    if modules is None and pooling is None:
        lacks = f"{model.metadata.get('general.architecture')}.pooling_type" if model.is_gguf else "modules.json"
        raise InvalidInputError(
            f"{directory} has no {lacks}, so nothing says how token states become one vector: pass "
            "pooling='cls', 'mean' or 'last' as the model's card states (a cross-encoder, which scores pairs, is loaded "
            "by load_cross_encoder)"
        )
    if modules is None:
        most = _limit_of_files(directory, config, None)
        limit = most if max_tokens is None else check_limit(max_tokens, least=LEAST_TOKENS, most=most)
        return EncoderRecipe(
            Pooling(pooling), (), normalize is None or bool(normalize), limit, False, {}, config.hidden_size
        )
    if modules.embedding_dimension not in (None, config.hidden_size):
        raise ModelConfigError(
            f"{directory}: the pooling takes vectors of {modules.embedding_dimension} dimensions, and the model's "
            f"hidden_size is {config.hidden_size}"
        )
    limit = _limit_of_files(directory, config, modules.max_seq_length)
    if max_tokens is not None and (modules.max_seq_length is None or modules.max_seq_length > config.longest_input):
        limit = check_limit(max_tokens, least=LEAST_TOKENS, most=limit)  # no file states one that the model can keep
    return EncoderRecipe(
        modules.pooling,
        modules.layers,
        modules.normalize,
        limit,
        modules.do_lower_case,
        modules.prompts,
        _final_width(directory, config.hidden_size, modules.layers),
    )


def end_token_of(model: OpenedModel, tokenizer: Tokenizer, pooling: Pooling) -> int | None:
    """Return the token to append to each text besides the tokenizer's, or None.

    Raises:
        ModelConfigError: the model wants one and its files do not say which.
    """
    if not model.family.ends_texts or pooling is not Pooling.LAST:
        return None
    written, bare = (tokenizer.encode("a", add_special_tokens=adds).ids.tolist() for adds in (True, False))
    if written[-1:] != bare[-1:]:
        return None
    ends: tuple[int, ...] = model.config.eos_token_ids
    if not ends:
        raise ModelConfigError(f"{model.path}: eos_token_id: is missing, and neither does the tokenizer end a text")
    return ends[0]


def _final_width(directory: Path, width: int, layers: Sequence[SentenceLayer]) -> int:
    """Return the vector's width after ``layers``.

    Each layer must take what the one before gives.
    """
    for layer in layers:
        if isinstance(layer, (DenseLayer, NormLayer)):
            takes = layer.input_width if isinstance(layer, DenseLayer) else layer.width
            if takes != width:
                raise ModelConfigError(
                    f"{directory}: the module {layer.folder!r} takes vectors of {takes} dimensions and is given {width}"
                )
            width = layer.output_width if isinstance(layer, DenseLayer) else width
    return width


def _limit_of_files(directory: Path, config: TextConfig, stated: int | None) -> int:
    """Return the model's token limit: what its files state, within its positions."""
    limit = config.longest_input if stated is None else min(stated, config.longest_input)
    if not limit >= LEAST_TOKENS:
        raise ModelConfigError(
            f"{directory}: the files allow {limit} tokens, and a text needs {LEAST_TOKENS}, of which two are special"
        )
    return limit
