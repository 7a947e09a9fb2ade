"""The README's program does what it says, against a running daemon; only the daemon's address is another one."""

import asyncio
import re
import sys
from pathlib import Path

from tests.integration.process import Daemon

PAGE = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
(PROGRAM,) = re.findall(r"^<!-- with a daemon: app -->\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ADDRESS = "http://127.0.0.1:8766"
DEPLOYMENTS = """
[deployments."hello.default"]
[[deployments."hello.default".steps]]
argv = ["true"]
"""


async def run(address: str) -> tuple[int, str, str]:
    program = PROGRAM.replace(ADDRESS, address)
    assert program != PROGRAM
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_the_program_of_the_readme_creates_a_schedule_and_is_refused_the_second_time(tmp_path):
    async with Daemon(tmp_path, deployments=DEPLOYMENTS) as daemon, daemon.app() as app:
        code, out, err = await run(daemon.url)
        assert (code, err) == (0, "")
        schedule = await app.get_schedule("hourly")
        assert out.splitlines()[0] == f"next: {schedule['next_instants'][0]}"
        assert schedule["lateness_s"] == 300
        again, _, said = await run(daemon.url)
        assert (again, said.strip().partition(":")[0]) == (1, "ScheduleExists")
        await daemon.stop()
        gone, _, said = await run(daemon.url)
        assert (gone, said.strip()) == (1, "not now")
