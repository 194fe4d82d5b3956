"""Chat templates drawn from a grammar, some of excessive sizes, and their files."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

from mutation import damage_any_file, mutated_text
from target import Target, add_tests

from lattice_inference import LatticeError
from lattice_inference.tokenizer.chat_template import ChatTemplate
from lattice_inference.tokenizer.chat_template_file import load_chat_template
from lattice_inference.tokenizer.template_environment import _environment

__all__ = ["TARGETS"]

DATA = add_tests("inference", "tokenizer").parent / "data"

from hostile_templates import TEMPLATES  # noqa: E402

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hello <b>you</b> é 漢 \n\t" * 3},
    {"role": "assistant", "content": "hi", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "user", "content": "more"},
]

NUMBERS = ("0", "1", "-1", "2", "7", "60", "1000", "10**5", "10**9", "2**31", "2**63", "-10**9", "1.5", "1e308", "-0.0")
TEXTS = (
    "''",
    "'a'",
    "'ab '",
    "'%2000000000d'",
    "'{:2000000000}'",
    "'<b>'",
    "'é漢'",
    "'a' * 9999",
    "'www.a.b '",
    "'\\n'",
)
LISTS = ("[]", "[1, 2]", "messages", "range(9)", "range(99999)", "[[1], [2]]", "messages[0].items()", "(1, 2)", "'abc'")
MAPPINGS = ("{}", "{'a': 1}", "messages[0]", "{'a': {'b': [1]}}", "dict(a=1)", "namespace(x=1)")
NAMES = ("x", "y", "m", "loop", "ns.x", "ns.y", "bos_token", "messages", "undefined", "loop.index", "varargs", "self")
METHODS = (
    *(
        "upper()",
        "strip()",
        "split()",
        "replace('a', 'aaaaaaaaa')",
        "format(1)",
        "join(messages)",
        "center(10**9)",
        "title()",
    ),
    *(
        "encode()",
        "items()",
        "keys()",
        "get('a')",
        "append(1)",
        "index(1)",
        "count('a')",
        "zfill(10**8)",
        "ljust(10**7)",
    ),
    *(
        "expandtabs(10**9)",
        "format_map({})",
        "__class__",
        "__init__.__globals__",
        "splitlines()",
        "translate({97: 'x' * 99})",
    ),
    *(
        "copy()",
        "pop()",
        "update(a=1)",
        "partition('a')",
        "rsplit('a', 9)",
        "casefold()",
        "startswith('a')",
        "bit_length()",
    ),
)
BINARY = ("+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and", "or", "not in", "is sameas", ">=", "!=")
TESTS = (
    "defined",
    "odd",
    "divisibleby(3)",
    "string",
    "mapping",
    "iterable",
    "none",
    "in [1]",
    "sameas 1",
    "filter",
    "eq 1",
)


class Grammar:
    """Draws templates."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.filters = sorted(_environment().filters)

    def number(self) -> str:
        return self.draw.choice(NUMBERS)

    def expression(self, depth: int = 0) -> str:
        """Return an expression, which may make no sense."""
        draw = self.draw
        kind = draw.randrange(16) if depth < 5 else draw.randrange(5)
        if kind < 5:
            return draw.choice(draw.choice((NUMBERS, TEXTS, LISTS, MAPPINGS, NAMES)))
        inner = self.expression(depth + 1)
        if kind < 8:
            return f"({inner} {draw.choice(BINARY)} {self.expression(depth + 1)})"
        if kind < 11:
            arguments = ", ".join(self.expression(depth + 2) for _ in range(draw.choice((0, 0, 1, 1, 2, 3))))
            if draw.random() < 0.15:
                arguments += (", " if arguments else "") + draw.choice(("width", "n", "default", "attribute", "indent"))
                arguments += f"={self.number()}"
            return f"({inner} | {draw.choice(self.filters)}({arguments}))"
        if kind == 11:
            return f"({inner}).{draw.choice(METHODS)}"
        if kind == 12:
            part = draw.choice(("[0]", "[-1]", "[::-1]", "['content']", "[1:]", "[::10**9]", "[:-2**40]"))
            return f"({inner}){part}"
        if kind == 13:
            return f"({inner} is {draw.choice(TESTS)})"
        if kind == 14:
            return f"({inner} if {self.expression(depth + 1)} else {self.expression(depth + 1)})"
        name = draw.choice(
            ("f", "g", "cycler", "joiner", "dict", "namespace", "range", "raise_exception", "loop", "caller")
        )
        return f"{name}({inner})" if draw.random() < 0.9 else f"{name}(*{inner}, **{self.expression(depth + 1)})"

    def body(self, depth: int = 0) -> str:
        """Return statements."""
        return "".join(self.statement(depth) for _ in range(self.draw.randint(1, 3)))

    def statement(self, depth: int) -> str:
        """Return one statement."""
        draw = self.draw
        kind = draw.randrange(13) if depth < 4 else draw.randrange(3)
        if kind < 2:
            return f"{{{{ {self.expression()} }}}}"
        if kind == 2:
            return draw.choice(("text ", "<|im_start|>", "{# comment #}", "x" * 5_000, "{{ '{{' }}", "é漢\n"))
        inner = self.body(depth + 1)
        if kind < 6:
            name, of = draw.choice(("x", "m", "x, y")), draw.choice((*LISTS, self.expression()))
            extra = draw.choice(("", "", "", f" if {self.expression()}", " recursive"))
            other = f"{{% else %}}{self.body(depth + 1)}" if draw.random() < 0.2 else ""
            return f"{{% for {name} in {of}{extra} %}}{inner}{other}{{% endfor %}}"
        if kind == 6:
            return f"{{% if {self.expression()} %}}{inner}{{% elif {self.expression()} %}}{inner}{{% endif %}}"
        if kind == 7:
            return f"{{% set {draw.choice(('x', 'y', 'ns.x', 'ns.y', 'x, y'))} = {self.expression()} %}}"
        if kind == 8:
            return f"{{% macro {draw.choice('fg')}(n=3, m=1) %}}{inner}{{% endmacro %}}{{{{ f({self.number()}) }}}}"
        if kind == 9:
            return f"{{% set {draw.choice('xy')} %}}{inner}{{% endset %}}"
        if kind == 10:
            return f"{{% filter {draw.choice(self.filters)} %}}{inner}{{% endfilter %}}"
        if kind == 11:
            return f"{{% call(n) {draw.choice('fg')}({self.expression()}) %}}{inner}{{% endcall %}}"
        return draw.choice(
            (
                f"{{% with x = {self.expression()} %}}{inner}{{% endwith %}}",
                f"{{% generation %}}{inner}{{% endgeneration %}}",
                f"{{% autoescape true %}}{inner}{{% endautoescape %}}",
                f"{{% block b{depth}{draw.randrange(99)} %}}{inner}{{% endblock %}}",
                "{% include 'a' %}",
                "{% import 'a' as b %}",
                "{% extends 'a' %}",
                "{% do 1 %}{% break %}",
                "{% raw %}{{ x }}{% endraw %}",
            )
        )

    def template(self) -> str:
        """Return a template."""
        start = "{% set ns = namespace(x='a', y=[1]) %}"
        loop = self.draw.choice(("", "", "{% for i in range(60) %}"))
        return start + loop + self.body() + ("{% endfor %}" if loop else "")


