"""The life of an occurrence: the table exhaustively, and what each state holds (spec section 6)."""

from typing import get_args

import pytest

from scheduler_daemon.core import events as ev
from scheduler_daemon.core import lifecycle
from scheduler_daemon.core.lifecycle import ENDS, HOLDS_OVERLAP, HOLDS_SLOT, TABLE, Contradiction, after
from scheduler_daemon.core.model import Phase

STATES = get_args(lifecycle.State)
OCCURRENCE_EVENTS = (
    "CandidateHeld",
    "OccurrenceClosed",
    "RangeClosed",
    "RunAdmitted",
    "DispatchMarked",
    "DispatchNotSent",
    "CallLost",
    "EpochStarted",
    "AttemptMarked",
    "AttemptReverted",
    "RunInterrupted",
    "CheckpointSeen",
    "RunSettled",
    "OutcomeObserved",
)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", OCCURRENCE_EVENTS)
def test_a_pair_leads_where_the_table_says_and_an_unlisted_one_raises(state, event):
    listed = TABLE.get((state, event))
    if listed is None:
        with pytest.raises(Contradiction) as raised:
            after(state, event, "run-000001")
        assert (raised.value.state, raised.value.event, raised.value.subject) == (state, event, "run-000001")
    else:
        assert after(state, event, "run-000001") == listed


def test_every_event_of_the_table_is_one_that_the_store_keeps():
    kept = {event.__name__ for event in get_args(ev.Event)}
    assert {event for _, event in TABLE} <= kept
    assert {event for _, event in TABLE} == set(OCCURRENCE_EVENTS)


def test_admitted_running_ambiguous_and_interrupted_runs_hold_overlap():
    assert {"admitted", "running", "ambiguous", "interrupted"} == HOLDS_OVERLAP
    assert set(get_args(Phase)) == HOLDS_OVERLAP


def test_only_a_run_whose_request_may_be_at_the_server_holds_a_slot():
    assert {"running", "ambiguous"} == HOLDS_SLOT


def test_a_final_state_has_no_way_out_but_the_disclosure_of_an_unknown_outcome():
    assert {"final", "unknown"} == ENDS
    ways_out = {(state, event, following) for (state, event), following in TABLE.items() if state in ENDS}
    assert ways_out == {("unknown", "OutcomeObserved", "unknown")}


def test_every_state_that_holds_overlap_can_end():
    assert {state for (state, event) in TABLE if event == "RunSettled"} == HOLDS_OVERLAP


def test_a_slot_is_taken_and_given_back_only_where_the_table_crosses_the_border():
    crossings = {event for (state, event), to in TABLE.items() if (state in HOLDS_SLOT) != (to in HOLDS_SLOT)}
    assert crossings == {
        "DispatchMarked",
        "AttemptMarked",
        "DispatchNotSent",
        "RunInterrupted",
        "AttemptReverted",
        "RunSettled",
    }


def test_a_candidate_is_either_closed_or_admitted():
    assert {event for (state, event) in TABLE if state == "pending"} == {"OccurrenceClosed", "RunAdmitted"}


def test_the_diagram_shows_every_edge_once():
    lines = lifecycle.mermaid().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert sum(line.count(",") + 1 for line in lines[1:]) == len(TABLE)
    assert "    [*] --> pending: CandidateHeld" in lines
