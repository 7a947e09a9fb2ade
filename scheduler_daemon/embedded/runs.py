"""The durable record of runs: what was asked, how it stopped, and which keys are spent.

Owns: every file below the data folder, and the order of writes that makes "a known key never executes again" true.  Must never know:
processes, HTTP, what a status means to a caller.  Every method blocks, and is called from threads.

    FORMAT.json                    what this folder is
    executing/<run id>.json        an intent: written before the execution begins, removed after its end is recorded
    runs/<hh>/<run id>.json        a run that has stopped at least once
    keys/<hh>/<sha-256>.json       which run a resume's key was spent on

A run appears under `runs` only when it has stopped, and a resume leaves the earlier record in place until its own end replaces it:
that is what a reader of the contract sees.  Whatever stands in `executing` when the store is opened was cut short; it is recorded
`failed`, `server-restarted`, before anything else is answered.

The id of a keyed run is computed from its key, so a start needs one durable write before it executes, and the same key finds the
same file.  A resume's key is claimed in `keys` first: a claim whose attempt is nowhere recorded never executed, since
the intent that follows it was not written.

Each file is replaced by write, fsync, rename, fsync of the folder; a reader sees the old one or the new one.  A file that cannot
be decoded is `RunDamaged`, never "unknown": unknown would let its key execute again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from scheduler_daemon.embedded.deployments import Step

FORMAT_VERSION: Final = 1
TRACE_MAX: Final = 1_000
RESTARTED: Final = "server-restarted"

Status = Literal["completed", "failed", "interrupted", "exhausted"]
Request = Literal["start", "resume"]
Event = Literal["finished", "interrupted"]
T = TypeVar("T")

_RUN_ID: Final = re.compile(r"run_[0-9a-f]{32}")


class StoreUnusable(Exception):
    """The data folder belongs to someone else, is in use, or is of a later format."""


class RunDamaged(Exception):
    """A file of the store cannot be read as what it must be; the text names it."""


class Interrupt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a run waits, and what it asks."""

    step: str
    payload: dict[str, Any]


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A start or a resume as it was asked; `digest` stands for its params."""

    request: Request
    key: str | None
    digest: str
    started_at: datetime


class Stop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How what was asked ended.  It is the answer to that request for ever."""

    asked: Asked
    status: Status
    outcome: str | None = None
    error: str | None = None
    output: dict[str, Any] = {}
    interrupt: Interrupt | None = None
    trace_count: int
    stopped_at: datetime


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the trace: a step execution that finished, or an interrupt."""

    step: str
    event: Event
    started_at: datetime
    stopped_at: datetime


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an interrupted run goes on: the steps as they were when it started, the next one's index, and its input."""

    steps: tuple[Step, ...]
    index: int
    value: dict[str, Any]


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What never changes about a run."""

    run_id: str
    deployment_id: str
    artifact_id: str
    artifact_version: int
    max_steps: int | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that has stopped, one `Stop` for each request that executed; the last is where it stands."""

    identity: Identity
    stops: tuple[Stop, ...]
    steps_finished: int = 0
    trace: tuple[Entry, ...] = ()
    place: Place | None = None

    @property
    def last(self) -> Stop:
        """Where the run stands."""
        return self.stops[-1]


class Intent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An execution that begins; `stops_before` tells it from those that the run has already recorded."""

    identity: Identity
    asked: Asked
    stops_before: int


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A resume's key and the run that it is for."""

    key: str
    run_id: str
    digest: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the list."""

    identity: Identity
    status: Status
    created_at: datetime
    updated_at: datetime


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A spent key: the digest of the params that it was spent on, whether its execution began, and its end if that is recorded."""

    digest: str
    began: bool
    run: Run | None = None
    stop: Stop | None = None


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["scheduler-daemon embedded runs"] = "scheduler-daemon embedded runs"
    version: int = FORMAT_VERSION


