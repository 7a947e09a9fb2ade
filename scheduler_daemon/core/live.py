"""What this process has found out and will have to find out again.

Owns: the view of the workflow server, and what it said about each deployment.  Must never know: anything durable.  A restart empties
it, and nothing that is written down is ever derived from it alone.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from scheduler_daemon.core.model import Json, ServerFacts


class ServerView(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is known of the workflow server in this process's life.

    `up` needs a health answer and the checks of first contact; `refusal` is why admission stays off although it answers
    (it has connection sources, a scheduler of its own).  `seen_mono` is the last health answer.  `probe_seq` is the open question,
    one of first contact if `probe_first`.
    """

    up: bool = False
    facts: ServerFacts | None = None
    refusal: str | None = None
    reason: str = "not contacted yet"
    seen_mono: float | None = None
    probe_seq: int | None = None
    probe_first: bool = False
    probe_mono: float = 0.0
    tries: int = 0


class Answer(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The shared preflight answer of one deployment: fresh until `until_mono`, judged at `answered_at`.

    `diagnostics` is None while nothing was answered yet, empty when runnable.  `ask_seq` is the open question.
    """

    deployment_id: str
    diagnostics: tuple[Json, ...] | None = None
    answered_at: datetime | None = None
    until_mono: float = 0.0
    artifact_id: str | None = None
    artifact_version: int | None = None
    input_schema: dict[str, Json] | None = None
    ask_seq: int | None = None
    retry_mono: float = 0.0
    tries: int = 0
