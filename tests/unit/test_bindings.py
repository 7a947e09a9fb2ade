"""What a binding may be, what a run gets from it, and the judgement of an input by somebody else's schema."""

import json
import math
import socket
import time
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from scheduler_daemon.core import bindings
from scheduler_daemon.core.bindings import BindingRefused, Facts, check_bindings, check_input, resolve


def facts(**changes):
    usual = Facts(
        instant=datetime(2026, 11, 1, 6, 30, tzinfo=UTC),
        timezone="America/New_York",
        previous_instant=datetime(2026, 11, 1, 5, 30, tzinfo=UTC),
        schedule_id="nightly",
        revision=3,
        run_id="run-000007",
    )
    return msgspec.structs.replace(usual, **changes)


def resolved(fact, **changes):
    return resolve({"it": {"from": fact}}, facts(**changes))["it"]


def nested(depth):
    value = "deep"
    for _ in range(depth):
        value = [value]
    return value


# --- shape --------------------------------------------------------------------------------------------------------------


def test_every_kind_of_literal_and_every_fact_is_taken():
    check_bindings({})
    check_bindings({"who": {"value": "world"}, "as_of": {"from": "occurrence.instant"}})
    for value in (None, True, 0, -(2**63), 2**64 - 1, 1.5, "", "ø", [], {}, [{"a": [None]}], nested(32)):
        check_bindings({"it": {"value": value}})
    for fact in (
        "occurrence.instant",
        "occurrence.local_time",
        "occurrence.previous_instant",
        "schedule.id",
        "schedule.revision",
        "run.id",
    ):
        check_bindings({"it": {"from": fact}})


@pytest.mark.parametrize(
    "binding",
    [
        "world",
        None,
        [],
        {},
        {"Value": 1},
        {"value": 1, "from": "run.id"},
        {"value": 1, "note": "x"},
        {"from": "run.id", "": 1},
        {1: 2},
    ],
    ids=repr,
)
def test_a_binding_is_one_literal_or_one_fact(binding):
    with pytest.raises(BindingRefused) as refused:
        check_bindings({"who": binding})
    assert refused.value.field == "input.who"
    assert refused.value.reason == 'a binding is {"value": …} or {"from": "<fact>"}'
    assert str(refused.value) == f"input.who: {refused.value.reason}"


