"""Starts and resumes: each executes in a task of the server's own, and each key executes once.

Owns: the tasks that execute, the order of durable intent, execution and durable end, and who waits for whom.  Must never know: HTTP,
the shape of answers, how processes are started.

A caller waits for a task and is not its owner: when it goes away the execution goes on, and a later caller with the same
key waits for the same task.  Between `begin` and `finish` the run is in `_open`; nothing else may resume it, and a run whose end
could not be recorded stays there, and its key is refused, until the server is restarted, which records it as cut short.  A full
disk is waited out with the end in memory.

When the server stops, tasks are cancelled and nothing is recorded: the intent on disk is the truth, and there is one
path that judges it, the next start.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final, TypeVar, assert_never

import msgspec

from scheduler_daemon.embedded.deployments import Deployment, Step
from scheduler_daemon.embedded.processes import CannotStart, LauncherLost, Processes
from scheduler_daemon.embedded.runs import (
    TRACE_MAX,
    Asked,
    Claim,
    Entry,
    Event,
    Identity,
    Intent,
    Interrupt,
    Place,
    Request,
    Run,
    RunStore,
    Status,
    Stop,
    run_id_of,
)
from scheduler_daemon.embedded.schemas import violation
from scheduler_daemon.embedded.steps import (
    Diagnostic,
    Failed,
    Finished,
    Interrupted,
    Resume,
    Verdict,
    command_of,
    diagnose,
    judge,
    resume_fits,
)

EXECUTING_MAX: Final = 64
FULL_DISK_PAUSE_S: Final = 1.0
STORE_THREADS: Final = 4
T = TypeVar("T")


class NotDone(Exception):
    """Refused before anything was executed; `code` is the class of the refusal as callers know it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code: str = code
        self.message: str = message


class Broken(Exception):
    """The server failed, not the caller; whether anything executed is not known.  The cause was reported."""


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """What a start asks for; two starts are the same when these are."""

    deployment_id: str
    workflow_input: dict[str, Any]
    max_steps: int | None


class ResumeOf(msgspec.Struct, frozen=True, kw_only=True, tag="resume"):
    """What a resume asks for; two resumes are the same when these are."""

    run_id: str
    answer: Resume


class Ended(msgspec.Struct, frozen=True):
    """The run, and the stop that answers this request."""

    run: Run
    stop: Stop


class Unrunnable(msgspec.Struct, frozen=True):
    """The deployment cannot run; no run exists."""

    deployment: Deployment
    diagnostics: tuple[Diagnostic, ...]


Answer = Ended | Unrunnable


class _Shared(msgspec.Struct, frozen=True):
    digest: str
    task: asyncio.Task[Answer]


class _Trail:
    """What an execution has done so far."""

    def __init__(self, run: Run | None) -> None:
        self.steps_finished = run.steps_finished if run else 0
        self.count = run.last.trace_count if run else 0
        self.entries = list(run.trace) if run else []

    def note(self, entry: Entry) -> None:
        self.count += 1
        self.entries = [*self.entries, entry][-TRACE_MAX:]
        if entry.event == "finished":
            self.steps_finished += 1


class _End(msgspec.Struct, frozen=True, kw_only=True):
    """How an execution stopped; `place` is where it goes on when it was interrupted."""

    status: Status
    outcome: str | None = None
    error: str | None = None
    output: dict[str, Any] = {}
    interrupt: Interrupt | None = None
    place: Place | None = None


