"""On what kind of filesystem a folder lies, as the kernel tells it.

Owns: reading mountinfo, and the list of kinds whose locks do not bind every machine that can write there.  Must never know: what is
locked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

MOUNTINFO: Final = Path("/proc/self/mountinfo")

_REMOTE: Final = (
    "9p afs beegfs ceph cifs coda gfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs pvfs2 smb3 smbfs "
    "virtiofs fuse fuseblk"
)
REMOTE: Final = frozenset(_REMOTE.split())
"""Shared by machines, or served by a process that may do as it likes with locks and with fsync."""

_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def filesystem_of(folder: str, mountinfo: Path) -> str | None:
    """The type of the filesystem that holds `folder` (absolute, no symlinks); None when the kernel's table does not say."""
    best: tuple[int, str] | None = None
    for line in mountinfo.read_text("utf-8", "surrogateescape").splitlines():
        mount = _mount(line)
        if mount is not None and _holds(mount[0], folder) and (best is None or len(mount[0]) >= best[0]):
            best = (len(mount[0]), mount[1])  # of two mounts on one point the later one is on top
    return best[1] if best is not None else None


def is_remote(kind: str) -> bool:
    """Whether a lock there may be invisible to somebody who can write there too."""
    return kind in REMOTE or kind.startswith("fuse.")


def _mount(line: str) -> tuple[str, str] | None:
    fields, _, rest = line.partition(" - ")
    parts = fields.split(" ")
    if len(parts) < 5 or not rest:  # noqa: PLR2004  # the fifth field is the mount point (proc_pid_mountinfo(5))
        return None
    return _OCTAL.sub(lambda code: chr(int(code[1], 8)), parts[4]), rest.split(" ")[0]


def _holds(point: str, folder: str) -> bool:
    return folder == point or folder.startswith(point.rstrip("/") + "/")
