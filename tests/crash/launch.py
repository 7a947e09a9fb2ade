"""The real daemon with smaller bounds, so that a test of seconds meets what otherwise takes megabytes or another machine.

    python -m tests.crash.launch python -m scheduler_daemon serve …

Owns: the bounds.  Must never know: what is tested.  It stands in front of the command line of a daemon, as strace does, and takes its
bounds from the environment: `CRASH_CHECKPOINT_BYTES`, `CRASH_SEGMENT_BYTES`, `CRASH_MOUNTINFO`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from scheduler_daemon.cli import main
from scheduler_daemon.runtime import host
from scheduler_daemon.store import store

PREFIX = (sys.executable, "-m", "tests.crash.launch")
LOOK_S = 0.1


def _bound() -> None:
    defaults = store.Store.__init__.__kwdefaults__
    assert defaults is not None
    if said := os.environ.get("CRASH_CHECKPOINT_BYTES"):
        store.CHECKPOINT_BYTES_MIN = int(said)  # pyright: ignore[reportConstantRedefinition]
        host.CHECKPOINT_LOOK_S = LOOK_S  # pyright: ignore[reportConstantRedefinition]
    if said := os.environ.get("CRASH_SEGMENT_BYTES"):
        defaults["segment_bytes_max"] = int(said)
    if said := os.environ.get("CRASH_MOUNTINFO"):
        defaults["mountinfo"] = Path(said)


if __name__ == "__main__":
    _bound()
    sys.argv = sys.argv[3:]
    main()
