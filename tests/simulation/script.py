"""The two acts of every seed: faults, then healing; and what must be so at the end (invariant 10 of DESIGN.md).

Owns: the order of the acts, and liveness: once nothing goes wrong any more, everything comes to its end.
Must never know: which faults there were.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from tests.simulation.callers import Callers, read_history
from tests.simulation.chaos import Chaos
from tests.simulation.minutes import instants
from tests.simulation.model import ScheduleAccount, Violation
from tests.simulation.server import STEPS, ServerStore
from tests.simulation.store import durable_part
from tests.simulation.world import World

Problem = Callable[[World], str | None]
"""What is still not as it should be, in words; None when all is well."""

KEEPALIVE_S = 32.0
"""As long as a connection may take to be known for dead."""

SETTLE_S = 240.0
"""Longer than every grace, every backoff towards the server and every timeout of the wire."""

ON_TIME_S = 0.1
WATCHED_S = 130.0
ROUNDS_MAX = 12
END_S = 240.0


async def play(world: World) -> None:
    """One seed, whole."""
    world.boot_server(world.plan.features, ServerStore("/srv/1"))
    world.start_daemon()
    await asyncio.sleep(0.5)
    callers, chaos = Callers(world), Chaos(world)
    await callers.begin()
    world.network.faults, world.disk.faults = world.plan.net, world.plan.disk
    daemons = asyncio.ensure_future(chaos.daemons())
    acts = [asyncio.ensure_future(callers.go_on()), asyncio.ensure_future(chaos.go_on())]
    await asyncio.sleep(world.plan.fault_s)
    for act in acts:
        act.cancel()
    await _heal(world, chaos)
    daemons.cancel()


async def _heal(world: World, chaos: Chaos) -> None:
    world.note("healing")
    chaos.heal()
    await asyncio.sleep(KEEPALIVE_S)
    await _a_daemon(world)
    await _until(world, SETTLE_S, _unsettled)
    await _take_responsibility(world)
    await _watch(world)
    await _end(world)
    _final_accounts(world)


async def _a_daemon(world: World) -> None:
    """The supervisor may be sitting out hours; there is no event for the one who comes next."""
    for _ in range(20_000):
        if world.daemon.ready:
            return
        await asyncio.sleep(10.0)
    raise Violation("no daemon came up after healing")


async def _until(world: World, seconds: float, problem: Problem) -> None:
    """Wait until there is no problem any more; that there is one for so long is a violation."""
    deadline_s = world.loop.time() + seconds
    while (found := problem(world)) is not None:
        if world.loop.time() > deadline_s:
            raise Violation(f"{seconds:.0f} s after everything was healed: {found}")
        await asyncio.sleep(5.0)


def _unsettled(world: World) -> str | None:
    """Ambiguous runs, open calls, a daemon that is not well."""
    ambiguous = [run.run_id for run in world.ledger.runs.values() if run.phase == "ambiguous"]
    if ambiguous:
        return f"{ambiguous} are still ambiguous"
    unwell = [f"{check.name}: {check.figure}" for check in world.daemon.host.checks() if not check.ok]
    if unwell and not all(text.startswith("clock") for text in unwell):
        return f"not ready: {unwell}"
    usurped = [daemon.process.name for daemon in world.daemons[:-1] if daemon.process.alive]
    return f"{usurped} lost the lock and still run" if usurped else None


async def _take_responsibility(world: World) -> None:
    """An operator goes through everything that waits for one."""
    for _ in range(ROUNDS_MAX):
        for schedule_id, account in list(world.ledger.schedules.items()):
            view = (await world.ask("get", schedule_id)).value
            if not account.deleted and (account.blocked or any(one.code == "clock-behind" for one in view.diagnostics)):
                await _must(world, "unblock", schedule_id, "looked into it")
            if account.paused and not account.deleted:
                await _must(world, "resume", schedule_id, None)
        waiting = [run for run in world.ledger.runs.values() if run.phase == "interrupted"]
        if not waiting and not any(one.blocked and not one.deleted for one in world.ledger.schedules.values()):
            return
        for run in waiting:
            answer = await world.ask("resume_run", run.run_id, {}, "submitted", wait=True)
            if answer.how != "ok" and run.phase == "interrupted":
                await world.ask("abandon_run", run.run_id, "nobody knows it")
        await asyncio.sleep(5.0)
    raise Violation(f"after {ROUNDS_MAX} rounds these wait for an operator: {[run.run_id for run in waiting]}")


async def _must(world: World, method: str, schedule_id: str, note: str | None) -> None:
    answer = await world.ask(method, schedule_id, note)
    if answer.how != "ok":
        raise Violation(f"{method} of {schedule_id} after healing: {answer}")


# --- schedules go on --------------------------------------------------------------------------------------------------


async def _watch(world: World) -> None:
    """For a while each schedule has what it should have, on time."""
    now_at, ledger = world.clock.now().at, world.ledger
    begun = {key: max(now_at, one.watermark(ledger.decided_at)) for key, one in ledger.schedules.items() if one.admits}
    roomy = ledger.slots + len(begun) <= world.plan.settings.max_concurrent_runs
    rowed = {key: set(ledger.schedules[key].rowed) for key in begun}  # from when the clock was wrong
    await asyncio.sleep(WATCHED_S)
    ended_at = world.clock.now().at - timedelta(seconds=world.plan.settings.lateness_s + 5.0)
    for schedule_id, begun_at in begun.items():
        account = ledger.schedules[schedule_id]
        wanted = [
            one for one in instants(account.definition.trigger, begun_at, ended_at) if one not in rowed[schedule_id]
        ]
        _went_on(world, account, begun_at, wanted)
        if roomy and account.definition.misfire == "skip":
            _on_time(account, set(wanted))


def _on_time(account: ScheduleAccount, wanted: set[datetime]) -> None:
    """With a slot for everybody, what starts does so at its instant and not at the next look around."""
    for run in account.runs.values():
        late_s = (run.admitted_at - run.instant).total_seconds()
        if run.instant in wanted and late_s > ON_TIME_S:
            raise Violation(f"{run.run_id}: admitted {late_s:.3f} s late with nothing in its way")


def _went_on(world: World, account: ScheduleAccount, begun_at: datetime, wanted: list[datetime]) -> None:
    schedule_id = account.definition.schedule_id
    ran = [one for one in wanted if account.rowed.get(one) == "completed"]
    for one in wanted:
        if not account.has_row(one) and one != account.candidate:
            raise Violation(f"{schedule_id}: {one} has neither a run nor a row")
    process = world.server.process
    refused = account.definition.max_steps is not None and process is not None and STEPS not in process.features
    held = any(until > begun_at for _, until in account.holds)
    if len(wanted) > 1 and not (ran or refused or held):
        raise Violation(
            f"{schedule_id}: nothing completed of {[(f'{one:%H:%M}', account.rowed.get(one)) for one in wanted]}"
        )


# --- everything ends --------------------------------------------------------------------------------------------------


async def _end(world: World) -> None:
    """Nothing new is admitted any more; whatever runs comes to its end."""
    for schedule_id, account in list(world.ledger.schedules.items()):
        if not account.deleted:
            await _must(world, "pause", schedule_id, None)
    await _until(world, END_S, _unfinished)
    await _ambiguous_attempts_stay_refused(world)
    for schedule_id in world.ledger.schedules:
        await read_history(world, schedule_id, 7)
    world.daemon.stop()
    await world.daemon.ended.wait()
    if world.daemon.failure is not None:
        raise Violation(f"the last stop ended with {world.daemon.failure!r}")


def _unfinished(world: World) -> str | None:
    open_runs = [(run.run_id, run.phase) for run in world.ledger.runs.values() if run.unfinished]
    if open_runs:
        return f"unfinished: {open_runs}"
    held = [key for key, one in world.ledger.schedules.items() if one.candidate is not None]
    if held:
        return f"candidates held by {held}"
    used = world.daemon.host.state.globals.slots_used
    return f"{used} slots in use by nobody" if used else None


async def _ambiguous_attempts_stay_refused(world: World) -> None:
    """A resume that may have had its effect is never repeated."""
    for run in list(world.ledger.runs.values()):
        if (run.phase, run.reason) == ("failed", "outcome-unknown") and run.kind == "resume":
            sent = sum(map(len, world.truth.sends.values()))
            answer = await world.ask("resume_run", run.run_id, {}, "submitted", wait=True)
            if answer.value != "AttemptAmbiguous" or sent != sum(map(len, world.truth.sends.values())):
                raise Violation(f"{run.run_id}: a second resume was answered {answer}")


def _final_accounts(world: World) -> None:
    """Each occurrence has one final row, and the records alone lead to the state."""
    for schedule_id, account in world.ledger.schedules.items():
        unfinished = [str(one) for one, status in account.rowed.items() if status == "admitted"]
        if unfinished:
            raise Violation(f"{schedule_id}: admitted and never finished: {unfinished}")
    if durable_part(world.disk.replayed()) != durable_part(world.disk.shadow):
        raise Violation("replaying from the first record gives another state than replaying batch by batch")
