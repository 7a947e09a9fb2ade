"""Every refusal that a caller can get, with what to do about it.

Owns: the list of application error codes, and the shape of an error answer.  Must never know: when each is raised; the core decides
that.

The shape is the workflow server's: code 5000, message "Workflow operation failed", and data with `code`, `message` and what
else helps.  `hint` and `retryable` are the same for every error of a code, so that a caller can act without reading the message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from scheduler_daemon.core.commands import Rejected
from scheduler_daemon.errors import ServerRefused
from scheduler_daemon.jsonrpc import Failure

APPLICATION_ERROR: Final = 5000
APPLICATION_MESSAGE: Final = "Workflow operation failed"

Handler = Callable[[Any, Any], Awaitable[object]]


class Fault(msgspec.Struct, frozen=True):
    """What to do about one code; `retryable` says that the very same call can succeed later by itself."""

    hint: str
    retryable: bool = False


FAULTS: Final[dict[str, Fault]] = {
    "ScheduleExists": Fault("choose another schedule_id; ids are never reused, not even after deletion"),
    "ScheduleNotFound": Fault("check schedule_id against workflow.schedules.list"),
    "ScheduleDeleted": Fault("create a schedule with another id; its history can still be read"),
    "ScheduleBlocked": Fault(
        "read the diagnostics of workflow.schedules.get, then call workflow.schedules.unblock with a note"
    ),
    "InvalidScheduleId": Fault("use 1 to 128 of A-Z a-z 0-9 _ . - and begin with a letter, a digit or _"),
    "RevisionConflict": Fault(
        "somebody changed it: get the schedule, decide again, send its revision as expected_revision"
    ),
    "InvalidTrigger": Fault(
        "correct the field that is named; `scheduler-daemon next` tries an expression without a daemon"
    ),
    "InvalidInput": Fault(
        "correct the field that is named; input must satisfy the input_schema of the deployment's artifact"
    ),
    "InvalidPolicy": Fault("correct the field that is named"),
    "Unsupported": Fault("leave the field out, or use a workflow server that announces the feature"),
    "DeploymentNotFound": Fault(
        "correct deployment_id, or save the deployment first: at the workflow server, or in the file of an embedded one, which is read at"
        " its start"
    ),
    "DeploymentUnrunnable": Fault(
        "mend what the diagnostics say at the workflow server; workflow.deployments.validate checks it"
    ),
    "ServerUnavailable": Fault(
        "nothing was done; call again when the workflow server answers (GET /readyz says)", retryable=True
    ),
    "RunNotFound": Fault("check run_id against workflow.schedules.occurrences.list; expired runs are gone"),
    "RunNotResumable": Fault("only an interrupted run can be resumed or abandoned; inspect it"),
    "ResumeInProgress": Fault("wait for the resume that is under way; inspect shows its end"),
    "AttemptAmbiguous": Fault(
        "do not resume again: an earlier resume may have had its effect; look at the run's effects by hand"
    ),
    "InvalidCursor": Fault(
        "send next_cursor unchanged, to the method and schedule that gave it, or start without a cursor"
    ),
    "CursorExpired": Fault("start again without a cursor: retention has dropped the rows after it"),
    "Draining": Fault("the daemon is stopping; call again when it has started", retryable=True),
    "StorageFull": Fault("nothing was done; make room on the disk of the store, then call again", retryable=True),
}


def failure(rejected: Rejected) -> Failure:
    """The JSON-RPC error of a refusal."""
    fault = FAULTS.get(rejected.code)
    told: dict[str, Any] = {} if fault is None else {"hint": fault.hint, "retryable": fault.retryable}
    data = {"code": rejected.code, "message": rejected.message, **told}
    # What the code and the message are is not for the details of one refusal to change.
    data |= {name: value for name, value in rejected.data.items() if name not in data}
    return Failure(APPLICATION_ERROR, APPLICATION_MESSAGE, data)


def told(handler: Handler) -> Handler:
    """The handler, with refusals turned into answers; everything else passes through."""

    async def call(context: Any, params: Any) -> object:
        try:
            return await handler(context, params)
        except Rejected as rejected:
            raise failure(rejected) from None
        except ServerRefused as refused:
            raise Failure(refused.code, refused.message, refused.data) from None

    return call
