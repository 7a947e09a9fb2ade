"""Real filesystems for tests, where root and the machine allow it: a small tmpfs, an image in a loop device, a power cut.

Owns: mounting, unmounting, and the reasons to skip.  Must never know: the store.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

GOING_DOWN = 0x8004587D
"""The ioctl of XFS, which ext4 took over, that ends a mounted filesystem at once."""

WITHOUT_FLUSHING = 2


def run(*argv: str) -> None:
    """Run a command; what it prints when it fails is the reason to skip."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"SKIP: {' '.join(argv)}: {done.stderr.strip()}")


def need(*tools: str) -> None:
    if os.geteuid():
        pytest.skip("SKIP: mounting needs root")
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"SKIP: {tool} is not here")


@contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[Path]:
    """A filesystem in memory, as small as its options say."""
    need("mount")
    folder.mkdir()
    run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


class Disk:
    """A filesystem in an image that can lose its power."""

    def __init__(self, folder: Path, kind: str) -> None:
        need("mount", "losetup", f"mkfs.{kind}")
        self._image = folder / f"{kind}.img"
        self.mounted = folder / kind
        self.mounted.mkdir()
        with self._image.open("wb") as image:
            image.truncate(400 << 20)
        run(f"mkfs.{kind}", "-q", str(self._image))

    def mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self.mounted))

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.mounted)], check=True, capture_output=True)

    def remove(self) -> None:
        subprocess.run(["umount", "-l", str(self.mounted)], check=False, capture_output=True)

    def cut_power(self) -> None:
        """From here on nothing reaches the disk any more, not even the filesystem's own journal."""
        fd = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, GOING_DOWN, struct.pack("I", WITHOUT_FLUSHING))
        finally:
            os.close(fd)
