"""How the peer harness runs this product: where its store lies, how schedules are registered, how the daemon is started, when it is ready.

Owns: the product's side of the harness's adapter.  Must never know: anything beyond the standard library, since the harness imports it
with an interpreter of its own, which has none of our dependencies.

The README of this folder says how to plug it in.
"""

import os
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("SCHEDULER_PYTHON", str(ROOT / ".venv/bin/python"))
SLOTS = "64"
READY_EVERY_S = 0.005


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve_argv(spec: dict, *, python: str = PYTHON) -> list[str]:
    """The command line of the daemon on the store of this run."""
    return [
        python,
        "-m",
        "scheduler_daemon",
        "serve",
        *("--store-root", f"{spec['wd']}/store"),
        *("--listen", f"127.0.0.1:{spec['infra']['port']}"),
        *("--server", spec["url"]),
        *("--max-concurrent-runs", os.environ.get("BENCH_CONC", SLOTS)),
    ]


def answers(port: int, path: str = "/readyz") -> bool:
    """Whether the daemon there owns its store, has a fresh tick and reaches the workflow server."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


class Product:
    """Mixed into a subclass of the harness's `Peer`: `class Scheduler(Product, Peer): name = "scheduler"`."""

    name = "scheduler"
    kinds = frozenset({"hourly", "daily", "minutely", "oneshot", "spread"})
    burst_kind, steady_kind = "daily", "spread"
    reg_rate = 400.0
    start_s = 4.0
    quiet_s = 40.0
    guarantee = (
        "the admission is durable before its request leaves and the outcome after it; a request in flight at a crash is "
        "disclosed as outcome-unknown and never sent again"
    )
    env = MappingProxyType({"BENCH_CONC": SLOTS})

    def infra(self, group, wd):
        return {"port": free_port()}

    def environ(self, spec):
        given = super().environ(spec)
        return {**given, "PYTHONPATH": f"{ROOT}:{given['PYTHONPATH']}", "PYTHONDONTWRITEBYTECODE": ""}

    def register_cmd(self, specp):
        return [PYTHON, "-m", "tests.benchmarks.register", "register", specp]

    def daemon_cmds(self, specp, spec):
        return [serve_argv(spec)]

    def ready(self, spec, group, timeout=300):
        end = time.time() + timeout
        while time.time() < end and all(group.alive()):
            if answers(spec["infra"]["port"]):
                return True
            time.sleep(READY_EVERY_S)
        return False
