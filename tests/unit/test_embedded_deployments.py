"""The deployments file: what is accepted, and each refusal with the file and the key."""

from pathlib import Path

import pytest

from scheduler_daemon.embedded.deployments import DeploymentsInvalid, load
from scheduler_daemon.embedded.schemas import violation

HELLO = """
[deployments."hello.default"]
[[deployments."hello.default".steps]]
argv = ["echo", "hello"]
"""


@pytest.fixture
def loaded(tmp_path):
    def load_text(text: str):
        file = tmp_path / "deployments.toml"
        file.write_text(text, "utf-8")
        return load(file)

    return load_text


def one(fields: str, step: str = 'argv = ["true"]', name: str = "a") -> str:
    return f'[deployments."{name}"]\n{fields}\n[[deployments."{name}".steps]]\n{step}\n'


def test_a_short_deployment_gets_its_defaults(loaded, tmp_path):
    [deployment] = loaded(HELLO).values()
    assert (deployment.id, deployment.artifact_id, deployment.version) == ("hello.default", "hello", 1)
    assert deployment.title is None
    assert deployment.schema == {"type": "object"}
    [step] = deployment.steps
    assert (step.name, step.argv, step.env, step.timeout_s) == ("step-1", ("echo", "hello"), {}, None)
    assert step.cwd == str(tmp_path)


def test_every_key_that_the_head_of_the_module_shows_is_read(loaded, tmp_path):
    text = one(
        'title = "Nightly"\nversion = 3\ninput_schema = { type = "object", required = ["day"] }',
        'name = "collect"\nargv = ["python3", "collect.py"]\ncwd = "reports"\nenv = { LC_ALL = "C" }\ntimeout_s = 600',
        name="report.nightly",
    )
    deployment = loaded(text)["report.nightly"]
    assert (deployment.title, deployment.version) == ("Nightly", 3)
    assert deployment.schema == {"type": "object", "required": ["day"]}
    [step] = deployment.steps
    assert (step.name, step.env, step.timeout_s) == ("collect", {"LC_ALL": "C"}, 600.0)
    assert step.cwd == str(tmp_path / "reports")


def test_an_id_without_a_dot_is_its_own_artifact(loaded):
    assert loaded(one("", name="hello"))["hello"].artifact_id == "hello"


def test_an_absolute_folder_stays_as_it_is(loaded):
    assert loaded(one("", 'argv = ["true"]\ncwd = "/usr/lib/../share"'))["a"].steps[0].cwd == "/usr/share"


def test_a_file_without_deployments_is_a_server_without_deployments(loaded):
    assert loaded("") == {}


