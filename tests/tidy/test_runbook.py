"""The runbook has a row for everything the daemon can say, and none for what it cannot."""

import re
from typing import get_args, get_type_hints

import pytest

from rpc_client import errors as rpc
from scheduler_daemon import errors
from scheduler_daemon.api.faults import FAULTS
from scheduler_daemon.api.metrics import Page
from scheduler_daemon.core import judging, reconcile
from scheduler_daemon.core.events import AttemptReverted
from scheduler_daemon.core.model import Status, Waiting
from scheduler_daemon.runtime.figures import Counters, Figures
from scheduler_daemon.runtime.logs import ACTIONS
from scheduler_daemon.store.history import DAMAGED
from tests.tidy import runbook
from tests.tidy.tree import ROOT, Source, sources

TABLES = runbook.tables(runbook.PAGE)
CORE = [source for source in sources() if source.path.startswith("scheduler_daemon/core/")]
DAEMON = [
    source for source in sources() if source.path.startswith("scheduler_daemon/") and "/embedded/" not in source.path
]
PROTOCOL = {
    rpc.PARSE_ERROR,
    rpc.INVALID_REQUEST,
    rpc.METHOD_NOT_FOUND,
    rpc.INVALID_PARAMS,
    rpc.INTERNAL_ERROR,
    rpc.APPLICATION_ERROR,
}

# What an expression stands for that is no constant. `why` is `admission.waiting_now`; a `closing` keeps the reason of the
# pause, block, deletion or edit that made it.
KNOWN = {
    "why": get_args(Waiting),
    "event.reason": get_args(get_type_hints(AttemptReverted)["reason"]),
    "schedule.closing.reason": ("paused", "blocked", "deleted", "trigger-changed"),
    "event.status": (),  # the status of a settled run, which its own writer names
}
PLAIN_ENDS = {("completed", ""), ("failed", ""), ("exhausted", "")}
"""What the server's word makes of a run, by `settling.settle`; a reason is given only to what the daemon decides itself."""


class _Nothing:
    """A source of figures of a daemon that has done nothing."""

    def checks(self):
        return []

    def figures(self) -> Figures:
        counters = Counters()
        return Figures(
            schedules={},
            runs={},
            candidates={},
            decisions={},
            slots_used=0,
            slots_max=4,
            overdue_s=0.0,
            tick_age_s=0.0,
            server_up=True,
            draining=False,
            storage_full=False,
            dispatch_lateness=counters.dispatch_lateness,
            commit=counters.commit,
        )


def said(heading: str) -> set[str]:
    """What the first column of a table lists."""
    return {runbook.word(row[0]) for row in TABLES[heading]}


def metric_names() -> set[str]:
    families = Page(_Nothing()).families()
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families}


def row_pairs() -> set[runbook.Pair]:
    held = {(status, waiting) for status in ("pending", "skipped-misfire") for waiting in get_args(Waiting)}
    unknown = {("failed", "outcome-unknown")}
    return runbook.row_pairs(CORE, KNOWN) | held | unknown | PLAIN_ENDS | {(DAMAGED, "damaged-record")}


def diagnostic_codes() -> set[str]:
    blocking = [case for case in reconcile.TABLE if "block" in case.decision]
    (faults,) = [source for source in CORE if source.path.endswith("/faults.py")]
    return (
        {judging._contradiction(case)[0] for case in blocking}
        | runbook.returned_texts(faults, "code_of")
        | runbook.first_texts(DAEMON, "Diagnostic")
    )


CLOSED_LISTS = {
    "Exit codes": lambda: {str(code) for code in errors.EXIT_MEANINGS},
    "Readiness": lambda: runbook.first_texts(DAEMON, "Check"),
    "Diagnostics": diagnostic_codes,
    "Recovery letters": lambda: set(reconcile.LETTERS),
    "Log actions": lambda: set(ACTIONS),
    "Metrics": metric_names,
    "Error codes": lambda: {str(code) for code in PROTOCOL} | set(FAULTS),
}


@pytest.mark.parametrize("heading", CLOSED_LISTS)
def test_the_table_lists_what_the_code_has_and_nothing_else(heading):
    assert said(heading) == CLOSED_LISTS[heading]()


def test_each_status_with_each_reason_has_its_row():
    listed = {(runbook.word(row[0]), runbook.word(row[1])) for row in TABLES["Rows"]}
    assert listed == row_pairs()
    assert {status for status, _ in listed} == {*get_args(Status), DAMAGED}


def test_no_line_stands_twice_and_each_says_what_it_means():
    for heading, rows in TABLES.items():
        keys = [tuple(row[:2]) if heading == "Rows" else row[0] for row in rows]
        assert len(keys) == len(set(keys)), heading
        widths = {len(row) for row in rows}
        assert len(widths) == 1, (heading, widths)
        assert all(row[-2] for row in rows), heading


def test_each_link_leads_to_a_heading():
    assert runbook.links(runbook.PAGE) <= runbook.anchors(runbook.PAGE)


def test_each_script_that_the_page_names_exists():
    named = set(re.findall(r"deploy/curl/([a-z-]+)", runbook.PAGE))
    assert named
    assert named <= {path.name for path in (ROOT / "deploy" / "curl").iterdir()}


# --- the machinery notices --------------------------------------------------------------------------------------------


def pairs(text: str) -> set[runbook.Pair]:
    return runbook.row_pairs([Source("scheduler_daemon/core/example.py", text)], {"why": ("one", "two")})


def test_a_reason_is_read_off_a_constant_a_choice_and_a_name():
    assert pairs("def f():\n close_one(p, s, i, 'coalesced', 'a')") == {("coalesced", "a")}
    assert pairs("def f():\n close_span(p, s, 'a' if x else 'b')") == {("superseded", "a"), ("superseded", "b")}
    assert pairs("def f():\n r = 'a'\n fail(p, run, r, m)") == {("failed", "a")}
    assert pairs("def f():\n close_candidate(p, s, 'x', why)") == {("x", "one"), ("x", "two")}
    assert pairs("def f():\n _run_row(event, 'running')") == {("running", "")}


def test_a_reason_that_is_only_passed_on_is_its_callers():
    assert pairs("def close_due(p, s, due, status, reason):\n close_one(p, s, i, status, reason)") == set()


def test_a_reason_that_cannot_be_read_off_is_not_overlooked():
    with pytest.raises(runbook.Unreadable, match=r"example\.py:2: mystery\(\)"):
        pairs("def f():\n close_one(p, s, i, 'coalesced', mystery())")


def test_a_table_is_read_with_empty_cells():
    page = "## A\n\n| code | x |\n|---|---|\n| `a` | |\n| `b` | two |\n"
    assert runbook.tables(page) == {"A": [["`a`", ""], ["`b`", "two"]]}
