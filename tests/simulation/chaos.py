"""What goes wrong, and when: the clock, the machine, the disk, the server, the network.

Owns: every kind of event that no caller asks for, each as one coroutine that also ends what it began.
Must never know: what the daemon does about it.
"""

import asyncio
from collections.abc import Awaitable, Callable

from tests.simulation.daemon import Daemon
from tests.simulation.server import KEYED, STEPS, ServerStore
from tests.simulation.world import World

QUIET_S = 27.0
"""How long the address must be silent before another kind of server may answer there: long enough for one failed health
call, without which no client could know before it sends."""


class Chaos:
    """`go_on` breaks things until it is cancelled; `heal` puts everything right."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.stream("chaos")
        self._under_way: set[asyncio.Task[None]] = set()
        self._server_busy = False

    async def go_on(self) -> None:
        events = self.world.plan.events
        while events:
            await asyncio.sleep(self.chance.expovariate(1 / self.world.plan.pace_s))
            name = self.chance.choice(events)
            self.world.note("chaos", name)
            self.world.counts[f"chaos {name}"] += 1
            event: Callable[[], Awaitable[None]] = getattr(self, f"_{name}")
            task = asyncio.ensure_future(event())
            self._under_way.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.violated(error)

    def heal(self) -> None:
        """Nothing goes wrong any more; the clock stays where it was put."""
        for task in self._under_way:
            task.cancel()
        world = self.world
        world.network.heal()
        world.disk.faults = type(world.disk.faults)()
        for deployment in world.server.deployments.values():
            deployment.known = deployment.runnable = True
            deployment.outcomes = {"completed": 1.0}
            deployment.duration_s = (0.05, 1.0)
        if world.server.process is None:
            world.boot_server(world.plan.features, world.truth.stores[-1])
        else:
            world.server.process.hurry()
        for daemon in world.daemons:
            daemon.process.kill_at = None
            daemon.store.disarm()

    async def daemons(self) -> None:
        """There is always a daemon, after a while."""
        world = self.world
        while True:
            daemon = world.daemon
            while not (daemon.ended.is_set() or daemon.store.lost):
                await asyncio.wait(
                    {asyncio.ensure_future(daemon.ended.wait()), asyncio.ensure_future(asyncio.sleep(5.0))},
                    return_when=asyncio.FIRST_COMPLETED,
                )
            if not daemon.store.lost:
                await asyncio.sleep(self._down_s())
            world.start_daemon()

    def _down_s(self) -> float:
        """Mostly seconds, now and then hours."""
        if self.chance.random() < 0.05:
            return self.chance.choice((600.0, 3000.0, 7200.0, 90_000.0))
        return self.chance.expovariate(1 / self.world.plan.down_s)

    # --- the machine ---

    async def _step_clock(self) -> None:
        sizes = (1.5, 30.0, 90.0, 90.0, 250.0, 250.0, 400.0, 4000.0, 100_000.0)
        self.world.clock.step(self.chance.choice((-1, 1)) * self.chance.uniform(0.3, 1.0) * self.chance.choice(sizes))

    async def _suspend(self) -> None:
        self.world.clock.step(self.chance.choice((10.0, 100.0, 4000.0)) * self.chance.random())

    # --- the daemon ---

    async def _kill(self) -> None:
        process = self.world.daemon.process
        process.kill_at = process.steps + self.chance.randint(1, 120)

    async def _stop(self) -> None:
        daemon: Daemon = self.world.daemon
        for _ in range(20):
            if daemon.ready and daemon.host.dispatcher.open_calls:
                break  # a stop with nothing to wait for is soon told
            await asyncio.sleep(1.0)
        daemon.stop()
        await asyncio.sleep(self.chance.expovariate(1 / 5.0))
        match self.chance.choice(("wait", "cut", "kill")):
            case "cut":
                daemon.host.cut_short()
            case "kill":
                daemon.process.kill()

    async def _fill_disk(self) -> None:
        self.world.disk.faults.full = True
        await asyncio.sleep(self.chance.expovariate(1 / 20.0))
        self.world.disk.faults.full = False

    async def _steal_lock(self) -> None:
        """Somebody removed the lock file; whoever starts next gets the store."""
        store = self.world.daemon.store
        if self.world.disk.owner is store:
            store.give_up()

    # --- the server ---

    async def _restart_server(self) -> None:
        process = self.world.server.process
        if process is not None and not self._server_busy:
            await self._away(
                self.chance.choice((0.0, 0.5, 10.0, 60.0)) * self.chance.random(), process.features, process.store
            )

    async def _change_server(self) -> None:
        """The server is upgraded or downgraded; its store stays."""
        process = self.world.server.process
        if process is not None and not self._server_busy and self.world.plan.announces_instance:
            features = tuple(name for name in (KEYED, STEPS) if self.chance.random() < 0.5)
            await self._away(QUIET_S, features, process.store)

    async def _replace_server(self) -> None:
        """Another server answers at the address; now and then the first one comes back."""
        process = self.world.server.process
        if process is not None and not self._server_busy:
            stores = self.world.truth.stores
            back = len(stores) > 1 and self.chance.random() < 0.5
            store = stores[0] if back else ServerStore(f"/srv/{len(stores) + 1}")
            await self._away(QUIET_S, process.features, store)

    async def _away(self, seconds: float, features: tuple[str, ...], store: ServerStore) -> None:
        self._server_busy = True
        try:
            self.world.kill_server()
            await asyncio.sleep(seconds)
            self.world.boot_server(features, store)
        finally:
            self._server_busy = False

    async def _partition(self) -> None:
        faults = self.world.network.faults
        faults.partition = True
        await asyncio.sleep(self.chance.expovariate(1 / 20.0))
        faults.partition = False

    async def _shut_out(self) -> None:
        faults = self.world.network.faults
        faults.shut_out = True
        await asyncio.sleep(self.chance.expovariate(1 / 30.0))
        faults.shut_out = False

    async def _break_deployment(self) -> None:
        deployment = self.chance.choice(list(self.world.server.deployments.values()))
        what = self.chance.choice(("known", "runnable"))
        setattr(deployment, what, False)
        await asyncio.sleep(self.chance.expovariate(1 / 40.0))
        setattr(deployment, what, True)
        deployment.version += 1

    async def _somebody_resumes(self) -> None:
        process = self.world.server.process
        waiting = [run.run_id for run in process.store.runs.values() if run.status == "interrupted"] if process else []
        if process is not None and waiting:
            process.somebody_resumes(self.chance.choice(waiting))

    async def _forget_run(self) -> None:
        """The server loses the record of an interrupted run."""
        process = self.world.server.process
        waiting = [run for run in process.store.runs.values() if run.status == "interrupted"] if process else []
        if process is not None and waiting:
            process.forget(self.chance.choice(waiting))

    async def _somebody_starts(self) -> None:
        process = self.world.server.process
        if process is not None:
            process.somebody_starts(self.chance.choice(list(self.world.server.deployments)))
