"""The unit files: what systemd says of them, and whether the daemon can live in what they allow.

systemd is asked offline and never booted. That the sandbox is not too tight is seen from outside: the daemon's own system
calls, recorded by strace, must all be among those that the unit permits.
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from scheduler_daemon import errors, limits
from scheduler_daemon.config import SETTINGS
from scheduler_daemon.config import loading as config
from tests.fakes.http import HttpFace
from tests.fakes.scripts import Complete, Deployment
from tests.fakes.server import FakeWorkflowServer
from tests.integration.process import HELLO, Daemon, until
from tests.integration.scenes import due_soon, last_row

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = DEPLOY / "systemd"
SERVICE = UNITS / "scheduler-daemon.service"
EXPOSURE_MAX = 15
"""In tenths, as `--threshold` wants it."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="SKIP: systemd-analyze is missing (Debian: systemd)"
)
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="SKIP: strace is missing (Debian: strace)")


def laid_out(folder: Path, *drop_ins: str, text: str | None = None) -> Path:
    """The service as it would be installed, with drop-ins, and with a program that exists on this machine."""
    unit = folder / SERVICE.name
    text = SERVICE.read_text() if text is None else text
    unit.write_text(text.replace("/opt/scheduler-daemon/bin/scheduler-daemon", "/bin/true"))
    drop_in_folder = folder / f"{SERVICE.name}.d"
    drop_in_folder.mkdir()
    for name in drop_ins:
        shutil.copy(UNITS / name, drop_in_folder)
    shutil.copy(UNITS / "scheduler-daemon.socket", folder)
    return unit


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60)


def verify(unit: Path) -> str:
    """Everything that systemd has to say; it ends with 0 on a key that it does not know."""
    said = analyze("verify", "--man=no", str(unit))
    return said.stdout + said.stderr


def settings_of(*files: Path) -> dict[str, list[str]]:
    """Key → values in order, over the files as systemd would merge them."""
    found: dict[str, list[str]] = {}
    for file in files:
        for key, value in re.findall(r"^([A-Z]\w*)=(.*)$", file.read_text(), re.MULTILINE):
            found.setdefault(key, []).append(value)
    return found


def one(key: str, *files: Path) -> str:
    return settings_of(SERVICE, *files)[key][-1]


# --- what systemd says ------------------------------------------------------------------------------------------------


@needs_systemd
@pytest.mark.parametrize(
    "drop_ins", [(), ("embedded.conf",), ("remote-server.conf",), ("embedded.conf", "remote-server.conf")]
)
def test_systemd_has_nothing_to_say_about_the_service(drop_ins, tmp_path):
    assert verify(laid_out(tmp_path, *drop_ins)) == ""


@needs_systemd
def test_systemd_has_nothing_to_say_about_the_socket(tmp_path):
    laid_out(tmp_path)
    assert verify(tmp_path / "scheduler-daemon.socket") == ""


@needs_systemd
def test_a_misspelled_key_would_be_noticed(tmp_path):
    misspelled = SERVICE.read_text().replace("WatchdogSec=", "WatchDogSecs=")
    assert "WatchDogSecs" in verify(laid_out(tmp_path, text=misspelled))


@needs_systemd
@pytest.mark.parametrize("drop_ins", [(), ("embedded.conf",), ("remote-server.conf",)])
def test_the_exposure_stays_within_its_bound(drop_ins, tmp_path):
    unit = laid_out(tmp_path, *drop_ins)
    said = analyze("security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX}", str(unit))
    print(said.stdout.strip().splitlines()[-1])
    assert said.returncode == 0, said.stdout


@needs_systemd
def test_without_the_sandbox_the_bound_would_be_broken(tmp_path):
    bare = re.sub(r"# --- the sandbox ---.*?(?=^\[Install\])", "", SERVICE.read_text(), flags=re.DOTALL | re.MULTILINE)
    unit = laid_out(tmp_path, text=bare)
    said = analyze("security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX}", str(unit))
    print(said.stdout.strip().splitlines()[-1])
    assert said.returncode != 0


# --- what the unit and the daemon must agree on -----------------------------------------------------------------------


def test_what_trying_again_cannot_mend_is_not_restarted():
    assert one("Restart") == "on-failure"
    assert set(one("RestartPreventExitStatus").split()) == {str(errors.EXIT_HELD), str(errors.EXIT_UNUSABLE)}


def test_a_stop_has_time_for_the_drain_and_for_what_follows():
    (grace_s,) = [setting.default for setting in SETTINGS if setting.name == "drain_grace_s"]
    assert int(one("TimeoutStopSec")) >= 2 * (grace_s + limits.STOP_S)
    assert one("KillMode") == "mixed"


def test_the_credentials_have_the_names_that_the_daemon_looks_for():
    named = {value.partition(":")[0] for value in settings_of(SERVICE)["LoadCredential"]}
    assert named == set(config._CREDENTIALS.values())


