"""Jinja's sandbox for chat templates; every call and every created value costs budget."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from lattice_inference.errors import ModelConfigError
from lattice_inference.tokenizer.template_budget import (
    ITEM,
    MOST_TEMPLATE_CHARACTERS,
    MOST_TEMPLATE_TOKENS,
    TemplateCostError,
    current_budget,
    each,
    weigh,
)
from lattice_inference.tokenizer.template_filters import bounded_filters, bounded_tests
from lattice_inference.tokenizer.template_guard import CHARGES, compared_texts, escapes_output, guard, marks_html
from lattice_inference.tokenizer.template_methods import (
    Clock,
    charge_method,
    checked_integer,
    is_method,
    modulo_size,
    raise_exception,
    widths_in,
)
from lattice_inference.tokenizer.user_text import (
    UserText,
    concatenated,
    has_users_text,
    method_result,
    shown,
    tracked,
)

if TYPE_CHECKING:
    from jinja2 import Template, nodes
    from jinja2.lexer import Token, TokenStream
    from jinja2.parser import Parser
    from jinja2.runtime import Context

__all__ = ["CompiledTemplate", "compile_template"]

_ESCAPED = 6


class CompiledTemplate(NamedTuple):
    """A template that can be rendered within a budget.

    Attributes:
        template: Jinja's.
        compared: the texts that it compares something with, such as roles.
        marks_html: whether it may mark text as HTML.
        escapes_output: whether it has all escaped that it puts out.
    """

    template: Template
    compared: frozenset[str]
    marks_html: bool
    escapes_output: bool

    def render(self, values: dict[str, Any]) -> str:
        """Return the text; raise whatever the template raises."""
        context = self.template.new_context(values)
        environment = self.template.environment
        text: str = environment.concat(self.template.root_render_func(context))
        return text


def _counted(stream: Iterable[Token]) -> Iterator[Token]:
    for count, token in enumerate(stream):
        if count > MOST_TEMPLATE_TOKENS:
            raise TemplateCostError(f"it has more than {MOST_TEMPLATE_TOKENS:,} words and signs")
        yield token


class BoundFormat:
    """The method ``format`` of a text, or ``format_map``."""

    def __init__(self, environment: Any, text: str, *, takes_map: bool) -> None:
        self._environment, self._text, self._takes_map = environment, text, takes_map

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """Format."""
        if self._takes_map:
            if kwargs or len(args) != 1:
                raise TypeError("format_map() takes exactly one argument")
            (kwargs,), args = args, ()
        current_budget().spend(1, len(self._text))
        formatter = self._environment.formatter()
        if not current_budget().tracks_users:
            return str(formatter.vformat(self._text, args, kwargs))
        return str(tracked(formatter.vformat, (self._text, args, kwargs), {}))


def _may_be_called(value: Any) -> bool:
    kinds, functions, owners = _callable_kinds()
    if isinstance(value, kinds) or any(value is function for function in functions):
        return True
    owner = getattr(value, "__self__", None)
    return isinstance(owner, owners) and value.__name__ in ("changed", "cycle", "next", "reset")


@functools.cache
def _callable_kinds() -> tuple[tuple[type, ...], tuple[Any, ...], tuple[type, ...]]:
    """Return kinds and functions that a template may call, and the kinds with allowed methods."""
    from jinja2 import Undefined
    from jinja2.runtime import BlockReference, LoopContext, Macro
    from jinja2.utils import Cycler, Joiner, Namespace

    kinds = (Macro, LoopContext, BlockReference, Joiner, Undefined, Clock, BoundFormat)
    return kinds, (_bounded_range, raise_exception, dict, Cycler, Joiner, Namespace), (LoopContext, Cycler)


def _charge_joined(operator: str, left: Any, right: Any) -> None:
    """Charge an operator on texts and lists."""
    if operator == "+":
        size = _length(left) + _length(right)
    elif operator == "*":
        many, times = (left, right) if isinstance(right, int) else (right, left)
        size = _length(many) * times if isinstance(times, int) else 0
    elif operator == "%" and isinstance(left, str):
        size = modulo_size(left, right)
    else:
        return
    if hasattr(left, "__html__") or hasattr(right, "__html__"):
        size *= _ESCAPED
    current_budget().spend(1, size)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else ITEM * len(value) if isinstance(value, (list, tuple)) else 1


def _bounded_range(*args: int) -> range:
    numbers = range(*args)
    current_budget().spend(1)
    if len(numbers) > _LONGEST_RANGE:
        raise TemplateCostError(f"a range has {len(numbers):,} numbers; the limit is {_LONGEST_RANGE:,}")
    return numbers


_LONGEST_RANGE = 100_000  # the sandbox's own limit


@functools.cache
def _environment() -> Any:
    """Return the sandbox; made here, because importing Lattice must not need Jinja."""
    from jinja2 import nodes, pass_context
    from jinja2.ext import Extension, loopcontrols
    from jinja2.runtime import LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
    from jinja2.utils import Cycler, Joiner, Namespace

    class Generation(Extension):  # type: ignore[misc]
        """The block ``generation``, which marks answers for training: here just its content."""

        tags = {"generation"}  # noqa: RUF012 -- Jinja's own attribute, read once a class

        def parse(self, parser: Parser) -> nodes.Node:
            """Return the content of the block."""
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

        def filter_stream(self, stream: TokenStream) -> Iterable[Token]:
            """Count the words of a template as they are read."""
            return _counted(stream)

    class Formatter(SandboxedFormatter):  # type: ignore[misc]
        """The sandbox's ``str.format``, bounded."""

        def format_field(self, value: Any, format_spec: str) -> Any:
            """Charge the width that a field asks for."""
            current_budget().spend(2, weigh(value) + widths_in(format_spec))
            return super().format_field(value, format_spec)

        def convert_field(self, value: Any, conversion: Any) -> Any:
            """Charge what ``!r`` and ``!s`` make."""
            current_budget().spend(1, weigh(value))
            return super().convert_field(value, conversion)

    class Environment(ImmutableSandboxedEnvironment):  # type: ignore[misc]
        """The sandbox, with every call and every operator charged."""

        def formatter(self) -> Formatter:
            """Return the bounded formatter."""
            return Formatter(self)

        intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

        def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
            """Charge an operator, then carry it out."""
            if isinstance(left, (str, list, tuple)) or isinstance(right, (str, list, tuple)):
                _charge_joined(operator, left, right)
            elif operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
                checked_integer(operator, left, right)
            if current_budget().tracks_users and (isinstance(left, str) or isinstance(right, str)):
                return tracked(self.binop_table[operator], (left, right), {})
            return self.binop_table[operator](left, right)

        @staticmethod
        def concat(texts: Iterable[str]) -> str:
            """Join what was put out, with the marks of users' text."""
            return concatenated(texts)

        def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 -- names are free for kwargs
            """Charge a call, then make it; refuse to call what no template needs to."""
            current_budget().spend(4 + len(args) + len(kwargs))
            if is_method(__obj):
                kwargs.pop("_loop_vars", None)
                kwargs.pop("_block_vars", None)
                args = charge_method(__obj, args, kwargs)
                if current_budget().tracks_users and isinstance(__obj.__self__, str):
                    return method_result(__obj.__self__, __obj.__name__, args, kwargs)
                return __obj(*args, **kwargs)
            if not _may_be_called(__obj):
                raise TypeError(f"a chat template cannot call a {type(__obj).__name__}")
            if isinstance(__obj, LoopContext):
                args = tuple(map(each, args))
            elif __obj is dict or __obj is Namespace:
                current_budget().spend(1, 4 * sum(map(weigh, args)) + 4 * ITEM * len(kwargs))
            elif isinstance(getattr(__obj, "__self__", None), LoopContext):
                weigh(args)  # what has changed is compared
            made = __context.call(__obj, *args, **kwargs)
            if type(made) is str:
                current_budget().spend(0, len(made))
                if current_budget().tracks_users and isinstance(__obj, (Clock, Joiner)) and has_users_text(list(args)):
                    return UserText(made)
            return made

        def getitem(self, obj: Any, argument: Any) -> Any:
            """Charge the look at a key that is no text and no number."""
            if not isinstance(argument, (str, int)):
                weigh(argument)
            return super().getitem(obj, argument)

        def wrap_str_format(self, value: Any) -> Any:
            """Return the bounded form of a text's method ``format``."""
            if (
                not is_method(value)
                or value.__name__ not in ("format", "format_map")
                or not isinstance(value.__self__, str)
            ):
                return None
            return BoundFormat(self, value.__self__, takes_map=value.__name__ == "format_map")

    @pass_context  # type: ignore[untyped-decorator]
    def _finalize(context: Context, value: Any) -> Any:
        """Charge what is put out."""
        size = len(value) if type(value) is str else weigh(value)
        if context.eval_ctx.autoescape:
            size *= _ESCAPED
        budget = current_budget()
        budget.characters -= size
        if budget.characters < 0:
            budget.spend(0)
        return shown(value) if budget.tracks_users else value

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, optimized=False, finalize=_finalize, extensions=[Generation, loopcontrols]
    )
    environment.filters = bounded_filters(environment.filters) | {
        name: pass_context(charge) for name, charge in CHARGES.items()
    }
    environment.tests = bounded_tests(environment.tests)
    environment.globals = {
        "range": _bounded_range,
        "dict": dict,
        "cycler": Cycler,
        "joiner": Joiner,
        "namespace": Namespace,
        "raise_exception": raise_exception,
    }
    return environment


