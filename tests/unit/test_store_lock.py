"""Who owns a store, on the real filesystem: two locks, what their files say, and what happens when somebody takes them away."""

import errno
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from scheduler_daemon.store.errors import LockHeld, OwnershipLost, StorageFailed, StoreUnusable
from scheduler_daemon.store.lock import Seen, StoreLock
from scheduler_daemon.store.mounts import filesystem_of, is_remote

STARTED = datetime(2026, 1, 5, 12, tzinfo=UTC)

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:40 / /srv rw,relatime - nfs4 server:/export rw
41 40 0:41 / /srv/local rw,relatime - xfs /dev/vdb rw
42 27 0:42 / /mnt/with\\040space rw - fuse.sshfs me@there: rw
43 27 0:43 / /over rw - ext4 /dev/vdc rw
44 43 0:44 / /over rw - cifs //there/share rw
"""


@pytest.fixture
def root(tmp_path):
    (tmp_path / "schedules").mkdir()
    return tmp_path


@pytest.fixture
def lock(root):
    made = StoreLock(root, root / "schedules")
    yield made
    made.release()


def another(root, **options):
    return StoreLock(root, root / "schedules", **options)


def test_a_second_daemon_is_told_who_has_the_store_and_the_first_is_not_disturbed(root, lock):
    lock.acquire(STARTED)
    with pytest.raises(LockHeld) as held:
        another(root).acquire(STARTED)
    assert (held.value.holder.pid, held.value.holder.host) == (os.getpid(), os.uname().nodename)
    assert held.value.holder.started_at == STARTED
    assert str(os.getpid()) in str(held.value)
    lock.check()


def test_a_second_process_is_refused_too(root, lock):
    lock.acquire(STARTED)
    program = (
        "import sys\nfrom datetime import UTC, datetime\nfrom pathlib import Path\n"
        "from scheduler_daemon.store.errors import LockHeld\nfrom scheduler_daemon.store.lock import StoreLock\n"
        "root = Path(sys.argv[1])\n"
        "try:\n    StoreLock(root, root / 'schedules').acquire(datetime.now(UTC))\n"
        "except LockHeld as held:\n    print(held.holder.pid)\n"
    )
    answered = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=True)
    assert answered.stdout.strip() == str(os.getpid())


def test_the_file_outlives_its_holder_and_can_be_taken_again(root, lock):
    lock.acquire(STARTED)
    lock.release()
    assert (root / "scheduler.lock").exists()
    other = another(root)
    other.acquire(STARTED)
    other.release()


def test_the_file_is_for_its_owner_alone(root, lock):
    lock.acquire(STARTED)
    assert (root / "scheduler.lock").stat().st_mode & 0o777 == 0o600


def test_a_deleted_lock_file_is_a_lost_store_and_lets_nobody_else_in(root, lock):
    lock.acquire(STARTED)
    (root / "scheduler.lock").unlink()
    with pytest.raises(LockHeld) as held:
        another(root).acquire(STARTED)
    assert held.value.holder.pid is None
    assert not (root / "scheduler.lock").exists(), "who is refused leaves nothing behind"
    with pytest.raises(OwnershipLost):
        lock.check()


def test_a_replaced_lock_file_is_a_lost_store(root, lock):
    lock.acquire(STARTED)
    (root / "scheduler.lock").rename(root / "aside")
    shutil.copy(root / "aside", root / "scheduler.lock")
    with pytest.raises(OwnershipLost, match="replaced"):
        lock.check()


def test_a_linked_lock_file_is_a_lost_store(root, lock):
    lock.acquire(STARTED)
    os.link(root / "scheduler.lock", root / "aside")
    with pytest.raises(OwnershipLost):
        lock.check()


def test_a_replaced_folder_is_a_lost_store(root, lock):
    lock.acquire(STARTED)
    (root / "schedules").rename(root / "aside")
    (root / "schedules").mkdir()
    with pytest.raises(OwnershipLost, match="folder was replaced"):
        lock.check()


def test_who_has_the_file_but_not_the_folder_keeps_a_second_one_out_all_the_same(root, lock):
    lock.acquire(STARTED)
    (root / "schedules").rename(root / "aside")
    (root / "schedules").mkdir()
    with pytest.raises(LockHeld) as held:
        another(root).acquire(STARTED)
    assert held.value.holder.pid == os.getpid()


def test_what_was_lost_once_stays_lost(root, lock):
    lock.acquire(STARTED)
    (root / "scheduler.lock").rename(root / "aside")
    with pytest.raises(OwnershipLost):
        lock.check()
    (root / "aside").rename(root / "scheduler.lock")
    with pytest.raises(OwnershipLost):
        lock.check()


def test_a_lock_that_was_never_taken_owns_nothing(lock):
    with pytest.raises(OwnershipLost):
        lock.check()


def test_release_is_idempotent_and_may_come_before_acquire(root, lock):
    lock.release()
    lock.acquire(STARTED)
    lock.release()
    lock.release()


def test_the_file_remembers_the_highest_epoch_and_the_last_record(root, lock):
    assert lock.acquire(STARTED) == Seen(0, 0)
    lock.note(3, 41, durably=True)
    lock.note(3, 42, durably=False)
    lock.release()
    other = another(root)
    assert other.acquire(STARTED) == Seen(3, 42)
    other.release()


def test_an_epoch_that_was_seen_is_never_forgotten_for_a_lower_one(root, lock):
    lock.acquire(STARTED)
    lock.note(5, 10, durably=True)
    lock.note(4, 11, durably=True)
    lock.release()
    assert lock.acquire(STARTED) == Seen(5, 11)


@pytest.mark.parametrize("content", [b"", b"garbage", b'{"pid":1}', b"\0" * 512])
def test_a_lock_file_that_says_nothing_proves_nothing(root, lock, content):
    (root / "scheduler.lock").write_bytes(content)
    assert lock.acquire(STARTED) == Seen(0, 0)


# --- filesystems ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib/x", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/deep/below", "nfs4"),
        ("/srv/local/x", "xfs"),
        ("/srvother", "ext4"),
        ("/mnt/with space/x", "fuse.sshfs"),
        ("/over/x", "cifs"),
    ],
)
def test_the_innermost_and_latest_mount_decides(tmp_path, folder, kind):
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert filesystem_of(folder, tmp_path / "mountinfo") == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse", "fuse.glusterfs", "ceph", "virtiofs"])
def test_filesystems_that_other_machines_or_programs_serve_are_remote(kind):
    assert is_remote(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "zfs", "overlay", "f2fs"])
def test_filesystems_of_this_machine_are_not(kind):
    assert not is_remote(kind)


def test_a_network_filesystem_is_refused_without_an_explicit_word(root):
    mountinfo = root / "mountinfo"
    mountinfo.write_text(MOUNTS + f"50 27 0:50 / {root} rw - nfs4 server:/x rw\n")
    with pytest.raises(StoreUnusable, match="type nfs4"):
        another(root, mountinfo=mountinfo).acquire(STARTED)
    assert not (root / "scheduler.lock").exists()
    allowed = another(root, mountinfo=mountinfo, allow_network_fs=True)
    allowed.acquire(STARTED)
    allowed.release()


def test_a_symlink_into_a_network_filesystem_is_followed(root, tmp_path):
    far = tmp_path / "far"
    (far / "schedules").mkdir(parents=True)
    near = tmp_path / "near"
    near.symlink_to(far)
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(MOUNTS + f"50 27 0:50 / {far} rw - cifs //x rw\n")
    with pytest.raises(StoreUnusable):
        another(near, mountinfo=mountinfo).acquire(STARTED)


def test_a_machine_that_does_not_tell_its_mounts_needs_an_explicit_word(root):
    with pytest.raises(StoreUnusable, match="cannot tell"):
        another(root, mountinfo=root / "missing").acquire(STARTED)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(StoreUnusable):
        StoreLock(tmp_path, tmp_path / "schedules").acquire(STARTED)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_lock_that_a_full_or_failing_disk_does_not_take_may_be_taken_by_the_next_start(root, monkeypatch, code):
    def fail(*_args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(StorageFailed):
        StoreLock(root, root / "schedules").acquire(STARTED)
