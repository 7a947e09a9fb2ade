"""Settings: which source wins, what each value may look like, which combinations cannot stand, and how a refusal names its key."""

import json
from pathlib import Path

import pytest

from scheduler_daemon.config import SETTINGS, Address, Config, load
from scheduler_daemon.errors import ConfigRefused


def write(folder: Path, text: str | dict, name: str = "scheduler.toml", mode: int = 0o600) -> Path:
    path = folder / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    path.chmod(mode)
    return path


def refusal(**sources) -> ConfigRefused:
    with pytest.raises(ConfigRefused) as caught:
        load(**sources)
    return caught.value


def of_server(folder: Path, server: dict, **beside) -> Path:
    return write(folder, {"server": server, **beside}, "server.json")


ENABLED = {"scheduler": {"enabled": True}}


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_and_the_record_have_the_same_settings():
    assert {setting.name for setting in SETTINGS} == set(Config.__struct_fields__) - {"origins", "notices"}


def test_without_any_source_the_defaults_of_the_specification_hold():
    config = load()
    assert config.listen == Address("127.0.0.1", 8766)
    assert config.server_url == "http://127.0.0.1:8765/rpc"
    assert config.store_root == Path.cwd() / ".wf_store"
    assert (config.poll_interval_s, config.max_concurrent_runs, config.drain_grace_s) == (1.0, 4, 30.0)
    assert (config.lateness_s, config.preflight_ttl_s, config.reconcile_grace_s) == (60.0, 30.0, 30.0)
    assert (config.retention_rows, config.retention_days) == (1000, 90)
    assert (config.embedded, config.gateway, config.accept_restore, config.allow_network_fs) == (
        None,
        False,
        False,
        False,
    )
    assert (config.log_format, config.log_level) == ("json", "info")
    assert set(config.origins.values()) == {"default"}
    assert config.token() is None


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_default_that_is_written_down_is_read_as_itself(setting):
    if setting.default in (None, ()):
        return
    text = str(setting.default)
    value = setting.read(text)
    assert value == (setting.default.absolute() if isinstance(setting.default, Path) else setting.default)


# --- which source wins ------------------------------------------------------------------------------------------------


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path):
    path = write(tmp_path, "lateness_s = 10\ndrain_grace_s = 10\npoll_interval_s = 10\n")
    environ = {"SCHEDULER_LATENESS_S": "20", "SCHEDULER_DRAIN_GRACE_S": "20"}
    config = load(flags={"lateness_s": "30", "gateway": None}, environ=environ, path=path)
    assert (config.lateness_s, config.drain_grace_s, config.poll_interval_s) == (30.0, 20.0, 10.0)
    assert config.origins["lateness_s"] == "flag --lateness-s"
    assert config.origins["drain_grace_s"] == "environment SCHEDULER_DRAIN_GRACE_S"
    assert config.origins["poll_interval_s"] == f"file {path}: poll_interval_s"
    assert config.origins["gateway"] == "default"


def test_the_environment_may_name_the_file_and_a_flag_overrules_it(tmp_path):
    one = write(tmp_path, "lateness_s = 10\n", "one.toml")
    two = write(tmp_path, "lateness_s = 20\n", "two.toml")
    assert load(environ={"SCHEDULER_CONFIG": str(one)}).lateness_s == 10
    assert load(environ={"SCHEDULER_CONFIG": str(one)}, path=two).lateness_s == 20


def test_an_empty_variable_counts_as_absent():
    assert load(environ={"SCHEDULER_LATENESS_S": "", "SCHEDULER_CONFIG": ""}).lateness_s == 60


def test_a_flag_that_switches_off_wins_over_a_file_that_switches_on(tmp_path):
    assert load(flags={"gateway": False}, path=write(tmp_path, "gateway = true\n")).gateway is False


