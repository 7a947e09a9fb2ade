"""Snapshots: the state as of one record, a line per schedule, so that a start need not replay everything.

Owns: `snapshot/<seq>.jsonl`, how one is written and read, which are kept.  Must never know: what happened after its record.

A snapshot is written whole under a temporary name, synced, renamed, and its folder synced; only then may what it replaces be dropped.
Two are kept: when a line of the newer cannot be read, the older and the journal since give the same.  The head, which says how many
lines there must be and which run number comes next, stands first and last, so that no single fault takes it.

Live fields are not durable: they are put back to their defaults before a schedule is encoded, and only schedules that have runs pay
for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from scheduler_daemon.core import lifecycle
from scheduler_daemon.core.model import Run, RunLive, Schedule, UnknownRun
from scheduler_daemon.core.state import Globals, State
from scheduler_daemon.store.documents import Home
from scheduler_daemon.store.errors import StoreUnusable
from scheduler_daemon.store.framing import frame, lines, unframe
from scheduler_daemon.store.fs import FileSystem, chunked, read_file, replace_whole
from scheduler_daemon.store.schema import (
    DamageLine,
    NewerVersion,
    ScheduleLine,
    SnapshotHead,
    UnknownLine,
    decode_snapshot,
    versioned,
)

KEPT: Final = 2
_NAME_DIGITS: Final = 20
_SUFFIX: Final = ".jsonl"


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """The state as of record `seq`, held still while the daemon goes on: its values are immutable, only the dicts change."""

    store_id: str
    seq: int
    at: datetime
    globals: Globals
    schedules: list[Schedule]
    unknown: list[UnknownRun]
    damages: tuple[DamageLine, ...] = ()
    aged_until: datetime | None = None


def capture(
    state: State, seq: int, at: datetime, damages: tuple[DamageLine, ...] = (), aged_until: datetime | None = None
) -> Captured:
    """Hold the committed state still; it must be exactly what the records up to `seq` make."""
    return Captured(
        store_id=state.store_id,
        seq=seq,
        at=at,
        globals=state.globals,
        schedules=list(state.schedules.values()),
        unknown=list(state.unknown.values()),
        damages=damages,
        aged_until=aged_until,
    )


# --- writing ----------------------------------------------------------------------------------------------------------


def snapshot_name(seq: int) -> str:
    """The file name of the snapshot as of that record."""
    return f"{seq:0{_NAME_DIGITS}d}{_SUFFIX}"


def write_snapshot(fs: FileSystem, home: Home, captured: Captured) -> int:
    """Write one whole and make it durable; its size in bytes."""
    return replace_whole(fs, home.snapshot, snapshot_name(captured.seq), chunked(_lines(captured)))


def _lines(captured: Captured) -> Iterator[bytes]:
    head = frame(versioned(_head(captured)))
    yield head
    for schedule in captured.schedules:
        yield frame(versioned(ScheduleLine(_at_rest(schedule))))
    for run in captured.unknown:
        yield frame(
            versioned(UnknownLine(run if run.live is _UNKNOWN_AT_REST else replace(run, live=_UNKNOWN_AT_REST)))
        )
    for damage in captured.damages:
        yield frame(versioned(damage))
    yield head


def _head(captured: Captured) -> SnapshotHead:
    values = captured.globals
    return SnapshotHead(
        store_id=captured.store_id,
        seq=captured.seq,
        epoch=values.epoch,
        at=captured.at,
        run_number=values.run_number,
        decided_until=values.decided_until,
        schedules=len(captured.schedules),
        unknown=len(captured.unknown),
        damages=len(captured.damages),
        clock_step_s=values.clock_step_s,
        clock_step_at=values.clock_step_at,
        aged_until=captured.aged_until,
    )


def _default_live(kind: type[msgspec.Struct]) -> RunLive:
    """The very object that a struct has when nothing is live; msgspec leaves out a default by identity."""
    return next(field.default for field in msgspec.structs.fields(kind) if field.name == "live")


_RUN_AT_REST: Final = _default_live(Run)
_UNKNOWN_AT_REST: Final = _default_live(UnknownRun)


def _at_rest(schedule: Schedule) -> Schedule:
    if all(run.live is _RUN_AT_REST for run in schedule.runs):
        return schedule
    return replace(schedule, runs=tuple(replace(run, live=_RUN_AT_REST) for run in schedule.runs))


# --- reading ----------------------------------------------------------------------------------------------------------


class SnapshotFile(msgspec.Struct, frozen=True):
    """A file of the snapshot folder; `seq` is the last record in it."""

    path: str
    name: str
    seq: int


class Loaded(msgspec.Struct):
    """What could be read of a snapshot; `bad` are the offsets of lines that could not."""

    snapshot: SnapshotFile
    head: SnapshotHead
    schedules: dict[str, Schedule]
    unknown: dict[str, UnknownRun]
    damages: list[DamageLine]
    bad: list[int]

    @property
    def whole(self) -> bool:
        """Whether everything that was written is here, be one of the two heads bad or not."""
        head = self.head
        return (
            len(self.schedules) + len(self.unknown) + len(self.damages) == head.schedules + head.unknown + head.damages
        )


def list_snapshots(fs: FileSystem, home: Home) -> list[SnapshotFile]:
    """The snapshots there are, newest first."""
    if not fs.exists(home.snapshot):
        return []
    found: list[SnapshotFile] = []
    for name in reversed(fs.list_folder(home.snapshot)):
        digits = name.removesuffix(_SUFFIX)
        if len(digits) == _NAME_DIGITS and digits.isdecimal() and name.endswith(_SUFFIX):
            path = f"{home.snapshot}/{name}"
            found.append(SnapshotFile(path, home.relative(path), int(digits)))
    return found


def load_snapshot(fs: FileSystem, snapshot: SnapshotFile) -> Loaded | None:
    """Read one; None when neither of its heads can be read, or they are not of its name.  Raises `StoreUnusable` for a newer format."""
    head: SnapshotHead | None = None
    schedules: dict[str, Schedule] = {}
    unknown: dict[str, UnknownRun] = {}
    damages: list[DamageLine] = []
    bad: list[int] = []
    for offset, line, _ in lines(read_file(fs, snapshot.path)):
        body = unframe(line)
        try:
            content = decode_snapshot(body) if body is not None else None
        except NewerVersion as newer:
            raise StoreUnusable(str(newer), snapshot.name, offset) from newer
        except msgspec.MsgspecError:
            content = None
        match content:
            case SnapshotHead():
                head = content
            case ScheduleLine(schedule=schedule):
                schedules[schedule.definition.schedule_id] = schedule
            case UnknownLine(run=run):
                unknown[run.run_id] = run
            case DamageLine():
                damages.append(content)
            case None:
                bad.append(offset)
    if head is None or head.seq != snapshot.seq:
        return None
    return Loaded(snapshot, head, schedules, unknown, damages, bad)


def restored_state(loaded: Loaded, state: State) -> None:
    """Put what a snapshot holds into a new state, and derive what it leaves out: owners and slots in use."""
    head = loaded.head
    state.schedules.update(loaded.schedules)
    state.unknown.update(loaded.unknown)
    state.globals = Globals(
        epoch=head.epoch,
        run_number=head.run_number,
        decided_until=head.decided_until,
        clock_step_s=head.clock_step_s,
        clock_step_at=head.clock_step_at,
    )
    derive(state)


def derive(state: State) -> None:
    """Owners and slots, from the runs there are."""
    runs = [run for schedule in state.schedules.values() for run in schedule.runs]
    slots_used = sum(run.phase in lifecycle.HOLDS_SLOT for run in runs)
    state.globals = replace(state.globals, slots_used=slots_used)
    state.owners.clear()
    for run in (*runs, *state.unknown.values()):
        state.owners[run.run_id] = run.schedule_id
        if run.server_run_id is not None:
            state.owners[run.server_run_id] = run.schedule_id


# --- keeping ----------------------------------------------------------------------------------------------------------


def drop_old_snapshots(fs: FileSystem, home: Home) -> int:
    """Keep the newest two; the record up to which everything is in both, 0 while there are fewer."""
    found = list_snapshots(fs, home)
    for old in found[KEPT:]:
        with suppress(FileNotFoundError):
            fs.unlink(old.path)
    return found[KEPT - 1].seq if len(found) >= KEPT else 0
