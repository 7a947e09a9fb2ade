"""Input bindings: what a schedule says about each input, and what a run of it then gets.

Owns: the shape of a binding, the six facts of an occurrence, the judgement of a resolved input against a JSON Schema.  The only
importer of jsonschema.  Must never know: schedules, servers, the network.

A binding is resolved once, at admission, and pinned with the run; so `resolve` cannot fail on what `check_bindings` let in, and
the same facts give the same input for ever.

The schema comes from the workflow server and is not under this daemon's control.  Judging by it therefore never raises and
never fetches: a reference to anything outside the schema is a fault of the schema, and a fault of the schema is a message like
any other.  (Its regular expressions are trusted as the server is.)

Judging happens inside the one writer, for each run.  jsonschema takes some 20 µs for the smallest schema, and most schemas are a
list of named inputs with a type each: for those, and only to say *yes*, a comparison of types stands in front of it.  Whatever
that does not recognise, and every *no*, is jsonschema's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from math import isfinite
from typing import Any, cast

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from scheduler_daemon.core.zones import zone

INPUTS_MAX = 256
INPUT_BYTES_MAX = 64 * 1024
"""Bindings of one schedule, as encoded JSON: they are copied into the record of every run."""

NAME_CHARS_MAX = 128
DEPTH_MAX = 32
"""Nesting of one literal; decoding deeper JSON is where interpreters run out of stack."""

SCHEMA_BYTES_MAX = 256 * 1024
MESSAGES_MAX = 10
MESSAGE_CHARS_MAX = 200

_ERRORS_SEEN_MAX = 100
"""Errors looked at before the first `MESSAGES_MAX` are picked: a list of a thousand wrong items has a thousand."""

_SCHEMAS_MAX = 256
_INSTANTS_MAX = 256
"""A crowd is due at few instants."""


class BindingRefused(ValueError):
    """The caller's input bindings cannot be stored; `field` is `input` or `input.<name>`, `reason` says why."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class Facts(msgspec.Struct, frozen=True):
    """What an input may be bound to.  `previous_instant` is that of the schedule's newest earlier row."""

    instant: datetime
    timezone: str
    previous_instant: datetime | None
    schedule_id: str
    revision: int
    run_id: str


