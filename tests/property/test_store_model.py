"""A store against a model, in any order of batches, checkpoints, pages, restarts and crashes.

The model is the scribe: its state and its rows.  A crash leaves one of the disks that are legal at some call of a batch or a checkpoint, or
cuts the journal at any byte after what was acknowledged; the store must then be what the model was before that step or after it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scheduler_daemon.core.events import Event
from scheduler_daemon.core.model import Row, Settings
from scheduler_daemon.store.errors import CursorExpired
from scheduler_daemon.store.retention import Retention
from scheduler_daemon.store.store import Store
from tests.crash.simfs import Image, SimFileSystem
from tests.crash.stage import ROOT, SimLock
from tests.scribe import NOW, Scribe, durable

KEPT = Retention(runs_max=4, others_max=3, slack=0.0)
NAMES = ("a", "b", "c")


class StoreModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.fs, self.lock = SimFileSystem(), SimLock()
        self.fs.mixed = 4
        self.scribe = Scribe()
        self.start()

    def start(self) -> None:
        rows, at = self.scribe.rows, self.scribe.at
        self.store = Store(
            ROOT, fs=self.fs, lock=self.lock, segment_bytes_max=4_000, retention=KEPT, mint=lambda: "store"
        )
        opened = self.store.open(Settings(), NOW)
        assert opened.damages == ()
        self.scribe = Scribe(opened.state)
        self.scribe.rows, self.scribe.at = rows, at
        asyncio.run(self.store.commit(self.scribe.epoch(opened.epoch)))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()

    # --- what happens ---

    def events(self, choices: list[tuple[str, str]]) -> list[Event]:
        return [event for name, what in choices for event in self._events(name, what)]

    def _events(self, name: str, what: str) -> list[Event]:
        s = self.scribe
        schedule = s.state.schedules.get(name)
        if schedule is None:
            return s.create(name)
        match what:
            case "admit" if len(schedule.runs) < 2:
                return s.admit(name)
            case "settle" if schedule.runs:
                return s.settle(name)
            case "unknown" if schedule.runs:
                return s.settle(name, status="failed", reason="outcome-unknown")
            case "interrupt" if schedule.runs and schedule.runs[0].phase in {"running", "ambiguous"}:
                return s.interrupt(name)
            case "pause":
                return s.pause(name)
            case "decided":
                return s.decided()
            case _:
                return s.skip(name)

    batches = st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.sampled_from(["admit", "settle", "unknown", "interrupt", "pause", "decided", "skip", "skip"]),
        ),
        min_size=1,
        max_size=6,
    )

    @rule(choices=batches)
    def commit(self, choices: list[tuple[str, str]]) -> None:
        self.commit_these(choices)

    def commit_these(self, choices: list[tuple[str, str]]) -> None:
        asyncio.run(self.store.commit(self.events(choices)))

    @rule()
    def checkpoint(self) -> None:
        asyncio.run(self.store.checkpoint(self.scribe.state))

    @rule(name=st.sampled_from(NAMES), count=st.integers(4, 8))
    def a_busy_hour(self, name: str, count: int) -> None:
        """Enough for retention to drop rows that somebody may be about to read."""
        asyncio.run(self.store.commit(self.events([(name, "admit"), *[(name, "skip")] * count, (name, "settle")])))
        asyncio.run(self.store.checkpoint(self.scribe.state))

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.start()

    @rule(choices=batches, data=st.data())
    def crash_in_a_commit(self, choices: list[tuple[str, str]], data: st.DataObject) -> None:
        before = self._moment()
        events = self.events(choices)
        self._crash(lambda: self.store.commit(events), before, data)

    @rule(data=st.data())
    def crash_in_a_checkpoint(self, data: st.DataObject) -> None:
        self._crash(lambda: self.store.checkpoint(self.scribe.state), self._moment(), data)

    @rule(choices=batches, data=st.data())
    def cut_the_journal_anywhere_in_its_last_batch(self, choices: list[tuple[str, str]], data: st.DataObject) -> None:
        before, image = self._moment(), self.fs.image()
        asyncio.run(self.store.commit(self.events(choices)))
        after = self.fs.image()
        path = max(path for path in after if "/journal/" in path)
        written = after[path] or b""
        kept = len(image.get(path) or b"")
        cut = data.draw(st.integers(kept, len(written)))
        self._found(self._reopen({**after, path: written[:cut]}), [before, self._moment()])

    def _moment(self) -> tuple[object, dict[str, list[Row]]]:
        return durable(self.scribe.state), {name: list(rows) for name, rows in self.scribe.rows.items()}

    def _crash(self, step: Callable, before: tuple, data: st.DataObject) -> None:
        images: list[Image] = []
        self.fs.watch = lambda: images.extend(self.fs.crash_images())
        asyncio.run(step())
        if images:
            chosen = data.draw(st.integers(0, 1 << 16)) % len(images)
            self._found(self._reopen(images[chosen]), [before, self._moment()])
        else:
            self.fs.watch = lambda: None

    def _reopen(self, image: Image) -> Store:
        self.store.close()
        self.fs = SimFileSystem(image)
        self.fs.mixed = 4
        return Store(ROOT, fs=self.fs, lock=self.lock, segment_bytes_max=4_000, retention=KEPT, mint=lambda: "store")

    def _found(self, store: Store, moments: list[tuple]) -> None:
        opened = store.open(Settings(), NOW)
        state = durable(opened.state)
        store.close()
        assert opened.damages == ()
        matching = [rows for expected, rows in moments if expected == state]
        assert matching, "neither what was before nor what was after"
        self.scribe.rows = matching[0]
        self.start()

    # --- what is asked ---

    @rule(name=st.sampled_from(NAMES), limit=st.integers(1, 7), choices=batches, checkpoint=st.booleans())
    def read_pages_while_rows_come_and_go(
        self, name: str, limit: int, choices: list[tuple[str, str]], *, checkpoint: bool
    ) -> None:
        """A page continues without a gap in what was there when its cursor was given out, or says that it cannot."""
        page = self.store.page(name, None, limit)
        while page.next_n is not None:
            last_n = page.rows[-1].n
            ahead = {row.n for row in self._all(name) if row.n > last_n}
            self.commit_these(choices)
            if checkpoint:
                asyncio.run(self.store.checkpoint(self.scribe.state))
            try:
                page = self.store.page(name, page.next_n, limit)
            except CursorExpired:
                assert not ahead <= {row.n for row in self._all(name)}, "nothing was dropped that was still to be read"
                return
            assert list(page.rows) == [row for row in self._all(name) if row.n > last_n][:limit]
            passed = {n for n in ahead if page.next_n is None or n <= page.rows[-1].n}
            assert passed <= {row.n for row in page.rows}, "rows were skipped without a word"
            limit += 2  # or it would go on for as long as rows come

    def _all(self, name: str) -> list[Row]:
        return list(self.store.page(name, None, 10_000).rows)

    @invariant()
    def rows_are_the_models_without_what_retention_may_drop(self) -> None:
        if not hasattr(self, "store"):
            return
        for name, rows in self.scribe.rows.items():
            found = self._all(name)
            unfinished = {run.run_id for run in self.scribe.state.schedules[name].runs}
            runs = [row.n for row in rows if row.run_id is not None][-KEPT.runs_max :]
            others = [row.n for row in rows if row.run_id is None][-KEPT.others_max :]
            sacred, present = {*runs, *others}, {row.n for row in found}
            assert found == [row for row in rows if row.n in present or row.n in sacred or row.run_id in unfinished]

    @invariant()
    def runs_are_found_while_a_row_of_them_is_kept(self) -> None:
        if not hasattr(self, "store"):
            return
        for name in self.scribe.rows:
            rows = self._all(name)
            for row in rows[:1] + rows[-1:]:
                if row.run_id is not None:
                    found = self.store.find_run(row.run_id)
                    assert found is not None
                    assert list(found.rows) == [each for each in rows if each.run_id == row.run_id]


LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
StoreModel.TestCase.settings = settings(max_examples=2_000 if LONG else 25, stateful_step_count=25, deadline=None)
test_a_store_is_what_its_model_is = StoreModel.TestCase
