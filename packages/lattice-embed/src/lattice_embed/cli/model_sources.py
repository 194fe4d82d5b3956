"""Where each catalogue model would come from on this machine.

Nothing is downloaded or opened.
"""

from __future__ import annotations

from dataclasses import dataclass

from lattice_embed.catalogue import EmbeddingModel
from lattice_embed.model_source import resolve_model
from lattice_embed.native_service import missing_feature
from lattice_inference.files.hub import SourceReport, describe_sources

__all__ = ["ModelReport", "report_models"]


@dataclass(frozen=True)
class ModelReport:
    """What can be said about a model without loading it.

    Attributes:
        model: the catalogue member.
        reason: why this version cannot run it; ``None`` if it can.
        sources: what each place has, in the order in which they are searched; none for a remote model.
    """

    model: EmbeddingModel
    reason: str | None
    sources: tuple[SourceReport, ...]

    @property
    def source(self) -> SourceReport | None:
        """The place that would be used, or ``None`` if there is none."""
        return next((source for source in self.sources if source.found), None)

    @property
    def origin(self) -> str:
        """The place that would be used, for people."""
        if self.model.is_remote:
            return "remote"
        if self.source is None:
            return "nowhere"
        return f"{self.source.source}: {self.source.location}"


def report_models() -> list[ModelReport]:
    """Return a report for each model of the catalogue."""
    return [
        ModelReport(
            model,
            missing_feature(model.description),
            () if model.is_remote else describe_sources(resolve_model(model).location),
        )
        for model in EmbeddingModel
    ]
