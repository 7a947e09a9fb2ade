"""The OpenRPC document, generated from the structs that decode and encode the calls.

Owns: the document, and `rpc.discover` which answers it.  Must never know: any single method; what it says of one comes from the
table, so the document cannot promise what the face does not do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from scheduler_daemon import __version__
from scheduler_daemon.api import faults, wire
from scheduler_daemon.api.methods import Entry
from scheduler_daemon.jsonrpc import Method

OPENRPC: Final = "1.3.2"

Schema = dict[str, Any]


def with_discovery(table: Sequence[Entry]) -> tuple[tuple[Entry, ...], bytes]:
    """The table and `rpc.discover`, which describes itself too; and the document as bytes."""

    async def discover(_service: object, _params: wire.Nothing) -> msgspec.Raw:
        return encoded

    method = Method("rpc.discover", wire.Nothing, discover, mutates=False, result=dict[str, Any])
    whole = (*table, Entry(method, "This document."))
    encoded = msgspec.Raw(msgspec.json.encode(document(whole)))
    return whole, bytes(encoded)


def document(table: Sequence[Entry]) -> Schema:
    """The OpenRPC document of these methods."""
    types = [part for entry in table for part in (entry.method.params, entry.method.result)]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    described = zip(table, schemas[::2], schemas[1::2], strict=True)
    return {
        "openrpc": OPENRPC,
        "info": {
            "title": "scheduler-daemon",
            "version": __version__,
            "description": "Schedules of a workflow server. Params are named; unknown ones are refused.",
        },
        "methods": [_method(entry, _object(params, components), result) for entry, params, result in described],
        "components": {"schemas": _results(table, components)},
    }


def _method(entry: Entry, params: Schema, result: Schema) -> Schema:
    return {
        "name": entry.method.name,
        "summary": entry.summary,
        "paramStructure": "by-name",
        "params": _params(params),
        "result": {"name": "result", "schema": result},
        "errors": [_error(code) for code in entry.codes],
    }


def _params(struct: Schema) -> list[Schema]:
    """Each property of a params struct as a content descriptor; its description is told once, beside the schema."""
    required: set[str] = set(struct["required"])
    listed: list[Schema] = []
    for name, schema in struct["properties"].items():
        listed.append({"name": name, "required": name in required, "schema": schema})
    # Required ones first, as the specification of OpenRPC demands; the order of the fields otherwise.
    return sorted(listed, key=lambda descriptor: not descriptor["required"])


def _error(code: str) -> Schema:
    data = {"code": code, "message": faults.FAULTS[code].hint}
    return {"code": faults.APPLICATION_ERROR, "message": faults.APPLICATION_MESSAGE, "data": data}


def _object(schema: Schema, components: dict[str, Schema]) -> Schema:
    """The struct's own schema behind the reference to it."""
    return components[cast("str", schema["$ref"]).rpartition("/")[2]]


def _results(table: Sequence[Entry], components: dict[str, Schema]) -> dict[str, Schema]:
    """The components without those of params, which stand in the methods."""
    inlined = {entry.method.params.__name__ for entry in table}
    return {name: schema for name, schema in components.items() if name not in inlined}
