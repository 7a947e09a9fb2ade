"""The register command of the peer harness: `python -m tests.benchmarks.register register spec.json`.

It starts the daemon on the store of the run, creates every schedule of the spec with `rpc_client.App`, stops the daemon and prints
`RESULT {"n": …, "seconds": …}`.  Only creates that were answered count, and an answer comes after the schedule is durable.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

from tests.benchmarks.adapter import READY_EVERY_S, answers, serve_argv
from tests.benchmarks.calls import create_singly

CONNECTIONS = int(os.environ.get("REG_CONC", "32"))
READY_S = 60.0


def definition(k: str, kind: str, value, due) -> dict:
    """What `App.create_schedule` is given for one item of the spec."""
    match kind:
        case "cron5":
            trigger = {"kind": "cron", "expression": value, "timezone": "UTC"}
        case "at":
            trigger = {"kind": "oneshot", "at": datetime.fromtimestamp(value, UTC).isoformat()}
        case _:
            raise SystemExit(f"the daemon has no trigger like {kind}")
    return {
        "schedule_id": k,
        "deployment_id": "hello.default",
        "trigger": trigger,
        "input": {"k": {"value": k}, "due": {"value": due}},
    }


def main() -> None:
    from peers import common  # the harness's, on its PYTHONPATH

    spec = common.load()
    port = spec["infra"]["port"]
    daemon = subprocess.Popen(serve_argv(spec, python=sys.executable), stdout=sys.stderr)
    try:
        end = time.monotonic() + READY_S
        while not answers(port):
            if daemon.poll() is not None or time.monotonic() > end:
                raise SystemExit("the daemon did not get ready")
            time.sleep(READY_EVERY_S)
        definitions = [definition(*item) for item in common.items(spec)]
        n, seconds = asyncio.run(create_singly(f"http://127.0.0.1:{port}/rpc", definitions, CONNECTIONS))
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()
    print("RESULT " + json.dumps({"n": n, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
