"""Cases with a daemon that was away: killed in the middle of a burst, or down for a day.

Owns: the killing, and the account of every schedule afterwards.  Must never know: how the daemon recovers.
"""

import time
from collections import Counter
from typing import Any

from tests.benchmarks import calls, seeds
from tests.benchmarks.firing import lead_s
from tests.benchmarks.rig import SLOTS, Rig, duplicates, next_second, rig, wait_until

_DAY_S = 86_400
_WATCH_S = 0.002
"""The kill is to come at a certain share, so the count is looked at as often as the machine lets us."""


async def killed(
    count: int = 10_000, *, at_share: float = 0.3, slots: int = SLOTS, rest_s: float = 5.0
) -> dict[str, Any]:
    """SIGKILL when that share of a burst has arrived, restart at once; what became of every schedule."""
    async with rig(slots=slots) as bench:
        due = next_second(lead_s(count))
        ids = [f"s{n:05d}" for n in range(count)]
        await calls.create_in_batches(bench.daemon.url, (calls.oneshot(one, due) for one in ids))
        await wait_until(due, before_s=0.2)
        await bench.arrived(round(at_share * count), 60 + count / 100, every_s=_WATCH_S)
        await bench.daemon.kill()
        killed_at, at_kill = time.time(), await bench.count()
        ready_s = await bench.start()
        await bench.quiet(count, 60 + count / 100, rest_s=rest_s)
        return {
            "case": "killed in a burst",
            "n": count,
            "slots": slots,
            "at_kill": at_kill,
            "ready_s": round(ready_s, 3),
            **await _account(bench, ids, killed_at),
        }


async def _account(bench: Rig, ids: list[str], killed_at: float) -> dict[str, Any]:
    """Lost: never arrived, and nobody was told that its outcome is unknown."""
    seen = await bench.arrivals()
    rows = await calls.histories(bench.daemon.url, ids)
    unknown = {one for one in ids if any(row["reason"] == "outcome-unknown" for row in rows[one])}
    arrived = {k for _, k, _ in seen}
    after = [at - killed_at for at, _, _ in seen if at > killed_at]
    return {
        "lost": len(set(ids) - arrived - unknown),
        "duplicated": duplicates(seen),
        "ambiguous": len(unknown),
        "ambiguous_arrived": len(unknown & arrived),
        "first_after_kill_s": round(min(after), 3),
        "last_after_kill_s": round(max(after), 3),
        "ends": dict(Counter(rows[one][-1]["status"] for one in ids)),
    }


async def caught_up(count: int = 10_000, *, slots: int = SLOTS) -> dict[str, Any]:
    """A day down with minutely schedules: from the start of the process to the first start, and what is told of the past."""
    slept_at = seeds.ago(_DAY_S)

    async def seed(root):
        await seeds.written(root, slept_at, seeds.minutely(count, slept_at))

    async with rig(slots=slots, seed=seed) as bench:
        await bench.arrived(1, 60)
        await bench.quiet(count, 120 + count / 100, rest_s=3)
        seen = await bench.arrivals()
        rows = await calls.histories(bench.daemon.url, [f"m{n:06d}" for n in range(count)])
        usage = bench.usage()
    summaries = Counter(sum("count" in row for row in told) for told in rows.values())
    ran = [at - bench.started_at for at, _, _ in seen]
    return {
        "case": "a day down",
        "n": count,
        "first_admission_s": round(min(ran), 3),
        "all_within_s": round(sorted(ran)[min(len(ran), count) - 1], 3),
        "summary_rows": {str(many): schedules for many, schedules in sorted(summaries.items())},
        "cpu_s": usage.cpu_s,
    }
