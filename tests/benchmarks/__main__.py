"""`make bench`: run the cases named on the command line, or all of them but the soak, and print one JSON line for each.

    python -m tests.benchmarks [--sched rr] [--repeat 3] [--list] [CASE …]

No peer needs to be installed.  Times are printed and never judged.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.benchmarks import crashing, firing, machine, soak, stored

Case = Callable[[], Coroutine[Any, Any, dict[str, Any]]]

CASES: dict[str, Case] = {
    "burst-10000-daily": firing.burst,
    "burst-10000-daily-256": lambda: firing.burst(slots=256),
    "burst-10000-oneshot": lambda: firing.burst(kind="oneshot"),
    "burst-1000-oneshot": lambda: firing.burst(1_000, kind="oneshot"),
    "steady": firing.steady,
    "apart": firing.apart,
    "killed": crashing.killed,
    "register": stored.registered,
    "asleep": stored.asleep,
    "paused": stored.paused,
    "growth": stored.growth,
    "caught-up": crashing.caught_up,
    "history": stored.history,
    "soak": soak.soak,
    "soak-short": lambda: soak.soak(60.0),
}
LONG = frozenset({"soak", "soak-short"})
"""Only when they are named."""


def main() -> int:
    asked = _arguments()
    if asked.list:
        print("\n".join(CASES))
        return 0
    first_in_line = asked.sched == "rr" and machine.first_in_line()
    told = {"case": "machine", **machine.description(Path(tempfile.gettempdir()))}
    print(json.dumps({**told, "sched": "rr" if first_in_line else "normal"}), flush=True)
    broken = 0
    for _ in range(asked.repeat):
        for name in asked.cases or [name for name in CASES if name not in LONG]:
            broken += _run(name)
    return min(broken, 1)


def _run(name: str) -> int:
    """One case and its line; 1 if it did not come to an end of its own."""
    began, busy = time.monotonic(), machine.busy_s()
    try:
        figures = asyncio.run(CASES[name]())
    except Exception as error:
        print(json.dumps({"name": name, "error": f"{type(error).__name__}: {error}"[:500]}), flush=True)
        return 1
    took = time.monotonic() - began
    cores = round((machine.busy_s() - busy) / took, 2)
    print(json.dumps({"name": name, **figures, "took_s": round(took, 1), "busy_cores": cores}), flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="which ones; see --list")
    parser.add_argument("--sched", choices=("normal", "rr"), default="normal",
                        help="rr: run before every ordinary process of this machine (needs root)")  # fmt: skip
    parser.add_argument("--repeat", type=int, default=1, help="how often to run them all")
    parser.add_argument("--list", action="store_true", help="name the cases")
    asked = parser.parse_args()
    unknown = sorted(set(asked.cases) - set(CASES))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
