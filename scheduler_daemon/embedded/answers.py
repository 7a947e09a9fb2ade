"""The answers of the contract, shape by shape, as they were recorded from a workflow server.

Owns: the members and types of each answer.  Must never know: files, processes, HTTP.  Pure.  Members that make no sense for a list of
commands (bindings, capabilities) are there and empty, because a client of the contract reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from scheduler_daemon.embedded.deployments import Deployment
from scheduler_daemon.embedded.runs import Entry, Run, Stop, Summary
from scheduler_daemon.embedded.runs import Interrupt as Asking
from scheduler_daemon.embedded.steps import Diagnostic

FEATURES: Final = ("idempotent-start", "max-steps")
SOURCE_ID: Final = "embedded.steps"
NODE: Final = "embedded.steps.command"

_RESUME: Final = "workflow.runs.resume"
_START: Final = "workflow.runs.start"
_VALIDATE: Final = "workflow.deployments.validate"
_ANY_OBJECT: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`workflow.health`."""

    status: str = "ok"
    store_root: str
    instance_id: str
    features: tuple[str, ...] = FEATURES


class NextActions(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller may do now."""

    can_continue: bool
    can_save_now: bool | None = None
    recommended_next_tool: str | None = None
    reason: str
    patch_examples: tuple[()] = ()
    warnings: tuple[str, ...] = ()


class DeploymentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`workflow.deployments.inspect`, and each row of the list."""

    artifact_id: str
    artifact_version: int
    id: str
    bindings: tuple[()] = ()
    drift_policy: str = "block"


class DeploymentsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`workflow.deployments.list`."""

    deployments: tuple[DeploymentAnswer, ...]


class ValidationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`workflow.deployments.validate`."""

    artifact_id: str
    artifact_version: int
    diagnostics: tuple[Diagnostic, ...]
    next_actions: NextActions
    deployment_id: str
    status: str


class ArtifactAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`workflow.artifacts.inspect`."""

    id: str
    version: int
    title: str
    kind: str = "workflow"
    description: str | None = None
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    outcomes: tuple[str, ...] = ("ok",)
    plan: dict[str, Any]
    required_capabilities: tuple[()] = ()
    workflow_dependencies: dict[str, Any] = {}
    created_from_catalog_version: str | None = None


class InterruptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What an interrupted run asks."""

    id: str
    frame_id: str = "root"
    node_id: str
    kind: str = "step"
    payload: dict[str, Any]
    resumable: bool = True
    route: str | None = None
    outcomes: tuple[str, ...] = ("submitted",)
    request_schema: dict[str, Any]
    resume_schema: dict[str, Any]
    typed: bool = True


class RunAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`workflow.runs.start`, `.resume` and `.inspect`; `trace` only when a range of it was asked for."""

    artifact_id: str
    artifact_version: int
    diagnostics: tuple[Diagnostic, ...] = ()
    next_actions: NextActions
    deployment_id: str
    status: str
    run_id: str | None
    resume_readiness: str | None
    interrupt: InterruptAnswer | None = None
    outcome: str | None = None
    error: str | None = None
    output: dict[str, Any] | None
    trace_count: int
    trace: tuple[Entry, ...] | msgspec.UnsetType = msgspec.UNSET


class TraceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`workflow.runs.trace`: entries from `start` on; those that are no longer kept are left out."""

    run_id: str
    status: str
    trace_count: int
    start: int
    limit: int
    trace: tuple[Entry, ...]


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `workflow.runs.list`."""

    artifact_id: str
    artifact_version: int
    run_id: str
    deployment_id: str
    status: str
    resume_readiness: str
    diagnostic_count: int = 0
    created_at: datetime
    updated_at: datetime


class RunsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`workflow.runs.list`."""

    runs: tuple[RunRow, ...]
    total: int
    cursor: str | None
    next_cursor: str | None
    limit: int


class SourcesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`workflow.sources.list`."""

    next_cursor: str | None = None
    total: int
    sources: tuple[dict[str, Any], ...]


def deployment_answer(deployment: Deployment) -> DeploymentAnswer:
    """The deployment as a saved one names its artifact."""
    return DeploymentAnswer(artifact_id=deployment.artifact_id, artifact_version=deployment.version, id=deployment.id)


def validation_answer(deployment: Deployment, diagnostics: tuple[Diagnostic, ...]) -> ValidationAnswer:
    """Runnable, or why not."""
    runnable = not diagnostics
    return ValidationAnswer(
        artifact_id=deployment.artifact_id,
        artifact_version=deployment.version,
        diagnostics=diagnostics,
        next_actions=NextActions(
            can_continue=True,
            recommended_next_tool=_START if runnable else _VALIDATE,
            reason="It can run." if runnable else "It cannot run; see the diagnostics.",
            warnings=_warnings(diagnostics),
        ),
        deployment_id=deployment.id,
        status="runnable" if runnable else "unrunnable",
    )


def artifact_answer(deployment: Deployment) -> ArtifactAnswer:
    """The artifact behind a deployment; its plan is its steps in a row."""
    title = deployment.title or deployment.artifact_id
    return ArtifactAnswer(
        id=deployment.artifact_id,
        version=deployment.version,
        title=title,
        input_schema=deployment.schema,
        output_schema={"type": "object"},
        plan=_plan(deployment),
    )


def run_answer(run: Run, stop: Stop) -> RunAnswer:
    """The run as it stood at this stop."""
    return RunAnswer(
        artifact_id=run.identity.artifact_id,
        artifact_version=run.identity.artifact_version,
        next_actions=_after(stop),
        deployment_id=run.identity.deployment_id,
        status=stop.status,
        run_id=run.identity.run_id,
        resume_readiness=_readiness(stop.status),
        interrupt=_interrupt(stop.interrupt),
        outcome=stop.outcome,
        error=stop.error,
        output=stop.output,
        trace_count=stop.trace_count,
    )


def unrunnable_answer(deployment: Deployment, diagnostics: tuple[Diagnostic, ...]) -> RunAnswer:
    """The answer to a start that made no run."""
    return RunAnswer(
        artifact_id=deployment.artifact_id,
        artifact_version=deployment.version,
        diagnostics=diagnostics,
        next_actions=NextActions(
            can_continue=False, reason="Nothing ran; see the diagnostics.", warnings=_warnings(diagnostics)
        ),
        deployment_id=deployment.id,
        status="unrunnable",
        run_id=None,
        resume_readiness=None,
        output=None,
        trace_count=0,
    )


def trace_slice(run: Run, start: int, limit: int) -> tuple[Entry, ...]:
    """The entries from `start` on, counted from the first there ever was."""
    dropped = run.last.trace_count - len(run.trace)
    return run.trace[max(start - dropped, 0) : max(start + limit - dropped, 0)]


def runs_answer(rows: Sequence[Summary], total: int, cursor: str | None, offset: int, limit: int) -> RunsAnswer:
    """A page of runs; the next cursor is the offset of the next page."""
    after = offset + len(rows)
    return RunsAnswer(
        runs=tuple(map(_row, rows)),
        total=total,
        cursor=cursor,
        next_cursor=str(after) if rows and after < total else None,
        limit=limit,
    )


def source() -> dict[str, Any]:
    """The one source of this server."""
    kinds = ("tools", "node_specs", "reducers", "prompts", "resources")
    return {
        "id": SOURCE_ID,
        "kind": "system",
        "enabled": True,
        "visibility": {"planner": False, "client": True, "admin_dashboard": True},
        "permissions": {
            "safe_for_workflow": True,
            "calls_upstream": False,
            "mutates_config": False,
            "mutates_auth": False,
        },
        "policy": {"platform": True, "binding_required": False},
        "description": "Commands of the deployments file, run as processes of this machine.",
        "tool_count": 0,
        "node_spec_count": 1,
        "reducer_count": 0,
        "prompt_count": 0,
        "resource_count": 0,
        "preview": {kind: [NODE] if kind == "node_specs" else [] for kind in kinds},
        "has_more": dict.fromkeys(kinds, False),
    }


def _row(row: Summary) -> RunRow:
    return RunRow(
        artifact_id=row.identity.artifact_id,
        artifact_version=row.identity.artifact_version,
        run_id=row.identity.run_id,
        deployment_id=row.identity.deployment_id,
        status=row.status,
        resume_readiness=_readiness(row.status),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _after(stop: Stop) -> NextActions:
    if stop.status == "interrupted":
        return NextActions(can_continue=True, recommended_next_tool=_RESUME, reason="It waits for an answer.")
    return NextActions(can_continue=False, reason=f"It has ended: {stop.status}.")


def _readiness(status: str) -> str:
    return "ready" if status == "interrupted" else "not_applicable"


def _warnings(diagnostics: Sequence[Diagnostic]) -> tuple[str, ...]:
    return tuple(f"{diagnostic.code}: {diagnostic.logical_ref}" for diagnostic in diagnostics)


def _interrupt(asking: Asking | None) -> InterruptAnswer | None:
    if asking is None:
        return None
    return InterruptAnswer(
        id=f"interrupt:{asking.step}",
        node_id=asking.step,
        payload=asking.payload,
        request_schema=_ANY_OBJECT,
        resume_schema=_ANY_OBJECT,
    )


def _plan(deployment: Deployment) -> dict[str, Any]:
    names = [step.name for step in deployment.steps]
    return {
        "name": deployment.artifact_id,
        "input_schema": deployment.schema,
        "state_schema": {"type": "object", "properties": {}},
        "output_schema": {"type": "object"},
        "outcomes": ["ok"],
        "output": [],
        "start": names[0],
        "nodes": [
            {
                "id": step.name,
                "type": "node",
                "node": NODE,
                "desc": None,
                "input": [],
                "output": [],
                "retry": None,
                "timeout_seconds": step.timeout_s,
            }
            for step in deployment.steps
        ],
        "edges": [
            {"from": name, "outcome": "ok", "to": after}
            for name, after in zip(names, [*names[1:], "__end__"], strict=True)
        ],
    }