def test_a_command_of_the_embedded_server_that_runs_out_of_memory_does_not_stop_the_service():
    assert one("OOMPolicy", UNITS / "embedded.conf") == "continue"


@pytest.mark.parametrize("file", [SERVICE, UNITS / "embedded.conf"])
def test_each_variable_that_is_set_is_one_of_ours(file):
    known = {setting.variable for setting in SETTINGS} | set(config._OTHER_VARIABLES)
    assert {value.partition("=")[0] for value in settings_of(file)["Environment"]} <= known


def test_the_installer_puts_units_where_they_find_their_program(tmp_path):
    environment = {**os.environ, "DESTDIR": str(tmp_path), "PREFIX": "/usr/local/lib/scheduler"}
    subprocess.run([UNITS / "install.sh", "--files-only"], env=environment, check=True, capture_output=True, timeout=60)
    unit = (tmp_path / "etc/systemd/system/scheduler-daemon.service").read_text()
    assert "ExecStart=/usr/local/lib/scheduler/bin/scheduler-daemon serve" in unit
    assert "/opt/" not in unit
    runbook = re.search(r"Documentation=file:(\S+)", unit)
    assert runbook is not None
    assert (tmp_path / runbook[1].removeprefix("/")).is_file()
    settings = tmp_path / "etc/scheduler-daemon/scheduler.toml"
    settings.write_text("lateness_s = 5\n")
    subprocess.run([UNITS / "install.sh", "--files-only"], env=environment, check=True, capture_output=True, timeout=60)
    assert settings.read_text() == "lateness_s = 5\n"


# --- the daemon under a manager ---------------------------------------------------------------------------------------


class Manager:
    """The end of the notification socket that systemd holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    async def listen(self) -> None:
        while True:
            self.said.append((await asyncio.get_running_loop().sock_recv(self._socket, 4096)).decode())

    async def hears(self, state: str) -> None:
        async def there():
            return state in self.said

        await until(there)


@contextlib.asynccontextmanager
async def manager(path: Path):
    heard = Manager(path)
    listening = asyncio.create_task(heard.listen())
    try:
        yield heard
    finally:
        listening.cancel()
        heard._socket.close()


async def test_started_as_the_unit_starts_it_the_daemon_finds_its_store_its_token_and_its_manager(tmp_path):
    state, credentials = tmp_path / "state", tmp_path / "credentials"
    state.mkdir(mode=0o700)
    credentials.mkdir()
    (credentials / "token").write_text("of-the-callers\n")
    (credentials / "token").chmod(0o400)
    daemon = Daemon(tmp_path, deployments=HELLO)
    settings = tmp_path / "scheduler.toml"
    settings.write_text(f'listen = "127.0.0.1:{daemon.port}"\n')
    daemon.argv = ("serve",)
    daemon.environment = {
        "SCHEDULER_CONFIG": str(settings),
        "SCHEDULER_EMBEDDED": str(tmp_path / "deployments.toml"),
        "STATE_DIRECTORY": str(state),
        "CREDENTIALS_DIRECTORY": str(credentials),
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "1000000",
    }
    async with manager(tmp_path / "notify") as heard, daemon:
        await heard.hears("READY=1")
        await heard.hears("WATCHDOG=1")
        async with aiohttp.ClientSession() as session:
            url = daemon.url.removesuffix("/rpc")
            async with session.get(f"{url}/readyz") as refused:
                assert refused.status == 401
            async with session.get(f"{url}/healthz") as alive:
                assert alive.status == 200
        assert (state / "schedules" / "FORMAT.json").is_file()
        assert await daemon.stop() == 0
        await heard.hears("STOPPING=1")


@pytest.mark.skipif(
    shutil.which("systemd-socket-activate") is None, reason="SKIP: systemd-socket-activate is missing (Debian: systemd)"
)
async def test_the_daemon_serves_on_the_socket_that_the_manager_opened(tmp_path):
    daemon = Daemon(tmp_path, deployments=HELLO)
    daemon.prefix = ("systemd-socket-activate", "-l", f"127.0.0.1:{daemon.port}")
    async with daemon, daemon.app() as app:

        async def healthy():
            assert daemon.process is not None
            assert daemon.process.returncode is None, daemon.log_path.read_text()
            return await app.health()

        assert (await until(healthy))["store_root"] == str(daemon.store)
        assert await daemon.stop() == 0


# --- the daemon inside the sandbox ------------------------------------------------------------------------------------


def groups() -> dict[str, set[str]]:
    """The sets of system calls that systemd knows, with what they include by name."""
    found: dict[str, set[str]] = {}
    name = ""
    for line in analyze("syscall-filter").stdout.splitlines():
        if line.startswith("@"):
            name = line.strip()
            found[name] = set()
        elif line.strip() and not line.strip().startswith("#") and name:
            found[name].add(line.strip())
    return found


def expanded(name: str, known: dict[str, set[str]]) -> set[str]:
    if not name.startswith("@"):
        return {name}
    return {call for member in known[name] for call in expanded(member, known)}


def permitted(lines: list[str]) -> set[str]:
    """What `SystemCallFilter=` lets through, line after line."""
    known = groups()
    allowed: set[str] = set()
    for line in lines:
        words = {call for word in line.lstrip("~").split() for call in expanded(word, known)}
        if not line:
            allowed = set()
        elif line.startswith("~"):
            allowed -= words
        else:
            allowed |= words
    return allowed | expanded("@default", known)


def calls(record: Path) -> Iterator[tuple[str, str]]:
    """Each system call that a record of strace holds, with its arguments."""
    for line in record.read_text(errors="replace").splitlines():
        if match := re.match(r"\d+ +(\w+)\((.*)", line):
            yield match[1], match[2]


@needs_systemd
def test_a_call_that_the_unit_takes_away_is_not_among_those_permitted():
    allowed = permitted(settings_of(SERVICE)["SystemCallFilter"])
    assert {"fdatasync", "openat", "epoll_wait", "execve"} <= allowed
    assert not allowed & {"chown", "setpriority", "mount", "ptrace", "setuid", "bpf"}
    relaxed = permitted(settings_of(SERVICE, UNITS / "embedded.conf")["SystemCallFilter"])
    assert {"chown", "setpriority"} <= relaxed
    assert not relaxed & {"mount", "ptrace", "bpf"}


def only_child(pid: int) -> int:
    """The daemon that strace follows: a signal to strace itself would end the recording."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


