"""The examples of a Markdown page that are run, and how.

A fenced block runs in CI when the line before it is an HTML comment `<!-- ci: NAME -->`, which no reader sees. `bash`
blocks run with `-euo pipefail`, `python` blocks with this interpreter; each in a folder of its own, with the
environment's programs first on PATH, so that an example is exactly what a reader would type.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MARK = re.compile(r"^<!-- ci: (?P<name>[a-z0-9-]+) -->$")
FENCE = re.compile(r"^```(?P<language>\w*)$")
EXAMPLE_S_MAX = 90


class Example(NamedTuple):
    """One block that is run: the name in its mark, its language, its lines, and the line it starts on."""

    name: str
    language: str
    code: str
    line: int


class ExampleFailed(AssertionError):
    """The example did not end with 0; the message has its code and what it printed."""


def examples(page: str) -> Iterator[Example]:
    """Each marked block of the page; a mark with no block that can be run behind it is a `ValueError`."""
    lines = page.splitlines()
    for number, line in enumerate(lines):
        if mark := MARK.match(line):
            fence = FENCE.match(lines[number + 1]) if number + 1 < len(lines) else None
            if fence is None or fence["language"] not in {"bash", "python"}:
                message = f"line {number + 1}: {mark['name']} is followed by no bash or python block"
                raise ValueError(message)
            end = lines.index("```", number + 2)
            yield Example(mark["name"], fence["language"], "\n".join(lines[number + 2 : end]) + "\n", number + 3)


def run(example: Example, folder: Path) -> str:
    """What the example printed. Its process group is ended with it: an example leaves nothing running."""
    programs = Path(sys.executable).parent
    command = {
        "bash": ["bash", "-euo", "pipefail", "-c", example.code],
        "python": [sys.executable, "-c", example.code],
    }[example.language]
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}
    with (folder / "printed").open("w+") as printed:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = _wait(process)
        printed.seek(0)
        output = printed.read()
    if code != 0:
        message = f"{example.name} (line {example.line}) ended with {code}:\n{example.code}\n--- printed\n{output}"
        raise ExampleFailed(message)
    return output


def _wait(process: subprocess.Popen[bytes]) -> int | str:
    try:
        return process.wait(EXAMPLE_S_MAX)
    except subprocess.TimeoutExpired:
        return f"nothing for {EXAMPLE_S_MAX} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_running(pid: int) -> bool:
    """Whether a process of that number exists and is not just waiting to be collected."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
