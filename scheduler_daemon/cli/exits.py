"""How a command ends when it does not end well.

Owns: the line on stderr that goes with an exit code, and the texts at the foot of a help page.  Must never know: commands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NoReturn

import click

from scheduler_daemon import errors


def end(message: str, exit_code: int) -> NoReturn:
    """Say one line on stderr and end with this code."""
    click.echo(f"scheduler-daemon: {message}", err=True)
    sys.exit(exit_code)


def listed(codes: Iterable[int]) -> str:
    """The exit codes with their meanings, as the last paragraph of a help text."""
    lines = [f"  {code:>3}  {errors.EXIT_MEANINGS[code]}" for code in codes]
    return "\n".join(["\b", "Exit codes:", *lines])


def examples(*lines: str) -> str:
    """Command lines to copy, as a paragraph that is not wrapped."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def epilog(*paragraphs: str) -> str:
    """What stands below the options."""
    return "\n\n".join(paragraphs)