@pytest.mark.parametrize(
    "fact", ["occurrence", "occurrence.id", "RUN.ID", "", None, 7, ["run.id"], {"a": 1}, "x" * 999]
)
def test_an_unknown_fact_is_refused_and_the_known_ones_named(fact):
    with pytest.raises(BindingRefused) as refused:
        check_bindings({"who": {"from": fact}})
    assert refused.value.field == "input.who"
    assert "occurrence.previous_instant" in refused.value.reason
    assert len(refused.value.reason) < 250


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb", "a\x00", "a\u202eb", 7, None], ids=repr)
def test_an_input_needs_a_printable_name_of_bounded_length(name):
    with pytest.raises(BindingRefused, match="1 to 128 printable") as refused:
        check_bindings({name: {"value": 1}})
    assert refused.value.field == "input"
    assert len(refused.value.reason) < 120


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "nan is not a JSON number"),
        ([{"a": math.inf}], "inf is not a JSON number"),
        (2**64, "64 bits"),
        ([-(2**63) - 1], "64 bits"),
        (nested(33), "deeper than 32"),
        ({1: 2}, "not a string"),
        ({"a": b"x"}, "a bytes is not a JSON value"),
        ((1, 2), "a tuple is not a JSON value"),
        ({1, 2}, "a set is not a JSON value"),
        (datetime(2026, 1, 1, tzinfo=UTC), "a datetime is not a JSON value"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_json_has_no_word_for_is_refused(value, reason):
    with pytest.raises(BindingRefused, match=reason) as refused:
        check_bindings({"who": {"value": value}})
    assert refused.value.field == "input.who"


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(BindingRefused, match="not valid Unicode") as refused:
        check_bindings({"who": {"value": "\ud83d"}})
    assert refused.value.field == "input"


def test_a_literal_that_contains_itself_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(BindingRefused, match="deeper than 32"):
        check_bindings({"who": {"value": loop}})


def test_there_are_at_most_256_inputs():
    check_bindings({f"input_{n}": {"value": n} for n in range(256)})
    with pytest.raises(BindingRefused, match="257 inputs, at most 256"):
        check_bindings({f"input_{n}": {"value": n} for n in range(257)})


def test_all_bindings_together_are_at_most_64_kib_of_json():
    frame = len(json.dumps({"who": {"value": ""}}, separators=(",", ":")))
    check_bindings({"who": {"value": "x" * (64 * 1024 - frame)}})
    with pytest.raises(BindingRefused, match="65537 bytes of JSON, at most 65536"):
        check_bindings({"who": {"value": "x" * (64 * 1024 - frame + 1)}})


# --- resolution ---------------------------------------------------------------------------------------------------------


def test_literals_and_facts_become_the_workflow_input():
    given_input = {
        "who": {"value": {"from": "run.id"}},
        "as_of": {"from": "occurrence.instant"},
        "revision": {"from": "schedule.revision"},
    }
    assert resolve(given_input, facts()) == {"who": {"from": "run.id"}, "as_of": "2026-11-01T06:30:00Z", "revision": 3}


def test_each_fact_has_its_json_form():
    assert resolved("occurrence.instant") == "2026-11-01T06:30:00Z"
    assert resolved("occurrence.local_time") == "2026-11-01T01:30:00-05:00"
    assert resolved("occurrence.previous_instant") == "2026-11-01T05:30:00Z"
    assert resolved("schedule.id") == "nightly"
    assert resolved("schedule.revision") == 3
    assert resolved("run.id") == "run-000007"


def test_the_first_occurrence_has_no_previous_instant():
    assert resolved("occurrence.previous_instant", previous_instant=None) is None


def test_local_time_tells_the_two_passes_of_a_repeated_hour_apart():
    assert (
        resolved("occurrence.local_time", instant=datetime(2026, 11, 1, 5, 30, tzinfo=UTC))
        == "2026-11-01T01:30:00-04:00"
    )
    assert resolved("occurrence.local_time", timezone="UTC") == "2026-11-01T06:30:00+00:00"
    assert resolved("occurrence.local_time", timezone="Asia/Kathmandu") == "2026-11-01T12:15:00+05:45"


def test_an_instant_in_any_offset_is_shown_in_utc_with_its_microseconds():
    instant = datetime(2026, 11, 1, 7, 30, 0, 250_000, tzinfo=timezone(timedelta(hours=1)))
    assert resolved("occurrence.instant", instant=instant) == "2026-11-01T06:30:00.250000Z"


def test_the_same_facts_give_the_same_input():
    bound = {"a": {"from": "run.id"}, "b": {"value": [1]}}
    assert resolve(bound, facts()) == resolve(bound, facts())
    assert list(resolve(bound, facts())) == ["a", "b"]


# --- judgement ----------------------------------------------------------------------------------------------------------

GREETING = {
    "type": "object",
    "properties": {"who": {"type": "string"}, "times": {"type": "integer"}},
    "required": ["who"],
    "additionalProperties": False,
}


def test_an_input_that_fits_has_nothing_said_about_it():
    assert check_input(GREETING, {"who": "world"}) == ()
    assert check_input(GREETING, {"who": "world", "times": 3}) == ()
    assert check_input(GREETING, {"who": "world", "times": 3.0}) == ()


@pytest.mark.parametrize("schema", [None, {}])
def test_without_a_schema_everything_fits(schema):
    assert check_input(schema, {"anything": object()}) == ()


def test_each_fault_names_the_input_and_the_rule():
    assert check_input(GREETING, {}) == ("input: 'who' is a required property",)
    assert check_input(GREETING, {"who": 5}) == ("input.who: 5 is not of type 'string'",)
    assert check_input(GREETING, {"who": "x", "times": True}) == ("input.times: True is not of type 'integer'",)
    assert check_input(GREETING, {"who": "x", "extra": 1}) == (
        "input: Additional properties are not allowed ('extra' was unexpected)",
    )


def test_faults_are_sorted_by_place_and_say_where_inside_a_value():
    schema = {"properties": {"b": {"type": "string"}, "a": {"items": {"properties": {"n": {"minimum": 3}}}}}}
    assert check_input(schema, {"b": 1, "a": [{"n": 3}, {"n": 2}]}) == (
        "input.a[1].n: 2 is less than the minimum of 3",
        "input.b: 1 is not of type 'string'",
    )


def test_at_most_ten_faults_are_told():
    schema = {"properties": {"list": {"items": {"type": "string"}}}}
    told = check_input(schema, {"list": list(range(20_000))})
    assert len(told) == 10
    assert told[0] == "input.list[0]: 0 is not of type 'string'"


def test_a_long_value_is_not_repeated():
    (told,) = check_input(GREETING, {"who": ["secret" * 1000]})
    assert told == "input.who: does not satisfy type: 'string'"
    (told,) = check_input({"properties": {"who": {"enum": ["y" * 500]}}}, {"who": "x" * 500})
    assert told.startswith("input.who: does not satisfy enum: ['yyy")
    assert len(told) <= 200
    (told,) = check_input({"additionalProperties": {"type": "string"}}, {"n" * 500: 5})
    assert told.endswith("…: does not satisfy type: 'string'")
    assert len(told) <= 200


UNUSABLE = [
    ({"type": "text"}, "'text' is not valid"),
    ({"type": 5}, "5 is not valid"),
    ({"properties": 5}, "5 is not of type 'object'"),
    ({"required": "who"}, "'who' is not of type 'array'"),
    ({"properties": {"who": {"pattern": "("}}}, "'(' is not a 'regex'"),
    ({"patternProperties": {"(": {}}}, "'(' is not a 'regex'"),
    ({"$schema": 5}, "its $schema is not a string"),
    ({"$schema": ["x"]}, "its $schema is not a string"),
    ({"$ref": "#"}, "RecursionError"),
    ({"$defs": {"loop": {"$ref": "#/$defs/loop"}}, "$ref": "#/$defs/loop"}, "RecursionError"),
    ({"$ref": "#/nowhere"}, "does not contain: PointerToNowhere"),
    ({"$ref": "http://127.0.0.1:9/schema.json"}, "does not contain: Unresolvable: http://127.0.0.1:9/schema.json"),
    ({"$ref": "https://example.com/schema.json"}, "does not contain: Unresolvable: https://example.com/schema.json"),
    ({"$ref": "file:///etc/hostname"}, "does not contain: Unresolvable: file:///etc/hostname"),
    ({"$ref": "http://[bad"}, "does not contain: Unresolvable: http://[bad"),
    ({"$dynamicRef": "#nowhere"}, "does not contain: NoSuchAnchor"),
    ({"properties": {"who": {"$ref": "other.json"}}}, "does not contain: Unresolvable: other.json"),
    ({"unevaluatedProperties": False, "$ref": "#/nowhere"}, "does not contain: PointerToNowhere"),
    ({"properties": {"who": {"const": "\ud83d"}}}, "it is no JSON"),
    ({"properties": {"who": {"const": object()}}}, "it is no JSON"),
    ({"description": "x" * 300_000}, "300018 bytes, at most 262144"),
]


@pytest.mark.parametrize(("schema", "reason"), UNUSABLE, ids=lambda value: repr(value)[:50])
def test_a_schema_that_cannot_be_used_is_a_message_and_fetches_nothing(monkeypatch, schema, reason):
    reached = []

    def refuse(*_, **__):
        reached.append(schema)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    bindings._read.cache_clear()
    (told,) = check_input(schema, {"who": "world"})
    assert told.startswith("the deployment's input schema cannot be used: ")
    assert reason in told
    assert len(told) <= 200
    assert reached == []


def test_references_inside_the_schema_and_to_its_own_language_work():
    schema = {"$defs": {"name": {"type": "string"}}, "properties": {"who": {"$ref": "#/$defs/name"}}}
    assert check_input(schema, {"who": "world"}) == ()
    assert check_input(schema, {"who": 5}) == ("input.who: 5 is not of type 'string'",)
    meta = {"properties": {"schema": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}}
    assert check_input(meta, {"schema": {"type": "string"}}) == ()
    assert len(check_input(meta, {"schema": {"type": "text"}})) == 1


def test_an_older_dialect_is_judged_by_its_own_rules():
    older = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "properties": {"n": {"minimum": 3, "exclusiveMinimum": True}},
    }
    assert check_input(older, {"n": 4}) == ()
    assert check_input(older, {"n": 3}) == ("input.n: 3 is less than or equal to the minimum of 3",)


