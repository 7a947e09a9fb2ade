"""What the stores of the crash tests live through.

Owns: scripts, each short enough to crash at every call and long enough to meet every kind of write.  Must never know: faults.
"""

from __future__ import annotations

from tests.crash.stage import Stage


async def first_light(stage: Stage) -> None:
    """A new store, a few schedules, runs that begin and end."""
    s = stage.scribe
    await stage.commit(*s.create("a"))
    await stage.commit(*s.create("b"), *s.create("c"))
    await stage.commit(*s.admit("a"), *s.admit("b"))
    await stage.commit(*s.settle("a"))
    await stage.commit(*s.decided())
    await stage.commit(*s.skip("c"), *s.settle("b"))


async def checkpoints(stage: Stage) -> None:
    """Two checkpoints with batches between, so that segments begin and are dropped."""
    s = stage.scribe
    await stage.commit(*s.create("a"), *s.create("b"))
    await stage.commit(*s.ran("a"))
    await stage.checkpoint()
    await stage.commit(*s.admit("b"))
    await stage.commit(*s.interrupt("b"))
    await stage.checkpoint()
    await stage.commit(*s.pause("a"))
    await stage.checkpoint()
    await stage.commit(*s.settle("b"))


async def retention(stage: Stage) -> None:
    """More rows than are kept, a run that stays unfinished, and checkpoints that drop the rest."""
    s = stage.scribe
    await stage.commit(*s.create("a"))
    await stage.commit(*s.admit("a"), *s.interrupt("a"))
    for _ in range(3):
        await stage.commit(*s.skip("a"), *s.skip("a"), *s.skip("a"))
        await stage.checkpoint()
    await stage.commit(*s.settle("a"))
    for _ in range(3):
        await stage.commit(*s.ran("a"))
    await stage.checkpoint()


async def restarts(stage: Stage) -> None:
    """Epochs one after the other, with and without a checkpoint before the end."""
    s = stage.scribe
    await stage.commit(*s.create("a"))
    await stage.commit(*s.admit("a"))
    await stage.reopen()
    await stage.commit(*s.settle("a", status="failed", reason="outcome-unknown"))
    await stage.checkpoint()
    await stage.reopen()
    await stage.commit(*s.ran("a"))
    await stage.reopen()
    await stage.commit(*s.delete("a"))


async def large_batches(stage: Stage) -> None:
    """Batches of several sectors, so that a part of one can be missing from the middle."""
    s = stage.scribe
    ids = [f"s{number}" for number in range(8)]
    await stage.commit(*(event for each in ids for event in s.create(each)))
    await stage.commit(*(event for each in ids for event in s.ran(each)))
    await stage.commit(*(event for each in ids for event in s.skip(each)))


ALL = (first_light, checkpoints, retention, restarts, large_batches)
