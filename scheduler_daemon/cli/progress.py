"""A sign of life on the terminal for whatever takes more than a second.

Owns: the line that is written over, and who gets to see it.  Must never know: what is waited for.

A thread of its own tells, so that work which never yields (a store being read) is told of as well as a wait for an answer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import click

EVERY_S: Final = 1.0


@contextmanager
def progress(doing: str) -> Generator[None]:
    """Say every second that it goes on, and for how long already; only to a person who watches, never into a pipe."""
    if not os.isatty(2):
        yield
        return
    over = threading.Event()
    teller = threading.Thread(target=_tell, args=(doing, over), daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def _tell(doing: str, over: threading.Event) -> None:
    told = 0
    while not over.wait(EVERY_S):
        told += 1
        _write(f"{doing}, {told * EVERY_S:.0f} s")
    if told:
        _write("")


def _write(text: str) -> None:
    click.echo(f"\r\x1b[K{text}", nl=False, err=True)
