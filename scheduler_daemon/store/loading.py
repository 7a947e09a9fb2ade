"""From the files of a store to its state: which snapshot, which segments, and what to do when a snapshot has bad lines.

Owns: the choice of what recovery starts from.  Must never know: what a record means (`recovery.py`), how a segment ends (`scan.py`).
Nothing is written here.

The newest snapshot is the base.  Lines of it that cannot be read are taken from the older one and the journal between the two, which
give the same.  What neither has is known only to be missing; then admission stops for everybody, because its owner has no name.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from scheduler_daemon.core.events import Event
from scheduler_daemon.core.model import Now, Settings
from scheduler_daemon.core.state import State
from scheduler_daemon.store.documents import Home
from scheduler_daemon.store.errors import StoreUnusable
from scheduler_daemon.store.fs import FileSystem, read_file
from scheduler_daemon.store.journal import list_segments, segments_after
from scheduler_daemon.store.recovery import Key, Replay
from scheduler_daemon.store.scan import Lost, Scan, Segment, Tail
from scheduler_daemon.store.schema import Damage, DamageLine, Judged
from scheduler_daemon.store.snapshot import Loaded, SnapshotFile, derive, list_snapshots, load_snapshot, restored_state


class Recovered(msgspec.Struct, kw_only=True):
    """What a store holds, and what the next batch must say about it.

    `events` are those after the snapshot, whose rows are in no history file for certain.  `fresh` is new damage, `judged` all of it.
    """

    state: State
    seq: int
    events: list[Event]
    judged: dict[Key, DamageLine]
    fresh: Judged | None
    harmless: list[Damage]
    lost: list[Lost]
    epoch: int
    replayed: int
    last_segment: Segment | None
    tail: Tail
    journal_bytes: int
    aged_until: datetime | None


class _Files(msgspec.Struct, frozen=True):
    fs: FileSystem
    home: Home
    store_id: str
    settings: Settings
    now: Now
    segments: list[Segment]


def recover(
    fs: FileSystem, home: Home, store_id: str, settings: Settings, now: Now, *, agenda: bool = True
) -> Recovered:
    """Rebuild the state, with its agenda if wanted.  Raises `StoreUnusable` when something is missing that nothing else tells of."""
    files = _Files(fs, home, store_id, settings, now, list_segments(fs, home))
    snapshots = list_snapshots(fs, home)
    loaded = _readable(fs, snapshots)
    if snapshots and not loaded and not _begins(files):
        raise StoreUnusable("no snapshot can be read, and the journal does not begin at record 1", snapshots[0].name)
    base = loaded[0] if loaded else None
    damages, harmless = _patch(files, base, loaded[1:]) if base is not None else ([], [])
    unread = [snapshot for snapshot in snapshots if base is None or snapshot.seq > base.head.seq]
    harmless += [
        Damage(None, snapshot.name, 0, "a snapshot that cannot be read; an older one was taken") for snapshot in unread
    ]
    recovered = _replay(files, base, damages, harmless)
    if agenda:
        recovered.state.rebuild_agenda(now)
    return recovered


def _readable(fs: FileSystem, snapshots: list[SnapshotFile]) -> list[Loaded]:
    """The newest that can be read, and older ones as far as they are needed: up to and with one that is whole."""
    loaded: list[Loaded] = []
    for snapshot in snapshots:
        found = load_snapshot(fs, snapshot)
        if found is not None:
            loaded.append(found)
            if found.whole:
                break
    return loaded


def _begins(files: _Files) -> bool:
    return bool(files.segments) and files.segments[0].first == 1


# --- replay -----------------------------------------------------------------------------------------------------------


def _replay(files: _Files, base: Loaded | None, damages: list[Damage], harmless: list[Damage]) -> Recovered:
    base_seq = base.head.seq if base is not None else 0
    segments = _segments_from(files, base_seq)
    replay = _start(files, base)
    for damage in damages:
        replay.damaged(damage)
    scan = Scan(segments, lambda path: read_file(files.fs, path), base_seq)
    for batch in scan.batches():
        replay.apply(batch)
    if scan.last_seq < base_seq:
        raise StoreUnusable(
            f"the journal ends at record {scan.last_seq}, before its snapshot", files.home.relative(files.home.journal)
        )
    fresh = replay.finish()
    if fresh is not None or replay.judged:
        derive(replay.state)
    return Recovered(
        state=replay.state,
        seq=max(scan.last_seq, base_seq),
        events=replay.events,
        judged=replay.judged,
        fresh=fresh,
        harmless=[
            *harmless,
            *replay.harmless,
            *(Damage(None, lost.file, lost.offset, lost.reason) for lost in scan.mended),
        ],
        lost=replay.lost,
        epoch=replay.epoch,
        replayed=replay.replayed,
        last_segment=segments[-1] if segments else None,
        tail=scan.tail,
        journal_bytes=scan.size,
        aged_until=base.head.aged_until if base is not None else None,
    )


def _start(files: _Files, base: Loaded | None) -> Replay:
    state = State(files.store_id, files.settings)
    if base is None:
        return Replay(state, files.now, 0, [])
    restored_state(base, state)
    return Replay(state, files.now, base.head.seq, base.damages)


def _segments_from(files: _Files, base_seq: int) -> list[Segment]:
    segments = segments_after(files.segments, base_seq)
    if segments is None:
        raise StoreUnusable(f"records from {base_seq + 1} on are missing", files.home.relative(files.home.journal))
    return segments


# --- a snapshot with bad lines ----------------------------------------------------------------------------------------


def _patch(files: _Files, newest: Loaded, older: list[Loaded]) -> tuple[list[Damage], list[Damage]]:
    """Fill in what is missing from a snapshot; the damage that is left, and the damage that harmed nothing."""
    name = newest.snapshot.name
    bad = [Damage(None, name, offset, "a line of the snapshot cannot be read") for offset in newest.bad]
    if newest.whole:
        return [], bad
    missing = newest.head.schedules - len(newest.schedules)
    other = _as_of(files, next((found for found in older if found.whole), None), newest.head.seq)
    if other is None:
        return [
            Damage(
                None, name, newest.bad[0] if newest.bad else 0, f"{missing} schedules of the snapshot cannot be read"
            )
        ], bad
    adopted = set(other.state.schedules) - set(newest.schedules)
    newest.schedules.update({key: other.state.schedules[key] for key in adopted})
    newest.unknown.update({key: run for key, run in other.state.unknown.items() if key not in newest.unknown})
    newest.damages = [*newest.damages, *(line for line in other.judged.values() if line.damage.schedule_id in adopted)]
    left: list[Damage] = []
    if len(adopted) < missing:
        left.append(
            Damage(None, name, newest.bad[0] if newest.bad else 0, f"{missing - len(adopted)} schedules cannot be read")
        )
    return left, bad


def _as_of(files: _Files, base: Loaded | None, seq: int) -> Replay | None:
    """The state as of a record, from an older snapshot or from the beginning; None where that cannot be had."""
    if base is None and not _begins(files):
        return None
    replay = _start(files, base)
    try:
        base_seq = base.head.seq if base is not None else 0
        segments = _segments_from(files, base_seq)
        for batch in Scan(segments, lambda path: read_file(files.fs, path), base_seq).batches():
            if batch.first > seq:
                break
            replay.apply(batch)
    except StoreUnusable:
        return None
    replay.finish()
    return replay
