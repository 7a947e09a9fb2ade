"""One run as callers see it: what the daemon knows, completed by what the server shows.

Owns: which of the two is believed for which member, and who is asked.
Must never know: how a run came to where it is.

Our ids are looked up first, and an id of our form is never passed on: a run that expired must not be mistaken for one of
the server's.
"""

from __future__ import annotations

import re
from typing import Any, Protocol, cast

import msgspec

from rpc_client.errors import Answered, Refused
from rpc_client.workflow import WorkflowClient
from scheduler_daemon.core.commands import Rejected
from scheduler_daemon.core.model import Result, Row, Run
from scheduler_daemon.core.state import State
from scheduler_daemon.errors import ServerRefused
from scheduler_daemon.runtime.results import result_of
from scheduler_daemon.store.store import FoundRun, Store

OURS = re.compile(r"run-[0-9]{6,}\Z")


class Parts(Protocol):
    """What is asked: the committed state, history, and the server."""

    store: Store
    client: WorkflowClient

    @property
    def state(self) -> State:
        """The committed state."""
        ...


class Inspection:
    """Answers `workflow.runs.inspect`, and reads the checkpoint before a resume."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def inspect(self, run_id: str) -> dict[str, Any]:
        """By either id.  Raises `Rejected` RunNotFound, or `ServerRefused` for an id that only the server can know."""
        run = self._unfinished(run_id)
        if run is not None:
            return await self._show_unfinished(run)
        found = self._parts.store.find_run(run_id)
        if found is not None:
            return await self._show_finished(found)
        if OURS.match(run_id):
            raise Rejected("RunNotFound", f"no run {run_id!r}; its history may have expired", run_id=run_id)
        return await self._ask_server(run_id)

    def _unfinished(self, run_id: str) -> Run | None:
        owner = self._parts.state.owners.get(run_id)
        schedule = self._parts.state.schedules.get(owner) if owner is not None else None
        if schedule is None:
            return None
        return next((run for run in schedule.runs if run_id in (run.run_id, run.server_run_id)), None)

    async def _show_unfinished(self, run: Run) -> dict[str, Any]:
        """Nothing is made up for a run that has not stopped: no trace, no output, no checkpoint."""
        shown: dict[str, Any] = {
            "run_id": run.run_id,
            "server_run_id": run.server_run_id,
            "schedule_id": run.schedule_id,
            "deployment_id": run.deployment_id,
            "instant": run.instant,
            "revision": run.revision,
            "status": "running" if run.phase == "ambiguous" else run.phase,
            "ambiguous": run.phase == "ambiguous",
            "source": "daemon",
        }
        if run.phase != "interrupted" or run.server_run_id is None:
            return shown
        seen = await self._ask_result(run.server_run_id)
        if seen is not None and seen.get("status") == "interrupted":
            return {**shown, **_members(seen, "interrupt", "output", "trace_count"), "source": "server"}
        trace_count = run.checkpoint.trace_count if run.checkpoint is not None else 0
        return {**shown, "interrupt": run.interrupt, "trace_count": trace_count}

    async def _show_finished(self, found: FoundRun) -> dict[str, Any]:
        """The daemon's status; output, interrupt and trace from the server while it still has them."""
        last = found.rows[-1]
        admitted = next((row for row in found.rows if row.status == "admitted"), None)
        kept: dict[str, Any] = (last.detail or {}).get("result") or {}
        shown: dict[str, Any] = {
            "run_id": found.run_id,
            "server_run_id": found.server_run_id,
            "schedule_id": found.schedule_id,
            "deployment_id": ((admitted.detail or {}) if admitted is not None else {}).get("deployment_id"),
            "instant": last.instant,
            "revision": last.revision,
            "status": last.status,
            "reason": last.reason,
            "outcome": kept.get("outcome"),
            "error": kept.get("error"),
            "message": (last.detail or {}).get("message"),
            "output": kept.get("output"),
            "truncated": kept.get("truncated", False),
            "interrupt": None,
            "trace_count": kept.get("trace_count", 0),
            "diagnostics": kept.get("diagnostics") or (last.detail or {}).get("diagnostics") or [],
            "source": "daemon",
        }
        unknown = self._parts.state.unknown.get(found.run_id)
        if unknown is not None and unknown.observed is not None:
            shown["observed_outcome"] = msgspec.to_builtins(unknown.observed)
        if found.server_run_id is None or not _settled_by_server(last):
            return shown
        seen = await self._ask_result(found.server_run_id)
        if seen is None:
            return shown
        return {**shown, **_members(seen, "output", "trace_count"), "truncated": False, "source": "server"}

    async def fresh(self, run: Run) -> Result:
        """Where the server shows an interrupted run right now.  Raises `Rejected` ServerUnavailable, or `ServerRefused`."""
        result = result_of(await self._ask_server(run.server_run_id or ""), of=run.server_run_id)
        if result is None:
            raise Rejected(
                "ServerUnavailable", "the workflow server's answer cannot be read; nothing was changed", retryable=True
            )
        return result

    async def _ask_result(self, server_run_id: str) -> dict[str, Any] | None:
        """What the server shows of a run, whole; None when it does not answer, or not about this run."""
        ending = await self._parts.client.runs_inspect(server_run_id)
        if not isinstance(ending, Answered) or result_of(ending.result, of=server_run_id) is None:
            return None
        return cast("dict[str, Any]", ending.result)

    async def _ask_server(self, run_id: str) -> Any:
        ending = await self._parts.client.runs_inspect(run_id)
        if isinstance(ending, Answered):
            return ending.result
        if isinstance(ending, Refused):
            raise ServerRefused(ending.code, ending.message, ending.data)
        raise Rejected("ServerUnavailable", f"the workflow server did not answer: {ending.reason}", retryable=True)


def _settled_by_server(row: Row) -> bool:
    return row.status in ("completed", "failed", "exhausted") and row.reason is None


def _members(seen: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: seen.get(name) for name in names}
