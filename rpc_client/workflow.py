"""The workflow server's methods, one thin function each.

Owns: method names, parameter names, and which methods may execute something.
Must never know: schedules, what an ending leads to.

Invariants
- Parameters are exactly those of the server's OpenRPC document; what is None is left out, since the server refuses
  members that it does not know and an older one knows fewer.
- Whatever may execute something goes out as a blocking call, which the transport never sends twice.

Each function answers how the call ended (`errors.Ending`); none of them raises for anything a server can do. Results are
decoded JSON in the server's shapes. `timeout_s` bounds a read in seconds; None means the transport's own bound.
"""

from collections.abc import Coroutine, Mapping
from typing import Any, Literal, TypeAlias

from rpc_client.errors import Ending
from rpc_client.transport import CallProbe, Transport

RunStatus: TypeAlias = Literal["completed", "failed", "interrupted"]


class WorkflowClient:
    """A workflow server, reached by a transport that the caller opens and closes."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def health(self, *, timeout_s: float | None = None) -> Ending:
        """`{"status", "store_root"}`, and `"features"` and `"instance_id"` where the server announces them."""
        return await self._read("workflow.health", timeout_s)

    async def sources_list(
        self, *, cursor: str | None = None, limit: int | None = None, timeout_s: float | None = None
    ) -> Ending:
        """`{"sources": [{"id", "kind", "enabled", ...}], "total", "next_cursor"}`; `limit` is 1 to 100."""
        return await self._read("workflow.sources.list", timeout_s, cursor=cursor, limit=limit)

    async def deployments_validate(
        self, deployment_id: str, *, live_check: bool | None = None, timeout_s: float | None = None
    ) -> Ending:
        """`{"status": "runnable" | "unrunnable", "diagnostics", "artifact_id", "artifact_version", ...}`."""
        return await self._read(
            "workflow.deployments.validate", timeout_s, deployment_id=deployment_id, live_check=live_check
        )

    async def deployments_inspect(self, deployment_id: str, *, timeout_s: float | None = None) -> Ending:
        """`{"id", "artifact_id", "artifact_version", "bindings", "drift_policy"}`."""
        return await self._read("workflow.deployments.inspect", timeout_s, deployment_id=deployment_id)

    async def artifacts_inspect(self, artifact_id: str, version: int, *, timeout_s: float | None = None) -> Ending:
        """`{"input_schema", "output_schema", ...}` of one version, counted from 1; a version never changes."""
        return await self._read("workflow.artifacts.inspect", timeout_s, artifact_id=artifact_id, version=version)

    async def runs_start(
        self,
        deployment_id: str,
        workflow_input: Mapping[str, Any],
        *,
        idempotency_key: str,
        max_steps: int | None = None,
        timeout_s: float | None = None,
        probe: CallProbe | None = None,
    ) -> Ending:
        """Execute a deployment and wait until it stops, for as long as that takes.

        The result names the run (`run_id`, null when `status` is `unrunnable`) and how it stopped. The key is always
        sent; only a server that announces `idempotent-start` heeds it. `max_steps` needs the feature of that name.
        """
        return await self._execute(
            "workflow.runs.start",
            idempotency_key,
            timeout_s,
            probe,
            deployment_id=deployment_id,
            workflow_input=workflow_input,
            max_steps=max_steps,
        )

    async def runs_resume(
        self,
        run_id: str,
        resume_payload: Mapping[str, Any] | None = None,
        resume_outcome: str | None = None,
        *,
        idempotency_key: str,
        timeout_s: float | None = None,
        probe: CallProbe | None = None,
    ) -> Ending:
        """Answer an interrupted run and wait until it stops again; the result is as that of `runs_start`."""
        return await self._execute(
            "workflow.runs.resume",
            idempotency_key,
            timeout_s,
            probe,
            run_id=run_id,
            resume_payload=resume_payload,
            resume_outcome=resume_outcome,
        )

    async def runs_inspect(self, run_id: str, *, timeout_s: float | None = None) -> Ending:
        """The last checkpoint of a run that has stopped at least once.

        An unknown run is refused (`KeyError`), which never means that it did not run: until it stops it has no record.
        """
        return await self._read("workflow.runs.inspect", timeout_s, run_id=run_id)

    async def runs_list(
        self,
        *,
        status: RunStatus | None = None,
        cursor: str | None = None,
        limit: int | None = None,
        timeout_s: float | None = None,
    ) -> Ending:
        """`{"runs", "total", "cursor", "next_cursor", "limit"}`, latest stop first; `limit` is 1 to 100.

        The server reads every run it has for this: a help for people, never a poll.
        """
        return await self._read("workflow.runs.list", timeout_s, status=status, cursor=cursor, limit=limit)

    async def schedules_list_probe(self, *, timeout_s: float | None = None) -> Ending:
        """Ask whether the server has a scheduler of its own: anything but `Refused` with METHOD_NOT_FOUND says so or
        leaves it open.
        """
        return await self._read("workflow.schedules.list", timeout_s)

    async def forward(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        probe: CallProbe | None = None,
    ) -> Ending:
        """Call a method by name with the params and the key as they are, for a gateway.

        Sent as a blocking call: what an unknown method does is unknown, so it is not sent twice.
        """
        return await self._transport.call(
            method, params, blocking=True, timeout_s=timeout_s, idempotency_key=idempotency_key, probe=probe
        )

    def _read(self, method: str, timeout_s: float | None, **params: Any) -> Coroutine[Any, Any, Ending]:
        return self._transport.call(method, _given(params), blocking=False, timeout_s=timeout_s)

    def _execute(
        self, method: str, idempotency_key: str, timeout_s: float | None, probe: CallProbe | None, **params: Any
    ) -> Coroutine[Any, Any, Ending]:
        return self._transport.call(
            method,
            _given(params),
            blocking=True,
            timeout_s=timeout_s,
            idempotency_key=idempotency_key,
            probe=probe,
        )


def _given(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}
