"""The glossary and the names of times in the source, and what no file of the project contains; each shown to bite."""

import pytest

from tests.tidy import words
from tests.tidy.tree import assert_held, broken_by, project_files, project_texts, sources


@pytest.mark.parametrize(
    "rule",
    [words.glossary_is_kept, words.units_are_in_the_name, words.instants_are_named_as_such],
    ids=lambda rule: rule.__name__,
)
def test_the_source_keeps_the_rule(rule):
    assert_held(rule, sources())


@pytest.mark.parametrize(
    "rule",
    [words.text_is_finished, words.text_names_no_machine, words.text_names_no_registry],
    ids=lambda rule: rule.__name__,
)
def test_the_project_keeps_the_rule(rule):
    assert "pyproject.toml" in project_files()
    assert_held(rule, project_texts())


@pytest.mark.parametrize(
    "text",
    [
        "def add_job(): ...",
        "class JobStore: ...",
        "class CronJob: ...",
        "fire_time = 1",
        "def f(next_fire_time): ...",
        "self.timestamp = 1",
        "def enqueue(run): ...",
        "zombie: bool = False",
        "for firing in due: ...",
        "def launch_run(): ...",
        "retry_count += 1",
        "lambda worker: worker",
    ],
)
def test_a_word_that_the_glossary_replaces_is_found(text):
    assert broken_by(words.glossary_is_kept, text) != []


@pytest.mark.parametrize("text", ["instant.timestamp()", "executor.submit(job)", "jobbing = 1", "def admit(run): ..."])
def test_a_word_that_is_only_used_or_only_similar_is_not(text):
    assert broken_by(words.glossary_is_kept, text) == []


def test_the_embedded_server_may_launch_processes_but_has_no_jobs():
    embedded = "scheduler_daemon/embedded/processes.py"
    assert broken_by(words.glossary_is_kept, "launched = 1", embedded) == []
    assert broken_by(words.glossary_is_kept, "job = 1", embedded) != []


@pytest.mark.parametrize("text", ["grace_seconds = 3", "def f(timeout_sec): ...", "class A:\n    due_ts: float"])
def test_an_unusual_ending_for_a_unit_is_found(text):
    assert broken_by(words.units_are_in_the_name, text) != []


@pytest.mark.parametrize(
    "text",
    [
        "def f(start: datetime): ...",
        "def f(*, due: datetime | None = None): ...",
        "def f(due: 'datetime'): ...",
        "class Row:\n    created: datetime",
        "class Row:\n    created: dt.datetime | None = None",
        "class Row:\n    created: Annotated[datetime, Meta(tz=True)]",
        "class Row:\n    created: UtcDatetime",
    ],
)
def test_a_datetime_whose_name_does_not_say_so_is_found(text):
    assert broken_by(words.instants_are_named_as_such, text) != []


@pytest.mark.parametrize(
    "text",
    [
        "def f(now: datetime, after: datetime, held_until: datetime): ...",
        "class Row:\n    created_at: datetime\n    first_instant: datetime\n    _watermark: datetime",
        "class Row:\n    due: list[datetime]",
        "def f(name: str): ...",
    ],
)
def test_a_datetime_that_is_named_well_is_not(text):
    assert broken_by(words.instants_are_named_as_such, text) == []


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME"])
def test_a_note_to_self_is_found(word):
    assert broken_by(words.text_is_finished, f"# {word}: later") != []
    assert broken_by(words.text_is_finished, "a to-do list; autodoc") == []


@pytest.mark.parametrize("folder", ["root", "home", "work"])
def test_a_path_of_one_machine_is_found(folder):
    assert broken_by(words.text_names_no_machine, f"cd /{folder}/project") != []
    assert broken_by(words.text_names_no_machine, f"see '/{folder}' there") != []
    assert broken_by(words.text_names_no_machine, f"<store_root>/{folder}/x, a/{folder}/b, /{folder}er") == []


def test_a_registry_host_is_found():
    assert broken_by(words.text_names_no_registry, "--index-url https://" + "pypi" + ".org/simple") != []
    assert broken_by(words.text_names_no_registry, "see example.org") == []
