"""The project files agree with each other: lock file, pyproject, Makefile and the layout at the top."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.tidy.tree import ROOT, project_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
DIRECT = [
    *PROJECT["build-system"]["requires"],
    *PROJECT["project"]["dependencies"],
    *(need for extra in PROJECT["project"]["optional-dependencies"].values() for need in extra),
]
TOP = {
    ".ci",
    ".editorconfig",
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "deploy",
    "pyproject.toml",
    "requirements.lock",
    "rpc_client",
    "scheduler_daemon",
    "tests",
}


def pins(lock: str) -> dict[str, Version]:
    """Name → version of each line of a lock file; a line that is not an exact pin is a `ValueError`."""
    pinned: dict[str, Version] = {}
    for line in lock.splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s*]+)", line)
            if match is None:
                message = f"{line!r} is not an exact pin"
                raise ValueError(message)
            pinned[canonicalize_name(match[1])] = Version(match[2])
    return pinned


LOCKED = pins((ROOT / "requirements.lock").read_text("utf-8"))


@pytest.mark.parametrize(
    "line", ["aiohttp", "aiohttp>=3", "croniter==7.0.*", "--index-url https://example.org", "-e ."]
)
def test_a_lock_line_that_is_no_exact_pin_is_refused(line):
    with pytest.raises(ValueError, match="not an exact pin"):
        pins(line)


@pytest.mark.parametrize("need", DIRECT)
def test_what_the_project_names_is_locked_at_a_version_that_it_allows(need):
    requirement = Requirement(need)
    assert LOCKED[canonicalize_name(requirement.name)] in requirement.specifier


def test_nothing_lies_at_the_top_but_what_the_users_chose():
    assert {name.partition("/")[0] for name in project_files()} <= TOP


def test_every_tests_folder_is_a_package():
    """Two files of one name in two folders collide otherwise."""
    folders = {name.rpartition("/")[0] for name in project_files() if re.fullmatch(r"tests/.*\.py", name)}
    assert {folder for folder in folders if f"{folder}/__init__.py" not in project_files()} == set()
