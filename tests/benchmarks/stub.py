"""A workflow server that does nothing, as fast as it can, and remembers when each start arrived.

`python -m tests.benchmarks.stub PORT` serves the methods that the daemon asks for, in the recorded shapes.  It announces no feature, so
the daemon must treat it as a plain server.  Beside `POST /rpc`:

  GET /arrivals   [[arrived_at, k, due], …], `k` and `due` as the workflow input carried them
  GET /stats      {"count": starts, "unique": distinct (k, due)}
  GET /reset      forgets them

Owns: the recording.  Must never know: who calls, when a start was due.
"""

import asyncio
import sys
import time

import msgspec
from aiohttp import web

_JSON = {"Content-Type": "application/json"}
_ARTIFACT = {"artifact_id": "bench", "artifact_version": 1, "diagnostics": [], "next_actions": {}}
_READS = {
    "workflow.health": {"status": "ok", "store_root": "/nonexistent/bench"},
    "workflow.sources.list": {"sources": [], "total": 0, "next_cursor": None},
    "workflow.deployments.inspect": {
        "id": "bench", "artifact_id": "bench", "artifact_version": 1, "bindings": [], "drift_policy": "block"
    },
    "workflow.deployments.validate": {**_ARTIFACT, "deployment_id": "bench", "status": "runnable"},
    "workflow.artifacts.inspect": {"id": "bench", "version": 1, "input_schema": {"type": "object"}},
}  # fmt: skip


class Stub:
    def __init__(self) -> None:
        self.arrivals: list[tuple[float, str | None, str | float | None]] = []
        self.seen: set[tuple[str | None, str | float | None]] = set()

    def answer(self, call: dict) -> dict:
        method, given = call["method"], call.get("params") or {}
        if method in _READS:
            return {"jsonrpc": "2.0", "id": call["id"], "result": _READS[method]}
        if method != "workflow.runs.start":
            return {"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32601, "message": "Method not found"}}
        told = given.get("workflow_input", {})
        k, due = told.get("k"), told.get("due")
        self.arrivals.append((time.time(), k, due))
        self.seen.add((k, due))
        result = {
            **_ARTIFACT,
            "deployment_id": given["deployment_id"],
            "status": "completed",
            "run_id": f"run_{len(self.arrivals):032x}",
            "resume_readiness": "not_applicable",
            "interrupt": None,
            "outcome": "ok",
            "error": None,
            "output": {},
            "trace_count": 1,
        }
        return {"jsonrpc": "2.0", "id": call["id"], "result": result}

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST":
            call = msgspec.json.decode(await request.read())
            return web.Response(body=msgspec.json.encode(self.answer(call)), headers=_JSON)
        told: object = self.arrivals
        if request.path == "/stats":
            told = {"count": len(self.arrivals), "unique": len(self.seen)}
        elif request.path == "/reset":
            self.arrivals.clear()
            self.seen.clear()
        return web.Response(body=msgspec.json.encode(told), headers=_JSON)


async def serve(port: int) -> None:
    runner = web.ServerRunner(web.Server(Stub().handle, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    print("READY", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
