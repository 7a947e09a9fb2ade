"""The composition root: the only place where real clock, files, transport and server meet.

Owns: the order of start and stop, signals, and which failure ends the process with which exit code.
Must never know: what any of the parts decides.

Start: lock, load, recover, server, decide, listen, READY.  Stop: admission, drain, fence, listener, server, store.  Each step
tolerates that those after it never happened.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from rpc_client.transport import Transport
from rpc_client.workflow import WorkflowClient
from scheduler_daemon import __version__, errors
from scheduler_daemon.api.http import AddressUnusable, ApiServer
from scheduler_daemon.config import Config
from scheduler_daemon.core.model import Settings
from scheduler_daemon.embedded.deployments import DeploymentsInvalid
from scheduler_daemon.embedded.runs import StoreUnusable as EmbeddedStoreUnusable
from scheduler_daemon.errors import ServerRefused
from scheduler_daemon.runtime import systemd
from scheduler_daemon.runtime.clock import SystemClock
from scheduler_daemon.runtime.host import Host, Options
from scheduler_daemon.runtime.logs import configure, log
from scheduler_daemon.runtime.service import Service
from scheduler_daemon.store.errors import LockHeld, OwnershipLost, StorageFailed, StorageFull, StoreUnusable
from scheduler_daemon.store.retention import Retention
from scheduler_daemon.store.store import Store

EMBEDDED = "embedded"
"""What marks call the embedded server: its port changes at every start, and it is the same server all the same."""

GC_EVERY = (10_000, 10, 10)
"""The collector's thresholds.  By Python's own, 700, it looks at the parts of every open call, which die by themselves a moment later."""

LIFE_S = 3.0


def serve(config: Config) -> int:
    """Run the daemon until a signal or a failure; returns the exit code."""
    configure(config.log_format, config.log_level)
    try:
        return asyncio.run(_serve(config))
    except LockHeld as held:
        log("ownership_lost", "error", reason=str(held), holder=msgspec.to_builtins(held.holder))
        return errors.EXIT_HELD
    except (StoreUnusable, EmbeddedStoreUnusable, AddressUnusable, DeploymentsInvalid, ServerRefused) as refused:
        log("stopped", "error", reason=str(refused))
        return errors.EXIT_UNUSABLE
    except OwnershipLost as lost:
        log("ownership_lost", "error", reason=str(lost))
        return errors.EXIT_OWNERSHIP_LOST
    except (StorageFailed, StorageFull) as failed:
        log("storage_failed", "error", reason=str(failed))
        return errors.EXIT_STORAGE_FAILED
    except Exception as bug:  # the process ends here: what was marked stays marked, and the next start judges it
        log("bug", "error", exc_info=bug)
        return errors.EXIT_BUG


async def _serve(config: Config) -> int:
    gc.disable()  # a store is loaded, of which nothing is garbage: looking at it again and again takes a fifth of the time
    log("starting", version=__version__, store_root=str(config.store_root), server=config.server_url or EMBEDDED)
    host = _build_host(config)
    asked_to_stop = _on_signals(host)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(host.close)
        await host.open()
        client = await _connect(config, stack)
        api = ApiServer(Service(host), config, systemd.take_sockets())
        stack.push_async_callback(api.stop)
        stack.push_async_callback(host.stop)
        await host.start(client)
        addresses = await api.start()
        gc.freeze()  # what is loaded stays: the collector need not look at it again
        gc.set_threshold(*GC_EVERY)
        gc.enable()
        log("ready", addresses=[str(address) for address in addresses])
        systemd.notify("READY=1")
        await _until(asked_to_stop, host)
        systemd.notify("STOPPING=1")
    host.raise_failure()
    return errors.EXIT_OK


async def _until(asked_to_stop: asyncio.Event, host: Host) -> None:
    """Go on until somebody asks to stop; whatever makes going on impossible is raised."""
    running = asyncio.create_task(host.run())
    asked = asyncio.create_task(asked_to_stop.wait())
    alive = asyncio.create_task(_sign_of_life(host))
    try:
        await asyncio.wait({running, asked, alive}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        for task in (running, asked, alive):
            task.cancel()


async def _sign_of_life(host: Host) -> None:
    """Tell the service manager that scheduling works, and only when its checks say so."""
    wanted_s = systemd.watchdog_s()
    # Often, so that one check that did not hold is not yet a missed sign.
    every_s = 3600.0 if wanted_s is None else min(wanted_s, LIFE_S)
    while True:
        await host.clock.sleep(every_s)
        if wanted_s is not None and host.ticking():
            systemd.notify("WATCHDOG=1")


def _on_signals(host: Host) -> asyncio.Event:
    """The first SIGTERM or SIGINT asks for a stop, the second cuts the drain short."""
    asked_to_stop = asyncio.Event()

    def asked() -> None:
        if asked_to_stop.is_set():
            host.cut_short()
        asked_to_stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    return asked_to_stop


def _build_host(config: Config) -> Host:
    settings = Settings(
        max_concurrent_runs=config.max_concurrent_runs,
        lateness_s=config.lateness_s,
        preflight_ttl_s=config.preflight_ttl_s,
        reconcile_grace_s=config.reconcile_grace_s,
        server_url=config.server_url or EMBEDDED,
    )
    options = Options(
        server_name=config.server_url or EMBEDDED,
        check_root=config.nesting,
        version=__version__,
        instance_id=uuid.uuid4().hex,
        poll_interval_s=config.poll_interval_s,
        drain_grace_s=config.drain_grace_s,
        gateway=config.gateway,
        accept_restore=config.accept_restore,
    )
    retention = Retention(
        runs_max=config.retention_rows,
        others_max=config.retention_rows,
        age_max_s=config.retention_days * 86_400.0,
        bytes_max=config.retention_bytes,
    )
    store = Store(config.store_root, allow_network_fs=config.allow_network_fs, retention=retention)
    return Host(store, SystemClock(), settings, options)


async def _connect(config: Config, stack: AsyncExitStack) -> WorkflowClient:
    """The client of the server: the configured one, or one inside this process, over the same HTTP."""
    if config.server_url is not None:
        transport = Transport(
            config.server_url, token_file=config.server_token_file, ca_file=_path(config.server_ca_file)
        )
    else:
        if config.embedded is None:
            raise StoreUnusable("neither a server URL nor an embedded deployments file is configured")
        from scheduler_daemon.embedded.server import EmbeddedServer  # noqa: PLC0415  not loaded where a server is reached

        server = EmbeddedServer(config.embedded, config.store_root / "embedded", on_bug=_report)
        stack.push_async_callback(server.stop)
        transport = Transport(await server.start(), token=server.token)
    return WorkflowClient(await stack.enter_async_context(transport))


def _report(method: str, bug: BaseException) -> None:
    log("bug", "error", where="embedded", method=method, exc_info=bug)


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)
