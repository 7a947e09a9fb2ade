"""What the lines of the store say: records of the journal, lines of a snapshot, of a history, of the run index.

Owns: the format version, the translation of events and values to bodies and back, the hook that brings older bodies up to date.  Must
never know: files, offsets, what to do about a body that cannot be read.

Every body is a JSON object that begins with its version: `{"v":1,…`.  An event's record is the event as the core spells it with `seq`
and `epoch` in front, so each event is encoded once and nothing is copied field by field.  (`EpochStarted` brings its own `epoch`.)
Records whose `kind` is lower case are the store's own.

Nothing is skipped: a version that is higher than ours raises `NewerVersion`, and a kind that nobody knows, or an event that does not
decode, comes back as `Unreadable` with the schedule it names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from scheduler_daemon.core.events import Decided, EpochStarted, Event, RunAdmitted, ScheduleEvent
from scheduler_daemon.core.model import Row, Schedule, UnknownRun
from scheduler_daemon.store.framing import frame

FORMAT: Final = "scheduler-daemon-store"
VERSION = 1

Migration = Callable[[dict[str, Any]], dict[str, Any]]
MIGRATIONS: dict[int, Migration] = {}
"""From each version below ours to the next: a body in, the same body one version later out."""


class NewerVersion(Exception):
    """A body was written by a later version of this program; reading it as ours would be guessing."""

    def __init__(self, version: int) -> None:
        super().__init__(f"format version {version} is newer than this program's, {VERSION}")
        self.version = version


class Damage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something unreadable: `file` relative to the store root.  `schedule_id` None: it cannot be told whose it was."""

    schedule_id: str | None
    file: str
    offset: int
    reason: str


# --- the journal ------------------------------------------------------------------------------------------------------


class Judged(msgspec.Struct, frozen=True, tag="judged", tag_field="kind"):
    """What a recovery concluded about damage: from here on each schedule goes on at its `last_n`, as it was read up to here.

    `run_number` is one that no run above has, lost ones included.
    """

    damages: tuple[Damage, ...]
    last_n: dict[str, int]
    run_number: int


class Accepted(msgspec.Struct, frozen=True, tag="accepted", tag_field="kind"):
    """An operator accepted that records are missing; damage that is nobody's does not stop admission any more."""


class Unreadable(msgspec.Struct, frozen=True):
    """A record with a good checksum that this program does not understand."""

    reason: str


class Commit(msgspec.Struct, frozen=True, tag="commit", tag_field="kind", omit_defaults=True):
    """The end of a batch: its records, the last `n` of every schedule in it, the time up to which it decided, its highest run number.

    With this a lost record has a name, and neither a lost watermark nor a lost run number can be given out again.
    """

    epoch: int
    first: int
    last: int
    at: datetime
    last_n: dict[str, int]
    decided_until: datetime | None = None
    run_number: int = 0


class Skipped(msgspec.Struct, frozen=True):
    """A record that was not decoded, because a snapshot holds what it did."""


Content = Event | Judged | Accepted | Unreadable | Skipped


class Record(msgspec.Struct, frozen=True):
    """One numbered record; `schedule_id` and `n` are those of an event that belongs to a schedule."""

    seq: int
    epoch: int
    schedule_id: str | None
    n: int
    content: Content


class _Header(msgspec.Struct, frozen=True):
    """What every body of the journal says of itself."""

    kind: str
    epoch: int
    seq: int = 0
    schedule_id: str | None = None
    n: int = 0


_encode = msgspec.json.Encoder().encode
_header = msgspec.json.Decoder(_Header)
_event: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_own: msgspec.json.Decoder[Judged | Accepted] = msgspec.json.Decoder(Judged | Accepted)
_commit = msgspec.json.Decoder(Commit)
_any = msgspec.json.Decoder()
_version = msgspec.json.Decoder(dict[str, Any])

_SKIPPED: Final = Skipped()
EVENT_KINDS: Final = frozenset(kind.__name__ for kind in Event.__args__)
_OWN_KINDS: Final = frozenset({"judged", "accepted"})


def encode_batch(
    first: int, epoch: int, at: datetime, events: Sequence[Event], own: Sequence[Judged | Accepted] = ()
) -> tuple[bytes, Commit]:
    """The lines of one batch, `own` records first and the commit line last, and what that line says."""
    parts: list[bytes] = []
    last_n: dict[str, int] = {}
    decided_until: datetime | None = None
    run_number = 0
    seq = first
    for content in own:
        parts.append(frame(b'{"v":%d,"seq":%d,"epoch":%d,%b' % (VERSION, seq, epoch, _encode(content)[1:])))
        seq += 1
    for event in events:
        if isinstance(event, EpochStarted):
            body = b'{"v":%d,"seq":%d,%b' % (VERSION, seq, _encode(event)[1:])
        else:
            body = b'{"v":%d,"seq":%d,"epoch":%d,%b' % (VERSION, seq, epoch, _encode(event)[1:])
        parts.append(frame(body))
        if isinstance(event, ScheduleEvent):
            last_n[event.schedule_id] = event.n
            run_number = max(run_number, event.number) if isinstance(event, RunAdmitted) else run_number
        elif isinstance(event, Decided):
            decided_until = max(decided_until or event.until, event.until)
        seq += 1
    commit = Commit(epoch, first, seq - 1, at, last_n, decided_until, run_number)
    parts.append(frame(versioned(commit)))
    return b"".join(parts), commit


