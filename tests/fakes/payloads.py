"""The workflow server's answers as JSON values, member for member as they were recorded."""

from collections.abc import Iterable, Mapping
from typing import Any

from tests.fakes.scripts import Deployment

_RESUME = "wf.workflow.resume_run"
_RUN = "wf.workflow.run_deployment"
_VALIDATE = "wf.workflow.validate_deployment"
_ANY_OBJECT = {"type": "object", "additionalProperties": True}


def source(source_id: str, kind: str, *, enabled: bool = True) -> dict[str, Any]:
    """One source of `workflow.sources.list`; a `connection` is an MCP-backed one."""
    nothing = {"tools": [], "node_specs": [], "reducers": [], "prompts": [], "resources": []}
    return {
        "id": source_id,
        "kind": kind,
        "enabled": enabled,
        "visibility": {"planner": True, "client": True, "admin_dashboard": True},
        "permissions": {
            "safe_for_workflow": True,
            "calls_upstream": kind == "connection",
            "mutates_config": False,
            "mutates_auth": False,
        },
        "policy": {"platform": kind == "system", "binding_required": kind != "system"},
        "description": f"A source of kind {kind}.",
        "tool_count": 0,
        "node_spec_count": 0,
        "reducer_count": 0,
        "prompt_count": 0,
        "resource_count": 0,
        "preview": nothing,
        "has_more": dict.fromkeys(nothing, False),
    }


USUAL_SOURCES = (source("local.ops", "python"), source("wf.std", "system"))


def health(store_root: str, features: frozenset[str], instance_id: str, announced: bool) -> dict[str, Any]:
    plain = {"status": "ok", "store_root": store_root}
    if features:
        plain["features"] = sorted(features)
    return plain | ({"instance_id": instance_id} if announced else {})


def next_actions(reason: str, *, tool: str | None = None, warnings: Iterable[str] = ()) -> dict[str, Any]:
    return {
        "can_continue": tool is not None,
        "can_save_now": None,
        "recommended_next_tool": tool,
        "reason": reason,
        "patch_examples": [],
        "warnings": list(warnings),
    }


def deployment(one: Deployment) -> dict[str, Any]:
    return {
        "artifact_id": one.artifact_id,
        "artifact_version": one.artifact_version,
        "id": one.deployment_id,
        "bindings": [],
        "drift_policy": "block",
    }


def _warnings(one: Deployment) -> list[str]:
    return [f"{found['code']}: {found['logical_ref']}" for found in one.diagnostics]


def validation(one: Deployment) -> dict[str, Any]:
    runnable = not one.diagnostics
    return {
        "artifact_id": one.artifact_id,
        "artifact_version": one.artifact_version,
        "diagnostics": list(one.diagnostics),
        "next_actions": next_actions(
            "The deployment can run." if runnable else "Bindings are missing.",
            tool=_RUN if runnable else _VALIDATE,
            warnings=_warnings(one),
        ),
        "deployment_id": one.deployment_id,
        "status": "runnable" if runnable else "unrunnable",
    }


def artifact(one: Deployment) -> dict[str, Any]:
    return {
        "id": one.artifact_id,
        "version": one.artifact_version,
        "title": one.artifact_id,
        "kind": "workflow",
        "description": None,
        "input_schema": dict(one.input_schema),
        "output_schema": dict(one.output_schema),
        "outcomes": ["ok"],
        "plan": {"name": one.artifact_id, "nodes": [], "edges": []},
        "required_capabilities": [],
        "workflow_dependencies": {},
        "created_from_catalog_version": None,
    }


def unrunnable(one: Deployment) -> dict[str, Any]:
    return {
        "artifact_id": one.artifact_id,
        "artifact_version": one.artifact_version,
        "diagnostics": list(one.diagnostics),
        "next_actions": next_actions("The run failed before it began.", warnings=_warnings(one)),
        "deployment_id": one.deployment_id,
        "status": "unrunnable",
        "run_id": None,
        "resume_readiness": None,
        "interrupt": None,
        "outcome": None,
        "error": None,
        "output": None,
        "trace_count": 0,
    }


def run(one: Any) -> dict[str, Any]:
    interrupted = one.status == "interrupted"
    return {
        "artifact_id": one.deployment.artifact_id,
        "artifact_version": one.deployment.artifact_version,
        "diagnostics": [],
        "next_actions": next_actions(f"The run is {one.status}.", tool=_RESUME if interrupted else None),
        "deployment_id": one.deployment.deployment_id,
        "status": one.status,
        "run_id": one.run_id,
        "resume_readiness": _readiness(one),
        "interrupt": _interrupt(one) if interrupted else None,
        "outcome": one.outcome,
        "error": one.error,
        "output": dict(one.output),
        "trace_count": one.trace_count,
    }


def _readiness(one: Any) -> str:
    return "ready" if one.status == "interrupted" else "not_applicable"


def _interrupt(one: Any) -> dict[str, Any]:
    return {
        "id": f"interrupt:{one.deployment.artifact_id}",
        "frame_id": "root",
        "node_id": one.deployment.artifact_id,
        "kind": "approval",
        "payload": dict(one.interrupt),
        "resumable": True,
        "route": None,
        "outcomes": ["submitted"],
        "request_schema": _ANY_OBJECT,
        "resume_schema": _ANY_OBJECT,
        "typed": True,
    }


def _row(one: Any) -> dict[str, Any]:
    return {
        "artifact_id": one.deployment.artifact_id,
        "artifact_version": one.deployment.artifact_version,
        "run_id": one.run_id,
        "deployment_id": one.deployment.deployment_id,
        "status": one.status,
        "resume_readiness": _readiness(one),
        "diagnostic_count": 0,
        "created_at": one.created_at.isoformat(),
        "updated_at": one.updated_at.isoformat(),
    }


def run_page(runs: Iterable[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Latest stop first, by order and not by clock: a virtual one stands still while runs stop."""
    status = given.get("status")
    matching = [one for one in runs if status in {None, one.status}]
    matching.sort(key=lambda one: one.stop_n, reverse=True)
    rows, next_cursor = _page(matching, given)
    return {
        "runs": [_row(one) for one in rows],
        "total": len(matching),
        "cursor": given.get("cursor"),
        "next_cursor": next_cursor,
        "limit": given.get("limit", 50),
    }


def source_page(sources: list[Mapping[str, Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    rows, next_cursor = _page(sources, given)
    return {"next_cursor": next_cursor, "total": len(sources), "sources": rows}


def _page(rows: list[Any], given: Mapping[str, Any]) -> tuple[list[Any], str | None]:
    first = int(given.get("cursor") or 0)
    last = first + given.get("limit", 50)
    return rows[first:last], str(last) if last < len(rows) else None
