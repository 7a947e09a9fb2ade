"""What really happened: every request that left, every execution, and what its sender was told.

Owns: invariants 1 and 9 of DESIGN.md, and whether a status that the daemon wrote down is true.
Must never know: how the daemon comes to a status.

The daemon learns little and late; the truth is complete.  A status may be "unknown" only where the daemon could not know,
and anything else must be what the server's own store says.
"""

from collections.abc import Callable, Mapping
from typing import Any

from rpc_client.errors import APPLICATION_ERROR, NOT_RUN_CODES, Answered, Refused
from scheduler_daemon.core.judging import BEYOND_MAX
from tests.simulation.loop import Process
from tests.simulation.model import RunAccount, Violation
from tests.simulation.server import Execution, ServerProcess, ServerRun, ServerStore
from tests.simulation.wire import Call

READABLE = ("completed", "failed", "exhausted", "interrupted")


def demand(holds: object, what: str) -> None:
    if not holds:
        raise Violation(what)


class Truth:
    """`runs` is the ledger's account by start key; `stores` are all that ever answered, `came` says which of them when.

    `faithful` says that every server so far was the same one and kept keys: then nothing may end unknown.
    """

    def __init__(self) -> None:
        self.runs: Mapping[str, RunAccount] = {}
        self.stores: list[ServerStore] = []
        self.came: list[tuple[float, ServerStore]] = []
        self.sends: dict[str, list[Call]] = {}
        self.inspects: dict[str, Call] = {}
        self.now_s: Callable[[], float] = lambda: 0.0
        self.stops_then: dict[str, int] = {}
        self.executions: dict[str, list[Execution]] = {}
        self.faithful = True
        self.daemon: Process | None = None
        self.deserted: set[str] = set()
        self._never: set[str] = set()

    # --- as it happens ---

    def booted(self, server: ServerProcess) -> None:
        """From now on this one answers at the address."""
        if server.store not in self.stores:
            self.stores.append(server.store)
        self.came.append((self.now_s(), server.store))
        self.faithful = self.faithful and server.keyed and server.store is self.stores[0]

    def sending(self, call: Call) -> None:
        """A start or resume leaves: its intent is durable, and it is no repeat that could execute twice."""
        if call.key is None:
            if call.daemon is self.daemon:
                self.inspects[call.params["run_id"]] = call
            return
        key = call.key
        run = self._run_of(key)
        if call.daemon is not self.daemon:
            return  # it lost its lock between mark and request, and a successor may have judged the run already
        demand(run.phase in ("running", "ambiguous"), f"{key}: sent while its run is {run.phase}")
        demand(run.sending_key == key, f"{key}: sent, but the durable mark is for {run.sending_key}")
        earlier = self.sends.setdefault(key, [])
        if earlier:
            self._repeats(run, call, earlier)
        elif call.method == "workflow.runs.resume":
            self._resumes(run, call)
        else:
            demand(call.params["deployment_id"] == run.deployment_id, f"{key}: sent to {call.params['deployment_id']}")
            demand(call.params["workflow_input"] == run.input, f"{key}: sent another input than was pinned")
        earlier.append(call)

    def _repeats(self, run: RunAccount, call: Call, earlier: list[Call]) -> None:
        key = call.key
        demand(call.server.keyed, f"{key}: repeated to a server that keeps no keys")
        same = all(one.server.store is call.server.store and one.server.keyed for one in earlier)
        demand(same, f"{key}: repeated to a server that did not get the first request under its key")
        demand(all(one.params == call.params for one in earlier), f"{key}: repeated with other params")
        demand(not run.caller_gone, f"{key}: repeated after its caller went away")

    def _resumes(self, run: RunAccount, call: Call) -> None:
        """A new attempt: every earlier one is resolved."""
        server_run = self._server_run(call.params["run_id"])
        demand(server_run is None or server_run.start_key == run.key, f"{call.key}: resumes a run of somebody else")
        stops = len(server_run.stops) if server_run is not None else 0
        for attempt in range(1, run.attempts):
            for one in self.sends.get(f"{run.key}:{attempt}", ()):
                moved_on = stops > self.stops_then[one.key or ""]
                demand(_told_of_an_end(one) or moved_on, f"{call.key}: sent while attempt {attempt} is unresolved")
        self.stops_then[call.key or ""] = stops

    def executing(self, execution: Execution) -> None:
        if execution.key is None:
            return
        known = self.executions.setdefault(execution.key, [])
        known.append(execution)
        demand(len(known) == 1, f"{execution.key}: executed {len(known)} times")
        demand(execution.key not in self._never, f"{execution.key}: executed after it was recorded as never run")

    # --- as it is written down ---

    def proven_unsent(self, run: RunAccount) -> None:
        demand(not self.sends.get(run.key), f"{run.run_id}: recorded as not sent, but it left")

    def never_ran(self, run: RunAccount) -> None:
        """The history says that no effect happened, and none ever will."""
        demand(not self.executions.get(run.key), f"{run.run_id}: recorded as never run, but it did")
        self._never.add(run.key)

    def stopped_so(self, run: RunAccount, server_run_id: str | None, status: str, trace_count: int) -> None:
        """A result that the daemon took is one that the server's store has, for the run of this very key."""
        server_run = self._server_run(server_run_id or "")
        said = f"{run.run_id}: recorded as {status} at {trace_count} by {server_run_id}"
        if server_run is None:
            raise Violation(f"{said}, which no server knows")
        demand(server_run.start_key == run.key, f"{said}, which is the run of {server_run.start_key}")
        demand((status, trace_count) in server_run.stops, f"{said}, which only ever was {server_run.stops}")

    def really_unknown(self, run: RunAccount) -> None:
        """Failing closed is for what could not be known."""
        calls = self.sends.get(run.sending_key, [])
        if not calls:
            demand(
                run.marked_in is not self.daemon,
                f"{run.run_id}: unknown, although nothing left since this daemon started",
            )
            return
        told = [one for one in calls if one.daemon is self.daemon and _readable(one)]
        demand(not told, f"{run.run_id}: unknown, although the daemon was told {told and told[-1].ending}")
        could_ask = self.faithful and run.marked_by is not None and run.marked_by.keyed and not run.caller_gone
        repeats = [one for one in calls if one is not calls[0] or one.daemon is not run.marked_in]
        refused = any(isinstance(one.ending, Refused) or _says_nothing(one) for one in repeats) or _beyond(repeats)
        if run.kind == "resume" and not refused:
            self._asked_since(run)
        demand(not could_ask or refused, f"{run.run_id}: unknown, although the server keeps its key")

    def _asked_since(self, run: RunAccount) -> None:
        """A resume is judged by what the server shows after sight of it was lost, and never by what it showed before.

        Whoever died has lost sight of everything, so the next daemon asks anew.
        Where another server took the place of the marked one there is nobody left to ask: its answers are about runs of its own.
        """
        if run.marked_by is None or run.lost_s is None:
            return
        if all(store.root == run.marked_by.store_root for store in self._there_since(run.lost_s)):
            asked = self.inspects.get(run.server_run_id or "")
            asked_since = asked is not None and asked.sent_s >= run.lost_s and asked.ending is not None
            demand(asked_since, f"{run.run_id}: unknown by what the server showed before the loss")

    def _there_since(self, lost_s: float) -> list[ServerStore]:
        """What the daemon can have met at the address since then: who was there, or had been last, and who came later."""
        before = [store for came_s, store in self.came if came_s <= lost_s]
        return before[-1:] + [store for came_s, store in self.came if came_s > lost_s]

    # --- lookups ---

    def _run_of(self, key: str) -> RunAccount:
        start_key = ":".join(key.split(":")[:2])
        demand(start_key in self.runs, f"{key}: sent, and nothing durable knows of it")
        return self.runs[start_key]

    def _server_run(self, server_run_id: str) -> ServerRun | None:
        for store in self.stores:
            found = store.runs.get(server_run_id) or store.forgotten.get(server_run_id)
            if found is not None:
                return found
        return None


def _readable(call: Call) -> bool:
    ending: Any = call.ending
    if not isinstance(ending, Answered) or not isinstance(ending.result, dict):
        return False
    return ending.result.get("status") in READABLE and ending.result.get("run_id") is not None


def _says_nothing(call: Call) -> bool:
    """Answered with a status that no protocol knows: asking for ever would not help."""
    ending: Any = call.ending
    return isinstance(ending, Answered) and isinstance(ending.result, dict) and not _readable(call)


def _beyond(repeats: list[Call]) -> bool:
    """One unreadable answer after the other: more of them would not be better."""
    last = repeats[-BEYOND_MAX:]
    return len(last) == BEYOND_MAX and all(isinstance(one.ending, Answered) and not _readable(one) for one in last)


def _told_of_an_end(call: Call) -> bool:
    if isinstance(call.ending, Refused):
        data: Any = call.ending.data
        mine = call.ending.code == APPLICATION_ERROR and data["code"] in ("KeyError", "ValueError")
        return mine or call.ending.code in NOT_RUN_CODES
    return _readable(call)