def decode_journal(body: bytes, skip_until: int = 0) -> Record | Commit:
    """What a body of the journal says; a record up to `skip_until` only that it is one.

    Raises `NewerVersion`, and `msgspec.MsgspecError` for what is no record at all.
    """
    body = up_to_date(body)
    header = _header.decode(body)
    if header.kind == "commit":
        return _commit.decode(body)
    if header.seq <= skip_until:
        return Record(header.seq, header.epoch, header.schedule_id, header.n, _SKIPPED)
    return Record(header.seq, header.epoch, header.schedule_id, header.n, _content(body, header.kind))


def _content(body: bytes, kind: str) -> Content:
    try:
        if kind in EVENT_KINDS:
            return _event.decode(body)
        if kind in _OWN_KINDS:
            return _own.decode(body)
    except msgspec.MsgspecError as error:
        return Unreadable(f"{kind}: {error}")
    return Unreadable(f"record kind {kind!r} is unknown")


# --- snapshots --------------------------------------------------------------------------------------------------------


class SnapshotHead(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot", tag_field="kind", omit_defaults=True):
    """The values that belong to no schedule, and how many lines there must be.  Stands first and, once more, last.

    `seq` is the last record that is in it.  `aged_until` is the time that retention counts ages from.
    """

    store_id: str
    seq: int
    epoch: int
    at: datetime
    run_number: int
    decided_until: datetime
    schedules: int
    unknown: int
    damages: int
    clock_step_s: float | None = None
    clock_step_at: datetime | None = None
    aged_until: datetime | None = None


class ScheduleLine(msgspec.Struct, frozen=True, tag="schedule", tag_field="kind"):
    """One schedule with all that is undecided or unfinished about it; live fields are left out."""

    schedule: Schedule


class UnknownLine(msgspec.Struct, frozen=True, tag="unknown", tag_field="kind"):
    """One run that ended `outcome-unknown`."""

    run: UnknownRun


class DamageLine(msgspec.Struct, frozen=True, tag="damage", tag_field="kind"):
    """Damage that was judged; `waiting` are the schedules that it must still block."""

    damage: Damage
    waiting: tuple[str, ...]


SnapshotLine = SnapshotHead | ScheduleLine | UnknownLine | DamageLine
_snapshot: msgspec.json.Decoder[SnapshotLine] = msgspec.json.Decoder(SnapshotLine)


def decode_snapshot(body: bytes) -> SnapshotLine:
    """What a line of a snapshot says.  Raises as `decode_journal`."""
    return _snapshot.decode(up_to_date(body))


# --- history and run index --------------------------------------------------------------------------------------------


class RowLine(msgspec.Struct, frozen=True, tag="row", tag_field="kind"):
    """One row, and how many rows of each sort the schedule ever had up to and with this one."""

    runs: int
    others: int
    row: Row


class TruncatedBefore(msgspec.Struct, frozen=True, tag="truncated_before", tag_field="kind"):
    """The first line of a history that lost rows to retention: how often that was, the largest `n` and how many rows went."""

    generation: int
    n: int
    runs: int
    others: int


class Indexed(msgspec.Struct, frozen=True, tag="run", tag_field="kind"):
    """An id of a run, ours or the server's, and where its rows are."""

    id: str
    run_id: str
    schedule_id: str


class Gone(msgspec.Struct, frozen=True, tag="gone", tag_field="kind"):
    """Retention dropped the last row of the run with this id."""

    id: str


HistoryLine = RowLine | TruncatedBefore
IndexLine = Indexed | Gone
_history: msgspec.json.Decoder[HistoryLine] = msgspec.json.Decoder(HistoryLine)
_index: msgspec.json.Decoder[IndexLine] = msgspec.json.Decoder(IndexLine)


def decode_history(body: bytes) -> HistoryLine:
    """What a line of a history says.  Raises as `decode_journal`."""
    return _history.decode(up_to_date(body))


def decode_index(body: bytes) -> IndexLine:
    """What a line of the run index says.  Raises as `decode_journal`."""
    return _index.decode(up_to_date(body))


# --- versions ---------------------------------------------------------------------------------------------------------


def versioned(value: msgspec.Struct) -> bytes:
    """The body of a value of ours, its version in front."""
    return b'{"v":%d,%b' % (VERSION, _encode(value)[1:])


def up_to_date(body: bytes) -> bytes:
    """The body as this version would have written it.  Raises `NewerVersion`, `msgspec.MsgspecError` for what has no version."""
    if body.startswith(b'{"v":%d,' % VERSION):
        return body
    values = _version.decode(body)
    version = values.get("v")
    if not isinstance(version, int):
        raise msgspec.ValidationError("a body without a version")
    if version > VERSION:
        raise NewerVersion(version)
    for step in range(version, VERSION):
        if step not in MIGRATIONS:
            raise msgspec.ValidationError(f"format version {step} is not known any more")
        values = MIGRATIONS[step](values)
    return _encode({**values, "v": VERSION})
