"""The life of an occurrence, as one literal table.

Owns: which event may follow which state, and what each state holds.  An unlisted pair raises `Contradiction`: the schedule is
blocked, nothing is guessed.  Must never know: why an event was decided.

`none` is an instant nobody has spoken of, `final` any final row.  `unknown` is the final `failed` with reason `outcome-unknown`:
it takes one more event, which changes nothing but what is disclosed beside it.
"""

from __future__ import annotations

from typing import Final, Literal

State = Literal["none", "pending", "admitted", "running", "ambiguous", "interrupted", "final", "unknown"]


class Contradiction(Exception):
    """An event that the table does not list for the state it met."""

    def __init__(self, state: str, event: str, subject: str) -> None:
        super().__init__(f"{event} cannot follow {state} ({subject})")
        self.state = state
        self.event = event
        self.subject = subject


TABLE: Final[dict[tuple[State, str], State]] = {
    ("none", "CandidateHeld"): "pending",
    ("none", "OccurrenceClosed"): "final",
    ("none", "RangeClosed"): "final",
    ("none", "RunAdmitted"): "admitted",
    ("pending", "OccurrenceClosed"): "final",
    ("pending", "RunAdmitted"): "admitted",
    ("admitted", "DispatchMarked"): "running",
    ("admitted", "RunSettled"): "final",
    ("running", "DispatchNotSent"): "admitted",
    ("running", "CallLost"): "ambiguous",
    ("running", "EpochStarted"): "ambiguous",
    ("running", "RunInterrupted"): "interrupted",
    ("running", "AttemptReverted"): "interrupted",
    ("running", "RunSettled"): "final",
    ("ambiguous", "EpochStarted"): "ambiguous",
    ("ambiguous", "RunInterrupted"): "interrupted",
    ("ambiguous", "RunSettled"): "final",
    ("interrupted", "AttemptMarked"): "running",
    ("interrupted", "CheckpointSeen"): "interrupted",
    ("interrupted", "RunSettled"): "final",
    ("unknown", "OutcomeObserved"): "unknown",
}

HOLDS_OVERLAP: Final[frozenset[State]] = frozenset({"admitted", "running", "ambiguous", "interrupted"})
HOLDS_SLOT: Final[frozenset[State]] = frozenset({"running", "ambiguous"})
ENDS: Final[frozenset[State]] = frozenset({"final", "unknown"})


def after(state: State, event: str, subject: str) -> State:
    """The state that `event` leads to; `subject` names the occurrence in the contradiction that is raised otherwise."""
    following = TABLE.get((state, event))
    if following is None:
        raise Contradiction(state, event, subject)
    return following


def mermaid() -> str:
    """The table as the state diagram that `DESIGN.md` shows."""
    lines = ["stateDiagram-v2"]
    edges: dict[tuple[str, str], list[str]] = {}
    for (state, event), following in TABLE.items():
        edges.setdefault((state, following), []).append(event)
    for (state, following), events in edges.items():
        source = "[*]" if state == "none" else state
        lines.append(f"    {source} --> {following}: {', '.join(events)}")
    return "\n".join(lines)
