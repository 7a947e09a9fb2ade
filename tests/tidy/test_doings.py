"""Clocks, file writes and wide excepts each stay where they belong; each rule shown to bite."""

import pytest

from tests.tidy import doings
from tests.tidy.tree import assert_held, broken_by, sources

ENGINE = "scheduler_daemon/runtime/engine.py"


@pytest.mark.parametrize(
    "rule",
    [
        doings.clocks_are_read_in_one_place,
        doings.sleep_is_asked_for_in_one_place,
        doings.files_are_written_in_one_place,
        doings.only_task_boundaries_catch_everything,
    ],
    ids=lambda rule: rule.__name__,
)
def test_the_source_keeps_the_rule(rule):
    assert_held(rule, sources())


CLOCK_READS = [
    "import time",
    "from time import time_ns",
    "from datetime import datetime, UTC\nat = datetime.now(UTC)",
    "import datetime as dt\nat = dt.datetime.utcnow()",
    "from datetime import datetime as D\nread = D.now",
    "from datetime import date\ntoday = date.today()",
    "import asyncio\nmono = asyncio.get_running_loop().time()",
    "def read(self):\n    return self._loop.time()",
]


@pytest.mark.parametrize("text", CLOCK_READS)
def test_a_clock_read_is_found_outside_its_home_only(text):
    assert broken_by(doings.clocks_are_read_in_one_place, text, ENGINE) != []
    assert broken_by(doings.clocks_are_read_in_one_place, text, "scheduler_daemon/core/decide.py") != []
    assert broken_by(doings.clocks_are_read_in_one_place, text, "scheduler_daemon/runtime/clock.py") == []


@pytest.mark.parametrize(
    "text",
    [
        "import asyncio\nasync def wait():\n    await asyncio.sleep(1)",
        "from asyncio import sleep",
        "import asyncio\ndef wait(pause=asyncio.sleep): ...",
    ],
)
def test_a_sleep_is_found_outside_its_homes_only(text):
    assert broken_by(doings.sleep_is_asked_for_in_one_place, text, ENGINE) != []
    assert broken_by(doings.sleep_is_asked_for_in_one_place, text, "rpc_client/transport.py") != []
    assert broken_by(doings.sleep_is_asked_for_in_one_place, text, "scheduler_daemon/runtime/clock.py") == []
    assert broken_by(doings.sleep_is_asked_for_in_one_place, text, "rpc_client/schedules.py") == []


@pytest.mark.parametrize(
    "text",
    [
        "from datetime import datetime\nat = datetime.fromisoformat(text)",
        "now = clock.now()",
        "import asyncio\nasync def wait(event):\n    await event.wait()",
    ],
)
def test_time_that_is_passed_in_is_no_clock_read(text):
    assert broken_by(doings.clocks_are_read_in_one_place, text, ENGINE) == []


@pytest.mark.parametrize(
    "text",
    [
        "open('f', 'w')",
        "open('f', mode='ab')",
        "open('f', 'r+')",
        "open('f', mode)",
        "path.open('x')",
        "import os\nos.replace('a', 'b')",
        "import os\nos.fsync(fd)",
        "from os import fdatasync\nfdatasync(fd)",
        "import os as system\nsystem.write(fd, data)",
        "import shutil",
        "import tempfile",
        "path.write_text('x')",
        "path.parent.mkdir(parents=True)",
        "self._path.unlink()",
    ],
)
def test_a_file_write_is_found_outside_its_homes_only(text):
    assert broken_by(doings.files_are_written_in_one_place, text, ENGINE) != []
    assert broken_by(doings.files_are_written_in_one_place, text, "scheduler_daemon/store/journal.py") != []
    for home in doings.WRITE_HOMES:
        assert broken_by(doings.files_are_written_in_one_place, text, home) == []


@pytest.mark.parametrize(
    "text",
    [
        "open('f')",
        "open('f', 'rb')",
        "path.open(encoding='utf-8')",
        "path.read_bytes()",
        "self._store.open(settings, now)",
        "browser.open('example.org')",
        "self._fs.mkdir(folder)",
        "fs.open(path, 'a')",
        "name.replace('a', 'b')",
        "instant.replace(second=0)",
        "import os\nos.environ.get('HOME')",
    ],
)
def test_reading_and_writing_through_the_file_layer_is_free(text):
    assert broken_by(doings.files_are_written_in_one_place, text, "scheduler_daemon/store/journal.py") == []


WIDE = [
    "try:\n    go()\nexcept Exception:\n    pass",
    "try:\n    go()\nexcept Exception as error:\n    note(error)",
    "try:\n    go()\nexcept (ValueError, BaseException):\n    pass",
    "try:\n    go()\nexcept:\n    pass",
    "import contextlib\nwith contextlib.suppress(Exception):\n    go()",
    "try:\n    go()\nexcept Exception:\n    raise RuntimeError from None",
]


@pytest.mark.parametrize("text", WIDE)
def test_a_wide_except_is_found(text):
    assert broken_by(doings.only_task_boundaries_catch_everything, text, ENGINE) != []


def test_a_wide_except_is_allowed_in_the_one_function_that_the_list_names(monkeypatch):
    monkeypatch.setattr(doings, "TASK_BOUNDARIES", frozenset({f"{ENGINE}::Engine.run"}))
    method = "class Engine:\n    async def {}(self):\n        try:\n            go()\n        except Exception:\n            pass"
    assert broken_by(doings.only_task_boundaries_catch_everything, method.format("run"), ENGINE) == []
    assert broken_by(doings.only_task_boundaries_catch_everything, method.format("stop"), ENGINE) != []


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    go()\nexcept ValueError:\n    pass",
        "try:\n    go()\nexcept BaseException:\n    undo()\n    raise",
    ],
)
def test_a_narrow_except_and_one_that_raises_again_are_free(text):
    assert broken_by(doings.only_task_boundaries_catch_everything, text, ENGINE) == []


def test_each_listed_task_boundary_exists_and_catches_everything():
    """A list that is longer than the truth would let the next wide except in unseen."""
    wide = {
        f"{source.path}::{where}"
        for source in sources()
        for where, node in doings.nodes_with_owner(source.tree)
        if doings.catches_everything(node)
    }
    assert wide >= doings.TASK_BOUNDARIES
