"""The embedded server as a process of its own, to be killed and restarted: `python -m tests.embedded_process FILE ROOT PORT`.

The parent half, `EmbeddedProcess`, starts it on one port for all its lives. It asks for no token: the suites that use it
talk as strangers do.
"""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

from scheduler_daemon.embedded.server import EmbeddedServer

END_S = 20.0


class EmbeddedProcess:
    """One deployments file, one store, one port; as many lives as a test wants. Its methods block but for `kill` and `restart`."""

    def __init__(self, deployments_file: Path, data_root: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/rpc"
        self._argv = [
            sys.executable,
            "-m",
            "tests.embedded_process",
            str(deployments_file),
            str(data_root),
            str(self.port),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Return when it answers; pytest's own timeout bounds the wait."""
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE)
        assert self._process.stdout.readline().strip() == self.url.encode()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with process:
                process.wait(END_S)

    async def kill(self) -> None:
        await asyncio.to_thread(self.end, signal.SIGKILL)

    async def restart(self) -> None:
        await asyncio.to_thread(self.end)
        await asyncio.to_thread(self.start)


async def _serve(deployments_file: Path, data_root: Path, port: int) -> None:
    server = EmbeddedServer(deployments_file, data_root, port=port, require_token=False, on_bug=_tell)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print(await server.start(), flush=True)
    await stopped.wait()
    await server.stop()


def _tell(where: str, bug: BaseException) -> None:
    print(f"{where}: {bug!r}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
