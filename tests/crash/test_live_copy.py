"""A store that takes five hundred admissions a second is copied by the command: the copy is of one moment, and waits for acceptance."""

import asyncio
import sys
import time

import pytest

from scheduler_daemon.core.model import Settings
from scheduler_daemon.store.errors import RestoreNotAccepted
from scheduler_daemon.store.store import Store
from scheduler_daemon.store.tools import restore, verify
from tests.crash.daemons import PROJECT
from tests.scribe import NOW, Scribe

PER_S, BATCHES_PER_S, SCHEDULES = 500, 20, 100
CHECKPOINT_EVERY = 40


async def _admit(store, scribe, ended: asyncio.Event) -> tuple[int, float]:
    """Whole runs, so many a second and no more, until told; how many, and in how many seconds."""
    names = [f"s{number}" for number in range(SCHEDULES)]
    begun, batches = time.monotonic(), 0
    while not ended.is_set():
        share = PER_S // BATCHES_PER_S
        chosen = [names[(batches * share + each) % SCHEDULES] for each in range(share)]
        await store.commit([event for name in chosen for event in scribe.ran(name)])
        batches += 1
        if batches % CHECKPOINT_EVERY == 0:
            await store.checkpoint(scribe.state)
        await asyncio.sleep(max(0.0, begun + batches / BATCHES_PER_S - time.monotonic()))
    return batches * PER_S // BATCHES_PER_S, time.monotonic() - begun


@pytest.mark.timeout(600)
async def test_a_copy_taken_at_five_hundred_admissions_a_second_holds_one_moment_and_waits_for_acceptance(tmp_path):
    store = Store(tmp_path / "live", segment_bytes_max=1 << 20, mint=lambda: "store")
    opened = store.open(Settings(), NOW)
    scribe, ended = Scribe(opened.state), asyncio.Event()
    names = [f"s{number}" for number in range(SCHEDULES)]
    await store.commit([*scribe.epoch(opened.epoch), *(event for name in names for event in scribe.create(name))])
    admitting = asyncio.create_task(_admit(store, scribe, ended))
    before = scribe.state.globals.run_number
    copying = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scheduler_daemon", "backup", str(tmp_path / "live"), str(tmp_path / "copy")),
        cwd=PROJECT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await copying.communicate()
    ended.set()
    admitted, took_s = await admitting
    after = scribe.state.globals.run_number
    store.close()
    assert copying.returncode == 0, said.decode()
    print(f"{admitted} admitted in {took_s:.1f} s, {admitted / took_s:.0f} a second, while the copy was taken")

    assert verify(tmp_path / "copy").clean
    restore(tmp_path / "copy", tmp_path / "second")
    assert verify(tmp_path / "second").clean
    second = Store(tmp_path / "second", mint=lambda: "another")
    with pytest.raises(RestoreNotAccepted):
        second.open(Settings(), NOW)
    accepted = second.open(Settings(), NOW, accept_restore=True)
    copied = accepted.state.globals.run_number
    print(f"the copy holds {copied} of {after} runs")
    assert before <= copied <= after
    assert (accepted.restored, accepted.damages) == (True, ())
    for name in names:
        rows = second.page(name, None, 100_000).rows
        assert rows == tuple(scribe.rows.get(name, [])[: len(rows)])
    assert sum(len(second.page(name, None, 100_000).rows) for name in names) == 3 * copied
    second.close()
