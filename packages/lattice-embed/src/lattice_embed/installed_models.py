"""Which models of the catalogue are on this machine, for those whose model is not."""

from __future__ import annotations

from lattice_embed.catalogue import EmbeddingModel
from lattice_embed.model_source import resolve_model

__all__ = ["installed_models", "what_to_do_instead"]


def installed_models() -> tuple[EmbeddingModel, ...]:
    """Return the models of the catalogue whose files are here.

    Nothing is opened but directories, and no server is asked.
    """
    from lattice_embed.errors import InvalidInputError
    from lattice_inference.files.hub import describe_sources

    found = []
    for model in EmbeddingModel:
        if model.is_remote:
            continue
        try:
            sources = describe_sources(resolve_model(model).location)
        except InvalidInputError:  # a variable names a directory that does not exist
            continue
        if any(source.found and source.source != "hub" for source in sources):
            found.append(model)
    return tuple(found)


def what_to_do_instead(model: EmbeddingModel) -> str:
    """Return the sentences that follow the error of a model that is not here."""
    here = ", ".join(other.slug for other in installed_models() if other is not model)
    said = f"On this machine {'are' if ',' in here else 'is'} {here}: pass that as the model" if here else ""
    download = f"`lattice-embed download {model.slug}` downloads the model (with lattice-embed[hub])"
    return ". ".join(filter(None, (said, download)))
