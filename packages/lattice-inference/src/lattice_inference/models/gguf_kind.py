"""What a GGUF file is for, by its ``general.type``."""

from __future__ import annotations

from lattice_inference.errors import UnsupportedError
from lattice_inference.models.config_fields import ConfigFields

__all__ = ["refuse_adapter_file"]


def refuse_adapter_file(fields: ConfigFields) -> None:
    """Raise UnsupportedError if the file with the metadata ``fields`` holds an adapter and no model."""
    if fields.text("general.type", default="model") == "adapter":
        raise UnsupportedError(
            f"{fields.source}: general.type is 'adapter', and adapters are not applied here: merge it into its model (with "
            "llama.cpp: llama-export-lora) and load the result"
        )
