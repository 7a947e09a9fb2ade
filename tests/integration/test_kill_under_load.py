"""`kill -9` of the daemon, of the server and of both, at random moments under load: what the server executed and what the daemon says.

`KILLS` is how often each test kills (8 in `make test`; 200 was the number asked for), `KILL_SEED` replays the load.  No occurrence
may have been executed twice, each has exactly one final row or is unfinished, and what nobody can know is disclosed: at a server
with `idempotent-start` there is no such thing.
"""

import os

import pytest

from tests.integration.load import Load, Victim

KILLS = int(os.environ.get("KILLS", "8"))
SEED = os.environ.get("KILL_SEED", "1")

CASES = [
    pytest.param("daemon", False, id="daemon-plain"),
    pytest.param("server", True, id="server-keyed"),
    pytest.param("both", False, id="both-plain"),
    pytest.param("daemon", True, id="daemon-keyed", marks=pytest.mark.long),
    pytest.param("server", False, id="server-plain", marks=pytest.mark.long),
    pytest.param("both", True, id="both-keyed", marks=pytest.mark.long),
]


# A server that is killed while a connection is being accepted leaves a socket behind that nobody was handed; a process would not.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(300 + 20 * KILLS)
@pytest.mark.parametrize(("victim", "keyed"), CASES)
async def test_nothing_is_executed_twice_and_every_doubt_is_disclosed(tmp_path, victim: Victim, keyed):
    async with Load(tmp_path, keyed=keyed, seed=f"{SEED} {victim} {keyed}") as load:
        for _ in range(KILLS):
            await load.kill(victim)
        wrong = await load.checked()
        print(f"\n{victim} killed, {'keyed' if keyed else 'plain'} server, seed {SEED}: {KILLS} kills")
        print("\n".join(f"  {count:6} {what}" for what, count in sorted(load.counts.items())))
        print(f"  {len(load.fake.execution_log):6} executions begun at the server")
        assert wrong == []
