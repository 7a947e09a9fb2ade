"""The server's run result, as the daemon keeps it.

Owns: which members of an answer are kept, and the bound on output.  Must never know: what a status leads to.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler_daemon.core.model import Result

OUTPUT_BYTES_MAX = 64 * 1024
"""How much of a run's output is kept with its outcome.  Source: spec section 6."""


class _ServerResult(msgspec.Struct, kw_only=True):
    """The members of the server's run result that are kept; the rest is not ours."""

    status: str
    run_id: str | None = None
    artifact_id: str | None = None
    artifact_version: int | None = None
    diagnostics: tuple[Any, ...] = ()
    interrupt: Any = None
    outcome: str | None = None
    error: str | None = None
    output: Any = None
    trace_count: int = 0


def result_of(answer: Any, *, of: str | None = None) -> Result | None:
    """The server's run result as we keep it; None when it cannot be read, or names another run than `of`.

    Output over 64 KiB is left out and `truncated`.
    """
    try:
        said = msgspec.convert(answer, _ServerResult)
    except msgspec.ValidationError:
        return None
    if of is not None and said.run_id not in (None, of):
        return None
    output, truncated = said.output, False
    if output and len(msgspec.json.encode(output)) > OUTPUT_BYTES_MAX:
        output, truncated = None, True
    return Result(
        status=said.status,
        server_run_id=said.run_id,
        outcome=said.outcome,
        error=said.error,
        output=output,
        truncated=truncated,
        trace_count=said.trace_count,
        interrupt=said.interrupt,
        diagnostics=said.diagnostics,
        artifact_id=said.artifact_id,
        artifact_version=said.artifact_version,
    )
