"""Where things lie in a store, and its few single documents: FORMAT.json, the restore marker, the quarantine.

Owns: names of files and folders, what makes a folder a store of ours.  Must never know: what happened to a schedule.

A folder without FORMAT.json that holds anything is somebody else's and is refused untouched.  FORMAT.json is therefore the first thing
that is made durable in a new store, and the name it has until then is the only leftover that an interrupted start may leave.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import msgspec

from scheduler_daemon.store.errors import StoreUnusable
from scheduler_daemon.store.framing import frame, unframe
from scheduler_daemon.store.fs import TEMPORARY, FileSystem, read_file, replace_whole, sync_folder, write_new
from scheduler_daemon.store.schema import FORMAT, VERSION

FOLDER: Final = "schedules"
FORMAT_NAME: Final = "FORMAT.json"
MARKER_NAME: Final = "RESTORED.json"
COPIES_MAX: Final = 64
"""How many pieces of damage one start copies to quarantine; what is damaged stays where it is as well."""


class Home:
    """The paths of one store, as strings."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.folder = f"{root}/{FOLDER}"
        self.journal = f"{self.folder}/journal"
        self.snapshot = f"{self.folder}/snapshot"
        self.occurrences = f"{self.folder}/occurrences"
        self.runs = f"{self.folder}/runs"
        self.quarantine = f"{self.folder}/quarantine"

    def folders(self) -> tuple[str, ...]:
        """Everything below the store's own folder."""
        return (self.journal, self.snapshot, self.occurrences, self.runs, self.quarantine)

    def relative(self, path: str) -> str:
        """How reports name a file: from the store root on."""
        return path.removeprefix(self.root + "/")


class Format(msgspec.Struct, frozen=True):
    """What FORMAT.json says."""

    format: str
    version: int
    store_id: str


class Marker(msgspec.Struct, frozen=True):
    """The store was put here from a copy; `accepted` is the store id that an operator's acceptance minted."""

    reason: str
    accepted: str | None = None


_encode = msgspec.json.Encoder().encode
_format = msgspec.json.Decoder(Format)
_marker = msgspec.json.Decoder(Marker)


def read_format(fs: FileSystem, home: Home) -> Format | None:
    """What the folder holds: a store of ours, or None for nothing yet.  Raises `StoreUnusable` for anything else."""
    if not fs.exists(home.folder):
        return None
    names = fs.list_folder(home.folder)
    if FORMAT_NAME not in names:
        if set(names) <= {FORMAT_NAME + TEMPORARY}:
            return None
        raise StoreUnusable(f"{home.folder} is not empty and has no {FORMAT_NAME} of ours", FOLDER)
    where = f"{FOLDER}/{FORMAT_NAME}"
    body = unframe(read_file(fs, f"{home.folder}/{FORMAT_NAME}").rstrip(b"\n"))
    try:
        found = _format.decode(body) if body is not None else None
    except msgspec.MsgspecError:
        found = None
    if found is None or found.format != FORMAT:
        raise StoreUnusable("not a description of a store of ours, or damaged", where)
    if found.version > VERSION:
        raise StoreUnusable(f"format version {found.version} is newer than this program's, {VERSION}", where)
    return found


def write_format(fs: FileSystem, home: Home, store_id: str) -> None:
    """Make the folder a store of ours, or give it another id."""
    body = _encode(Format(FORMAT, VERSION, store_id))
    replace_whole(fs, home.folder, FORMAT_NAME, [frame(body)])


def make_folders(fs: FileSystem, home: Home) -> None:
    """Make what a store needs below its folder; what is there already stays."""
    missing = [folder for folder in home.folders() if not fs.exists(folder)]
    for folder in missing:
        fs.make_folder(folder)
    if missing:
        sync_folder(fs, home.folder)


def read_marker(fs: FileSystem, home: Home) -> Marker | None:
    """The restore marker.  One that cannot be read is a marker all the same."""
    path = f"{home.folder}/{MARKER_NAME}"
    if not fs.exists(path):
        return None
    body = unframe(read_file(fs, path).rstrip(b"\n"))
    try:
        return _marker.decode(body) if body is not None else Marker("the restore marker is damaged")
    except msgspec.MsgspecError:
        return Marker("the restore marker is damaged")


def write_marker(fs: FileSystem, home: Home, marker: Marker) -> None:
    """Leave the marker, or change what it says."""
    replace_whole(fs, home.folder, MARKER_NAME, [frame(_encode(marker))])


def remove_marker(fs: FileSystem, home: Home) -> None:
    """Take the marker away for good."""
    fs.unlink(f"{home.folder}/{MARKER_NAME}")
    sync_folder(fs, home.folder)


class _Reason(msgspec.Struct, frozen=True):
    file: str
    offset: int
    size: int
    reason: str


def keep_copy(fs: FileSystem, home: Home, file: str, offset: int, *, data: bytes, reason: str) -> str:
    """Copy torn or damaged bytes to quarantine with the reason beside them; the copy's name, relative to the root.

    Durable when it returns.  Bytes that were copied before are not copied again.
    """
    name = f"{file.removeprefix(FOLDER + '/').replace('/', '_')}.{offset}.{crc32(data):08x}"
    path = f"{home.quarantine}/{name}"
    if not fs.exists(path + ".json"):
        write_new(fs, path, [data])
        write_new(fs, path + ".json", [frame(_encode(_Reason(file, offset, len(data), reason)))])
        sync_folder(fs, home.quarantine)
    return home.relative(path)
