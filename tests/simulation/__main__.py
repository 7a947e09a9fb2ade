"""Run seeds from the command line, or one of them with its story.

    python -m tests.simulation --seed 17 --trace
    python -m tests.simulation --seeds 10000 --jobs 2

Exit code 1 says that a seed broke an invariant; each such seed is printed with the command that replays it.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context

from tests.simulation.script import play
from tests.simulation.world import Report, run_seed


def main() -> int:
    asked = _arguments()
    if asked.seed is not None:
        report = run_seed(asked.seed, play, traced=asked.trace)
        sys.stdout.writelines(f"{line}\n" for line in report.trace[-asked.lines :])
        print(_told(report))
        for name, count in sorted(report.counts.items()) if asked.counts else ():
            print(f"  {count:8} {name}")
        return bool(report.violations)
    return _many(asked)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="run this one seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happened")
    parser.add_argument("--lines", type=int, default=400, help="how much of the trace, from its end")
    parser.add_argument("--counts", action="store_true", help="print how often everything happened")
    parser.add_argument("--seeds", type=int, default=int(os.environ.get("SIM_SEEDS", "200")), help="how many seeds")
    parser.add_argument(
        "--from", dest="first", type=int, default=int(os.environ.get("SIM_FROM", "0")), help="the first seed"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--stop-after", type=int, default=5, help="how many broken seeds are enough")
    return parser.parse_args()


def _many(asked: argparse.Namespace) -> int:
    begun_s, counts, broken, done = time.monotonic(), Counter[str](), 0, 0
    virtual_s = 0.0
    for report in _reports(range(asked.first, asked.first + asked.seeds), asked.jobs):
        done += 1
        counts += report.counts
        virtual_s += report.virtual_s
        if report.violations:
            broken += 1
            print(_told(report), flush=True)
            if broken >= asked.stop_after:
                break
    took_s = time.monotonic() - begun_s
    for name, count in sorted(counts.items()) if asked.counts else ():
        print(f"  {count:8} {name}")
    runs = sum(count for name, count in counts.items() if name.startswith("row "))
    print(
        f"{done} seeds, {broken} broken, {runs} final rows, {virtual_s / 3600:.1f} h of virtual time in {took_s:.1f} s"
    )
    return bool(broken)


def _reports(seeds: range, jobs: int) -> Iterator[Report]:
    if jobs == 1:
        yield from map(_one, seeds)
        return
    with get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(_one, seeds, chunksize=8)


def _one(seed: int) -> Report:
    return run_seed(seed, play)


def _told(report: Report) -> str:
    if not report.violations:
        return f"seed {report.seed}: held for {report.virtual_s:.0f} s of virtual time"
    again = f"python -m tests.simulation --seed {report.seed} --trace"
    return "\n".join([f"seed {report.seed}: {report.violations[0]}", f"    replay with: {again}"])


if __name__ == "__main__":
    sys.exit(main())
