"""The ratchets: sizes of files and functions, and a head on each module; each rule shown to bite."""

import pytest

from tests.tidy import shape
from tests.tidy.tree import assert_held, broken_by, sources


@pytest.mark.parametrize(
    "rule",
    [shape.files_stay_small, shape.functions_stay_small, shape.modules_say_what_they_own],
    ids=lambda rule: rule.__name__,
)
def test_the_source_keeps_the_rule(rule):
    assert_held(rule, sources())


def test_a_file_of_401_lines_is_too_long():
    assert broken_by(shape.files_stay_small, "a = 1\n" * 400) == []
    assert broken_by(shape.files_stay_small, "a = 1\n" * 401) == ["401 lines, at most 400"]


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_a_function_of_61_lines_is_too_long(keyword):
    body = "    a = 1\n"
    assert broken_by(shape.functions_stay_small, f"{keyword} f():\n" + body * 59) == []
    assert broken_by(shape.functions_stay_small, f"{keyword} f():\n" + body * 60) == ["f has 61 lines, at most 60"]


@pytest.mark.parametrize("text", ["", "import math", '"""Only a title."""', '"""A title.\n\n\n"""', "# no docstring\n"])
def test_a_module_must_say_more_than_a_title(text):
    assert broken_by(shape.modules_say_what_they_own, text) != []


def test_a_package_may_be_introduced_by_one_sentence():
    package = "scheduler_daemon/core/__init__.py"
    assert broken_by(shape.modules_say_what_they_own, '"""What the package is."""', package) == []
    assert broken_by(shape.modules_say_what_they_own, "", package) != []
