"""The marked examples of the README run, and the machinery that runs them notices when one does not."""

import re
import sys
import time
from pathlib import Path

import pytest

from tests.tidy import readme
from tests.tidy.tree import ROOT

PAGE = (ROOT / "README.md").read_text("utf-8")
EXAMPLES = list(readme.examples(PAGE))


def marked(code: str, language: str = "bash") -> readme.Example:
    """One example as it would stand in a page."""
    (example,) = readme.examples(f"text\n\n<!-- ci: example -->\n```{language}\n{code}\n```\n\nmore\n")
    return example


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_the_example_runs(example, tmp_path):
    readme.run(example, tmp_path)


def test_there_is_something_to_run_and_each_name_is_used_once():
    names = [example.name for example in EXAMPLES]
    assert names
    assert len(names) == len(set(names))


def test_each_make_target_that_the_page_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][a-z-]+)", "\n".join(re.findall(r"`[^`]+`|^ *make .*$", PAGE, re.MULTILINE))))
    assert named
    assert named <= targets


def test_an_example_ends_where_its_fence_does():
    assert marked("echo one\necho two").code == "echo one\necho two\n"


def test_a_block_without_a_mark_is_not_run():
    assert list(readme.examples("```bash\nfalse\n```\n")) == []


@pytest.mark.parametrize(
    "page", ["<!-- ci: x -->\n", "<!-- ci: x -->\ntext\n", "<!-- ci: x -->\n```toml\na = 1\n```\n"]
)
def test_a_mark_without_a_block_that_can_run_is_refused(page):
    with pytest.raises(ValueError, match="x is followed by no bash or python block"):
        list(readme.examples(page))


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("false\ntrue", "bash"),
        ("false | true", "bash"),
        ("echo $nothing_of_that_name", "bash"),
        ("no-such-program", "bash"),
        ("assert 1 == 2", "python"),
    ],
)
def test_an_example_that_fails_is_noticed(code, language, tmp_path):
    with pytest.raises(readme.ExampleFailed):
        readme.run(marked(code, language), tmp_path)


def test_an_example_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(readme, "EXAMPLE_S_MAX", 0.2)
    with pytest.raises(readme.ExampleFailed, match="nothing for"):
        readme.run(marked("sleep 60"), tmp_path)


def test_an_example_runs_in_its_folder_with_the_environment_first_on_the_path(tmp_path):
    assert readme.run(marked("import sys; print(sys.executable)", "python"), tmp_path) != ""
    printed = readme.run(marked("pwd\ncommand -v python"), tmp_path)
    folder, python = printed.split()
    assert folder == str(tmp_path)
    assert python == str(Path(sys.executable).parent / "python")


def test_what_an_example_leaves_running_is_ended_with_it(tmp_path):
    readme.run(marked("sleep 60 & echo $! > pid"), tmp_path)
    pid = int((tmp_path / "pid").read_text())
    # The signal was sent before run() answered; the kernel delivers it when it gets to it.
    deadline = time.monotonic() + 5
    while readme.is_running(pid):
        assert time.monotonic() < deadline, "it outlived its example"
        time.sleep(0.01)