@lru_cache(maxsize=_INSTANTS_MAX)
def _rfc3339(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"


FACTS: dict[str, Callable[[Facts], object]] = {
    "occurrence.instant": lambda facts: _rfc3339(facts.instant),
    "occurrence.local_time": lambda facts: facts.instant.astimezone(zone(facts.timezone)).isoformat(),
    "occurrence.previous_instant": lambda facts: facts.previous_instant and _rfc3339(facts.previous_instant),
    "schedule.id": lambda facts: facts.schedule_id,
    "schedule.revision": lambda facts: facts.revision,
    "run.id": lambda facts: facts.run_id,
}
"""Each fact by the name that a binding gives it.  Source: spec section 4."""


# --- bindings -----------------------------------------------------------------------------------------------------------


def check_bindings(raw: Mapping[str, object]) -> None:
    """Refuse bindings that cannot be stored or resolved.

    Raises `BindingRefused`.  `raw` is decoded JSON, or what a Python caller takes for it.
    """
    if len(raw) > INPUTS_MAX:
        raise BindingRefused("input", f"{len(raw)} inputs, at most {INPUTS_MAX}")
    for name, binding in raw.items():
        _check_name(name)
        _check_binding(f"input.{name}", binding)
    try:
        size = len(msgspec.json.encode(raw))
    except UnicodeEncodeError as error:
        raise BindingRefused("input", "holds text that is not valid Unicode") from error
    if size > INPUT_BYTES_MAX:
        raise BindingRefused("input", f"{size} bytes of JSON, at most {INPUT_BYTES_MAX}")


def resolve(bindings: Mapping[str, object], facts: Facts) -> dict[str, object]:
    """The workflow input: literals as they are, facts in their JSON form (instants RFC 3339, in UTC with `Z`)."""
    return {name: _resolved(cast("Mapping[str, object]", binding), facts) for name, binding in bindings.items()}


def _resolved(binding: Mapping[str, object], facts: Facts) -> object:
    return FACTS[cast("str", binding["from"])](facts) if "from" in binding else binding["value"]


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable():
        shown = _shortened(repr(name), 40)
        raise BindingRefused("input", f"the name {shown} is not 1 to {NAME_CHARS_MAX} printable characters")


def _check_binding(field: str, binding: object) -> None:
    members = list(cast("Mapping[object, object]", binding).items()) if isinstance(binding, Mapping) else None
    match members:
        case [("value", value)]:
            _check_json(field, value)
        case [("from", fact)]:
            if not isinstance(fact, str) or fact not in FACTS:
                raise BindingRefused(field, f"{_shortened(repr(fact), 40)} is not one of {', '.join(FACTS)}")
        case _:
            raise BindingRefused(field, 'a binding is {"value": …} or {"from": "<fact>"}')


def _check_json(field: str, value: object) -> None:
    """Refuse what JSON has no word for; an encoder would quietly write NaN as null and bytes as text."""
    stack = [(value, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > DEPTH_MAX:
            raise BindingRefused(field, f"nested deeper than {DEPTH_MAX}")
        match node:
            case None | bool() | str():
                pass
            case int():
                if not -(2**63) <= node < 2**64:
                    raise BindingRefused(
                        field, "an integer of more than 64 bits, which other JSON readers would change"
                    )
            case float():
                if not isfinite(node):
                    raise BindingRefused(field, f"{node} is not a JSON number")
            case list():
                stack += [(inner, depth + 1) for inner in cast("list[object]", node)]
            case dict():
                members = cast("dict[object, object]", node)
                if not all(isinstance(key, str) for key in members):
                    raise BindingRefused(field, "an object has a key that is not a string")
                stack += [(inner, depth + 1) for inner in members.values()]
            case _:
                raise BindingRefused(field, f"a {type(node).__name__} is not a JSON value")


# --- the schema ---------------------------------------------------------------------------------------------------------

_NOTHING_ELSE: Registry[Any] = Registry()
"""What a schema may refer to beside itself; jsonschema's own default would fetch."""

_encode_sorted = msgspec.json.Encoder(order="sorted").encode

_UNJUDGED = (
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
)
"""Keywords that say something to people and nothing about a value."""

_PLAIN_DIALECTS = frozenset(
    {
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-07/schema",
    }
)
_TYPES: dict[str, frozenset[type]] = {
    "string": frozenset({str}),
    "integer": frozenset({int}),
    "number": frozenset({int, float}),
    "boolean": frozenset({bool}),
    "array": frozenset({list}),
    "object": frozenset({dict}),
    "null": frozenset({type(None)}),
}
"""Types that surely fit.  Exact: 1.0 is an integer to JSON Schema and left to jsonschema, True is none and does not occur."""

_SCHEMA_FAULTS = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError, re.error)
"""What jsonschema could raise over a schema that its own check let pass: one that refers to itself for ever, for instance."""


def check_input(schema: Mapping[str, object] | None, value: Mapping[str, object]) -> tuple[str, ...]:
    """What is wrong with a resolved input, in sentences; empty when it fits, and when there is no schema.

    At most `MESSAGES_MAX`, sorted by place, each at most `MESSAGE_CHARS_MAX` characters.  Never raises.
    """
    if not schema:
        return ()
    try:
        canonical = _encode_sorted(schema)
    except (TypeError, ValueError, RecursionError) as error:
        return (_fault(f"it is no JSON: {error}"),)
    match _read(canonical):
        case _Unusable(fault=fault):
            return (fault,)
        case _Usable(plain=plain) if plain is not None and plain.surely_fits(value):
            return ()
        case _Usable(validator=validator):
            return _judged(validator, value)


class _Unusable(msgspec.Struct, frozen=True):
    """A schema that judges nothing, because of its own fault."""

    fault: str


class _Usable(msgspec.Struct, frozen=True):
    """A schema that jsonschema accepts, and its short form if it has one."""

    plain: _Plain | None
    validator: Any


@lru_cache(maxsize=_SCHEMAS_MAX)
def _read(canonical: bytes) -> _Usable | _Unusable:
    """Compiled from the canonical bytes, so that equal schemas are one entry and errors come in one order."""
    if len(canonical) > SCHEMA_BYTES_MAX:
        return _Unusable(_fault(f"{len(canonical)} bytes, at most {SCHEMA_BYTES_MAX}"))
    schema = cast("dict[str, object]", msgspec.json.decode(canonical))
    if not isinstance(schema.get("$schema", ""), str):
        return _Unusable(_fault("its $schema is not a string"))
    try:
        kind: Any = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema)
        validator = kind(schema, registry=_NOTHING_ELSE)
    except SchemaError as error:
        return _Unusable(_fault(error.message))
    except _SCHEMA_FAULTS as error:
        return _Unusable(_fault(f"{type(error).__name__}: {error}"))
    return _Usable(_plain(schema), validator)


def _judged(validator: Any, value: Mapping[str, object]) -> tuple[str, ...]:
    try:
        errors = list(islice(cast("Iterator[ValidationError]", validator.iter_errors(value)), _ERRORS_SEEN_MAX))
    except Unresolvable as error:
        return (_fault(f"it refers to what it does not contain: {error}"),)
    except _SCHEMA_FAULTS as error:
        return (_fault(f"{type(error).__name__}: {error}"),)
    return tuple(sorted({_message(error) for error in errors})[:MESSAGES_MAX])


class _Plain(msgspec.Struct, frozen=True):
    """A schema that only names inputs, their types, and which must be there."""

    types: dict[str, frozenset[type]]
    required: frozenset[str]
    is_open: bool
    """Whether inputs that are not named are welcome."""

    def surely_fits(self, value: Mapping[str, object]) -> bool:
        """Whether the value fits; False means only that somebody else must judge."""
        for name, inner in value.items():
            types = self.types.get(name)
            if (types is None and not self.is_open) or (types is not None and type(inner) not in types):
                return False
        return self.required <= value.keys()


def _plain(schema: dict[str, object]) -> _Plain | None:
    """The schema as a `_Plain`, or None if it holds anything more."""
    rest = {key: value for key, value in schema.items() if key not in _UNJUDGED}
    properties = cast("dict[str, object]", rest.pop("properties", {}))
    required = cast("list[str]", rest.pop("required", []))
    is_open = rest.pop("additionalProperties", True)
    dialect = rest.pop("$schema", None)
    if rest.pop("type", "object") != "object" or rest or not isinstance(is_open, bool):
        return None
    if dialect is not None and dialect not in _PLAIN_DIALECTS:
        return None
    types = {name: _plain_types(inner) for name, inner in properties.items()}
    if None in types.values():
        return None
    return _Plain(types=cast("dict[str, frozenset[type]]", types), required=frozenset(required), is_open=is_open)


def _plain_types(schema: object) -> frozenset[type] | None:
    if not isinstance(schema, dict):
        return None
    rest = {key: value for key, value in cast("dict[str, object]", schema).items() if key not in _UNJUDGED}
    named = rest.pop("type", None)
    return _TYPES.get(named) if isinstance(named, str) and not rest else None


def _message(error: ValidationError) -> str:
    place = "input" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in error.absolute_path)
    text = f"{place}: {error.message}"
    if len(text) <= MESSAGE_CHARS_MAX:
        return text
    # jsonschema repeats the value, which may be long or nobody's business in a log; the rule that it breaks is neither.
    rule = f"does not satisfy {error.validator}: {_shortened(repr(error.validator_value), 80)}"
    return f"{_shortened(place, MESSAGE_CHARS_MAX - len(rule) - 2)}: {rule}"


def _fault(reason: str) -> str:
    return _shortened(f"the deployment's input schema cannot be used: {reason}", MESSAGE_CHARS_MAX)


def _shortened(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"
