"""The exchanges that were recorded from a real workflow server, and what it means for another one to have their shape."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parent / "recorded"

# What a deployment's author decides, not the server: compared by type and no deeper.
OPAQUE = frozenset(
    {
        "output",
        "payload",
        "plan",
        "input_schema",
        "output_schema",
        "request_schema",
        "resume_schema",
        "required_capabilities",
        "workflow_dependencies",
        "patch_examples",
        "bindings",
    }
)
# Null where it was recorded, and text, a number or an object in another case: null proves nothing about the type.
NULLABLE = frozenset(
    {
        "can_save_now",
        "recommended_next_tool",
        "logical_ref",
        "bound_source",
        "repair_hint",
        "description",
        "created_from_catalog_version",
        "route",
        "cursor",
        "next_cursor",
        "plan",
    }
)
# What a server may say beyond the record: `workflow.health` announces features and the process by these.
ALLOWED_MORE = {"result": frozenset({"features", "instance_id"})}


class Exchange(msgspec.Struct, frozen=True):
    """One request and its answer; `body` is decoded JSON."""

    http_status: int
    content_type: str
    body: Any

    @property
    def result(self) -> Any:
        assert "result" in self.body, self.body
        return self.body["result"]

    @property
    def error(self) -> Any:
        assert "error" in self.body, self.body
        return self.body["error"]


class Recorded(msgspec.Struct, frozen=True):
    """One recording. `answer` is None where the client saw the connection fail."""

    name: str
    note: str
    method: str
    params: Mapping[str, Any]
    answer: Exchange | None


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str) -> Recorded:
    raw = json.loads((FOLDER / f"{name}.json").read_text())
    request, response = raw["request"], raw["response"]
    answer = None if "transport_error" in response else msgspec.convert(response, Exchange)
    return Recorded(name, raw["note"], request["method"], request["params"], answer)


def differences(actual: Any, recorded: Any, where: str = "body") -> list[str]:
    """Where a value has another shape than the recorded one: other members, or another type. Prose is not compared."""
    name = where.rpartition(".")[2].partition("[")[0]
    if name in NULLABLE and (actual is None or recorded is None):
        return []
    if kind(actual) != kind(recorded):
        return [f"{where}: {kind(actual)} instead of {kind(recorded)}"]
    if name in OPAQUE:
        return []
    if isinstance(recorded, dict):
        return _member_differences(actual, recorded, where, name)
    if isinstance(recorded, list) and recorded:
        return [found for at, item in enumerate(actual) for found in differences(item, recorded[0], f"{where}[{at}]")]
    return []


def _member_differences(actual: dict[str, Any], recorded: dict[str, Any], where: str, name: str) -> list[str]:
    found = [f"{where}: lacks {member}" for member in sorted(recorded.keys() - actual.keys())]
    more = actual.keys() - recorded.keys() - ALLOWED_MORE.get(name, frozenset())
    found += [f"{where}: has {member} besides" for member in sorted(more)]
    for member in recorded.keys() & actual.keys():
        found += differences(actual[member], recorded[member], f"{where}.{member}")
    return found


def kind(value: Any) -> str:
    """The JSON type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
