"""What one seed is about: which faults exist in it, and how the daemon and the server are set up.

Owns: every figure that is drawn before anything runs.
Must never know: when a fault strikes.

Each seed has some kinds of faults and lacks the others ("swarm testing"): a seed with everything never gets far enough to
meet the rare combination, one with little meets it undisturbed.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

from scheduler_daemon.core.decide import WRITTEN_MAX
from scheduler_daemon.core.model import Settings
from tests.simulation.server import KEYED, STEPS, Deployment
from tests.simulation.store import DiskFaults
from tests.simulation.wire import NetFaults

URL = "http://server/rpc"
EVENTS = (
    "step_clock",
    "suspend",
    "kill",
    "stop",
    "fill_disk",
    "steal_lock",
    "restart_server",
    "change_server",
    "replace_server",
    "partition",
    "shut_out",
    "break_deployment",
    "somebody_resumes",
    "somebody_starts",
    "forget_run",
)

FOCUS: dict[str, dict[str, int]] = {
    "everything": {},
    "starts": {"create": 40},
    "resumes": {"create": 20, "resume_run": 50, "abandon_run": 3},
    "edits": {"update": 20, "pause": 10, "resume": 15, "delete": 2},
}
"""What callers mostly do: action → weight, where it differs from the ordinary."""


@dataclass
class Plan:
    """One seed's figures.  `events` are the kinds of chaos there are, `pace_s` the mean time between two of them.

    `written_max` 0 makes a crowd of whoever is due, so that a few schedules do what else takes hundreds.
    """

    seed: int
    settings: Settings
    start_at: datetime
    fault_s: float
    schedules_max: int
    act_s: float
    pace_s: float
    poll_interval_s: float
    drain_grace_s: float
    features: tuple[str, ...]
    announces_instance: bool
    events: tuple[str, ...]
    focus: str
    down_s: float
    net: NetFaults
    disk: DiskFaults
    real_store: bool
    deployments: dict[str, Deployment] = field(default_factory=dict)
    written_max: int = WRITTEN_MAX


def draw(seed: int) -> Plan:
    """Everything follows from the seed."""
    chance = Random(f"{seed}:plan")
    keyed = chance.random() < 0.5
    steps = chance.random() < 0.4
    events = tuple(name for name in EVENTS if chance.random() < 0.3)
    pace_s = chance.choice((15.0, 30.0, 60.0))
    if chance.random() < 0.3:  # little goes wrong, but again and again
        events, pace_s = tuple(chance.sample(EVENTS, chance.randint(1, 2))), 8.0
    focus, act_s, net = chance.choice(list(FOCUS)), chance.choice((3.0, 8.0, 20.0)), _net(chance)
    if chance.random() < 0.08:  # much is kept from leaving while everything is being changed
        focus, act_s, net = "edits", 1.0, NetFaults(status=0.3, shortage=0.3, slow_refusal=1.0)
    minute = chance.randrange(0, 60 * 24 * 365)
    return Plan(
        seed=seed,
        settings=Settings(
            max_concurrent_runs=chance.choice((1, 2, 2, 4)),
            lateness_s=chance.choice((5.0, 20.0, 60.0, 60.0)),
            preflight_ttl_s=chance.choice((5.0, 30.0)),
            reconcile_grace_s=chance.choice((0.0, 5.0, 30.0)),
            server_url=URL,
        ),
        start_at=datetime(2030, 1, 1, tzinfo=UTC) + timedelta(minutes=minute, seconds=chance.uniform(0.0, 60.0)),
        fault_s=chance.choice((120.0, 240.0, 240.0, 480.0)),
        schedules_max=chance.choice((2, 4, 6, 9)),
        act_s=act_s,
        pace_s=pace_s,
        poll_interval_s=chance.choice((1.0, 5.0, 20.0)),
        drain_grace_s=chance.choice((0.0, 2.0, 20.0)),
        features=tuple(name for name, has in ((KEYED, keyed), (STEPS, steps)) if has),
        announces_instance=keyed or chance.random() < 0.5,
        events=events,
        focus=focus,
        down_s=chance.choice((1.0, 5.0, 40.0)),
        net=net,
        disk=_disk(chance),
        real_store=chance.random() < 0.25,
        deployments=_deployments(chance),
        written_max=0 if Random(f"{seed}:crowd").random() < 0.25 else WRITTEN_MAX,
    )


def _net(chance: Random) -> NetFaults:
    def rate(*most: float) -> float:
        return chance.choice(most) if chance.random() < 0.3 else 0.0

    return NetFaults(
        slow=rate(0.1, 0.5),
        slow_s_max=chance.choice((0.5, 3.0, 12.0)),
        lose_request=rate(0.02, 0.15),
        lose_reply=rate(0.02, 0.15, 0.5),
        cut=rate(0.02, 0.15),
        garbage=rate(0.02, 0.1),
        internal=rate(0.02, 0.1),
        odd=rate(0.02, 0.1),
        refuse=rate(0.02, 0.1),
        status=rate(0.02, 0.1, 0.4),
        gateway=rate(0.02, 0.1),
        shortage=rate(0.02, 0.2),
        black_hole=rate(0.02, 0.1),
        validate_fails=rate(0.1, 0.5),
    )


def _disk(chance: Random) -> DiskFaults:
    slow = chance.random() < 0.3
    crashing = chance.random() < 0.3
    return DiskFaults(
        slow=chance.choice((0.1, 0.9)) if slow else 0.0,
        slow_s_max=chance.choice((0.005, 0.1, 2.0)),
        kill_before=0.005 if crashing else 0.0,
        kill_after=0.01 if crashing else 0.0,
        failed=0.003 if chance.random() < 0.15 else 0.0,
    )


def _deployments(chance: Random) -> dict[str, Deployment]:
    spread = (0.05, chance.choice((1.0, 5.0)))
    long = (20.0, chance.choice((60.0, 200.0)))
    return {
        "quick": Deployment(spread, {"completed": 9, "failed": 1}),
        "slow": Deployment(long, {"completed": 5, "failed": 1, "exhausted": 3}),
        "ask": Deployment(spread, {"completed": 2, "interrupted": 5, "exhausted": 1}),
        "mixed": Deployment((0.05, 30.0), {"completed": 3, "failed": 2, "interrupted": 2, "exhausted": 2}),
    }
