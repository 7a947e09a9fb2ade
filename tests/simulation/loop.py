"""An event loop whose time is a number, and processes in it that can be killed.

Owns: virtual time, the order in which things run, what a `kill -9` leaves behind.
Must never know: the daemon, the server, what anybody waits for.

Time stands still while anything is ready to run, and then jumps to the next timer: an hour costs what happens in it.  The
order is that of `asyncio` itself, first in first out, so a run is a function of its seed.

A process is a context variable that tasks and callbacks inherit.  A killed one takes no further step: its callbacks are
dropped, its tasks stay suspended for good and are kept, so that no `finally` of theirs runs when the collector finds them.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from scheduler_daemon.core.model import Now
from scheduler_daemon.runtime.clock import SystemClock

ITERATIONS_MAX = 200_000
"""An ordinary seed needs some thousand."""

_PROCESS: "contextvars.ContextVar[Process | None]" = contextvars.ContextVar("process", default=None)


class Stuck(Exception):
    """The simulation itself cannot go on: nothing is left to wait for, or something spins."""


class _Timers:
    """What `asyncio` takes for a selector: instead of waiting for sockets it moves the clock to the next timer."""

    def __init__(self, loop: "SimLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        loop = self._loop
        loop.iterations += 1
        if loop.iterations > loop.iterations_max:
            raise Stuck(f"{loop.iterations_max} iterations at {loop.time():.3f} s: something spins")
        if timeout is None:
            raise Stuck("nothing is ready and no timer is set: everybody waits for everybody")
        if timeout > 0:
            loop.now_s = max(loop.now_s, loop._scheduled[0]._when)
        return []

    def close(self) -> None:
        pass


class SimLoop(asyncio.BaseEventLoop):
    """`now_s` is the monotonic time in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.iterations = 0
        self.iterations_max = ITERATIONS_MAX
        self.thread_s: Callable[[], float] = lambda: 0.0
        self._selector = _Timers(self)
        self.set_task_factory(_task_of_process)

    def time(self) -> float:
        return self.now_s

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        process = context.get(_PROCESS)
        if process is not None and not process.counted():
            handle.cancel()
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        timer = super().call_at(when, callback, *args, context=context)
        process = context.get(_PROCESS)
        if process is not None and not process.alive:
            timer.cancel()
        return timer

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """What would run in a thread runs here, a moment later; a process that is killed before never does it."""
        future = self.create_future()
        self.call_later(self.thread_s(), self._in_thread, future, func, args)
        return future

    def _in_thread(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            result = func(*args)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)

    def drop(self, process: "Process") -> None:
        """Nothing that was waiting to run in this process ever runs."""
        for handle in [*self._ready, *self._scheduled]:
            if not handle.cancelled() and handle._context.get(_PROCESS) is process:
                handle.cancel()

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def _task_of_process(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **how: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coro, loop=loop, **how)
    context = how.get("context")
    process = _PROCESS.get() if context is None else context.get(_PROCESS)
    if process is not None:
        process.tasks.append(task)
    return task


class Process:
    """Something that can be killed between any two steps; `None` as the current process is the world outside.

    `steps` counts callbacks scheduled in it; `kill_at` ends it when that many were.  `on_death` is told once.
    """

    def __init__(self, loop: SimLoop, name: str, on_death: Callable[["Process"], None]) -> None:
        self.name = name
        self.alive = True
        self.steps = 0
        self.kill_at: int | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self._loop = loop
        self._on_death = on_death

    def counted(self) -> bool:
        """Count one step; False when there are no more."""
        if self.alive:
            self.steps += 1
            if self.steps == self.kill_at:
                self.kill()
        return self.alive

    def kill(self) -> None:
        """`kill -9`: from here on it does nothing, and nothing of it was finished."""
        if self.alive:
            self.alive = False
            self._loop.drop(self)
            self._on_death(self)

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine inside."""
        context = contextvars.copy_context()
        context.run(_PROCESS.set, self)
        return self._loop.create_task(coro, context=context)

    def bury(self) -> None:
        """Close what is still suspended, after the simulation is over."""
        for task in self.tasks:
            if not task.done():
                task._log_destroy_pending = False
                with suppress(RuntimeError):  # it awaited in a `finally`: there is nobody left to wait for
                    task.get_coro().close()
        self.tasks.clear()


def outside() -> contextvars.Context:
    """A context of no process, for callbacks that a killed one must not take along."""
    context = contextvars.copy_context()
    context.run(_PROCESS.set, None)
    return context


class VirtualClock(SystemClock):
    """Both clocks of one machine.  `step` sets the wall clock; a suspended machine looks the same from inside."""

    def __init__(self, loop: SimLoop, start_at: datetime) -> None:
        self._loop = loop
        self._wall_at = start_at - timedelta(seconds=loop.time())

    def now(self) -> Now:
        mono = self._loop.now_s
        return Now(self._wall_at + timedelta(seconds=mono), mono)

    def step(self, seconds: float) -> None:
        """Set the wall clock by so much, forward or back; the monotonic one does not notice."""
        self._wall_at += timedelta(seconds=seconds)
