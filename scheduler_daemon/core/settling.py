"""What a result makes of a run.

Owns: the one place where a server's result becomes a final row, an interrupt or a fresh checkpoint, and the one text with which
the daemon fails closed.  Must never know: which question the result answered.
"""

from __future__ import annotations

from datetime import timedelta
from typing import get_args

from scheduler_daemon.core import events as ev
from scheduler_daemon.core.model import Checkpoint, Json, Result, Run, Status
from scheduler_daemon.core.planning import Planner
from scheduler_daemon.core.state import Draft

WATCH = timedelta(hours=24)
"""How long a run that ended `outcome-unknown` is still asked after.  Source: spec section 6."""

DISCLOSURE = (
    "the outcome is not known: external effects may already have happened, and the run may still be executing at the server; "
    "this occurrence is never started again"
)
_ENDS: dict[str, Status] = {"completed": "completed", "failed": "failed", "exhausted": "exhausted"}
assert set(_ENDS.values()) <= set(get_args(Status))


def readable(result: Result) -> bool:
    """Whether this result says where the run stands."""
    return result.status in _ENDS or (result.status == "interrupted" and result.server_run_id is not None)


def speaks_of(draft: Draft, run: Run, result: Result) -> bool:
    """Whether this result is about that run, as far as ids tell: one that names another run settles nothing.

    Only the ids of one server tell its runs apart; another server may give the same ones again.
    """
    told = result.server_run_id
    if run.server_run_id is not None:
        return told in (None, run.server_run_id)
    other = draft.run_of(told) if told is not None else None
    return other is None or other.server is None or run.server is None or not run.server.same_server(other.server)


def settle(planner: Planner, run: Run, result: Result) -> None:
    """Take the server's word: the run ended, or is interrupted (again)."""
    if result.status == "interrupted":
        _interrupt(planner, run, result)
        return
    planner.emit(
        ev.RunSettled(
            at=planner.at,
            schedule_id=run.schedule_id,
            n=planner.next_n(run.schedule_id),
            run_id=run.run_id,
            instant=run.instant,
            revision=run.revision,
            status=_ENDS[result.status],
            server_run_id=result.server_run_id or run.server_run_id,
            result=result,
            detail=drift(run, result),
        )
    )
    planner.log("run_settled", schedule_id=run.schedule_id, run_id=run.run_id, status=result.status)


def _interrupt(planner: Planner, run: Run, result: Result) -> None:
    """A run at rest that was resumed elsewhere has a new checkpoint; one that was executing is interrupted."""
    checkpoint, n = Checkpoint(result.status, result.trace_count), planner.next_n(run.schedule_id)
    if run.phase == "interrupted":
        planner.emit(
            ev.CheckpointSeen(
                at=planner.at,
                schedule_id=run.schedule_id,
                n=n,
                run_id=run.run_id,
                instant=run.instant,
                revision=run.revision,
                checkpoint=checkpoint,
                interrupt=result.interrupt,
            )
        )
    else:
        planner.emit(
            ev.RunInterrupted(
                at=planner.at,
                schedule_id=run.schedule_id,
                n=n,
                run_id=run.run_id,
                instant=run.instant,
                revision=run.revision,
                server_run_id=result.server_run_id or run.server_run_id or "",
                checkpoint=checkpoint,
                interrupt=result.interrupt,
                detail=drift(run, result),
            )
        )
    planner.log("run_interrupted", schedule_id=run.schedule_id, run_id=run.run_id)


def drift(run: Run, result: Result) -> dict[str, Json] | None:
    """The server ran another artifact version than the admitted one: recorded and disclosed, not enforced."""
    if run.artifact_version is None or result.artifact_version in (None, run.artifact_version):
        return None
    return {"artifact-drift": {"admitted": run.artifact_version, "ran": result.artifact_version}}


def reject(planner: Planner, run: Run, reason: str, message: str, diagnostics: tuple[Json, ...] = ()) -> None:
    """The server refused before anything ran."""
    detail: dict[str, Json] = {"message": message, "diagnostics": list(diagnostics)}
    _fail(planner, run, "preflight-rejected", reason, detail)


def fail_closed(planner: Planner, run: Run, case: str, why: str, **extra: Json) -> None:
    """Nobody can know what happened: `failed`, never repeated, all of it disclosed.

    A resume's attempt stays ACTIVE for good.  What the server shows later of a run whose id there is known is watched for.
    """
    definition = planner.schedule(run.schedule_id).definition
    hold_until = planner.at + timedelta(seconds=definition.hold_unknown_s) if definition.hold_unknown_s > 0 else None
    mark = run.mark
    planner.emit(
        ev.RunSettled(
            at=planner.at,
            schedule_id=run.schedule_id,
            n=planner.next_n(run.schedule_id),
            run_id=run.run_id,
            instant=run.instant,
            revision=run.revision,
            status="failed",
            reason="outcome-unknown",
            server_run_id=run.server_run_id,
            attempt=mark.attempt if mark is not None else 0,
            checkpoint=run.checkpoint,
            hold_until=hold_until,
            watch_until=planner.at + WATCH if run.server_run_id is not None else None,
            detail={"message": DISCLOSURE, "case": case, "why": why, **extra},
        )
    )
    planner.log("outcome_unknown", "warning", schedule_id=run.schedule_id, run_id=run.run_id, case=case, reason=why)


def fail(planner: Planner, run: Run, reason: str, message: str) -> None:
    """An operator's decision ends the run: `abandoned`, `contradiction`."""
    _fail(planner, run, "failed", reason, {"message": message})


def _fail(planner: Planner, run: Run, status: Status, reason: str, detail: dict[str, Json]) -> None:
    planner.emit(
        ev.RunSettled(
            at=planner.at,
            schedule_id=run.schedule_id,
            n=planner.next_n(run.schedule_id),
            run_id=run.run_id,
            instant=run.instant,
            revision=run.revision,
            status=status,
            reason=reason,
            server_run_id=run.server_run_id,
            detail=detail,
        )
    )
    planner.log("run_settled", schedule_id=run.schedule_id, run_id=run.run_id, status=status, reason=reason)
