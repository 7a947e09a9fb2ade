"""Carries effects out: every call to the workflow server starts here, and comes back as an observation.

Owns: one task per open call, the reasons for which a call is cut off, and how an ending is put into an observation.
Must never know: the state, policy, what an observation leads to.

Every task reports exactly once, unless it is fenced.  A call that is cancelled is classified by its cause before anything else: the
caller went away, the server restarted, or the fence.  `CallProbe.sent` False proves that nothing left, whatever the cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, Final

from rpc_client.errors import Ambiguous, Answered, Ending, NotSent, Refused
from rpc_client.transport import CallProbe
from rpc_client.workflow import WorkflowClient
from scheduler_daemon.core import commands as cmd
from scheduler_daemon.runtime.clock import Clock
from scheduler_daemon.runtime.logs import log
from scheduler_daemon.runtime.questions import Questions
from scheduler_daemon.runtime.results import result_of

ASKS_MAX = 16
"""How many questions of one sort may be open at the server at once; calls that execute are bounded by the slots.

Watched runs, runs that hold a slot, and deployments are asked about apart: a deployment whose many interrupted runs nobody answers
about would otherwise keep the answers away that a slot, or every other deployment's next instant, waits for.
"""

UNSENT_MAX = 16
"""How many calls begin before one of them has left.  They get on step by step together: of a thousand, none would be on its way before
all of them had a connection, and a server's queue of new connections may be no longer than a hundred.
"""

ROUND_S = 0.02
"""How long that number stands before it is looked at.  A server that is far away, or takes no connection at all, lets hardly any leave
in a round; then twice as many may begin, and so on, so that a thousand have begun within a few rounds.
"""

_Call = Coroutine[Any, Any, Ending]
_Question = Callable[..., Coroutine[Any, Any, list[cmd.Observation]]]
_Turn = AbstractAsyncContextManager[None]
_AT_ONCE: Final = nullcontext()
"""The one prober does not wait for a turn: there never is more than one of its questions."""


class Dispatcher:
    """Performs effects against one server; `report` takes the observations."""

    def __init__(
        self, client: WorkflowClient, questions: Questions, clock: Clock, report: Callable[[cmd.Observation], None]
    ) -> None:
        self._client = client
        self._questions = questions
        self._clock = clock
        self._report = report
        self._awaiting: dict[int, cmd.StartCall | cmd.ResumeCall] = {}
        self._unsent: set[int] = set()
        self._unsent_max = UNSENT_MAX
        self._left = 0
        self._round: asyncio.TimerHandle | None = None
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._asks: set[asyncio.Task[Any]] = set()
        self._about_runs = asyncio.Semaphore(ASKS_MAX)
        self._about_watched = asyncio.Semaphore(ASKS_MAX)
        self._about_deployments = asyncio.Semaphore(ASKS_MAX)
        self._causes: dict[int, str] = {}

    @property
    def open_calls(self) -> int:
        """How many starts and resumes are waiting for their ending."""
        return len(self._awaiting) + len(self._calls)

    def perform(self, effect: cmd.Effect) -> None:
        """Start carrying one effect out."""
        match effect:
            case cmd.StartCall() | cmd.ResumeCall():
                self._awaiting[effect.seq] = effect
                self._begin()
            case cmd.CancelCall():
                self.cancel(effect.seq, effect.reason)
            case cmd.InspectRun():
                turn = self._about_watched if effect.watch else self._about_runs
                self._ask(turn, self._questions.inspect, effect)
            case cmd.ListStopped():
                self._ask(self._about_runs, self._questions.list_stopped, effect)
            case cmd.AskPreflight():
                self._ask(self._about_deployments, self._questions.preflight, effect, self._clock.now().at)
            case cmd.Probe():
                self._ask(_AT_ONCE, self._questions.probe, effect)

    def cancel(self, seq: int, cause: str) -> None:
        """Stop waiting for an open call.  `cause` "caller-gone" is a resume whose caller closed its connection."""
        effect, task = self._awaiting.pop(seq, None), self._calls.get(seq)
        if effect is not None:
            self._report(_cut_off(effect, CallProbe(), cause))
        elif task is not None and seq not in self._causes:
            self._causes[seq] = cause
            task.cancel()

    async def drained(self) -> None:
        """Return when no start and no resume is open."""
        while self._calls:
            await asyncio.wait(list(self._calls.values()))

    async def fence(self) -> None:
        """Cut everything off without a word: marks and attempts stay, for the next start to judge."""
        self._awaiting.clear()
        tasks = [*self._calls.values(), *self._asks]
        for seq in self._calls:
            self._causes[seq] = "fence"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- calls that execute ---

    def _begin(self) -> None:
        """Begin calls in their order, while few are yet to leave."""
        while self._awaiting and len(self._unsent) < self._unsent_max:
            seq = next(iter(self._awaiting))
            effect = self._awaiting.pop(seq)
            self._unsent.add(seq)
            task = self._calls[seq] = asyncio.create_task(self._carry(effect))
            task.add_done_callback(partial(self._ended, effect))
        if not self._awaiting:
            self._unsent_max = UNSENT_MAX
            if self._round is not None:
                self._round.cancel()
                self._round = None
        elif self._round is None:
            self._left = 0
            self._round = asyncio.get_running_loop().call_later(ROUND_S, self._end_round)

    def _end_round(self) -> None:
        self._round = None
        if self._left < 2 * self._unsent_max:
            self._unsent_max *= 2
        self._begin()

    def _sent(self, seq: int) -> None:
        if seq in self._unsent:
            self._unsent.remove(seq)
            self._left += 1
        self._begin()

    def _ended(self, effect: cmd.StartCall | cmd.ResumeCall, task: asyncio.Task[None]) -> None:
        """A task that was cancelled before its first step never got to report: nothing was sent."""
        self._calls.pop(effect.seq, None)
        self._sent(effect.seq)
        cause = self._causes.pop(effect.seq, "fence")
        if task.cancelled() and cause != "fence":
            self._report(_cut_off(effect, CallProbe(), cause))

    async def _carry(self, effect: cmd.StartCall | cmd.ResumeCall) -> None:
        """One start or resume from send to ending; between the two the run is ambiguous to everybody but the server."""
        probe = CallProbe(partial(self._sent, effect.seq))
        try:
            start = isinstance(effect, cmd.StartCall)
            ending = await (self._start(effect, probe) if start else self._resume(effect, probe))
            observation = call_observation(effect, ending)
        except asyncio.CancelledError:
            cause = self._causes.get(effect.seq, "fence")
            if cause == "fence":
                raise
            observation = _cut_off(effect, probe, cause)
        except Exception as error:  # a task boundary: whatever broke, the request may have left
            log("bug", "error", reason=repr(error), run_id=effect.run_id)
            observation = cmd.CallLostSight(
                effect.seq, effect.schedule_id, effect.run_id, f"internal error: {type(error).__name__}"
            )
        self._report(observation)

    def _start(self, effect: cmd.StartCall, probe: CallProbe) -> _Call:
        return self._client.runs_start(
            effect.deployment_id,
            effect.input,
            idempotency_key=effect.key,
            max_steps=effect.max_steps,
            timeout_s=effect.timeout_s,
            probe=probe,
        )

    def _resume(self, effect: cmd.ResumeCall, probe: CallProbe) -> _Call:
        return self._client.runs_resume(
            effect.server_run_id,
            effect.payload,
            effect.outcome,
            idempotency_key=effect.key,
            timeout_s=effect.timeout_s,
            probe=probe,
        )

    # --- calls of somebody else ---

    async def forward(self, method: str, params: dict[str, Any], key: str | None) -> Ending:
        """Pass one call on, for a gateway.  The fence cuts it off like every other: it is not for a stop to wait for."""
        task = asyncio.create_task(self._client.forward(method, params, idempotency_key=key))
        self._asks.add(task)
        task.add_done_callback(self._asks.discard)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        return Ambiguous("the daemon stopped") if task.cancelled() else task.result()

    # --- questions ---

    def _ask(self, turn: _Turn, question: _Question, *about: Any) -> None:
        task = asyncio.create_task(self._put(turn, question, about))
        self._asks.add(task)
        task.add_done_callback(self._asks.discard)

    async def _put(self, turn: _Turn, question: _Question, about: tuple[Any, ...]) -> None:
        async with turn:
            observations = await question(*about)
        for observation in observations:
            self._report(observation)


def call_observation(effect: Any, ending: Ending) -> cmd.Observation:
    """The evidence of one ending; what it means is decided in `core/observe.py`."""
    where = (effect.seq, effect.schedule_id, effect.run_id)
    match ending:
        case Answered():
            result = result_of(ending.result)
            return (
                cmd.CallLostSight(*where, "unreadable answer", beyond=True)
                if result is None
                else cmd.CallAnswered(*where, result)
            )
        case Refused():
            return cmd.CallRefused(*where, ending.code, ending.message, ending.data)
        case NotSent():
            return cmd.CallNotSent(*where, ending.reason, ending.server_down or ending.http_status is not None)
        case Ambiguous():
            return cmd.CallLostSight(*where, ending.reason, beyond=ending.beyond)


def _cut_off(effect: Any, probe: CallProbe, cause: str) -> cmd.Observation:
    where = (effect.seq, effect.schedule_id, effect.run_id)
    gone = cause == "caller-gone"
    if not probe.sent:
        return cmd.CallNotSent(*where, f"cut off before it was sent: {cause}", server_down=False)
    return cmd.CallLostSight(*where, "the caller went away" if gone else cause, caller_gone=gone)
