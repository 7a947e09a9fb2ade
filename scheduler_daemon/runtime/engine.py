"""The one task that decides: inputs in, plans made, plans durable, then effects and answers out.

Owns: the order of things.  A batch of inputs becomes plans on one draft, one write makes them durable, and only then the
draft is the state, effects leave and callers are answered.
Must never know: what a plan means, how effects are carried out.

Invariants
- Nobody else changes the state.
- An effect leaves only after its intent is durable.
- Refusals leave after the batch too, so that a caller never learns of a state that a failed write took back.
- A failed write drops the draft: its commands are answered `StorageFull`, its observations wait, because a result that was
  forgotten would leave a run running for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from scheduler_daemon.core import commands as cmd
from scheduler_daemon.core import decide as deciding
from scheduler_daemon.core.commands import Effect, Observation, Plan, Rejected
from scheduler_daemon.core.events import Decided, Event, ModeNoted
from scheduler_daemon.core.fold import note
from scheduler_daemon.core.handle import handle
from scheduler_daemon.core.lifecycle import Contradiction
from scheduler_daemon.core.model import Diagnostic, Now
from scheduler_daemon.core.observe import STEP_S, observe
from scheduler_daemon.core.state import Draft, State
from scheduler_daemon.runtime.clock import Clock, StepWatch
from scheduler_daemon.runtime.figures import Counters
from scheduler_daemon.runtime.logs import log, log_all
from scheduler_daemon.store.errors import StorageFull

BATCH_MAX = 512
"""How many inputs share a write.  More would make the first of them wait for the planning of the last."""

FULL_RETRY_S = 1.0


class Committer(Protocol):
    """What the engine needs of a store."""

    async def commit(self, events: Sequence[Event]) -> None:
        """Make one batch durable."""
        ...

    def check_ownership(self) -> None:
        """Raise when the store is not ours any more."""
        ...


class Ask(msgspec.Struct, frozen=True):
    """A command with the caller who waits for it."""

    command: cmd.Command
    answer: asyncio.Future[Any]


Input = Ask | Observation
Settled = Callable[[Sequence[Observation]], None]


class _Batch(msgspec.Struct):
    """Plans made on one draft, and what is to follow once they are durable."""

    draft: Draft
    plans: list[Plan] = msgspec.field(default_factory=list)
    answers: list[tuple[asyncio.Future[Any], Any]] = msgspec.field(default_factory=list)
    observations: list[Observation] = msgspec.field(default_factory=list)
    asks: list[Ask] = msgspec.field(default_factory=list)

    def events(self) -> list[Event]:
        return [event for plan in self.plans for event in plan.events]


class Engine:
    """Runs until `stop`, or until the store cannot be trusted any more: then `run` raises."""

    def __init__(
        self,
        state: State,
        store: Committer,
        clock: Clock,
        *,
        perform: Callable[[Effect], None],
        settled: Settled,
        poll_interval_s: float,
    ) -> None:
        self.state = state
        self.decided_mono: float = 0.0
        self.counters = Counters()
        self._store = store
        self._clock = clock
        self._perform = perform
        self._settled = settled
        self._poll_interval_s = poll_interval_s
        self._inbox: deque[Input] = deque()
        self._withheld: deque[Observation] = deque()
        self._rung = asyncio.Event()
        self._stopping = False
        self._ended = False
        self._fenced = False
        self._steps = StepWatch(clock.now())

    # --- inputs ---

    def submit(self, command: cmd.Command) -> asyncio.Future[Any]:
        """Put a command in; the future ends after its plan is durable, with the reply or with `Rejected`."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._ended:
            _answer(answer, _stopping())
        else:
            self._inbox.append(Ask(command, answer))
            self._rung.set()
        return answer

    def observe(self, observation: Observation) -> None:
        """Put in what came back from an effect.  After the fence nothing is believed any more."""
        if not self._fenced:
            self._inbox.append(observation)
            self._rung.set()

    def fence(self) -> None:
        """From here on observations are for the next start to make."""
        self._fenced = True

    def stop(self) -> None:
        """End `run` once the inbox is empty."""
        self._stopping = True
        self._rung.set()

    # --- the loop ---

    async def run(self) -> None:
        """Decide, again and again.  Raises what makes the store untrustworthy: `StorageFailed`, `OwnershipLost`."""
        try:
            while True:
                await self._turn()
                if self._stopping and not self._inbox:
                    return
                self._rung.clear()
                if not self._inbox:
                    await self._clock.wait(self._rung, self._wait_s(self._clock.now()))
        finally:
            self._end()

    def _end(self) -> None:
        """Nobody decides any more: whoever comes now, or was not reached, must not wait for it."""
        self._ended = True
        for item in self._inbox:
            if isinstance(item, Ask):
                _answer(item.answer, _stopping())
        self._inbox.clear()

    def _wait_s(self, now: Now) -> float:
        """Until the next instant or timer, and never longer than the poll interval."""
        if self.state.globals.full:
            return FULL_RETRY_S
        at, mono = deciding.next_wake(self.state)
        waits = [self._poll_interval_s]
        if at is not None:
            waits.append((at - now.at).total_seconds())
        if mono is not None:
            waits.append(mono - now.mono)
        return max(0.0, min(waits))

    async def _turn(self) -> None:
        now = self._clock.now()
        # A full disk decides nothing, and that is a decision: the turn counts as a sign of life.
        self.decided_mono = now.mono
        inputs = self._take(now)
        if self.state.globals.full and not await self._room(now):
            self._refuse_full(inputs)
            return
        batch = self._plan(inputs, now)
        events = batch.events()
        if events:
            try:
                await self._commit(events)
            except StorageFull:
                self._take_back(batch)
                return
        batch.draft.merge()
        self._release(batch)

    def _take(self, now: Now) -> list[Input]:
        inputs: list[Input] = []
        step_s = self._steps.step_s(now)
        if abs(step_s) > STEP_S:
            inputs.append(cmd.Stepped(round(step_s, 3)))
        while self._inbox and len(inputs) < BATCH_MAX:
            inputs.append(self._inbox.popleft())
        return inputs

    async def _commit(self, events: list[Event]) -> None:
        before = self._clock.now().mono
        await self._store.commit(events)
        self.counters.committed(events, self._clock.now().mono - before)

    def _release(self, batch: _Batch) -> None:
        """The batch is durable: effects may leave, callers may know."""
        if any(plan.effects for plan in batch.plans):
            self._store.check_ownership()
        now = self._clock.now()
        for plan in batch.plans:
            for effect in plan.effects:
                self.counters.left(effect, now)
                self._perform(effect)
        log_all([line for plan in batch.plans for line in plan.logs])
        if batch.observations:
            self._settled(batch.observations)
        for answer, value in batch.answers:
            _answer(answer, value)

    # --- planning ---

    def _plan(self, inputs: list[Input], now: Now) -> _Batch:
        """Make the plans of a batch.

        An input that cannot be planned, because it contradicts the state or because of an error of ours, must not take the
        others with it: the draft is dropped, and the batch is planned again with the block of its schedule in its place.
        """
        while True:
            batch = _Batch(self.state.draft(now))
            for position, item in enumerate(inputs):
                try:
                    self._plan_one(batch, item)
                except Exception as error:  # a task boundary: whatever one input broke, the others go on
                    batch.draft.drop()
                    inputs[position : position + 1] = _instead(item, error, now)
                    break
            else:
                batch.plans.append(deciding.decide(batch.draft))
                return batch

    def _plan_one(self, batch: _Batch, item: Input) -> None:
        if not isinstance(item, Ask):
            batch.plans.append(observe(batch.draft, item))
            batch.observations.append(item)
            return
        batch.asks.append(item)
        try:
            plan = handle(batch.draft, item.command)
        except Rejected as rejected:
            batch.answers.append((item.answer, rejected))
            return
        batch.plans.append(plan)
        batch.answers.append((item.answer, plan.reply))

    # --- a full disk ---

    def _take_back(self, batch: _Batch) -> None:
        """Nothing of the batch happened.  Its results wait in memory; there are never more of them than calls were open."""
        batch.draft.drop()
        self._withheld.extend(batch.observations)
        for ask in batch.asks:
            _answer(ask.answer, _storage_full())
        self._set_full(full=True, now=batch.draft.now)
        log("storage_full", "error")

    def _refuse_full(self, inputs: list[Input]) -> None:
        for item in inputs:
            if isinstance(item, Ask):
                _answer(item.answer, _storage_full())
            else:
                self._withheld.append(item)

    async def _room(self, now: Now) -> bool:
        """Try to write something that changes nothing; when that works, what was withheld is first in line."""
        try:
            await self._commit([Decided(at=now.at, until=self.state.globals.decided_until)])
        except StorageFull:
            return False
        self._set_full(full=False, now=now)
        self._inbox.extendleft(reversed(self._withheld))
        self._withheld.clear()
        log("storage_room")
        return True

    def _set_full(self, *, full: bool, now: Now) -> None:
        draft = self.state.draft(now)
        note(draft, ModeNoted(draining=draft.globals.draining, full=full))
        draft.merge()


