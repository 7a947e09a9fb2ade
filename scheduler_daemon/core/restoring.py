"""What an accepted restore means: the store is an older copy, and nobody knows what was done since.

Owns: the consequences that spec section 9 names. Must never know: how the copy was found out, or where it came from.

Between the copy and now another process may have started anything that was due. So nothing of that span is started: it is missed, with
reason `restored`. A run that looks unsent here may have been sent there, so its outcome is not known; a start that a plain server may
have got is not known either. What a keyed server can still tell, and a run at an interrupt, is left to the ordinary judgement.
"""

from __future__ import annotations

from scheduler_daemon.core import events as ev
from scheduler_daemon.core import triggers
from scheduler_daemon.core.closing import block_for_fault, close_candidate, close_due
from scheduler_daemon.core.faults import SCHEDULE_FAULTS
from scheduler_daemon.core.model import Run, Schedule
from scheduler_daemon.core.planning import Planner
from scheduler_daemon.core.settling import fail_closed

WHY = "the store was restored from an older copy, and this run may have been sent since that copy was made"


def accept_restore(planner: Planner) -> None:
    """Consume everything up to now as missed, and give up what may have been sent."""
    draft = planner.draft
    for schedule_id in list(draft.schedules.keys()):
        schedule = draft.schedules[schedule_id]
        for run in schedule.runs:
            if _may_have_been_sent(run):
                fail_closed(planner, run, "restored", WHY)
        if schedule.admits:
            _consume(planner, draft.schedules[schedule_id])
    planner.emit(ev.Decided(at=planner.at, until=planner.at))
    planner.log("restore_accepted", "warning", schedules=len(draft.schedules.keys()))


def _may_have_been_sent(run: Run) -> bool:
    if run.phase == "admitted":
        return True
    return run.phase == "ambiguous" and run.mark is not None and run.mark.kind == "start" and not run.mark.server.keyed


def _consume(planner: Planner, schedule: Schedule) -> None:
    schedule_id = schedule.definition.schedule_id
    try:
        due = triggers.due(schedule.definition.trigger, planner.draft.watermark_of(schedule), planner.at)
    except SCHEDULE_FAULTS as fault:
        block_for_fault(planner, schedule_id, fault)
        return
    close_candidate(planner, schedule_id, "skipped-misfire", "restored")
    close_due(planner, schedule_id, due, "skipped-misfire", "restored")