def test_systemd_names_the_store_and_the_credentials(tmp_path):
    write(tmp_path, "a-token\n", "token")
    write(tmp_path, "another\n", "server-token")
    environ = {"STATE_DIRECTORY": "/var/lib/a:/var/lib/b", "CREDENTIALS_DIRECTORY": str(tmp_path)}
    config = load(environ=environ)
    assert config.store_root == Path("/var/lib/a")
    assert config.token_file == tmp_path / "token"
    assert config.token() == "a-token"
    assert config.server_token_file == tmp_path / "server-token"
    assert config.origins["token_file"] == "systemd credential token"
    assert load(flags={"store_root": "/srv/s"}, environ=environ).store_root == Path("/srv/s")


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("listen", "127.0.0.1:0", Address("127.0.0.1", 0)),
        ("listen", "[::1]:8766", Address("::1", 8766)),
        ("listen", "localhost:80", Address("localhost", 80)),
        ("gateway", "yes", True),
        ("gateway", "0", False),
        ("max_concurrent_runs", "16", 16),
        ("poll_interval_s", "0.25", 0.25),
        ("allowed_hosts", "a.example.org, B", ("a.example.org", "b")),
        ("server_url", "https://wf.example.org:9000/rpc", "https://wf.example.org:9000/rpc"),
        ("server_url", "http+unix://%2Frun%2Fwf.sock/rpc", "http+unix://%2Frun%2Fwf.sock/rpc"),
    ],
)
def test_a_value_is_read(name, text, value):
    assert getattr(load(flags={name: text}), name) == value


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("listen", "8766", "HOST:PORT"),
        ("listen", "127.0.0.1", "HOST:PORT"),
        ("listen", "127.0.0.1:99999", "HOST:PORT"),
        ("listen", "user@127.0.0.1:80", "HOST:PORT"),
        ("listen", "127.0.0.1:80/rpc", "HOST:PORT"),
        ("listen", "::1:8766", "HOST:PORT"),
        ("listen", "example.org:80", "neither an IP address nor localhost"),
        ("poll_interval_s", "0", "between 0.05 and 60"),
        ("poll_interval_s", "nan", "between 0.05 and 60"),
        ("drain_grace_s", "inf", "between 0 and 86400"),
        ("drain_grace_s", "1e999", "between 0 and 86400"),
        ("lateness_s", "soon", "between 1 and 86400"),
        ("max_concurrent_runs", "1.5", "whole number"),
        ("max_concurrent_runs", "0", "between 1 and"),
        ("max_concurrent_runs", "nan", "whole number"),
        ("gateway", "maybe", "true or false"),
        ("log_format", "xml", "json, console"),
        ("log_level", "INFO", "debug, info"),
        ("allowed_hosts", "*", "without *"),
        ("allowed_hosts", "a:80", "without ports"),
        ("server_url", "ftp://example.org", "http://"),
        ("server_url", "example.org", "http://"),
        ("server_url", "http://user:pw@example.org/rpc", "user or password"),
        ("server_url", "http://example.org/rpc?token=x", "end with its path"),
        ("server_url", "http://example.org:99999/", "port"),
        ("store_root", " ", "not empty"),
        ("store_root", "a\nb", "not empty"),
        ("socket_path", "/run/" + "a" * 110, "107 bytes"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_flag_with_a_reason(name, text, reason):
    refused = refusal(flags={name: text})
    assert refused.key == f"--{name.replace('_', '-')}".replace("--server-url", "--server")
    assert reason in refused.reason


def test_a_refusal_names_the_key_as_the_operator_wrote_it(tmp_path):
    assert refusal(environ={"SCHEDULER_LATENESS_S": "x"}).key == "SCHEDULER_LATENESS_S"
    assert refusal(path=write(tmp_path, "lateness_s = -1\n")).key == "lateness_s"
    server = of_server(tmp_path, {"scheduler": {"enabled": True, "lateness_s": []}})
    assert refusal(path=server).key == "server.scheduler.lateness_s"


@pytest.mark.parametrize("text", ["lateness_s = nan", "lateness_s = inf", "lateness_s = true", 'lateness_s = ["1"]'])
def test_a_file_cannot_bring_a_number_that_is_none(tmp_path, text):
    assert refusal(path=write(tmp_path, text)).key == "lateness_s"


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_of_our_own_is_json_or_toml(tmp_path):
    for name, text in (
        ("a.json", '{"lateness_s": 5, "allowed_hosts": ["a"]}'),
        ("a.toml", 'lateness_s = 5\nallowed_hosts = ["a"]'),
        ("a.conf", ' {"lateness_s": 5, "allowed_hosts": ["a"]}'),
        ("b.conf", '# settings\nlateness_s = 5\nallowed_hosts = ["a"]'),
    ):
        config = load(path=write(tmp_path, text, name))
        assert (config.lateness_s, config.allowed_hosts) == (5.0, ("a",))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.json", '{"lateness_s": 5', "a.json"),
        ("a.json", '{"lateness_s": 5, "lateness_s": 6}', "'lateness_s' stands there twice"),
        ("a.json", '{"lateness_s": NaN}', "NaN is not a number"),
        ("a.json", "[]", "must be a table"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.toml", "lateness_s = ", "a.toml"),
        ("a.toml", "lateness_s = 1\nlateness_s = 2", "a.toml"),
        ("a.toml", "#" * (1 << 20) + "#", "larger than"),
        ("a.json", '"\ud800"'.encode("utf-8", "surrogatepass").decode("latin-1"), "must be a table"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_name_and_why(tmp_path, name, text, reason):
    refused = refusal(path=write(tmp_path, text, name))
    assert refused.key == "config"
    assert reason in refused.reason


def test_bytes_that_are_no_text_and_files_that_are_not_there_are_refused(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xff\xfe")
    assert "utf-8" in refusal(path=path).reason
    assert "No such file" in refusal(path=tmp_path / "nothing.toml").reason
    assert "directory" in refusal(path=tmp_path).reason.lower()


@pytest.mark.parametrize(
    ("name", "near"),
    [("latenes_s", "lateness_s"), ("drain-grace-s", "drain_grace_s"), ("max_concurent_runs", "max_concurrent_runs")],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path, name, near):
    refused = refusal(path=write(tmp_path, f"{name} = 1\n"))
    assert refused.key == name
    assert refused.reason == f"is not a setting; did you mean {near}?"


def test_a_key_that_is_like_nothing_is_refused_without_a_guess(tmp_path):
    assert refusal(path=write(tmp_path, "zzz = 1\n")).reason == "is not a setting"


def test_an_unknown_key_inside_server_scheduler_is_refused(tmp_path):
    refused = refusal(path=of_server(tmp_path, {"scheduler": {"enabled": True, "poll_intervall_s": 1}}))
    assert (refused.key, refused.reason) == (
        "server.scheduler.poll_intervall_s",
        "is not a setting; did you mean poll_interval_s?",
    )


# --- the workflow server's file ---------------------------------------------------------------------------------------


def test_the_workflow_servers_own_file_configures_both(tmp_path):
    server = {
        "name": "wf",
        "store": {"root": str(tmp_path / "store"), "kind": "files"},
        "transports": [{"kind": "stdio"}, {"kind": "rpc_http", "host": "0.0.0.0", "port": 9000, "path": "/rpc"}],
        "scheduler": {"enabled": True, "max_concurrent_runs": 2, "listen": "127.0.0.1:9001"},
        "sources": [{"id": "s", "kind": "python"}],
    }
    path = of_server(tmp_path, server, logging={"level": "x"})
    config = load(path=path)
    assert config.store_root == tmp_path / "store"
    assert config.server_url == "http://127.0.0.1:9000/rpc"
    assert (config.max_concurrent_runs, config.listen) == (2, Address("127.0.0.1", 9001))
    assert config.origins["store_root"] == f"file {path}: server.store.root"
    assert config.origins["server_url"] == f"file {path}: server.transports[1]"
    assert config.origins["listen"] == f"file {path}: server.scheduler.listen"


@pytest.mark.parametrize(
    ("transports", "url"),
    [
        ({"rpc_http": {}}, "http://127.0.0.1:8765/rpc"),
        ({"rpc_http": {"host": "::", "port": 1}}, "http://[::1]:1/rpc"),
        ({"main": {"kind": "rpc_http", "host": "wf.example.org"}}, "http://wf.example.org:8765/rpc"),
        ([{"type": "rpc_http", "path": "api"}], "http://127.0.0.1:8765/api"),
        (
            [{"kind": "rpc_http", "enabled": False, "port": 1}, {"kind": "rpc_http", "port": 2}],
            "http://127.0.0.1:2/rpc",
        ),
        ([{"kind": "stdio"}], "http://127.0.0.1:8765/rpc"),
        (None, "http://127.0.0.1:8765/rpc"),
    ],
)
def test_the_servers_address_is_found_in_its_transports(tmp_path, transports, url):
    assert load(path=of_server(tmp_path, {**ENABLED, "transports": transports})).server_url == url


def test_a_port_that_is_none_is_refused_where_it_stands(tmp_path):
    refused = refusal(path=of_server(tmp_path, {**ENABLED, "transports": [{"kind": "rpc_http", "port": "x"}]}))
    assert refused.key == "server.transports[0]"


def test_what_server_scheduler_says_wins_over_what_the_server_says_of_itself(tmp_path):
    server = {
        "store": {"root": "/srv/a"},
        "transports": {"rpc_http": {"port": 1}},
        "scheduler": {"enabled": True, "store_root": "/srv/b", "server_url": "http://127.0.0.1:2/rpc"},
    }
    config = load(path=of_server(tmp_path, server))
    assert (config.store_root, config.server_url) == (Path("/srv/b"), "http://127.0.0.1:2/rpc")


@pytest.mark.parametrize("scheduler", [{}, {"enabled": False}, {"lateness_s": 5}])
def test_scheduling_is_opt_in_in_the_servers_file(tmp_path, scheduler):
    path = of_server(tmp_path, {"scheduler": scheduler})
    refused = refusal(path=path)
    assert refused.key == "server.scheduler.enabled"
    assert "--enable-scheduler" in refused.reason
    assert load(path=path, flags={"enable_scheduler": True}).server_url is not None
    assert load(path=path, environ={"SCHEDULER_ENABLE_SCHEDULER": "true"}).server_url is not None
    assert refusal(path=path, environ={"SCHEDULER_ENABLE_SCHEDULER": "false"}).key == "server.scheduler.enabled"


def test_a_server_file_without_the_table_at_all_is_opt_in_too(tmp_path):
    assert refusal(path=of_server(tmp_path, {})).key == "server.scheduler.enabled"


@pytest.mark.parametrize("enabled", ["yes", 1, None])
def test_enabled_is_true_or_false(tmp_path, enabled):
    assert refusal(path=of_server(tmp_path, {"scheduler": {"enabled": enabled}})).reason == "must be true or false"


@pytest.mark.parametrize(
    ("server", "beside", "key"),
    [
        ({"sources": [{"kind": "python"}, {"id": "m", "kind": "mcp"}]}, {}, "server.sources[1]"),
        ({"sources": {"tools": {"kind": "mcp"}}}, {}, "server.sources.tools"),
        ({}, {"sources": [{"kind": "mcp"}]}, "sources[0]"),
        ({"sources": [{"kind": "mcp", "enabled": False}]}, {}, "server.sources[0]"),
    ],
)
def test_a_source_of_kind_mcp_is_refused_where_it_stands_even_when_scheduling_is_enabled(tmp_path, server, beside, key):
    refused = refusal(path=of_server(tmp_path, {**ENABLED, **server}, **beside), flags={"enable_scheduler": True})
    assert refused.key == key
    assert "mcp" in refused.reason


@pytest.mark.parametrize("server", ["x", [], {"scheduler": "on"}])
def test_a_server_table_of_another_shape_is_refused(tmp_path, server):
    assert refusal(path=write(tmp_path, {"server": server}, "a.json")).reason == "must be a table (an object)"


# --- combinations -----------------------------------------------------------------------------------------------------


def test_a_server_that_is_brought_along_replaces_the_default_one(tmp_path):
    deployments = write(tmp_path, "", "deployments.toml")
    config = load(flags={"embedded": str(deployments)})
    assert (config.embedded, config.server_url) == (deployments, None)
    assert config.origins["server_url"] == "not used with embedded"


def test_reached_and_brought_along_is_refused_from_one_source_and_decided_by_the_stronger_of_two(tmp_path):
    deployments = str(write(tmp_path, "", "deployments.toml"))
    url = "http://127.0.0.1:1/rpc"
    refused = refusal(flags={"embedded": deployments, "server_url": url})
    assert refused.key == "--embedded"
    assert "--server" in refused.reason
    assert load(flags={"embedded": deployments}, environ={"SCHEDULER_SERVER_URL": url}).server_url is None
    assert load(flags={"server_url": url}, environ={"SCHEDULER_EMBEDDED": deployments}).embedded is None


def test_the_address_that_the_servers_file_implies_gives_way_to_embedded_in_the_same_file(tmp_path):
    write(tmp_path, "", "deployments.toml")
    server = {
        "transports": {"rpc_http": {}},
        "scheduler": {"enabled": True, "embedded": str(tmp_path / "deployments.toml")},
    }
    assert load(path=of_server(tmp_path, server)).server_url is None


def test_a_deployments_file_that_is_not_there_is_refused():
    refused = refusal(flags={"embedded": "nothing.toml"})
    assert refused.key == "--embedded"
    assert "no such file" in refused.reason


@pytest.mark.parametrize("listen", ["0.0.0.0:8766", "[::]:8766", "192.0.2.1:80", "[2001:db8::1]:80"])
def test_an_address_that_others_can_reach_needs_a_token(tmp_path, listen):
    refused = refusal(flags={"listen": listen})
    assert refused.key == "--listen"
    assert "token_file is needed" in refused.reason
    token = write(tmp_path, "s3cret", "token")
    assert load(flags={"listen": listen, "token_file": str(token)}).token() == "s3cret"


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "localhost:1"])
def test_loopback_needs_no_token(listen):
    assert load(flags={"listen": listen}).token() is None


def test_no_tcp_needs_a_unix_socket(tmp_path):
    assert refusal(flags={"listen": "none"}).key == "--listen"
    config = load(flags={"listen": "none", "socket_path": str(tmp_path / "run" / "a.sock")})
    assert (config.listen, config.socket_path) == (None, tmp_path / "run" / "a.sock")


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        ("", 0o600, "one line"),
        ("  \n", 0o600, "one line"),
        ("two\nlines", 0o600, "one line"),
        ("gr\u00fc\u00df", 0o600, "one line"),
        ("a" * 3000, 0o600, "at most 2048"),
        ("secret", 0o604, "chmod o-rwx"),
    ],
)
@pytest.mark.parametrize("name", ["token_file", "server_token_file"])
def test_a_token_file_that_holds_no_token_or_is_open_to_all_is_refused(tmp_path, name, content, mode, reason):
    refused = refusal(flags={name: str(write(tmp_path, content, "token", mode))})
    assert refused.key == f"--{name.replace('_', '-')}"
    assert reason in refused.reason
    if len(content) > 2:
        assert content not in refused.reason


