"""JSON Schema for the embedded server: is a schema usable, and what in a value violates it.

Owns: the draft in force and the promise that checking reads nothing but its arguments.  Must never know: deployments or runs.
A schema that refers outside itself is unusable, because jsonschema would fetch it over the network in the middle of a start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import jsonschema
import jsonschema.exceptions
import referencing
import referencing.exceptions

Json = Any
Schema = dict[str, Json]

_Validator: Any = jsonschema.Draft202012Validator
_faults: Any = jsonschema.exceptions
_NOTHING_ELSE: referencing.Registry[Any] = referencing.Registry()


def fault_of_schema(schema: Schema) -> str | None:
    """Why this cannot be an input schema, or None."""
    try:
        _Validator.check_schema(schema)
    except jsonschema.exceptions.SchemaError as error:
        return f"not a JSON Schema: {error.message}"
    for reference in _references(schema):
        if not reference.startswith("#"):
            return f"refers outside itself: {reference!r}"
    return None


def violation(schema: Schema, value: Json) -> str | None:
    """The fault of the value that explains most, in the validator's words, or None when it fits."""
    try:
        best = _faults.best_match(_Validator(schema, registry=_NOTHING_ELSE).iter_errors(value))
    except referencing.exceptions.Unresolvable as error:
        return f"the schema refers to what it does not contain: {error.ref}"
    return None if best is None else str(best.message)


def _references(node: Json) -> Iterator[str]:
    stack = [node]
    while stack:
        inner = stack.pop()
        if isinstance(inner, dict):
            members = cast("Schema", inner)
            for name in ("$ref", "$dynamicRef"):
                if isinstance(members.get(name), str):
                    yield members[name]
            stack += members.values()
        elif isinstance(inner, list):
            stack += cast("list[Json]", inner)