def test_an_unknown_dialect_is_judged_by_the_newest_rules():
    strange = {"$schema": "https://example.com/my-own", "properties": {"n": {"type": "integer"}}}
    assert check_input(strange, {"n": 4}) == ()
    assert check_input(strange, {"n": "4"}) == ("input.n: '4' is not of type 'integer'",)


def test_equal_schemas_are_compiled_once_whatever_the_order_of_their_keys():
    bindings._read.cache_clear()
    check_input(GREETING, {"who": "x"})
    check_input(dict(reversed(GREETING.items())), {"who": 5})
    assert bindings._read.cache_info().misses == 1


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"properties": {"n": {"type": "integer", "minimum": 3}}}, {"n": 2}),
        ({"properties": {"n": {"type": "integer"}}, "minProperties": 2}, {"n": 2}),
        ({"properties": {"n": {"type": "integer"}}, "additionalProperties": {"type": "string"}}, {"m": 2}),
        ({"properties": {"n": {"type": "integer"}}, "type": "array"}, {"n": 2}),
        ({"properties": {"n": False}}, {"n": 2}),
        ({"properties": {"n": {"type": "number"}}}, {"n": True}),
    ],
    ids=repr,
)
def test_a_schema_that_only_looks_plain_is_judged_in_full(schema, value):
    assert len(check_input(schema, value)) == 1


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([1.0, 1.5, -2.0]) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.sampled_from(["a", "b", "c"])
PROPERTY = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])
        | st.just(["string", "null"]),
        "title": st.just("t"),
        "minimum": st.integers(-2, 2),
        "enum": st.lists(st.integers(-2, 2), max_size=2),
    },
)
SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "array"]) | st.just(["object", "null"]),
        "properties": st.dictionaries(NAMES, PROPERTY | st.booleans(), max_size=3),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": st.booleans() | PROPERTY,
        "description": st.just("d"),
        "minProperties": st.integers(0, 2),
        "$schema": st.sampled_from(
            ["https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"]
        ),
    },
)


@given(SCHEMAS, st.dictionaries(NAMES, JSON_VALUES, max_size=3))
def test_the_verdict_is_that_of_jsonschema_whichever_way_it_was_reached(schema, value):
    fits = Draft202012Validator(schema).is_valid(value)
    assert (check_input(schema, value) == ()) == fits


@pytest.mark.alone
def test_resolving_and_judging_a_small_input_costs_less_than_jsonschema_alone():
    bound = {"who": {"value": "world"}, "as_of": {"from": "occurrence.instant"}}
    schema = {
        "type": "object",
        "properties": {"who": {"type": "string"}, "as_of": {"type": "string"}},
        "required": ["who"],
    }
    what, validator = facts(), Draft202012Validator(schema)
    value = resolve(bound, what)
    ours_s = min(_timed(lambda: check_input(schema, resolve(bound, what))) for _ in range(9))
    bare_s = min(_timed(lambda: validator.is_valid(value)) for _ in range(9))
    assert ours_s < 0.7 * bare_s


def _timed(call, count=500):
    begin_s = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin_s) / count
