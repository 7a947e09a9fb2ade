"""Structured logs: what the daemon says, as data.

Owns: the closed list of actions and the only use of the logging libraries.  Must never know: how anything was decided.

One record is one JSON object on stderr with `ts`, `level`, `action` and fields; with `console` the same for people.  Inputs of
workflows never appear in a record.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec
import structlog

from scheduler_daemon.core.commands import LogLine
from scheduler_daemon.runtime.clock import SystemClock

ACTIONS: Final[dict[str, str]] = {
    "starting": "the daemon starts; fields tell version, store and server",
    "recovered": "the state was rebuilt from disk",
    "restore_accepted": "a restored store was accepted: the span since the copy is missed, what may have been sent is unknown",
    "torn_tail": "the journal ended in the middle of a batch that was never acknowledged; it was cut and kept in quarantine",
    "damaged": "a record on disk is damaged; the schedule it belongs to is blocked",
    "ready": "serving and scheduling",
    "server_up": "the workflow server answers and passed the checks of first contact",
    "server_down": "the workflow server cannot be reached; nothing is admitted until it can",
    "server_refused": "the workflow server answers but must not be used; the daemon stops",
    "preflight_failed": "the server did not answer about a deployment; it alone backs off",
    "schedule_created": "a schedule was created",
    "schedule_updated": "a schedule was changed",
    "schedule_paused": "a schedule was paused",
    "schedule_resumed": "a schedule was resumed",
    "schedule_deleted": "a schedule was deleted",
    "schedule_blocked": "a schedule admits nothing until an operator acts",
    "schedule_unblocked": "an operator took responsibility for a blocked schedule",
    "calendar_broken": "the calendar could not resolve a trigger",
    "schedule_fault": "deciding about one schedule failed; it is blocked, the others go on",
    "run_settled": "a run ended",
    "run_interrupted": "a run waits at an interrupt",
    "attempt_marked": "a resume is about to be sent",
    "dispatch_not_sent": "a start provably never left; it is sent again",
    "call_lost": "a request was sent, or may have been, and its outcome is not known",
    "reconcile": "a run with an open outcome was judged; `case` is the letter in the runbook",
    "reconcile_failed": "a run whose caller went away could not be judged; its mark and slot stay",
    "outcome_unknown": "a run ended without anybody knowing how; it is never started again",
    "outcome_observed": "the server showed later what became of such a run",
    "clock_stepped": "the wall clock was set",
    "storage_full": "the disk is full; new calls are refused and nothing is admitted",
    "storage_room": "the disk has room again",
    "storage_failed": "a write could not be made durable; the process stops",
    "ownership_lost": "the store is not ours any more; the process stops",
    "checkpoint": "history and a snapshot were written",
    "checkpoint_failed": "a checkpoint could not be written; the journal has everything",
    "draining": "admission has stopped, open calls may end",
    "fenced": "open calls were cut off; their marks stay for the next start to judge",
    "stopped": "the daemon stopped",
    "bug": "an error that should not exist",
}

Level = Literal["info", "warning", "error"]
_encode = msgspec.json.Encoder(enc_hook=repr).encode

_LEVELS: Final = ("debug", "info", "warning", "error")

_logger: Any = structlog.get_logger()
"""Who is told.  Any object with a method for each level will do."""


class _Stderr:
    """Stderr, which may be a file on the full disk that is to be reported, or a pipe that nobody reads any more.

    A record that cannot be written is lost: an error here would end the daemon that goes on without room on purpose.  Nothing is
    buffered, since what a buffer still held at the end would turn the exit code into 120, and service managers go by that code.
    """

    def write(self, text: str | bytes) -> None:
        left = text.encode(errors="replace") if isinstance(text, str) else text
        buffer = getattr(sys.stderr, "buffer", None)
        if buffer is None:  # somebody put a stream of another sort in its place
            sys.stderr.write(left.decode())
            return
        raw = getattr(buffer, "raw", buffer)
        with suppress(OSError):
            while left:
                left = left[raw.write(left) or len(left) :]

    def flush(self) -> None:
        """Nothing is held back."""


class _Lines:
    """Records as JSON lines.  A chain of processors would take longer than the work of the line that a burst says ten thousand times."""

    def __init__(self, least: str) -> None:
        self._out = _Stderr()
        self._clock = SystemClock()
        self._wanted = frozenset(_LEVELS[_LEVELS.index(least) :])

    def info(self, action: str, **fields: Any) -> None:
        self.say((("info", action, fields),))

    def warning(self, action: str, **fields: Any) -> None:
        self.say((("warning", action, fields),))

    def error(self, action: str, **fields: Any) -> None:
        self.say((("error", action, fields),))

    def say(self, said: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
        """Write what is important enough, in one go."""
        records = [self._record(*one) for one in said if one[0] in self._wanted]
        if records:
            self._out.write(b"".join(records))

    def _record(self, level: str, action: str, fields: dict[str, Any]) -> bytes:
        if "exc_info" in fields:
            fields = dict(structlog.processors.format_exc_info(self, level, fields))
        ts = self._clock.now().at.replace(tzinfo=None).isoformat() + "Z"
        return _encode({"ts": ts, "level": level, "action": action, **fields}) + b"\n"


def configure(log_format: str, level: str = "info") -> None:
    """Send records to stderr, as JSON lines (`json`) or for people (`console`)."""
    global _logger  # noqa: PLW0603  the one place that says where records go
    if log_format == "json":
        _logger = _Lines(level)
        return
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper("iso", key="ts"),
            _headed,
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(event_key="action", colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(_Stderr()),  # pyright: ignore[reportArgumentType]
        cache_logger_on_first_use=True,
    )
    _logger = structlog.get_logger()


def _headed(_logger: Any, level: str, record: MutableMapping[str, Any]) -> dict[str, Any]:
    """When, how grave and what come first, whatever else a record says."""
    return {"ts": record.pop("ts"), "level": level, "action": record.pop("event"), **record}


def log(action: str, level: Level = "info", **fields: Any) -> None:
    """Say one thing.  An action that is not listed is a mistake of ours, and says so."""
    if action not in ACTIONS:
        fields, action, level = {**fields, "unlisted": action}, "bug", "error"
    getattr(_logger, level)(action, **fields)


def log_all(lines: Sequence[LogLine]) -> None:
    """Say what the core has to say about one batch; as JSON in one write."""
    if isinstance(_logger, _Lines) and all(line.action in ACTIONS for line in lines):
        _logger.say((line.level, line.action, line.fields) for line in lines)
        return
    for line in lines:
        log(line.action, line.level, **line.fields)
