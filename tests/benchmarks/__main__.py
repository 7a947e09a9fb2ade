"""`make bench`: run the cases named on the command line, or the short list, and print one JSON line for each."""

import asyncio
import json
import sys

from tests.benchmarks import cases

CASES = {
    "lateness": lambda: cases.lateness(60),
    "burst-1000": lambda: cases.burst(1000),
    "burst-10000": lambda: cases.burst(10_000),
}
SHORT = ("lateness", "burst-1000")

for name in sys.argv[1:] or SHORT:
    print(json.dumps(asyncio.run(CASES[name]())), flush=True)
