"""The negative control of the simulation: a daemon with one wrong line must be found out.

Owns: a list of wrong lines, each with the line it replaces; patching them in at import; hunting each over some seeds.
Must never know: how a violation is found.

    python -m tests.simulation.mutants
    python -m tests.simulation.mutants --only slot-kept --seeds 500

Nothing on disk changes.  Each mutant lives in a process of its own, forked before anything of the daemon was imported.  A
line that is no longer there as written fails loudly: the mutant must then be written anew.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing import get_context
from types import ModuleType

SEED_S_MAX = 20.0
"""How long one seed may keep the processor busy: a wrong line may as well spin as lie.  A busy machine finds nobody out."""


@dataclass(frozen=True)
class Mutant:
    """`was` stands exactly once in `module`; `lie` says what becomes untrue.  A `rare` one takes many seeds to meet."""

    name: str
    lie: str
    module: str
    was: str
    becomes: str
    rare: bool = False


MUTANTS = (
    Mutant(
        "unmarked",
        "a start leaves and its executing mark is not written",
        "scheduler_daemon.runtime.engine",
        "return [event for plan in self.plans for event in plan.events]",
        'return [event for plan in self.plans for event in plan.events if type(event).__name__ != "DispatchMarked"]',
    ),
    Mutant(
        "watermark-kept",
        "a row does not raise the watermark of its schedule",
        "scheduler_daemon.core.fold",
        "held, watermark = schedule.candidate, max(schedule.watermark, instant)",
        "held, watermark = schedule.candidate, schedule.watermark",
    ),
    Mutant(
        "interrupted-forgotten",
        "an interrupted run does not hold overlap",
        "scheduler_daemon.core.model",
        "holding = [run.run_id for run in self.runs] +",
        'holding = [run.run_id for run in self.runs if run.phase != "interrupted"] +',
    ),
    Mutant(
        "plain-repeat",
        "a start of unknown outcome is sent again to a server that keeps no keys",
        "scheduler_daemon.core.reconcile",
        '_case("I", "list", **_LOST_START, **_THERE, keyed_at_mark=False, finding="none")',
        '_case("I", "repeat", **_LOST_START, **_THERE, keyed_at_mark=False, finding="none")',
    ),
    Mutant(
        "slot-kept",
        "a settled run keeps its slot",
        "scheduler_daemon.core.fold",
        "_count_slot(draft, run, None)",
        "_count_slot(draft, run, run)",
    ),
    Mutant(
        "pause-holds",
        "a pause leaves the held candidate",
        "scheduler_daemon.core.closing",
        '        close_candidate(planner, schedule_id, "superseded", reason)\n    after',
        "    after",
    ),
    Mutant(
        "late-is-fine",
        "what is late is admitted all the same",
        "scheduler_daemon.core.model",
        "return _span(settings.lateness_s if own is None else own)",
        "return 3 * _span(settings.lateness_s if own is None else own)",
    ),
    Mutant(
        "deserted-resent",
        "a resume whose caller went away is sent again under its key",
        "scheduler_daemon.core.reconcile",
        '_case("H", "repeat", **_LOST_RESUME, **_THERE, **_KEYED, caller_gone=False)',
        '_case("H", "repeat", **_LOST_RESUME, **_THERE, **_KEYED)',
    ),
    Mutant(
        "deserted-unasked",
        "a resume whose caller went away is given up by what was known before",
        "scheduler_daemon.core.reconcile",
        '_case("X", "inspect", **_DESERTED, finding=_UNTOLD)',
        '_case("X", "fail", **_DESERTED, finding=_UNTOLD)',
    ),
    Mutant(
        "early-effects",
        "effects leave before their intent is durable",
        "scheduler_daemon.runtime.engine",
        "        events = batch.events()\n",
        "        events = batch.events()\n"
        "        [self._perform(plan.effects.pop(0)) for plan in batch.plans for _ in list(plan.effects)]\n",
    ),
    Mutant(
        "restart-forgets",
        "a run that was executing when the process died is believed to be executing still",
        "scheduler_daemon.core.fold",
        'replace(run, phase="ambiguous", live=RunLive())',
        "replace(run, live=RunLive())",
    ),
    Mutant(
        "any-checkpoint",
        "an old checkpoint is taken for the result of a resume",
        "scheduler_daemon.core.model",
        "return status != self.status or trace_count > self.trace_count",
        "return True",
    ),
    Mutant(
        "full-forgets",
        "what was observed while the disk was full is forgotten",
        "scheduler_daemon.runtime.engine",
        "                self._withheld.append(item)\n",
        "                pass\n",
    ),
    Mutant(
        "any-server",
        "another server is taken for the one that got the request",
        "scheduler_daemon.core.model",
        "return self.url == other.url and self.store_root == other.store_root",
        "return True",
    ),
    Mutant(
        "oldest-first",
        "whoever waits with the oldest instant comes first, however lately its schedule was admitted",
        "scheduler_daemon.core.agenda",
        "return (schedule.admitted_last_at or _NEVER_ADMITTED, instant, ",
        "return (instant, instant, ",
    ),
    Mutant(
        "mark-ignored",
        "what the server announces now is believed of when the request was sent",
        "scheduler_daemon.core.reconcile",
        "keyed_at_mark=mark is not None and mark.server.keyed",
        "keyed_at_mark=True",
        rare=True,
    ),
    Mutant(
        "restart-unasked",
        "after a restart the server is said not to know a run that it was never asked for",
        "scheduler_daemon.core.reconcile",
        "        finding=_finding(run),\n",
        "        finding=_finding(run)\n"
        '        if live.lost_mono is not None or run.phase != "ambiguous" or mark is None or mark.caller_gone\n'
        '        else "unknown",\n',
        rare=True,
    ),
    Mutant(
        "hold-forgotten",
        "an unknown end does not hold overlap",
        "scheduler_daemon.core.model",
        "[hold.run_id for hold in self.holds if hold.until > at]",
        "[]",
        rare=True,
    ),
    Mutant(
        "taken-forgotten",
        "what has a row from when the clock was wrong comes again",
        "scheduler_daemon.core.model",
        "if instant not in self.taken]",
        "if instant]",
        rare=True,
    ),
    Mutant(
        "drain-admits",
        "a daemon that drains goes on admitting",
        "scheduler_daemon.core.decide",
        "if not (modes.draining or modes.full):",
        "if not modes.full:",
        rare=True,
    ),
    Mutant(
        "internal-is-refusal",
        "an internal error of the server counts as proof that nothing ran",
        "scheduler_daemon.core.observe",
        "NOT_RUN = frozenset({",
        "NOT_RUN = frozenset({-32603, ",
    ),
    Mutant(
        "before-its-instant",
        "a candidate is admitted before its instant when the clock went back",
        "scheduler_daemon.core.agenda",
        "candidate.instant > at or ",
        "",
        rare=True,
    ),
    Mutant(
        "unsent-outlives",
        "an unsent run outlives the pause that passed over it",
        "scheduler_daemon.core.observe",
        "schedule.closing.n > run.admitted_n",
        "schedule.closing.n > 10**9",
        rare=True,
    ),
)


class _Lying(SourceFileLoader):
    """Loads one module with its line changed."""

    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> object:
        source, mutant = self.get_source(fullname) or "", self._mutant
        if source.count(mutant.was) != 1:
            raise ImportError(
                f"{mutant.name}: its line stands {source.count(mutant.was)} times in {mutant.module}, not once"
            )
        return compile(source.replace(mutant.was, mutant.becomes), self.path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Lying(fullname, spec.origin, self._mutant)
        return spec


def _spinning(_number: int, _frame: object) -> None:
    raise RuntimeError(f"a seed was not done after {SEED_S_MAX:.0f} s of computing")


def hunt(mutant: Mutant, first: int, seeds: int) -> tuple[Mutant, int | None, str]:
    """The first seed that finds the mutant out, and what it says; in a process that has imported nothing yet."""
    sys.meta_path.insert(0, _Finder(mutant))
    from tests.simulation.script import play
    from tests.simulation.world import run_seed

    signal.signal(signal.SIGVTALRM, _spinning)
    for seed in range(first, first + seeds):
        signal.setitimer(signal.ITIMER_VIRTUAL, SEED_S_MAX)
        report = run_seed(seed, play)
        if report.violations:
            return mutant, seed, report.violations[0].splitlines()[0]
    return mutant, None, f"not found out by {seeds} seeds"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants")
    parser.add_argument("--only", help="this one mutant")
    parser.add_argument("--rare", action="store_true", help="also those that take many seeds to meet")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds each may take")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    chosen = [
        (one, asked.first, asked.seeds)
        for one in MUTANTS
        if asked.only == one.name or (asked.only is None and asked.rare >= one.rare)
    ]
    with get_context("fork").Pool(asked.jobs, maxtasksperchild=1) as pool:
        escaped = [_told(*found) for found in pool.imap(_hunt, chosen)]
    return any(escaped)


def _hunt(asked: tuple[Mutant, int, int]) -> tuple[Mutant, int | None, str]:
    return hunt(*asked)


def _told(mutant: Mutant, seed: int | None, said: str) -> bool:
    """Say it; True for one that escaped."""
    which = "ESCAPED" if seed is None else f"seed {seed}"
    print(f"{mutant.name:22} {which:10} {mutant.lie}\n{'':33} {said[:150]}", flush=True)
    return seed is None


if __name__ == "__main__":
    sys.exit(main())
