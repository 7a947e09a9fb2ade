"""The recordings are all made use of, and a difference from them would be noticed."""

import inspect

import pytest

from tests.conformance import server_contract
from tests.conformance.recorded import differences, load, names
from tests.conformance.server_contract import ServerContract

# What shows in behaviour rather than in an answer's shape, and the test that shows it.
BY_BEHAVIOUR = {
    "runs_list_while_running": "test_a_run_is_not_listed_before_it_stops_although_its_caller_left",
    "runs_start_client_gone": "test_a_run_is_not_listed_before_it_stops_although_its_caller_left",
    "runs_resume_client_gone": (
        "test_while_a_resume_executes_readers_see_the_checkpoint_before_it_although_its_caller_left"
    ),
    "runs_start_server_killed": "test_an_unkeyed_run_leaves_no_trace_of_success_when_the_server_is_killed",
    "runs_list_after_server_restart": "test_an_unkeyed_run_leaves_no_trace_of_success_when_the_server_is_killed",
    "server_down": "test_an_unkeyed_run_leaves_no_trace_of_success_when_the_server_is_killed",
}


@pytest.mark.parametrize("name", names())
def test_every_recording_is_held_against_the_server(name):
    text = inspect.getsource(server_contract)

    assert f'"{name}"' in text or hasattr(ServerContract, BY_BEHAVIOUR.get(name, "?"))


@pytest.mark.parametrize("name", names())
def test_a_recording_does_not_differ_from_itself(name):
    recorded = load(name)
    if recorded.answer is not None:
        assert differences(recorded.answer.body, recorded.answer.body) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda result: result.pop("outcome"), "body.result: lacks outcome"),
        (lambda result: result.update(extra=1), "body.result: has extra besides"),
        (lambda result: result.update(trace_count="4"), "body.result.trace_count: string instead of number"),
        (lambda result: result.update(trace_count=True), "body.result.trace_count: boolean instead of number"),
        (lambda result: result.update(error="boom"), "body.result.error: string instead of null"),
        (lambda result: result.update(output=[]), "body.result.output: array instead of object"),
        (lambda result: result["next_actions"].pop("reason"), "body.result.next_actions: lacks reason"),
    ],
)
def test_another_shape_is_found_and_named(change, found):
    recorded, other = load("runs_inspect_completed").answer.body, load("runs_inspect_completed").answer.body
    change(other["result"])

    assert differences(other, recorded) == [found]


def test_another_shape_is_found_in_every_item_of_a_list():
    recorded, other = load("runs_list").answer.body, load("runs_list").answer.body
    other["result"]["runs"][1].pop("status")

    assert differences(other, recorded) == ["body.result.runs[1]: lacks status"]


def test_what_the_author_of_a_deployment_decides_is_not_compared():
    recorded, other = load("runs_start_completed").answer.body, load("runs_start_completed").answer.body
    other["result"]["output"] = {"quite": ["another", "one"]}

    assert differences(other, recorded) == []