SCHEMA_ELSEWHERE = 'input_schema = { properties = { x = { "$ref" = "https://example.com/s.json" } } }'
REFUSALS = [
    ("deployment = {}", "deployment", "unknown key; the nearest known one is 'deployments'"),
    ("deployments = 1", "deployments", "must be at most 1000 tables"),
    ("[[deployments]]", "deployments", "must be at most 1000 tables"),
    ("deployments.a = 1", "deployments.a", "must be a table"),
    ("[deployments.a.b]", "deployments.a.b", "an id that has a dot is written in quotes"),
    (one('id = "x"'), "deployments.a.id", "unknown key"),
    (one('titel = "x"'), "deployments.a.titel", "unknown key; the nearest known one is 'title'"),
    (one("", 'argv = ["x"]\ntimout_s = 1'), "deployments.a.steps[0].timout_s", "nearest known one is 'timeout_s'"),
    ("[deployments.a]", "deployments.a", "missing required field `steps`"),
    ("[deployments.a]\nsteps = []", "deployments.a.steps", "length >= 1"),
    ("[deployments.a]\nsteps = [1]", "deployments.a.steps[0]", "Expected `object`"),
    (one("", 'name = "x"'), "deployments.a.steps[0]", "missing required field `argv`"),
    (one("", "argv = []"), "deployments.a.steps[0].argv", "length >= 1"),
    (one("", 'argv = "true"'), "deployments.a.steps[0].argv", "Expected `array`"),
    (one("", 'argv = ["x", 1]'), "deployments.a.steps[0].argv[1]", "Expected `str`"),
    (one("", 'argv = [""]'), "deployments.a.steps[0].argv[0]", "must name a program"),
    (one("", 'argv = ["a\\u0000b"]'), "deployments.a.steps[0]", "NUL"),
    (one("", 'argv = ["x"]\ntimeout_s = 0'), "deployments.a.steps[0].timeout_s", "> 0"),
    (one("", 'argv = ["x"]\ntimeout_s = inf'), "deployments.a.steps[0].timeout_s", "<="),
    (one("", 'argv = ["x"]\ntimeout_s = nan'), "deployments.a.steps[0].timeout_s", "`float`"),
    (one("", 'argv = ["x"]\ntimeout_s = true'), "deployments.a.steps[0].timeout_s", "Expected `float"),
    (one("", 'argv = ["x"]\nname = "-x"'), "deployments.a.steps[0].name", "letters, digits"),
    (one("", 'argv = ["x"]\nenv = { A = 1 }'), "deployments.a.steps[0].env[...]", "Expected `str`"),
    (one("", 'argv = ["x"]\nenv = { "A B" = "" }'), "deployments.a.steps[0].env.A B", "not a variable"),
    (one("", 'argv = ["x"]\nenv = { WORKFLOW_INPUT = "" }'), "deployments.a.steps[0].env.WORKFLOW_INPUT", "server's"),
    (one("", name="../a"), 'deployments."../a"', "letters, digits"),
    (one("", name="a\\n"), 'deployments."a\\n"', "letters, digits"),
    (one("", name=""), 'deployments.""', "letters, digits"),
    (one("", name="a" * 129), "deployments." + "a" * 129, "letters, digits"),
    (one("version = 0"), "deployments.a.version", ">= 1"),
    (one('version = "1"'), "deployments.a.version", "Expected `int`"),
    (one('input_schema = { type = "objekt" }'), "deployments.a.input_schema", "not a JSON Schema"),
    (one(SCHEMA_ELSEWHERE), "deployments.a.input_schema", "refers outside itself"),
    (HELLO + HELLO, "", "not TOML"),
    (
        HELLO + one('input_schema = { type = "object", required = ["x"] }', name="hello.other"),
        'deployments."hello.other".input_schema',
        "give one of them a version",
    ),
    (
        '[deployments.a]\nsteps = [{ name = "x", argv = ["a"] }, { name = "x", argv = ["b"] }]',
        "deployments.a.steps[1].name",
        "earlier step",
    ),
    ("a = ", "", "not TOML"),
    ("#" * (1 << 20) + "\n", "", "larger than 1048576 bytes"),
]


@pytest.mark.parametrize(
    ("text", "key", "reason"), REFUSALS, ids=[f"{key or 'file'}: {reason}" for _, key, reason in REFUSALS]
)
def test_a_wrong_file_is_refused_with_the_file_and_the_key(loaded, tmp_path, text, key, reason):
    with pytest.raises(DeploymentsInvalid) as caught:
        loaded(text)
    assert caught.value.key == key
    assert reason in caught.value.reason
    assert str(tmp_path / "deployments.toml") in str(caught.value)
    assert key in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused_with_the_systems_reason(tmp_path):
    with pytest.raises(DeploymentsInvalid, match=r"deployments\.toml: cannot be read: No such file"):
        load(tmp_path / "deployments.toml")


def test_two_deployments_may_share_an_artifact_version_when_they_share_its_schema(loaded):
    assert list(loaded(HELLO + one("", name="hello.other"))) == ["hello.default", "hello.other"]


def test_a_relative_file_resolves_folders_against_where_it_lies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("deployments.toml").write_text(HELLO, "utf-8")
    assert load(Path("deployments.toml"))["hello.default"].steps[0].cwd == str(tmp_path)


def test_a_violation_is_told_in_the_validators_words():
    schema = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}
    assert violation(schema, {}) == "'who' is a required property"
    assert violation(schema, {"who": 1}) == "1 is not of type 'string'"
    assert violation(schema, {"who": "world"}) is None


def test_a_schema_that_refers_to_what_it_lacks_is_a_violation_and_no_crash():
    assert "does not contain" in (violation({"$ref": "#/$defs/none"}, {}) or "")
