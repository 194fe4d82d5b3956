"""An opened encoder, with what follows from its model and its service's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lattice_embed.catalogue import Role
from lattice_embed.model_config import ModelConfig
from lattice_embed.provenance import VectorProvenance
from lattice_inference.precision import Precision

if TYPE_CHECKING:
    from lattice_inference import Encoder

__all__ = ["OpenedEncoder"]


@dataclass(frozen=True)
class OpenedEncoder:
    """An open encoder and what follows from it."""

    encoder: Encoder
    config: ModelConfig
    prompts: Mapping[Role, str]
    precision: Precision
    limit: int | None = None  # of tokens, where the caller wants a lower one than the model's
    adapter: str | None = None  # its name in the encoder
    _provenances: dict[tuple[str, bool], VectorProvenance] = field(default_factory=dict)

    @property
    def max_tokens(self) -> int:
        """Tokens that are read of a text."""
        return self.encoder.max_tokens if self.limit is None else self.limit

    def close(self) -> None:
        """Release the encoder's memory."""
        self.encoder.close()

    def trim(self) -> None:
        """Give the encoder's working memory back."""
        self.encoder.trim()

    def _fingerprint(self) -> str:
        encoder = self.encoder
        adapter = "" if self.adapter is None else encoder.fingerprint_with(self.adapter)
        return encoder.space + adapter.removeprefix(encoder.fingerprint)  # without the device, with an adapter too

    def provenance(self, prompt: str, normalize: bool) -> VectorProvenance:
        """Return all that a vector's bits depend on besides the text.

        The first call reads the model's files.
        """
        known = self._provenances.get((prompt, normalize))
        if known is None:
            from lattice_inference.runtime import NUMERICS_VERSION

            known = VectorProvenance(
                model=self.config.description.slug,
                weights=self._fingerprint() + ("" if self.limit is None else f":first{self.limit}"),
                pooling=self.encoder.pooling,
                prompt=prompt,
                dimensions=self.config.dimensions,
                precision=self.precision,
                normalized=normalize,
                numerics_version=NUMERICS_VERSION,
            )
            self._provenances[prompt, normalize] = known
        return known
