"""A long run under a steady load with edits and restarts: does anything grow that should not?

Owns: the load, the sampling and the fit.  Must never know: what grows.

A fixed pool of one-shots is edited round and round: each edit gives one a new instant some seconds ahead, so that so many fire each
second while the number of schedules stays what it is.  Little history is kept, so that retention has work from early on.  In the first
half the daemon is stopped and killed in turn; the second half it runs through, and the fit is of that half: a slope is growth of one
process, and not the difference between two.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from rpc_client import App
from rpc_client.errors import RpcError
from tests.benchmarks import calls, machine
from tests.benchmarks.firing import lead_s
from tests.benchmarks.rig import Rig, duplicates, next_second, rig

AHEAD_S = 3.0
"""How far ahead of its instant a schedule is edited: longer than a restart takes."""

LATE_S = 1.0
"""An instant that is less than this ahead might be past by the time the call is decided."""

EDITORS = 4

REST_S = 10.0
"""Between the instant of a schedule and its next edit: longer than any restart, so that what it asked for has happened."""

_ROWS_KEPT = 10
_RESTARTS = 4
_WARM_UP = 0.2
"""Which part of half the time a process may fill its caches before the fit begins."""

_FLAT = 0.05
"""How much of the mean a line may rise over the fitted time and still be called flat."""

_RAN = ("completed", "running", "admitted")
_KINDS = ("resident_mb", "descriptors", "disk_mb")


class Sample(NamedTuple):
    at_s: float
    resident_mb: float
    descriptors: float
    disk_mb: float


class Pool:
    """The schedules, the instants that were acknowledged for them, and who edits them."""

    def __init__(self, bench: Rig, per_s: int, rest_s: float) -> None:
        self.bench = bench
        self.per_s = per_s
        self.size = int(per_s * (AHEAD_S + rest_s))
        self.asked: set[tuple[str, float]] = set()
        self.counts: Counter[str] = Counter()
        self.up = asyncio.Event()
        self.up.set()
        self.undisturbed_from = 0.0
        self.late_s = 0.0
        self.told: dict[tuple[str, float], str] = {}
        self._revisions = dict.fromkeys(map(self._name, range(self.size)), 1)

    async def create(self, due: datetime) -> None:
        await calls.create_in_batches(
            self.bench.daemon.url, (calls.oneshot(self._name(n), self._due(due, n)) for n in range(self.size))
        )
        self.asked |= {(self._name(n), self._due(due, n).timestamp()) for n in range(self.size)}

    def _name(self, number: int) -> str:
        return f"s{number % self.size:05d}"

    def _due(self, first: datetime, number: int) -> datetime:
        return first + timedelta(seconds=number / self.per_s + self.late_s)

    async def edit(self, first: datetime, count: int) -> None:
        """Give one schedule after the other its next instant, so many times."""
        numbers = iter(range(self.size, self.size + count))
        async with App(self.bench.daemon.url) as app:
            await asyncio.gather(*(self._work(app, first, numbers) for _ in range(EDITORS)))

    async def _work(self, app: App, first: datetime, numbers: Iterator[int]) -> None:
        for number in numbers:
            ahead_s = self._due(first, number).timestamp() - time.time()
            await asyncio.sleep(max(0.0, ahead_s - AHEAD_S))
            await self.up.wait()
            await self._edit_one(app, self._name(number), self._in_time(first, number))

    def _in_time(self, first: datetime, number: int) -> datetime:
        """Its instant; when that has come too near, while the daemon was away, it and all later ones are put off."""
        late_s = LATE_S - (self._due(first, number).timestamp() - time.time())
        if late_s > 0:
            self.late_s += late_s + AHEAD_S - LATE_S
        return self._due(first, number)

    async def _edit_one(self, app: App, name: str, due: datetime) -> None:
        try:
            edited = await app.update_schedule(
                schedule_id=name,
                expected_revision=self._revisions[name],
                trigger={"kind": "oneshot", "at": due.isoformat()},
            )
        except RpcError as refused:
            self.counts[refused.code] += 1
            await self._look(app, name)
        else:
            self._revisions[name] = edited["revision"]
            self.asked.add((name, due.timestamp()))
            self.counts["edits"] += 1

    async def _look(self, app: App, name: str) -> None:
        """A call that came to a bad end may have been carried out all the same."""
        try:
            found = await app.get_schedule(name)
        except RpcError:
            return
        self._revisions[name] = found["revision"]
        self.asked.add((name, datetime.fromisoformat(found["trigger"]["at"]).timestamp()))

    async def hear(self) -> None:
        """Note how each instant ended that the kept rows tell of, before retention drops them."""
        for name, rows in (await calls.histories(self.bench.daemon.url, self._revisions)).items():
            for row in rows:
                if row.get("instant") is not None:
                    self.told[name, _epoch(row["instant"])] = row["reason"] or row["status"]


async def soak(
    seconds: float = 1200.0, per_s: int = 50, *, restarts: int = _RESTARTS, rest_s: float = REST_S
) -> dict[str, Any]:
    """So many firings and edits a second, restarts in the first half, samples all along; slopes of the second half."""
    async with rig("--retention-rows", str(_ROWS_KEPT)) as bench:
        pool = Pool(bench, per_s, rest_s)
        first = next_second(lead_s(pool.size) + AHEAD_S)
        await pool.create(first)
        samples: list[Sample] = []
        sampling = asyncio.create_task(_sample(pool, samples, every_s=max(0.25, seconds / 240)))
        restarting = asyncio.create_task(_restart(pool, seconds / 2, restarts))
        try:
            await pool.edit(first, int(seconds * per_s))
            await restarting
        finally:
            sampling.cancel()
            restarting.cancel()
        await bench.quiet(len(pool.asked) + 1, AHEAD_S + 10, rest_s=AHEAD_S + 2)
        return {
            "case": "soak",
            "seconds": seconds,
            "per_s": per_s,
            "schedules": pool.size,
            "restarts": restarts,
            "late_s": round(pool.late_s, 1),
            **await _account(pool),
            **_growth(samples, pool.undisturbed_from),
        }


async def _restart(pool: Pool, within_s: float, restarts: int) -> None:
    """Stop and kill in turn, evenly spread."""
    for number in range(restarts):
        await asyncio.sleep(within_s / (restarts + 1))
        pool.up.clear()
        await (pool.bench.daemon.kill() if number % 2 else pool.bench.daemon.stop())
        await pool.bench.start()
        pool.up.set()
        await asyncio.sleep(min(AHEAD_S, within_s / (restarts + 1)))
        await pool.hear()
    pool.undisturbed_from = time.monotonic() + within_s * _WARM_UP


async def _sample(pool: Pool, samples: list[Sample], every_s: float) -> None:
    while True:
        if pool.up.is_set():
            used, disk = pool.bench.usage(), machine.disk_mb(pool.bench.daemon.store)
            samples.append(Sample(time.monotonic(), used.resident_mb, used.descriptors, disk))
        await asyncio.sleep(every_s)


async def _account(pool: Pool) -> dict[str, Any]:
    """Lost: asked for, never arrived, and no row says why; least of all one that says that it ran."""
    await pool.hear()
    seen = await pool.bench.arrivals()
    asked = {(name, round(at, 3)) for name, at in pool.asked}
    missing = asked - {(k, _epoch(due)) for _, k, due in seen}
    return {
        "asked": len(asked),
        "edits": pool.counts["edits"],
        "refused": {name: count for name, count in pool.counts.items() if name != "edits"},
        "lost": sum(pool.told.get(one, _RAN[0]) in _RAN for one in missing),
        "duplicated": duplicates(seen),
        "ambiguous": sum(reason == "outcome-unknown" for reason in pool.told.values()),
        "not_run": dict(Counter(pool.told[one] for one in missing if one in pool.told)),
    }


def _epoch(text: str) -> float:
    return round(datetime.fromisoformat(text).timestamp(), 3)


def _growth(samples: Sequence[Sample], from_s: float) -> dict[str, Any]:
    """For each figure its first and last value in the fitted part, and the slope in figure per hour."""
    fitted = [sample for sample in samples if sample.at_s >= from_s] or list(samples[-1:])
    told: dict[str, Any] = {"samples": len(fitted)}
    for kind in _KINDS:
        values = [getattr(sample, kind) for sample in fitted]
        slope_per_s = slope([sample.at_s for sample in fitted], values)
        grown = slope_per_s * (fitted[-1].at_s - fitted[0].at_s) / max(1e-9, sum(values) / len(values))
        told[kind] = [round(values[0], 1), round(values[-1], 1), round(max(values), 1)]
        told[f"{kind}_per_hour"] = round(slope_per_s * 3600, 2)
        told[f"{kind}_flat"] = grown < _FLAT
    return told


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The least-squares line's."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    square = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / square if square else 0.0