@functools.lru_cache(maxsize=32)
def compile_template(source: str) -> CompiledTemplate:
    """Compile a template.

    Raises:
        ModelConfigError: it is not valid Jinja, or too large.
    """
    if len(source) > MOST_TEMPLATE_CHARACTERS:
        raise ModelConfigError(
            f"the chat template has {len(source):,} characters; the limit is {MOST_TEMPLATE_CHARACTERS:,}"
        )
    from jinja2 import TemplateSyntaxError

    environment = _environment()
    try:
        tree = environment.parse(source)
        about = compared_texts(tree), marks_html(tree), escapes_output(tree)
        guard(tree)
        return CompiledTemplate(environment.from_string(tree), *about)
    except TemplateSyntaxError as error:
        raise ModelConfigError(
            f"the chat template is not valid Jinja: {error.message} (line {error.lineno})"
        ) from error
    except RecursionError:
        raise ModelConfigError("the chat template is nested too deeply") from None
    except TemplateCostError as error:
        raise ModelConfigError(f"the chat template is too large: {error}") from None
    except ModelConfigError:
        raise
    except Exception as error:  # of the Python that Jinja makes of it, such as loops nested too deeply for that
        raise ModelConfigError(f"the chat template cannot be compiled: {str(error)[:200]}") from error
