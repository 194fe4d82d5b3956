"""Chat templates that would take an hour, or all memory: each ends in an error while it is small."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lattice_inference.errors import InvalidInputError, ModelConfigError
from lattice_inference.tokenizer.chat_template import ChatTemplate
from lattice_inference.tokenizer.template_environment import _environment

from .hostile_templates import LARGE_SOURCES, TEMPLATES

ASKED = [{"role": "user", "content": "hello"}]
SECONDS = 3  # of the processor, where it is idle at most half a second


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_over_its_budget_ends_soon(name):
    start = time.process_time()
    with pytest.raises((InvalidInputError, ModelConfigError), match="chat template"):
        ChatTemplate(TEMPLATES[name]).render(ASKED)
    assert time.process_time() - start < SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_SOURCES)
def test_a_template_that_takes_long_to_compile_is_refused(name):
    start = time.process_time()
    with pytest.raises((InvalidInputError, ModelConfigError), match="chat template"):
        ChatTemplate(LARGE_SOURCES[name]).render(ASKED)
    assert time.process_time() - start < SECONDS


CHILD = """
import resource, sys
from lattice_inference.errors import LatticeError
from lattice_inference.tokenizer.chat_template import ChatTemplate
from {module} import LARGE_SOURCES, TEMPLATES

asked = [{{"role": "user", "content": "hello"}}]
ChatTemplate("{{{{ messages | tojson }}}}").render(asked)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name, source in (TEMPLATES | LARGE_SOURCES).items():
    try:
        ChatTemplate(source).render(asked)
    except LatticeError:
        pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_templates_over_their_budgets_stay_small():
    code = CHILD.format(module="hostile_templates")
    made = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(made.stdout) < 100 * 1024  # KiB


HUGE = ["10**9", "'x' * 1000000", "[[1] * 1000] * 1000", "-10**9", "{'a': 'b' * 1000000}"]
CHOICE = "{% set huge = [" + ", ".join(HUGE) + "][which] %}"
ARGUMENTS = ("huge", "huge, huge")
VALUES = (
    "'ab \\n' * 100000",
    "range(10000) | list",
    "{'a': 'b' * 100000}",
    "7",
    "7.5",
    "('<' | e)",
    "range(9)",
    "(1, 2)",
)


def _try(source, **variables):
    """Render, and refuse to wait."""
    start = time.process_time()
    with contextlib.suppress(InvalidInputError, ModelConfigError):
        ChatTemplate(source).render(ASKED, **variables)
    assert time.process_time() - start < SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("value", VALUES)
def test_every_filter_is_bounded_whatever_its_arguments(value):
    for name in sorted(_environment().filters):
        _try(f"{{{{ {value} | {name} | string | length }}}}")
        for arguments in ARGUMENTS:
            for which in range(len(HUGE)):
                _try(CHOICE + f"{{{{ {value} | {name}({arguments}) | string | length }}}}", which=which)


OWNERS = ["", [], (), {}, 7, 7.5, range(9)]


@pytest.mark.slow
@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: type(owner).__name__)
def test_every_method_is_bounded_whatever_its_arguments(owner):
    value = {str: VALUES[0], list: VALUES[1], dict: VALUES[2], tuple: VALUES[7]}.get(type(owner), repr(owner))
    for name in dir(owner):
        if not name.startswith("_"):
            source = "{% set v = VALUE %}{% for i in range(99) %}{{ v.NAME(ARGS) | string | length }}{% endfor %}"
            source = source.replace("VALUE", value).replace("NAME", name)
            _try(source.replace("ARGS", ""))
            for arguments in ARGUMENTS:
                for which in range(len(HUGE)):
                    _try(CHOICE + source.replace("ARGS", arguments), which=which)


@pytest.mark.slow
@pytest.mark.parametrize("value", VALUES)
def test_every_test_is_bounded_whatever_it_looks_at(value):
    for name in sorted(_environment().tests):
        source = "{% set v = VALUE %}{% for i in range(999) %}{% if v is TEST %}{% endif %}{% endfor %}"
        source = source.replace("VALUE", value).replace("TEST", name)
        _try(source)
        for which in range(len(HUGE)):
            _try(CHOICE + source.replace(f"is {name}", f"is {name}(huge)"), which=which)
