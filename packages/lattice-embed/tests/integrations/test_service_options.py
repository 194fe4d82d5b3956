"""What adapters pass on is what the service takes."""

from __future__ import annotations

import inspect

from lattice_embed import NativeEmbeddingService
from lattice_embed.integrations.service_choice import ServiceOptions


def test_options_of_adapters_are_those_of_the_service() -> None:
    taken = [name for name in inspect.signature(NativeEmbeddingService).parameters if name != "model"]
    assert sorted(ServiceOptions.__annotations__) == sorted(taken)
