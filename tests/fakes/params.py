"""The parameters of the workflow server's methods, and the refusal of anything else in the shape that was recorded."""

from collections.abc import Mapping
from typing import Any

RUN_STATUSES = ("completed", "failed", "interrupted")


class RpcFault(Exception):
    """A JSON-RPC error object."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{code} {message} {data}")
        self.code = code
        self.message = message
        self.data = data

    def payload(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message} | ({} if self.data is None else {"data": self.data})


def operation_failed(code: str, message: str, **more: Any) -> RpcFault:
    return RpcFault(5000, "Workflow operation failed", {"code": code, "message": message, **more})


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _page_limit(value: Any) -> bool:
    return _whole(value) and 1 <= value <= 100


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _nullable_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


_CURSOR = {"cursor": _nullable_text, "limit": _page_limit}
_TRACE = {"trace_range": lambda value: value is None or _object(value)}

REQUIRED: dict[str, tuple[str, ...]] = {
    "workflow.health": (),
    "workflow.artifacts.inspect": ("artifact_id", "version"),
    "workflow.deployments.validate": ("deployment_id",),
    "workflow.deployments.inspect": ("deployment_id",),
    "workflow.runs.list": (),
    "workflow.runs.start": ("deployment_id",),
    "workflow.runs.inspect": ("run_id",),
    "workflow.runs.resume": ("run_id",),
    "workflow.sources.list": (),
}
ALLOWED: dict[str, Mapping[str, Any]] = {
    "workflow.health": {},
    "workflow.artifacts.inspect": {"artifact_id": _text, "version": lambda value: _whole(value) and value >= 1},
    "workflow.deployments.validate": {"deployment_id": _text, "live_check": lambda value: isinstance(value, bool)},
    "workflow.deployments.inspect": {"deployment_id": _text},
    "workflow.runs.list": {"status": lambda value: value is None or value in RUN_STATUSES, **_CURSOR},
    "workflow.runs.start": {"deployment_id": _text, "workflow_input": _object, **_TRACE},
    "workflow.runs.inspect": {"run_id": _text},
    "workflow.runs.resume": {"run_id": _text, "resume_payload": _object, "resume_outcome": _text, **_TRACE},
    "workflow.sources.list": _CURSOR,
}


def checked(method: str, params: Any, features: frozenset[str]) -> dict[str, Any]:
    """The params of a call, or the fault that says what is wrong with them."""
    if method not in ALLOWED:
        raise RpcFault(-32601, "Method not found")
    if not isinstance(params, dict):
        raise _invalid("dict_type", (), "Input should be a valid dictionary", params)
    allowed = dict(ALLOWED[method])
    if method == "workflow.runs.start" and "max-steps" in features:
        allowed["max_steps"] = lambda value: _whole(value) and value >= 1
    for name in REQUIRED[method]:
        if name not in params:
            raise _invalid("missing", (name,), "Field required", params)
    for name, value in params.items():
        if name not in allowed:
            raise _invalid("extra_forbidden", (name,), "Extra inputs are not permitted", value)
        if not allowed[name](value):
            raise _invalid("value_error", (name,), "Input is not valid", value)
    return params


def _invalid(kind: str, where: tuple[str, ...], message: str, given: Any) -> RpcFault:
    error = {"type": kind, "loc": list(where), "msg": message, "input": given}
    return RpcFault(-32602, "Invalid params", {"errors": [error]})
