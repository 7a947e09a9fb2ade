"""The tree as the rules see it: parsed sources and the list of tracked files.

A rule is a function from one `Source` to the lines it objects to. It never reads a disk, so its own test can hand it a
few lines of text that break it. Only this module knows where the project lies.
"""

import ast
import subprocess
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("scheduler_daemon", "rpc_client")

Finding = tuple[int, str]
"""A line number and what is wrong there."""


class Source:
    """One Python file: its path from the root, its text, and its syntax tree."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def module(self) -> str:
        """The dotted name that other modules import it by."""
        parts = PurePosixPath(self.path).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def package(self) -> str:
        """The dotted name that its relative imports start from."""
        return self.module if self.path.endswith("/__init__.py") else self.module.rpartition(".")[0]


Rule = Callable[[Source], Iterable[Finding]]


def assert_held(rule: Rule, over: Iterable[Source]) -> None:
    """Fail with everything that the rule objects to in these sources, as lines a terminal can jump to."""
    __tracebackhide__ = True
    found = [f"{source.path}:{line}: {what}" for source in over for line, what in rule(source)]
    assert not found, f"{rule.__doc__}\n" + "\n".join(found)


def broken_by(rule: Rule, text: str, path: str = "scheduler_daemon/core/example.py") -> list[str]:
    """What the rule says about a made-up file: the negative test of a rule is that this is not empty."""
    return [what for _, what in rule(Source(path, text))]


@cache
def sources() -> tuple[Source, ...]:
    """Each source file of the packages that are installed."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return tuple(Source(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in paths)


@cache
def project_files() -> tuple[str, ...]:
    """Each file that is in the project or about to be: tracked, or new and not ignored."""
    listing = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(sorted(name for name in output.split("\0") if name and (ROOT / name).is_file()))


@cache
def project_texts() -> tuple[Source, ...]:
    """Each project file that is text, for the rules that look at text alone."""
    read = [(name, (ROOT / name).read_bytes()) for name in project_files()]
    return tuple(Source(name, data.decode("utf-8", "replace")) for name, data in read if b"\0" not in data)
