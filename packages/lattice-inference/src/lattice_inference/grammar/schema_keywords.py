"""What each keyword of JSON Schema means here: enforced, an annotation, or refused.

The manual's table is this one.

A keyword that stands in no list is refused as well: a constraint that is misspelt must not vanish.
Names are those of draft 2020-12 and, where older drafts have others, theirs.
"""

from __future__ import annotations

__all__ = ["ANNOTATIONS", "ENFORCED", "FORMATS", "FORMATS_BY_SHAPE", "REFUSED"]

ENFORCED = frozenset(
    {
        "$defs",
        "$ref",
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "const",
        "definitions",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "oneOf",
        "pattern",
        "patternProperties",
        "prefixItems",
        "properties",
        "required",
        "type",
    }
)
"""Every text that is generated obeys these."""

ANNOTATIONS = frozenset(
    {
        "$anchor",
        "$comment",
        "$schema",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "deprecated",
        "description",
        "example",
        "examples",
        "externalDocs",
        "readOnly",
        "title",
        "writeOnly",
        "xml",
    }
)
"""These state nothing that a value could break."""

REFUSED = {
    "$dynamicAnchor": "write the schema out at the place that refers to it",
    "$dynamicRef": "write the schema out, or use $ref",
    "$id": "leave it out: references lead into the schema itself",
    "$recursiveAnchor": "use $ref",
    "$recursiveRef": "use $ref",
    "$vocabulary": "leave it out",
    "contains": "state what every item is, by items",
    "dependencies": "list the combinations, by anyOf",
    "dependentRequired": "list the combinations, by anyOf",
    "dependentSchemas": "list the combinations, by anyOf",
    "discriminator": "give each branch of anyOf a property that is a const",
    "else": "list the combinations, by anyOf",
    "if": "list the combinations, by anyOf",
    "maxContains": "state what every item is, by items",
    "minContains": "state what every item is, by items",
    "not": "state what is allowed",
    "nullable": 'write {"type": ["string", "null"]}',
    "propertyNames": "use patternProperties with additionalProperties: false",
    "then": "list the combinations, by anyOf",
    "unevaluatedItems": "use items: false",
    "unevaluatedProperties": "use additionalProperties: false",
    "uniqueItems": "remove duplicates afterwards",
}
"""These constrain a value and cannot be enforced while it is written. With each, what helps."""

FORMATS = frozenset({"duration", "email", "ipv4", "ipv6", "uri", "uuid"})
"""Formats that are enforced whole."""

FORMATS_BY_SHAPE = frozenset({"date", "date-time", "hostname", "time"})
"""Formats that are enforced by their shape: a date may name the 31st of February."""
