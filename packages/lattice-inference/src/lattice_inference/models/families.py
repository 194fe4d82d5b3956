"""The table of model families, and the search for the family of a model's files."""

from __future__ import annotations

from collections.abc import Mapping

from lattice_inference.errors import UnsupportedError
from lattice_inference.models.bert_family import BERT
from lattice_inference.models.config_fields import ConfigFields, shown
from lattice_inference.models.family import AnyFamily
from lattice_inference.models.llama_family import LLAMA
from lattice_inference.models.qwen3_family import QWEN3
from lattice_inference.models.qwen35_family import QWEN35
from lattice_inference.models.static import STATIC
from lattice_inference.models.weight_check import refuse_adapter_file

__all__ = ["FAMILIES", "family_of_config", "family_of_gguf", "runs_as_encoder"]

#: Every family that is built.
FAMILIES: tuple[AnyFamily, ...] = (BERT, LLAMA, QWEN3, QWEN35, STATIC)


def family_of_config(mapping: Mapping[str, object], source: str, *, causal: bool | None = None) -> AnyFamily:
    """Return the family of a parsed ``config.json``, by its ``model_type``.

    The ``model_type`` of its ``text_config`` counts as well.

    Args:
        mapping: the content.
        source: its name in messages.
        causal: search the language models (True) or the models of whole texts (False); by default all families.

    Raises:
        ModelConfigError: ``model_type`` is missing or no text.
        UnsupportedError: no such family is built.
    """
    families = _families(causal)
    inner = mapping.get("text_config")
    inner_type = inner.get("model_type") if isinstance(inner, dict) else None
    for family in families:
        if inner_type in family.text_model_types:
            return family
    model_type = ConfigFields(mapping, source).text("model_type")
    for family in families:
        if model_type in family.model_types:
            return family
    known = ", ".join(repr(name) for family in families for name in family.model_types)
    other = _hint(causal, {name for family in _others(causal) for name in family.model_types}, model_type)
    raise UnsupportedError(f"{source}: model_type is {shown(model_type)}; built are {known}{other}")


def family_of_gguf(metadata: Mapping[str, object], source: str, *, causal: bool | None = None) -> AnyFamily:
    """Return the family of an open GGUF file, by its ``general.architecture``.

    The arguments are those of :func:`family_of_config`.

    Raises:
        ModelConfigError: ``general.architecture`` is missing or no text.
        UnsupportedError: no such family is built, or the file holds an adapter.
    """
    fields = ConfigFields(metadata, source)
    refuse_adapter_file(fields)
    architecture = fields.text("general.architecture")
    families = _families(causal)
    for family in families:
        if family.read_gguf is not None and architecture in family.gguf_architectures:
            return family
    kind = {None: "models", True: "decoders", False: "encoders"}[causal]
    known = ", ".join(repr(name) for family in families for name in family.gguf_architectures)
    other = _hint(causal, {name for family in _others(causal) for name in family.gguf_architectures}, architecture)
    raise UnsupportedError(
        f"{source}: general.architecture is {architecture!r:.60}; of {kind} in GGUF files, {known} "
        f"{'are' if ',' in known else 'is'} built{other}"
    )


def runs_as_encoder(model_type: str) -> bool:
    """Whether models with this ``model_type`` can be loaded as encoders."""
    return any(model_type in family.model_types for family in _families(causal=False))


def _families(causal: bool | None) -> list[AnyFamily]:
    return [family for family in FAMILIES if causal is None or (family.is_causal if causal else family.encodes)]


def _others(causal: bool | None) -> list[AnyFamily]:
    """The families of the other kind: encoders if language models were searched."""
    return [] if causal is None else _families(not causal)


def _hint(causal: bool | None, names: set[str], name: str) -> str:
    """What a model of the other kind is run with; empty if it is none."""
    if name not in names:
        return ""
    if causal:
        return f". {name!r} is an encoder, which generates no text: load_encoder and lattice-embed run it"
    return f". {name!r} is a language model, which gives no vectors: load_model and `lattice generate` run it"
