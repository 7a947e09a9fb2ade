"""The direction of imports, the homes of the libraries and the purity of core; each rule shown to bite."""

import pytest

from tests.tidy import layers
from tests.tidy.tree import ROOT, assert_held, broken_by, sources


def test_the_tree_was_read():
    """An empty list of sources would satisfy every rule."""
    seen = {layers.layer(source.module) for source in sources()}
    there = {path.name for path in (ROOT / "scheduler_daemon").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert "scheduler_daemon" in seen
    assert there <= seen


@pytest.mark.parametrize(
    "rule",
    [
        layers.imports_point_downwards,
        layers.client_knows_no_daemon,
        layers.libraries_stay_at_home,
        layers.core_is_pure,
        layers.nothing_is_imported_by_a_string,
    ],
    ids=lambda rule: rule.__name__,
)
def test_the_source_keeps_the_rule(rule):
    assert_held(rule, sources())


@pytest.mark.parametrize(
    "text",
    [
        "import asyncio",
        "import time",
        "from time import monotonic",
        "import logging",
        "import os.path",
        "import random",
        "import socket",
        "import threading",
        "from pathlib import Path",
        "import uuid",
        "from importlib.metadata import version",
        "import croniter",
        "from jsonschema import validate",
        "def decide():\n    import asyncio",
        "data = open('state.json').read()",
        "print('decided')",
        "async def decide(): ...",
    ],
)
def test_core_may_not(text):
    assert broken_by(layers.core_is_pure, text) != []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("from datetime import UTC, datetime\nfrom scheduler_daemon.core import model", "core/fold.py"),
        ("from croniter import croniter", "core/calendar.py"),
        ("from importlib.metadata import version", "core/calendar.py"),
        ("import jsonschema\nimport referencing", "core/bindings.py"),
        ("import asyncio\nimport os", "runtime/engine.py"),
    ],
)
def test_core_may_compute_and_others_may_do(text, path):
    assert broken_by(layers.core_is_pure, text, f"scheduler_daemon/{path}") == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("scheduler_daemon/core/decide.py", "from scheduler_daemon.store import journal"),
        ("scheduler_daemon/core/decide.py", "import scheduler_daemon.runtime.engine"),
        ("scheduler_daemon/store/store.py", "from scheduler_daemon.runtime.clock import Clock"),
        ("scheduler_daemon/store/store.py", "from ..runtime import clock"),
        ("scheduler_daemon/store/store.py", "from rpc_client import codec"),
        ("scheduler_daemon/runtime/engine.py", "from scheduler_daemon.api import wire"),
        ("scheduler_daemon/runtime/engine.py", "from scheduler_daemon import jsonrpc"),
        ("scheduler_daemon/api/methods.py", "from rpc_client.workflow import WorkflowClient"),
        ("scheduler_daemon/api/methods.py", "from scheduler_daemon.wiring import build"),
        ("scheduler_daemon/embedded/runs.py", "from scheduler_daemon.core.model import Cron"),
        ("scheduler_daemon/embedded/server.py", "from rpc_client import codec"),
        ("scheduler_daemon/limits.py", "from scheduler_daemon.core import model"),
        ("rpc_client/schedules.py", "from scheduler_daemon.core import model"),
        ("scheduler_daemon/core/decide.py", "from tests.unit import builders"),
        ("scheduler_daemon/novelty.py", ""),
    ],
)
def test_an_import_against_the_direction_is_found(path, text):
    assert broken_by(layers.imports_point_downwards, text, path) != []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("scheduler_daemon/store/store.py", "from scheduler_daemon.core.model import Cron"),
        ("scheduler_daemon/runtime/dispatcher.py", "from rpc_client.workflow import WorkflowClient"),
        (
            "scheduler_daemon/api/methods.py",
            "from scheduler_daemon import limits\nfrom scheduler_daemon import jsonrpc",
        ),
        ("scheduler_daemon/api/methods.py", "from scheduler_daemon import __version__"),
        ("scheduler_daemon/wiring.py", "from scheduler_daemon.embedded import server\nimport rpc_client"),
        ("scheduler_daemon/cli_schedules.py", "from rpc_client.schedules import App"),
    ],
)
def test_an_import_with_the_direction_is_not(path, text):
    assert broken_by(layers.imports_point_downwards, text, path) == []


@pytest.mark.parametrize("text", ["import scheduler_daemon", "from scheduler_daemon import limits"])
def test_the_client_package_may_import_no_leaf_of_the_daemon_either(text):
    assert broken_by(layers.client_knows_no_daemon, text, "rpc_client/transport.py") != []


@pytest.mark.parametrize("library", sorted(layers.HOMES))
def test_a_library_is_found_outside_its_home_only(library):
    home = layers.HOMES[library][0]
    assert broken_by(layers.libraries_stay_at_home, f"import {library}", home) == []
    assert broken_by(layers.libraries_stay_at_home, f"import {library}", "scheduler_daemon/wiring.py") != []
    assert broken_by(layers.libraries_stay_at_home, f"from {library} import x", "scheduler_daemon/wiring.py") != []


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nimportlib.import_module('asyncio')",
        "from importlib import import_module as load\nload('asyncio')",
        "import runpy\nrunpy.run_path('x.py')",
    ],
)
def test_an_import_by_a_string_is_found(text):
    assert broken_by(layers.nothing_is_imported_by_a_string, text) != []
