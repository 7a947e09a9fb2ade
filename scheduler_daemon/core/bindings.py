"""Input bindings: from a schedule's `input` and the facts of one occurrence to the input of its run.

Owns: the six facts and how each is written, the bounds of a binding, and the check of an input against a JSON Schema.
Must never know: who runs the input, schedules beyond the facts it is given.

A schema is data from elsewhere: one that is broken, refers outside itself or recurses for ever is a message for the
operator, never an exception, and nothing is ever fetched. Compiled validators are kept by the schema's canonical bytes,
since one deployment's schema serves every occurrence of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

import jsonschema
import jsonschema.exceptions
import msgspec
import referencing
import referencing.exceptions

Json = Any

INPUTS_MAX: Final = 256
NAME_CHARS_MAX: Final = 256
INPUT_BYTES_MAX: Final = 64 * 1024
MESSAGES_MAX: Final = 10
MESSAGE_CHARS_MAX: Final = 200
SCHEMAS_MAX: Final = 256


class BindingRefused(ValueError):
    """A binding that cannot stand: `field` names it as the caller wrote it, `reason` says what to write."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class Facts(msgspec.Struct, frozen=True):
    """What a binding may ask of one occurrence; `timezone` is the schedule's IANA zone."""

    instant: datetime
    timezone: str
    previous_instant: datetime | None
    schedule_id: str
    revision: int
    run_id: str


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


_FACTS: Final[dict[str, Callable[[Facts], Json]]] = {
    "occurrence.instant": lambda facts: _utc(facts.instant),
    "occurrence.local_time": lambda facts: facts.instant.astimezone(ZoneInfo(facts.timezone)).isoformat(),
    "occurrence.previous_instant": lambda facts: (
        None if facts.previous_instant is None else _utc(facts.previous_instant)
    ),
    "schedule.id": lambda facts: facts.schedule_id,
    "schedule.revision": lambda facts: facts.revision,
    "run.id": lambda facts: facts.run_id,
}


def check_bindings(raw: Mapping[str, object]) -> None:
    """Refuse what cannot be resolved at every admission.

    Each input is `{"value": any JSON}` or `{"from": one of the six facts}`. Raises `BindingRefused`.
    """
    if len(raw) > INPUTS_MAX:
        raise BindingRefused("input", f"at most {INPUTS_MAX} inputs")
    for name, binding in raw.items():
        field = f"input.{name[:NAME_CHARS_MAX]}"
        if not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable():
            raise BindingRefused(field, f"a name has 1 to {NAME_CHARS_MAX} printable characters")
        _check_binding(field, binding)
    if len(msgspec.json.encode(raw)) > INPUT_BYTES_MAX:
        raise BindingRefused("input", f"at most {INPUT_BYTES_MAX} bytes of JSON")


def _check_binding(field: str, binding: object) -> None:
    members = cast("dict[str, object]", binding) if isinstance(binding, dict) else {}
    if set(members) == {"value"}:
        return
    if set(members) != {"from"}:
        raise BindingRefused(field, 'must be {"value": …} or {"from": "<fact>"}, with nothing else in it')
    if not isinstance(members["from"], str) or members["from"] not in _FACTS:
        raise BindingRefused(field, f"'from' must be one of {', '.join(_FACTS)}")


def resolve(bindings: Mapping[str, object], facts: Facts) -> dict[str, Json]:
    """The workflow input of one occurrence; `bindings` have passed `check_bindings`."""
    resolved: dict[str, Json] = {}
    for name, binding in bindings.items():
        members = cast("dict[str, Json]", binding)
        resolved[name] = members["value"] if "value" in members else _FACTS[members["from"]](facts)
    return resolved


# --- the schema -------------------------------------------------------------------------------------------------------

_Validator: Any = jsonschema.Draft202012Validator
_NOTHING_ELSE: referencing.Registry[Any] = referencing.Registry()
_ANYTHING: Final = frozenset({b"{}", b"true", b'{"type":"object"}'})
_encoder = msgspec.json.Encoder(order="deterministic")
_compiled: OrderedDict[bytes, Any] = OrderedDict()


def check_input(schema: Mapping[str, object] | None, value: Mapping[str, object]) -> tuple[str, ...]:
    """What in this input violates the schema, in words, worst first; empty when it fits.

    At most `MESSAGES_MAX` messages of at most `MESSAGE_CHARS_MAX` characters, so that no input is repeated at length.
    """
    if schema is None:
        return ()
    known = _encoder.encode(schema)
    if known in _ANYTHING:
        return ()
    validator = _compiled.get(known)
    if validator is None:
        validator = _compile(known, schema)
    if isinstance(validator, str):
        return (validator,)
    return _violations(validator, value)


def _compile(known: bytes, schema: Mapping[str, object]) -> Any:
    """A validator, or the message that says why there is none."""
    try:
        _Validator.check_schema(schema)
        compiled: Any = _Validator(schema, registry=_NOTHING_ELSE)
    except jsonschema.exceptions.SchemaError as error:
        compiled = _line(f"the deployment's input_schema is not a JSON Schema: {error.message}")
    except RecursionError:
        compiled = "the deployment's input_schema is nested too deeply"
    while len(_compiled) >= SCHEMAS_MAX:
        _compiled.popitem(last=False)
    _compiled[known] = compiled
    return compiled


def _violations(validator: Any, value: Mapping[str, object]) -> tuple[str, ...]:
    try:
        errors = sorted(
            validator.iter_errors(value), key=lambda error: (list(map(str, error.absolute_path)), error.message)
        )
    except referencing.exceptions.Unresolvable as error:
        return (_line(f"the deployment's input_schema refers to what it does not contain: {error.ref}"),)
    except RecursionError:
        return ("the deployment's input_schema refers to itself without end",)
    return tuple(_words(error) for error in errors[:MESSAGES_MAX])


def _words(error: Any) -> str:
    where = ".".join(map(str, error.absolute_path))
    return _line(f"{where}: {error.message}" if where else str(error.message))


def _line(text: str) -> str:
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return printable if len(printable) <= MESSAGE_CHARS_MAX else printable[: MESSAGE_CHARS_MAX - 1] + "…"
