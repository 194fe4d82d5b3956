"""Small drawn models opened for training, with drawn factors."""

from __future__ import annotations

import pytest

from drawn_checkpoints import write_directory
from lattice_inference.training import open_training_program
from training_cases import CASES, RANK, base_case, drawn_factors


@pytest.fixture(scope="session")
def open_case(tmp_path_factory):
    """Return a function that opens a case of training_cases.py with its drawn factors."""
    written = {}

    def opened(name, **options):
        case = CASES[name]
        if case.base not in written:
            written[case.base] = write_directory(tmp_path_factory.mktemp("bases") / case.base, base_case(case.base))
        if case.loss == "vectors":
            options = {"pooling": case.pooling, "normalize": case.normalize, **options}
        options = {"sites": case.sites, "rank": RANK, "scaling": case.scaling, "loss": case.loss, **options}
        program = open_training_program(written[case.base], **options)
        for site in program.sites:
            program.write_factors(site.name, *drawn_factors(site.name, site.inputs, site.outputs))
        return program

    return opened