async def a_run(daemon: Daemon) -> None:
    """Start, run one occurrence, stop in order."""
    async with daemon, daemon.app() as app:
        await due_soon(app, "once", "scheduled_hello.default")
        await last_row(app, "once", "completed")
        assert daemon.process is not None
        os.kill(only_child(daemon.process.pid), signal.SIGTERM)
        assert await daemon.process.wait() == 0


def assert_is_permitted(record: Path, *drop_ins: Path) -> None:
    made = list(calls(record))
    settings = settings_of(SERVICE, *drop_ins)
    assert {name for name, _ in made} - permitted(settings["SystemCallFilter"]) == set()
    families = {family for line in settings["RestrictAddressFamilies"] for family in line.split()}
    assert {re.match(r"\w+", arguments)[0] for name, arguments in made if name == "socket"} <= families
    if settings["MemoryDenyWriteExecute"][-1] == "yes":
        maps = [arguments for name, arguments in made if name == "mmap"]
        assert not [one for one in maps if "PROT_EXEC" in one and "PROT_WRITE" in one]
        assert not [one for name, one in made if name in ("mprotect", "pkey_mprotect") and "PROT_EXEC" in one]
    assert not [one for name, one in made if name in ("clone", "clone3", "unshare") and "CLONE_NEW" in one]


@needs_systemd
@pytest.mark.parametrize(
    "call",
    [
        "fchown(5, 0, 0) = 0",
        "socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE) = 5",
        "mmap(NULL, 4096, PROT_READ|PROT_WRITE|PROT_EXEC, MAP_PRIVATE, -1, 0) = 0x1",
        "mprotect(0x1, 4096, PROT_READ|PROT_EXEC) = 0",
        "clone(child_stack=NULL, flags=CLONE_NEWUSER|SIGCHLD) = 7",
    ],
)
def test_a_call_that_the_unit_forbids_would_be_noticed(call, tmp_path):
    record = tmp_path / "calls"
    record.write_text("7 read(3, 1) = 1\n")
    assert_is_permitted(record)
    record.write_text(f"7 read(3, 1) = 1\n7 {call}\n")
    with pytest.raises(AssertionError):
        assert_is_permitted(record)


@needs_systemd
@needs_strace
async def test_the_daemon_makes_no_call_that_the_unit_forbids(tmp_path):
    record = tmp_path / "calls"
    hello = Deployment(deployment_id="scheduled_hello.default", script=Complete(output={}))
    face = HttpFace(FakeWorkflowServer([hello]))
    await face.start()
    try:
        daemon = Daemon(tmp_path, server=face.url, options=("--socket-path", str(tmp_path / "run" / "rpc.sock")))
        daemon.prefix = ("strace", "-f", "-qq", "-o", str(record))
        await a_run(daemon)
    finally:
        await face.stop()
    assert_is_permitted(record)
    assert {"fdatasync", "flock", "bind"} <= {name for name, _ in calls(record)}


@needs_systemd
@needs_strace
async def test_with_embedded_conf_neither_do_the_commands(tmp_path):
    record = tmp_path / "calls"
    daemon = Daemon(tmp_path, deployments=HELLO)
    daemon.prefix = ("strace", "-f", "-qq", "-o", str(record))
    await a_run(daemon)
    assert_is_permitted(record, UNITS / "embedded.conf")
    assert "setsid" in {name for name, _ in calls(record)}
