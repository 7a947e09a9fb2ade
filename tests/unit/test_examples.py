"""The configuration examples load, show every setting with its true default, and say what they seem to say."""

import re
import tomllib
from pathlib import Path

import pytest

from scheduler_daemon.config import SETTINGS, Address, load

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
TOML = EXAMPLES / "scheduler.toml"
COMMENTED = re.compile(r"^#(\w+) = ", re.MULTILINE)
# Settings without a default of their own show what one could write; the store's default suits a terminal, not a service.
SAMPLES = {
    "store_root",
    "embedded",
    "socket_path",
    "token_file",
    "server_token_file",
    "server_ca_file",
    "allowed_hosts",
}


def test_the_example_as_it_stands_changes_nothing():
    assert set(load(path=TOML).origins.values()) == {"default"}


def test_the_example_shows_every_setting_once():
    assert sorted(COMMENTED.findall(TOML.read_text())) == sorted(setting.name for setting in SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_what_the_example_shows_of_a_setting_is_right(setting):
    (line,) = re.findall(rf"^#({setting.name} = .*)$", TOML.read_text(), re.MULTILINE)
    shown = setting.read(tomllib.loads(line)[setting.name])
    assert setting.name in SAMPLES or shown == setting.default


def test_one_file_of_the_workflow_server_configures_both():
    config = load(path=EXAMPLES / "server-config.json")
    assert config.server_url == "http://127.0.0.1:8765/rpc"
    assert config.listen == Address("127.0.0.1", 8766)
    assert config.store_root == Path("/var/lib/scheduler-daemon")
    assert config.nesting("/var/lib/workflow-server") is None
