"""What a text may have to obey: a JSON Schema, a regular expression, a grammar, a choice."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

from lattice_inference.errors import GrammarError
from lattice_inference.grammar.gbnf import MOST_CHARACTERS, gbnf_to_lark
from lattice_inference.grammar.pattern_costs import check_lark_text, check_optional_parts
from lattice_inference.grammar.schema_gate import MOST_VALUES, checked_schema, parse_schema
from lattice_inference.value_text import value_text

__all__ = ["Choice", "Gbnf", "Grammar", "JsonSchema", "Lark", "MarkedGrammar", "Regex", "literal_pattern"]

Whitespace = Literal["compact", "indented"]
# Without escapes by number a key has one spelling. An escaped "a" would pass for another key, with any value.
_ESCAPES = 'nrbtf\\"'
_WHITESPACE: dict[str, dict[str, object]] = {
    "compact": {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"},
    "indented": {"whitespace_flexible": True, "whitespace_pattern": r"(\n {0,20}| )?"},
}
_LOOK_AROUND = re.compile(r"\(\?(?:[=!]|<[=!])")


@dataclass(frozen=True)
class JsonSchema:
    """A JSON value that a schema describes.

    >>> JsonSchema({"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}).whitespace
    'compact'

    Members of an object come in the order of the schema's ``properties``, others after them.

    Args:
        schema: a mapping, a JSON text, ``True``, or what has a method ``model_json_schema()``, as a Pydantic model.
        whitespace: ``"compact"`` allows one blank after ``:`` and ``,``; ``"indented"`` also line ends, each with up to 20
            blanks after it, between any two parts.

    Raises:
        GrammarError: the schema is malformed, passes a limit, or has a keyword that cannot be enforced.
    """

    schema: Any
    whitespace: Whitespace = "compact"

    def __post_init__(self) -> None:
        if not isinstance(self.whitespace, str) or self.whitespace not in _WHITESPACE:
            raise GrammarError(f"whitespace is {value_text(self.whitespace)}; expected 'compact' or 'indented'")
        schema = self.schema
        if isinstance(schema, str):
            schema = parse_schema(schema)
        elif callable(getattr(schema, "model_json_schema", None)):
            schema = schema.model_json_schema()
        if not isinstance(schema, (Mapping, bool)):
            raise GrammarError(f"a schema is an object, true or false, not {value_text(schema)}")
        checked = checked_schema(schema)
        if checked is False:
            raise GrammarError("the schema is false, which no value obeys", "")
        # One text for equal schemas; the order of members is kept, for it is that of the answer.
        object.__setattr__(
            self, "schema", json.dumps({} if checked is True else checked, ensure_ascii=False, separators=(",", ":"))
        )

    def engine_grammar(self) -> str:
        """Return the grammar as the engine reads it, in JSON."""
        return self._engine_text

    @cached_property
    def _engine_text(self) -> str:  # asked for by every generation
        schema = json.loads(self.schema)
        options = {**_WHITESPACE[self.whitespace], "json_allowed_escapes": _ESCAPES}
        return _lark_grammar(f"start: %json {json.dumps({**schema, 'x-guidance': options})}")

    @classmethod
    def any_object(cls) -> JsonSchema:
        """Return the schema of one object with any members."""
        return cls({"type": "object"})


@dataclass(frozen=True)
class Regex:
    """A text that a regular expression matches from its beginning to its end.

    >>> Regex(r"[0-9]{4}-[0-9]{2}").pattern
    '[0-9]{4}-[0-9]{2}'

    Args:
        pattern: in the syntax of Rust's crate ``regex``, without look-around and references back.

    Raises:
        GrammarError: it is no text, too long, uses look-around, or has over 2,000 optional parts.
    """

    pattern: str

    def __post_init__(self) -> None:
        _check_text("a regular expression", self.pattern)
        if _LOOK_AROUND.search(self.pattern):
            raise GrammarError(f"look-around in {value_text(self.pattern)} cannot be enforced")
        check_optional_parts(self.pattern)

    def engine_grammar(self) -> str:
        """Return the grammar as the engine reads it."""
        return _regex_grammar(self.pattern)


@dataclass(frozen=True)
class Gbnf:
    r"""A text that a grammar in GBNF, llama.cpp's form, describes; its first rule is ``root``.

    >>> Gbnf('root ::= "yes" | "no"').text
    'root ::= "yes" | "no"'

    Args:
        text: the grammar.

    Raises:
        GrammarError: it cannot be read, lacks a rule, or has one that begins with itself.
    """

    text: str

    def __post_init__(self) -> None:
        _check_text("a grammar", self.text)
        self.engine_grammar()

    def engine_grammar(self) -> str:
        """Return the grammar as the engine reads it."""
        return self._engine_text

    @cached_property
    def _engine_text(self) -> str:  # asked for by every generation
        return _lark_grammar(gbnf_to_lark(self.text))


@dataclass(frozen=True)
class Lark:
    """A text that a grammar in the engine's own form describes, which is Lark's with additions.

    Its first rule is ``start``. It is cut into lexemes of the greatest length, as Lark does.

    Args:
        text: the grammar; see https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md.

    Raises:
        GrammarError: it is no text, too long, or has a schema after ``%json`` that a :class:`JsonSchema` refuses. What the
            engine cannot read is told when a generation begins.
    """

    text: str

    def __post_init__(self) -> None:
        _check_text("a grammar", self.text)
        check_lark_text(self.text)
        _check_inner_schemas(self.text)

    def engine_grammar(self) -> str:
        """Return the grammar as the engine reads it."""
        return _lark_grammar(self.text)


@dataclass(frozen=True)
class Choice:
    """One of several texts.

    >>> Choice(["positive", "negative"]).texts
    ('positive', 'negative')

    Args:
        texts: 1 to 10,000 texts, none of them empty.

    Raises:
        GrammarError: there is none, too many, or one that is no text.
    """

    texts: Sequence[str]

    def __post_init__(self) -> None:
        texts = self.texts
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Sequence) or not texts:
            raise GrammarError(f"texts is {value_text(texts)}; expected a list of texts")
        if len(texts) > MOST_VALUES:
            raise GrammarError(f"there are {len(texts):,} texts; at most {MOST_VALUES:,} are taken")
        for text in texts:
            if not isinstance(text, str) or not text:
                raise GrammarError(f"texts holds {value_text(text)}; expected texts of at least one character")
        if sum(map(len, texts)) > MOST_CHARACTERS:
            raise GrammarError(f"the texts have more than {MOST_CHARACTERS:,} characters")
        for text in texts:
            _check_text("a text", text)
        object.__setattr__(self, "texts", tuple(dict.fromkeys(texts)))

    def engine_grammar(self) -> str:
        """Return the grammar as the engine reads it."""
        return _regex_grammar("|".join(map(literal_pattern, self.texts)))


class MarkedGrammar(Protocol):
    """A grammar that names marks, which are special tokens in some vocabularies."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that may be special tokens."""

    def engine_grammar(self, special_ids: Mapping[str, int] | None = None) -> str:
        """Return the grammar as the engine reads it.

        Args:
            special_ids: the ids of marks that are special tokens.
        """


Grammar = JsonSchema | Regex | Gbnf | Lark | Choice | MarkedGrammar
"""What ``GenerateConfig(grammar=...)`` takes."""


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise GrammarError(f"{what} is a text, not {value_text(text)}")
    if not text:
        raise GrammarError(f"{what} is empty")
    if len(text) > MOST_CHARACTERS:
        raise GrammarError(f"{what} has {len(text):,} characters; at most {MOST_CHARACTERS:,} are taken")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError(f"{what} holds half of a surrogate pair, which UTF-8 cannot spell") from None


def _check_inner_schemas(text: str) -> None:
    """Check the schemas of a Lark grammar, which the engine would read without a limit on time."""
    for match in re.finditer(r"%json\s*(?=[{\[])", text):
        try:
            schema, _ = json.JSONDecoder().raw_decode(text, match.end())
        except (ValueError, RecursionError):
            continue  # text of a literal, or what the engine refuses
        if isinstance(schema, dict):
            schema.pop("x-guidance", None)
            checked_schema(schema)


def _regex_grammar(pattern: str) -> str:
    """Write a pattern in a Lark rule, where a slash and a line end need an escape."""
    escapes = {"/": r"\/", "\n": r"\n", "\r": r"\r"}
    escaped = re.sub(r"(?s)\\.|[/\n\r]", lambda match: escapes.get(match[0], match[0]), pattern)
    return _lark_grammar(f"start: /{escaped}/")


def _lark_grammar(text: str) -> str:
    """Write a grammar in the engine's JSON.

    Without forcing the engine allows every token that fits, not only the one that a tokenizer would write.
    """
    return json.dumps({"grammars": [{"lark_grammar": f'%llguidance {{"no_forcing": true}}\n{text}'}]})


def literal_pattern(text: str) -> str:
    """Return the regular expression that matches this text alone."""
    return "".join([each if each.isascii() and each.isalnum() else f"\\x{{{ord(each):X}}}" for each in text])
