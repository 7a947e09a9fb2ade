"""What the fake workflow server's deployments do when they execute: one script a deployment, and the usual five of them.

A script is data, so that a test or a simulation says in one line what a server will do, and can print it. Where a function
stands for a value it gets the workflow's input, at a resume with the resume's payload laid over it.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

Input: TypeAlias = Mapping[str, Any]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What every script has: `steps` of trace, a duration in seconds (or one by input), and a gate that must be open."""

    steps: int = 1
    delay_s: float | Callable[[Input], float] = 0.0
    gate: asyncio.Event | None = None


class Complete(Step, frozen=True):
    """Stop `completed`, with this output or what a function makes of the input."""

    output: Mapping[str, Any] | Callable[[Input], Mapping[str, Any]] = {}
    outcome: str = "ok"


class Fail(Step, frozen=True):
    """Stop `failed` with this text, or what a function makes of the input."""

    error: str | Callable[[Input], str] = "boom"
    steps: int = 0


class Interrupt(Step, frozen=True):
    """Stop `interrupted`; a resume goes on with `then`."""

    payload: Mapping[str, Any] | Callable[[Input], Mapping[str, Any]] = {}
    then: "Script" = Complete(outcome="submitted", steps=3)


Script: TypeAlias = Complete | Fail | Interrupt


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment of one artifact version. With `diagnostics` it is unrunnable."""

    deployment_id: str
    script: Script | Callable[[Input], Script] = Complete()
    artifact_id: str = "artifact"
    artifact_version: int = 1
    input_schema: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    output_schema: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    diagnostics: tuple[Mapping[str, Any], ...] = ()

    def script_for(self, given: Input) -> Script:
        return self.script if isinstance(self.script, Step) else self.script(given)


UNBOUND = {
    "severity": "error",
    "code": "binding_missing",
    "logical_ref": "local.ops.sleep",
    "bound_source": None,
    "message": "No binding exists for logical source 'local.ops'.",
    "repair_hint": "Bind the logical source to a compatible concrete source.",
}


def schema(**required: str) -> dict[str, Any]:
    """An object schema with these properties, all required."""
    properties = {name: {"type": kind} for name, kind in required.items()}
    return {"type": "object", "properties": properties, "required": list(required)}


def usual_deployments() -> list[Deployment]:
    """The deployments of the recorded server, and one of three steps for budgets."""
    slow = schema(seconds="number", tag="string")
    return [
        Deployment(
            deployment_id="hello.default",
            artifact_id="hello",
            input_schema=schema(who="string"),
            output_schema=schema(result="string"),
            script=Complete(output=lambda given: {"result": given["who"]}),
        ),
        Deployment(
            deployment_id="fail.default",
            artifact_id="fail",
            input_schema=schema(message="string"),
            script=Fail(error=lambda given: given["message"]),
        ),
        Deployment(
            deployment_id="approval.default",
            artifact_id="approval",
            input_schema=schema(message="string"),
            script=Interrupt(
                payload=lambda given: {"message": given["message"]},
                then=Complete(outcome="submitted", steps=3, delay_s=lambda given: given.get("seconds", 0)),
            ),
        ),
        Deployment(
            deployment_id="slow.default",
            artifact_id="slow",
            input_schema=slow,
            script=Complete(delay_s=lambda given: given["seconds"]),
        ),
        Deployment(deployment_id="unbound.default", artifact_id="slow", input_schema=slow, diagnostics=(UNBOUND,)),
        Deployment(deployment_id="steps.default", artifact_id="steps", script=Complete(steps=3)),
    ]