class Executions:
    """Everything that executes in this server."""

    def __init__(
        self,
        store: RunStore,
        deployments: Mapping[str, Deployment],
        environment: Mapping[str, str],
        *,
        now: Callable[[], datetime],
        on_bug: Callable[[str, BaseException], None],
    ) -> None:
        self._store = store
        self._deployments = deployments
        self._environment = environment
        self._now = now
        self._on_bug = on_bug
        self._processes = Processes()
        self._threads = ThreadPoolExecutor(STORE_THREADS, "embedded-store")
        self._slots = asyncio.Semaphore(EXECUTING_MAX)
        self._tasks: set[asyncio.Task[Answer]] = set()
        self._by_key: dict[str, _Shared] = {}
        self._open: set[str] = set()
        self._stopping = False

    async def ask(self, asked: Start | ResumeOf, key: str | None) -> Answer:
        """Execute, or wait for or repeat the answer of the same key.  Raises NotDone and Broken."""
        if self._stopping:
            raise asyncio.CancelledError
        digest = digest_of(asked)
        shared = self._by_key.get(key) if key is not None else None
        if shared is None:
            shared = self._share(asked, key, digest)
        elif shared.digest != digest:
            raise _conflict()
        await asyncio.wait({shared.task})
        bug = None if shared.task.cancelled() else shared.task.exception()
        if bug is not None and not isinstance(bug, NotDone):
            raise Broken from bug
        return shared.task.result()

    async def do(self, function: Callable[..., T], *args: Any) -> T:
        """Run a blocking function of the store beside the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args))

    async def stop(self) -> None:
        """End every execution without recording it; the intents on disk speak for them.  Idempotent."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._processes.stop()
        await asyncio.to_thread(self._threads.shutdown)

    def _share(self, asked: Start | ResumeOf, key: str | None, digest: str) -> _Shared:
        task = asyncio.ensure_future(self._answer(asked, key, digest))
        shared = _Shared(digest, task)
        self._tasks.add(task)
        if key is not None:
            self._by_key[key] = shared
        task.add_done_callback(lambda done: self._forget(done, key))
        return shared

    def _forget(self, task: asyncio.Task[Answer], key: str | None) -> None:
        self._tasks.discard(task)
        bug = None if task.cancelled() else task.exception()
        if bug is not None and not isinstance(bug, NotDone):
            self._on_bug("workflow.runs", bug)
        if key is not None:
            del self._by_key[key]

    async def _answer(self, asked: Start | ResumeOf, key: str | None, digest: str) -> Answer:
        if key is not None and (known := await self.do(self._store.known, key)) is not None:
            if known.digest != digest:
                raise _conflict()
            if known.run is not None and known.stop is not None:
                return Ended(known.run, known.stop)
            if known.began:
                raise _EndLost(f"{key}: it executed, and its end is not recorded")
        record = Asked(request=_kind_of(asked), key=key, digest=digest, started_at=self._now())
        match asked:
            case Start():
                return await self._start(asked, record)
            case ResumeOf():
                return await self._resume(asked, record)
            case _:
                assert_never(asked)

    async def _start(self, start: Start, asked: Asked) -> Answer:
        deployment = self._deployments.get(start.deployment_id)
        if deployment is None:
            raise unknown("deployment", start.deployment_id)
        if diagnostics := await self.do(diagnose, deployment, self._environment):
            return Unrunnable(deployment, diagnostics)
        identity = Identity(
            run_id=run_id_of(asked.key) if asked.key else f"run_{uuid.uuid4().hex}",
            deployment_id=deployment.id,
            artifact_id=deployment.artifact_id,
            artifact_version=deployment.version,
            max_steps=start.max_steps,
        )
        if fault := await self.do(violation, deployment.schema, start.workflow_input):
            end = _End(status="failed", error=f"workflow input: {fault}")
            return await self._finished(identity, None, asked, _Trail(None), end)
        place = Place(steps=deployment.steps, index=0, value=start.workflow_input)
        return await self._execute(identity, None, asked, place, None)

    async def _resume(self, resume: ResumeOf, asked: Asked) -> Answer:
        if resume.run_id in self._open:
            raise NotDone("ValueError", f"workflow run {resume.run_id!r} is already being resumed")
        self._open.add(resume.run_id)
        try:
            run, place = await self._resumable(resume)
            if asked.key is not None:
                await self.do(self._store.claim, Claim(key=asked.key, run_id=resume.run_id, digest=asked.digest))
        except BaseException:
            self._open.discard(resume.run_id)
            raise
        return await self._execute(run.identity, run, asked, place, resume.answer)

    async def _resumable(self, resume: ResumeOf) -> tuple[Run, Place]:
        run = await self.do(self._store.run, resume.run_id)
        if run is None:
            raise unknown("run", resume.run_id)
        if run.last.status != "interrupted" or run.place is None:
            raise NotDone("ValueError", f"workflow run {resume.run_id!r} is not interrupted")
        if not resume_fits(resume.answer):
            raise NotDone("ValueError", "the resume payload is too large for a variable of a process")
        return run, run.place

    async def _execute(
        self, identity: Identity, run: Run | None, asked: Asked, place: Place, resume: Resume | None
    ) -> Answer:
        self._open.add(identity.run_id)
        trail = _Trail(run)
        async with self._slots:
            intent = Intent(identity=identity, asked=asked, stops_before=len(run.stops) if run else 0)
            try:
                # Durable before the first step: from here on the run has executed, whatever becomes of this process.
                await self.do(self._store.begin, intent)
            except OSError:
                self._open.discard(identity.run_id)
                raise
            end = await self._steps(identity, trail, place, resume)
            answer = await self._finished(identity, run, asked, trail, end)
        self._open.discard(identity.run_id)
        return answer

    async def _steps(self, identity: Identity, trail: _Trail, place: Place, resume: Resume | None) -> _End:
        value = place.value
        for index in range(place.index, len(place.steps)):
            step = place.steps[index]
            if identity.max_steps is not None and trail.steps_finished >= identity.max_steps:
                return _End(
                    status="exhausted", error=f"max_steps {identity.max_steps} reached before step {step.name!r}"
                )
            began_at = self._now()
            verdict = await self._step(identity.run_id, step, value, resume if index == place.index else None)
            match verdict:
                case Finished(output=value):
                    trail.note(self._entry(step, "finished", began_at))
                case Interrupted(payload=payload):
                    trail.note(self._entry(step, "interrupted", began_at))
                    return _End(
                        status="interrupted",
                        interrupt=Interrupt(step.name, payload),
                        place=Place(steps=place.steps, index=index, value=value),
                    )
                case Failed(error=error):
                    return _End(status="failed", error=error)
                case _:
                    assert_never(verdict)
        return _End(status="completed", outcome="ok", output=value)

    async def _step(self, run_id: str, step: Step, value: dict[str, Any], resume: Resume | None) -> Verdict:
        command = command_of(step, run_id, value, resume, self._environment)
        try:
            return judge(step, await self._processes.run(command))
        except CannotStart as error:
            return Failed(f"step {step.name!r} could not be started: {error}")
        except LauncherLost:
            return Failed(
                f"step {step.name!r} was ended together with the launcher of steps; it may have done its work"
            )

    async def _finished(self, identity: Identity, run: Run | None, asked: Asked, trail: _Trail, end: _End) -> Ended:
        stop = Stop(
            asked=asked,
            status=end.status,
            outcome=end.outcome,
            error=end.error,
            output=end.output,
            interrupt=end.interrupt,
            trace_count=trail.count,
            stopped_at=self._now(),
        )
        ended = Run(
            identity=identity,
            stops=(*(run.stops if run else ()), stop),
            steps_finished=trail.steps_finished,
            trace=tuple(trail.entries),
            place=end.place,
        )
        await self._recorded(ended)
        return Ended(ended, stop)

    async def _recorded(self, run: Run) -> None:
        while True:
            try:
                return await self.do(self._store.finish, run)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise _EndLost(f"{run.identity.run_id}: {error}") from error
            await asyncio.sleep(FULL_DISK_PAUSE_S)

    def _entry(self, step: Step, event: Event, began_at: datetime) -> Entry:
        return Entry(step=step.name, event=event, started_at=began_at, stopped_at=self._now())


class _EndLost(Exception):
    """A run executed and its end cannot be made durable; only a restart may judge it."""


def digest_of(asked: Start | ResumeOf) -> str:
    """Equal for equal params, whatever the order of their members."""
    return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()


def unknown(what: str, name: str) -> NotDone:
    """The refusal of an id that is not there, with the quotes that the recorded one has."""
    return NotDone("KeyError", f'"unknown workflow {what} {name!r}"')


def _conflict() -> NotDone:
    return NotDone("KeyConflict", "the idempotency key was used with other params")


def _kind_of(asked: Start | ResumeOf) -> Request:
    return "start" if isinstance(asked, Start) else "resume"
