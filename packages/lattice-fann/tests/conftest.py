"""What several test files use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lattice_fann import Activation, Network, NetworkBuilder, available_isas, get_num_threads, set_num_threads


@pytest.fixture
def network() -> Network:
    return (
        NetworkBuilder()
        .input(784)
        .hidden(128, Activation.RELU)
        .hidden(64, Activation.RELU)
        .output(10, Activation.SOFTMAX)
        .build(seed=7)
    )


@pytest.fixture(params=available_isas())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    before = get_num_threads()
    yield
    set_num_threads(before)