class RunStore:
    """The data folder, held by one process at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._executing = root / "executing"
        self._runs = root / "runs"
        self._keys = root / "keys"
        self._held = -1
        self._index = _Index()

    def open(self, now: Callable[[], datetime]) -> None:
        """Take the folder and settle what was cut short.  Raises StoreUnusable and OSError."""
        _make_folder(self._root)
        self._held = _hold(self._root)
        try:
            self._check_format()
            for folder in (self._executing, self._runs, self._keys):
                _make_folder(folder)
            for file in sorted(self._executing.glob("run_*.json")):
                # One damaged run keeps its intent and its key refuses to execute; the others go on.
                with contextlib.suppress(RunDamaged):
                    self._settle(file, now())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the folder go.  Idempotent."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def run(self, run_id: str) -> Run | None:
        """The run as it last stopped; None for an id that never did.  Raises RunDamaged."""
        return _read(self._run_file(run_id), Run) if _RUN_ID.fullmatch(run_id) else None

    def known(self, key: str) -> Known | None:
        """What the key was spent on, or None.  Raises RunDamaged."""
        claim = _read(self._key_file(key), Claim)
        run_id = claim.run_id if claim else run_id_of(key)
        run = self.run(run_id)
        for stop in run.stops if run else ():
            if stop.asked.key == key:
                return Known(digest=stop.asked.digest, began=True, run=run, stop=stop)
        intent = _read(self._intent_file(run_id), Intent)
        if intent is not None and intent.asked.key == key:
            return Known(digest=intent.asked.digest, began=True)
        if run is not None and claim is None:
            # The id says that the key was spent; whose record this is was damaged when the server last began.
            return Known(digest="", began=True)
        return Known(digest=claim.digest, began=False) if claim else None

    def claim(self, claim: Claim) -> None:
        """Spend a resume's key; durable on return."""
        _write(self._key_file(claim.key), claim)

    def begin(self, intent: Intent) -> None:
        """Record that an execution begins; durable on return, and only then may it begin."""
        _write(self._intent_file(intent.identity.run_id), intent)

    def finish(self, run: Run) -> None:
        """Record how the execution ended; durable on return.  Repeating it does no harm."""
        _write(self._run_file(run.identity.run_id), run)
        self._index.note(_summary(run))
        # Not made durable: an intent that comes back is recognised as recorded.
        self._intent_file(run.identity.run_id).unlink(missing_ok=True)

    def page(self, status: str | None, offset: int, limit: int) -> tuple[list[Summary], int]:
        """A page of the runs, latest first, and how many there are in all.  The first call reads every run."""
        return self._index.page(self._scan, status, offset, limit)

    def _check_format(self) -> None:
        file = self._root / "FORMAT.json"
        try:
            found = _read(file, _Format)
        except RunDamaged as damaged:
            raise StoreUnusable(str(damaged)) from damaged
        if found is None:
            if any(not path.name.startswith(".") for path in self._root.iterdir()):
                raise StoreUnusable(f"{self._root} is not empty and not ours: it has no FORMAT.json")
            _write(file, _Format())
        elif found.version > FORMAT_VERSION:
            raise StoreUnusable(f"{file}: format {found.version} is later than {FORMAT_VERSION}, the latest known here")

    def _settle(self, file: Path, now: datetime) -> None:
        """Record an execution that was cut short as failed, unless its end is recorded already."""
        try:
            intent = _read(file, Intent)
        except RunDamaged:
            intent = None
        run = self.run(file.stem)
        if intent is None:
            # Whose it was is lost, that it executed is not. A resume's run says the rest, a start's says only its id.
            unknown = Identity(run_id=file.stem, deployment_id="unknown", artifact_id="unknown", artifact_version=1)
            asked = Asked(request="resume" if run else "start", key=None, digest="", started_at=now)
            intent = Intent(identity=unknown, asked=asked, stops_before=len(run.stops) if run else 0)
        if run is None or len(run.stops) <= intent.stops_before:
            run = cut_short(intent, run, now)
        self.finish(run)

    def _scan(self) -> Iterator[Summary]:
        for file in self._runs.glob("??/run_*.json"):
            with contextlib.suppress(RunDamaged):
                if (run := _read(file, Run)) is not None:
                    yield _summary(run)

    def _run_file(self, run_id: str) -> Path:
        return self._runs / run_id[4:6] / f"{run_id}.json"

    def _intent_file(self, run_id: str) -> Path:
        return self._executing / f"{run_id}.json"

    def _key_file(self, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self._keys / name[:2] / f"{name}.json"


class _Index:
    """The list of stopped runs in the order in which they last stopped, read from the files when it is first asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, Summary] | None = None

    def note(self, row: Summary) -> None:
        with self._lock:
            if self._rows is not None:
                self._rows.pop(row.identity.run_id, None)
                self._rows[row.identity.run_id] = row

    def page(
        self, scan: Callable[[], Iterator[Summary]], status: str | None, offset: int, limit: int
    ) -> tuple[list[Summary], int]:
        with self._lock:
            if self._rows is None:
                ordered = sorted(scan(), key=lambda row: (row.updated_at, row.identity.run_id))
                self._rows = {row.identity.run_id: row for row in ordered}
            rows = [row for row in reversed(self._rows.values()) if status in (None, row.status)]
        return rows[offset : offset + limit], len(rows)


def run_id_of(key: str) -> str:
    """The id of the run that a start with this key makes."""
    return f"run_{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def cut_short(intent: Intent, run: Run | None, now: datetime) -> Run:
    """The run as it stands when its execution was cut short by the end of the server."""
    stop = Stop(
        asked=intent.asked,
        status="failed",
        error=RESTARTED,
        trace_count=run.last.trace_count if run else 0,
        stopped_at=now,
    )
    if run is None:
        return Run(identity=intent.identity, stops=(stop,))
    return msgspec.structs.replace(run, stops=(*run.stops, stop), place=None)


def _summary(run: Run) -> Summary:
    return Summary(
        identity=run.identity,
        status=run.last.status,
        created_at=run.stops[0].stopped_at,
        updated_at=run.last.stopped_at,
    )


def _read(file: Path, kind: type[T]) -> T | None:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RunDamaged(f"{file}: {error}") from error


def _write(file: Path, record: msgspec.Struct) -> None:
    """Replace the file durably: after a power cut it is the old one or the new one."""
    _make_folder(file.parent)
    half = file.with_name(f".{file.name}")
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(msgspec.json.encode(record))
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    half.replace(file)
    _sync_folder(file.parent)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hold(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StoreUnusable(f"{folder} is in use by another server") from error
    return descriptor
