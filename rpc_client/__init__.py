"""JSON-RPC clients: `WorkflowClient` for a workflow server, `App` for the scheduler daemon.

A leaf package, usable alone: it imports nothing of the daemon, so a program that only wants to create schedules installs
no calendar, no store and no engine with it.

The idea everything here turns on: a call does not succeed or fail, it *ends*, in one of four ways (`errors.Ending`), and
the way says what may be done next. Only `NotSent` may be tried again blindly.
"""

from rpc_client.errors import (
    Ambiguous,
    AmbiguousOutcome,
    Answered,
    Ending,
    NotSent,
    Refused,
    Rejected,
    RpcError,
    Unavailable,
)
from rpc_client.schedules import App
from rpc_client.transport import CallProbe, Limits, Transport
from rpc_client.workflow import WorkflowClient

__all__ = [
    "Ambiguous",
    "AmbiguousOutcome",
    "Answered",
    "App",
    "CallProbe",
    "Ending",
    "Limits",
    "NotSent",
    "Refused",
    "Rejected",
    "RpcError",
    "Transport",
    "Unavailable",
    "WorkflowClient",
]