def make_templates(folder: Path) -> None:
    """Write templates of published models, and some that would grow without end."""
    published = json.loads((DATA / "chat" / "templates.json").read_text(encoding="utf-8"))
    found: list[str] = []

    def collect(value: object) -> None:
        if isinstance(value, dict):
            for inner in value.values():
                collect(inner)
        elif isinstance(value, list):
            for inner in value:
                collect(inner)
        elif isinstance(value, str) and "{%" in value:
            found.append(value)

    collect(published)
    draw = random.Random(0)
    hostile = [source for source in TEMPLATES.values() if len(source) < 5_000]
    for number, source in enumerate(["{{ messages }}", *found[:12], *draw.sample(hostile, 12)]):
        (folder / f"{number:02}").mkdir()
        (folder / f"{number:02}" / "template.jinja").write_text(source, encoding="utf-8")


def damage_template(folder: Path, draw: random.Random) -> None:
    """Draw a template from the grammar, or change one, or join two."""
    path = folder / "template.jinja"
    source = path.read_text(encoding="utf-8")
    kind = draw.randrange(10)
    if kind < 6:
        source = Grammar(draw).template()
    elif kind < 8:
        source = mutated_text(source, draw)
    elif kind == 8:
        source += Grammar(draw).template()
    else:
        source = draw.choice(list(TEMPLATES.values())) + mutated_text(source, draw)
    path.write_text(source, encoding="utf-8", errors="surrogatepass")


def use_template(folder: Path) -> None:
    """Render it in each way that a session does."""
    try:
        source = (folder / "template.jinja").read_bytes().decode("utf-8", "surrogatepass")
        template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    except LatticeError:
        return
    for call in (
        lambda: template.render(MESSAGES),
        lambda: template.render_marked(MESSAGES, add_generation_prompt=True),
        template.answer_end,
    ):
        with contextlib.suppress(LatticeError):
            call()


def make_files(folder: Path) -> None:
    """Write templates in the files that models have them in."""
    source = "{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    for name in ("config", "list", "file", "folder"):
        made = folder / name
        made.mkdir()
        settings: dict[str, object] = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}}
        if name == "config":
            settings["chat_template"] = source
        elif name == "list":
            templates = [{"name": "default", "template": source}, {"name": "tool_use", "template": source}]
            settings["chat_template"] = templates
        elif name == "file":
            (made / "chat_template.jinja").write_text(source)
        else:
            (made / "chat_template.json").write_text(json.dumps({"chat_template": source}))
            (made / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>", "pad_token": "<p>"}))
        (made / "tokenizer_config.json").write_text(json.dumps(settings))


def use_files(folder: Path) -> None:
    """Load the template of a folder and render it."""
    template = load_chat_template(folder)
    if template is not None:
        template.render(MESSAGES)
        template.answer_end()


ERRORS = (LatticeError,)

TARGETS = [
    Target("chat-templates", make_templates, damage_template, use_template, ERRORS),
    Target("chat-template-files", make_files, damage_any_file, use_files, ERRORS),
]