def _instead(item: Input, error: Exception, now: Now) -> list[Input]:
    """What to plan in place of an input that broke: the block of its schedule.  A caller is told that it broke."""
    log("bug", "error", reason=repr(error), input=type(item).__name__, exc_info=error)
    subject = item.command if isinstance(item, Ask) else item
    if isinstance(item, Ask) and not item.answer.done():
        item.answer.set_exception(error)
        item.answer.exception()
    schedule_id = getattr(subject, "schedule_id", None)
    observed = not isinstance(item, Ask) or isinstance(error, Contradiction)
    if schedule_id is None or isinstance(subject, cmd.Block) or not observed:
        return []
    # With its run, an unblock ends that too: its call is over, and nothing else would ever give the slot back.
    run_id: str | None = getattr(subject, "run_id", None)
    about = {} if run_id is None else {"run_id": run_id}
    diagnostic = Diagnostic("contradiction", str(error), now.at, {"input": type(subject).__name__, **about})
    return [Ask(cmd.Block(schedule_id, diagnostic), asyncio.get_running_loop().create_future())]


def _storage_full() -> Rejected:
    return Rejected("StorageFull", "the disk is full; nothing was changed, try again when there is room")


def _stopping() -> Rejected:
    return Rejected("Draining", "the daemon is stopping; nothing was changed, call again when it has started")


def _answer(answer: asyncio.Future[Any], value: Any) -> None:
    if answer.done():
        return
    if isinstance(value, Rejected):
        answer.set_exception(value)
        answer.exception()  # a caller that went away leaves it unread; that is no error of ours
    else:
        answer.set_result(value)