def test_a_token_file_that_is_not_there_is_refused_now_and_not_at_night(tmp_path):
    assert refusal(flags={"server_token_file": str(tmp_path / "nothing")}).key == "--server-token-file"


def test_a_ca_needs_https(tmp_path):
    ca = write(tmp_path, "", "ca.pem")
    assert refusal(flags={"server_ca_file": str(ca)}).key == "--server-ca-file"
    url = "https://wf.example.org/rpc"
    assert load(flags={"server_ca_file": str(ca), "server_url": url}).server_ca_file == ca
    assert "no such file" in refusal(flags={"server_ca_file": str(tmp_path / "x"), "server_url": url}).reason


# --- secrets and odd variables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["token", "server_token", "password"])
def test_a_secret_in_a_file_or_in_the_environment_is_refused_without_repeating_it(tmp_path, name):
    for refused in (
        refusal(path=write(tmp_path, f'{name} = "hunter2"\n')),
        refusal(path=of_server(tmp_path, {"scheduler": {"enabled": True, name: "hunter2"}})),
        refusal(environ={f"SCHEDULER_{name.upper()}": "hunter2"}),
    ):
        assert "file" in refused.reason
        assert "hunter2" not in str(refused)


def test_a_variable_that_looks_like_a_setting_is_noticed_and_not_refused():
    config = load(environ={"SCHEDULER_LATENES_S": "5", "SCHEDULER_PORT": "tcp://10.0.0.1:80", "SCHEDULER_URL": "x"})
    assert config.notices == (
        "the variable SCHEDULER_LATENES_S is not a setting; did you mean SCHEDULER_LATENESS_S?",
        "the variable SCHEDULER_PORT is not a setting",
    )


# --- the store beside the server's ------------------------------------------------------------------------------------


def test_the_store_may_be_the_servers_or_elsewhere_and_not_inside(tmp_path):
    (tmp_path / "server" / "runs").mkdir(parents=True)
    server = str(tmp_path / "server")
    assert load(flags={"store_root": server}).nesting(server) is None
    assert load(flags={"store_root": str(tmp_path / "own")}).nesting(server) is None
    assert "lies inside" in (load(flags={"store_root": f"{server}/runs/ours"}).nesting(server) or "")
    assert load(flags={"store_root": f"{server}/runs/ours"}).nesting(None) is None
    assert load(flags={"store_root": "/nowhere/ours"}).nesting("/nowhere") is None


def test_a_link_into_the_servers_store_is_followed(tmp_path):
    (tmp_path / "server" / "runs").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "server" / "runs")
    assert "lies inside" in (load(flags={"store_root": str(tmp_path / "link")}).nesting(str(tmp_path / "server")) or "")
