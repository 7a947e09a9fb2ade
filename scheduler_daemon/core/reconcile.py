"""One unfinished run and what is known of the server: which lettered case it is, and what follows.

Owns: the recovery table, as data.  Every combination of facts matches exactly one row; a test tries them all.  The letter stands in
the log line, in the row's detail and in `deploy/RUNBOOK.md`.  Must never know: how the server is asked; that any two runs resemble
each other, because found means matched by key or by a server run id and nothing else.

"Keyed" means that the server announced `idempotent-start` when the mark was set and announces it now; "same" means the URL and the
store root of the mark.  "Reachable" means that the server was heard of after sight of the call was lost: what it said before proves
nothing about now.  A start that a plain server got is never more than one listing away, so its waiting is bounded by the grace; where
one inspection or one keyed answer holds the truth, the daemon waits as long as it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

import msgspec

from scheduler_daemon.core.live import ServerView
from scheduler_daemon.core.model import Phase, Run
from scheduler_daemon.core.settling import readable

Findings = Literal["none", "failed", "unknown", "not-newer", "newer"]
Decision = Literal[
    "nothing",
    "plan",
    "dispatch",
    "wait",
    "fail",
    "fail-and-block",
    "repeat",
    "list",
    "inspect",
    "settle",
    "watch",
    "block-and-watch",
]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that the table may look at."""

    phase: Literal["settled", "none"] | Phase
    call_open: bool
    kind: Literal["start", "resume"]
    caller_gone: bool
    reachable: bool
    same: bool
    keyed_at_mark: bool
    keyed_now: bool
    finding: Findings
    grace_over: bool


class Case(msgspec.Struct, frozen=True):
    """A lettered row: it matches when every named fact has one of the named values."""

    letter: str
    decision: Decision
    where: Mapping[str, frozenset[Any]]

    def matches(self, facts: Facts) -> bool:
        return all(getattr(facts, name) in values for name, values in self.where.items())


def _case(letter: str, decision: Decision, **where: Any) -> Case:
    sets: dict[str, frozenset[Any]] = {}
    for name, value in where.items():
        sets[name] = cast("frozenset[Any]", value) if isinstance(value, frozenset) else frozenset({value})
    return Case(letter, decision, sets)


_LOST: dict[str, Any] = {"phase": "ambiguous", "call_open": False}
_LOST_START: dict[str, Any] = {**_LOST, "kind": "start"}
_LOST_RESUME: dict[str, Any] = {**_LOST, "kind": "resume"}
_THERE: dict[str, Any] = {"reachable": True, "same": True}
_KEYED: dict[str, Any] = {"keyed_at_mark": True, "keyed_now": True}
_RESTING: dict[str, Any] = {"phase": "interrupted"}
_UNTOLD = frozenset({"none", "failed"})
_TOLD = frozenset({"failed", "unknown", "not-newer", "newer"})

# A resume of a plain server is inspected; so is one of a keyed server that announces no keys any more, or whose caller went away.
_INSPECTED: tuple[dict[str, Any], ...] = (
    {**_LOST_RESUME, **_THERE, "caller_gone": False, "keyed_at_mark": False},
    {**_LOST_RESUME, **_THERE, "caller_gone": False, "keyed_at_mark": True, "keyed_now": False},
)
_DESERTED: dict[str, Any] = {**_LOST_RESUME, **_THERE, "caller_gone": True}

TABLE: tuple[Case, ...] = (
    _case("A", "nothing", phase="settled"),
    _case("B", "plan", phase="none"),
    _case("C", "dispatch", phase="admitted"),
    _case("D", "wait", phase="running"),
    _case("D", "wait", phase="ambiguous", call_open=True),
    _case("E", "wait", **_LOST_START, reachable=False, keyed_at_mark=True),
    _case("E", "wait", **_LOST_RESUME, reachable=False),
    _case("F", "wait", **_LOST_START, reachable=False, keyed_at_mark=False, grace_over=False),
    _case("G", "fail", **_LOST_START, reachable=False, keyed_at_mark=False, grace_over=True),
    _case("H", "repeat", **_LOST_START, **_THERE, **_KEYED),
    _case("H", "repeat", **_LOST_RESUME, **_THERE, **_KEYED, caller_gone=False),
    _case("I", "list", **_LOST_START, **_THERE, keyed_at_mark=False, finding="none"),
    _case("I", "list", **_LOST_START, **_THERE, keyed_at_mark=True, keyed_now=False, finding="none"),
    _case("I", "fail", **_LOST_START, **_THERE, keyed_at_mark=False, finding=_TOLD),
    _case("I", "fail", **_LOST_START, **_THERE, keyed_at_mark=True, keyed_now=False, finding=_TOLD),
    _case("I", "fail", **_LOST_START, reachable=True, same=False),
    *(_case("J", "fail-and-block", **where, finding="unknown") for where in _INSPECTED),
    *(_case("K", "settle", **where, finding="newer") for where in _INSPECTED),
    *(_case("L", "inspect", **where, finding=_UNTOLD) for where in _INSPECTED),
    *(_case("L", "inspect", **where, finding="not-newer", grace_over=False) for where in _INSPECTED),
    *(_case("L", "fail", **where, finding="not-newer", grace_over=True) for where in _INSPECTED),
    _case("X", "inspect", **_DESERTED, finding=_UNTOLD),
    _case("X", "settle", **_DESERTED, finding="newer"),
    _case("X", "fail", **_DESERTED, finding="not-newer"),
    _case("X", "fail-and-block", **_DESERTED, finding="unknown"),
    _case("M", "watch", **_RESTING, reachable=False),
    _case("N", "block-and-watch", **_RESTING, **_THERE, finding="unknown"),
    _case("O", "settle", **_RESTING, **_THERE, finding="newer"),
    _case("P", "watch", **_RESTING, **_THERE, finding=frozenset({"none", "failed", "not-newer"})),
    _case("Q", "fail-and-block", **_LOST_RESUME, reachable=True, same=False),
    _case("Q", "block-and-watch", **_RESTING, reachable=True, same=False),
)

LETTERS = tuple(dict.fromkeys(case.letter for case in TABLE))
FINDINGS: tuple[str, ...] = get_args(Findings)


def classify(facts: Facts) -> Case:
    """The row of the table that these facts match."""
    return next(case for case in TABLE if case.matches(facts))


def facts_of(run: Run, server: ServerView, mono: float, grace_s: float) -> Facts:
    """What the table may know about an unfinished run."""
    live, mark = run.live, run.mark
    seen_since = server.seen_mono is not None and (live.lost_mono is None or server.seen_mono > live.lost_mono)
    announced = run.server
    return Facts(
        phase=run.phase,
        call_open=live.call_seq is not None,
        kind=mark.kind if mark is not None else "start",
        caller_gone=mark is not None and mark.caller_gone,
        reachable=server.up and seen_since,
        same=server.facts is not None and announced is not None and announced.same_server(server.facts),
        keyed_at_mark=mark is not None and mark.server.keyed,
        keyed_now=server.facts is not None and server.facts.keyed,
        finding=_finding(run),
        grace_over=live.unsure_mono is not None and mono - live.unsure_mono >= grace_s,
    )


def _finding(run: Run) -> Findings:
    finding = run.live.finding
    if finding is None:
        return "none"
    match finding.kind:
        case "result":
            result, checkpoint = finding.result, run.checkpoint
            if result is None or checkpoint is None or not readable(result):
                return "not-newer"
            return "newer" if checkpoint.older_than(result.status, result.trace_count) else "not-newer"
        case "unknown":
            return "unknown"
        case "listed":
            return "not-newer"
        case "failed":
            return "failed"
