"""Cases in which schedules fire: bursts, a steady load, and single ones on an idle machine.

Owns: when what is due, and what of it is reported.  Must never know: what a figure should be.
"""

from datetime import datetime, timedelta
from typing import Any

from tests.benchmarks import calls
from tests.benchmarks.rig import (
    SLOTS,
    Rig,
    duplicates,
    floor,
    lateness_ms,
    next_minute,
    next_second,
    rig,
    spread,
    wait_until,
)

_PER_S = 100


def lead_s(count: int) -> float:
    """How far ahead of its instant so many creates begin.  Too little makes a case fail, too much makes it wait.

    Small counts allow for a machine that is busy with other tests; large ones are for whoever measures, on a quiet one.
    """
    return 4.0 + min(count, 1_000) / 200 + max(0, count - 1_000) / 600


async def burst(count: int = 10_000, *, kind: str = "daily", slots: int = SLOTS) -> dict[str, Any]:
    """So many schedules due at one instant, as many runs at once as there are slots."""
    before = await floor(count, slots)
    async with rig(slots=slots) as bench:
        due = next_minute(lead_s(count)) if kind == "daily" else next_second(lead_s(count))
        _, took_s = await calls.create_in_batches(bench.daemon.url, _all_at(due, count, kind))
        figures = await _fired(bench, due, count)
    after = await floor(count, slots)
    bare = {name: round((before[name] + after[name]) / 2) for name in before}
    return {
        "case": f"burst of {kind}s",
        "n": count,
        "slots": slots,
        **figures,
        **bare,
        "of_bare_loop": round(figures["firings_per_s"] / bare["bare_loop_per_s"], 3),
        "registered_per_s": round(count / took_s),
    }


def _all_at(due: datetime, count: int, kind: str) -> list[dict]:
    if kind == "daily":
        return [calls.cron(f"s{n:05d}", f"{due.minute} {due.hour} * * *") for n in range(count)]
    return [calls.oneshot(f"s{n:05d}", due) for n in range(count)]


async def _fired(bench: Rig, due: datetime, count: int) -> dict[str, Any]:
    """Wait for the instant and for all that is due at it; lateness, rate and cost.

    `cpu_share` says how much of the time the daemon computed: below one it waited, for the disk or for the stub.
    """
    await wait_until(due, before_s=0.5)
    before, commits_before = bench.usage(), await bench.commits()
    early = await bench.count()
    await bench.quiet(count, 60 + count / 100, rest_s=10)
    seen = await bench.arrivals()
    late, after = lateness_ms(seen), bench.usage()
    commits, commits_s = (now - then for now, then in zip(await bench.commits(), commits_before, strict=True))
    return {
        "lost": count - len(late),
        "duplicated": duplicates(seen),
        "early": early,
        "first_ms": round(min(late), 3),
        **spread(late),
        "firings_per_s": round(count / (max(late) / 1000)),
        "cpu_us_per_firing": round((after.cpu_s - before.cpu_s) / count * 1e6),
        "cpu_share": round((after.cpu_s - before.cpu_s) / (max(late) / 1000), 2),
        "commits": commits,
        "commit_ms": round(commits_s / max(1, commits) * 1000, 3),
        "resident_mb": round(after.resident_mb, 1),
    }


async def steady(seconds: int = 60, per_s: int = _PER_S) -> dict[str, Any]:
    """So many one-shots due each second."""
    count = seconds * per_s
    async with rig() as bench:
        due = next_second(lead_s(count))
        made = (calls.oneshot(f"s{n:05d}", due + timedelta(seconds=n // per_s)) for n in range(count))
        await calls.create_in_batches(bench.daemon.url, made)
        await wait_until(due, before_s=0.5)
        before = bench.usage()
        await bench.quiet(count, seconds + 30, rest_s=10)
        seen, after = await bench.arrivals(), bench.usage()
    late = lateness_ms(seen)
    return {
        "case": f"steady {per_s} a second",
        "n": count,
        "lost": count - len(late),
        "duplicated": duplicates(seen),
        **spread(late),
        "cpu_s_per_min": round((after.cpu_s - before.cpu_s) / seconds * 60, 2),
    }


async def apart(count: int = 60) -> dict[str, Any]:
    """One-shots due one second apart on an idle machine."""
    async with rig() as bench:
        due = next_second(lead_s(count))
        made = (calls.oneshot(f"s{n:03d}", due + timedelta(seconds=n)) for n in range(count))
        await calls.create_in_batches(bench.daemon.url, made)
        await bench.quiet(count, count + 30, rest_s=10)
        seen = await bench.arrivals()
    late = lateness_ms(seen)
    return {
        "case": "one-shots one second apart",
        "n": count,
        "lost": count - len(late),
        "duplicated": duplicates(seen),
        "first_ms": round(min(late), 3),
        **spread(late),
    }
