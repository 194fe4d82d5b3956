"""The fields that say what an answer obeys: ``grammar`` and ``response_format``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lattice_inference.errors import InvalidInputError
from lattice_inference.serve.fields import Fields
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    from lattice_inference.grammar.specification import Grammar

__all__ = ["GivenGrammar", "format_grammar", "grammar_field", "written_grammar"]

GivenGrammar = tuple[str, str] | None
"""A syntax and a definition in it, as the field ``grammar`` has them."""

_SYNTAXES = ("gbnf", "lark", "regex")


def grammar_field(fields: Fields) -> GivenGrammar:
    """Take the field: a text in GBNF, or an object with ``syntax`` and ``definition``."""
    given = fields.any("grammar")
    if given is None:
        return None
    if isinstance(given, str):
        return "gbnf", given
    if not isinstance(given, dict) or given.get("syntax") not in _SYNTAXES or set(given) != {"syntax", "definition"}:
        names = ", ".join(map(repr, _SYNTAXES))
        fields.refuse("grammar", f"a text in GBNF, or an object of 'syntax' ({names}) and 'definition'")
    if not isinstance(given["definition"], str):
        fields.refuse("grammar", "an object whose 'definition' is a text")
    return given["syntax"], given["definition"]


def written_grammar(given: tuple[str, str]) -> Grammar:
    """Return the grammar of a field.

    Raises:
        GrammarError: it cannot be read.
    """
    from lattice_inference.grammar.specification import Gbnf, Lark, Regex

    syntax, definition = given
    if syntax == "gbnf":
        return Gbnf(definition)
    return Lark(definition) if syntax == "lark" else Regex(definition)


def format_grammar(form: Mapping[str, Any]) -> Grammar | None:
    """Return what an answer obeys by ``response_format``.

    A schema is enforced with ``strict`` and without.

    Raises:
        InvalidInputError: the field is malformed.
        GrammarError: the schema cannot be enforced; its pointer begins at the field.
    """
    kind = form.get("type")
    allowed: Sequence[str] = ("type", "json_schema") if kind == "json_schema" else ("type",)
    for name in form:
        if name not in allowed:
            raise InvalidInputError(f"response_format.{name} is not supported")
    if kind == "text":
        return None
    from lattice_inference.grammar.specification import JsonSchema

    if kind == "json_object":
        return JsonSchema.any_object()
    if kind != "json_schema":
        raise InvalidInputError(
            f"response_format.type is {value_text(kind)}; expected 'text', 'json_object' or 'json_schema'"
        )
    named = form.get("json_schema")
    if not isinstance(named, Mapping) or not isinstance(named.get("schema"), (dict, bool)):
        raise InvalidInputError("response_format.json_schema needs its member schema, a JSON schema")
    for name in named:
        if name not in ("name", "schema", "strict", "description"):
            raise InvalidInputError(f"response_format.json_schema.{name} is not supported")
    if not isinstance(named.get("strict"), (bool, type(None))):
        raise InvalidInputError(f"response_format.json_schema.strict is {value_text(named['strict'])}; expected a bool")
    return JsonSchema(named["schema"])
