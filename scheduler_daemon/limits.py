"""How much of anything a caller or an operator may ask for.

Owns: the bounds of the JSON-RPC face, and the ranges that settings must lie in.  Must never know: what is bounded by them.  A leaf.
Bounds of decisions live with the decisions in `core`, bounds of files with the store.
"""

from __future__ import annotations

from typing import Final

# --- HTTP -------------------------------------------------------------------------------------------------------------

BODY_BYTES_MAX: Final = 1 << 20
"""Largest request body."""

BODY_READ_S: Final = 10.0
"""How long a body may take to arrive: a caller on the same machine needs milliseconds."""

HEAD_READ_S: Final = 15.0
"""How long a connection may be kept open without a complete request head, before the first one and between two."""

CONNECTIONS_MAX: Final = 128
"""Open connections.  Beyond it the one that has been idle for longest is closed, never one whose call is being carried out."""

CALLS_MAX: Final = 120
"""Calls carried out at once.  Less than CONNECTIONS_MAX, so that there always is an idle connection to give up."""

HEADERS_MAX: Final = 64
HEADER_BYTES_MAX: Final = 4096
LINE_BYTES_MAX: Final = 2048

LINGER_S: Final = 2.0
"""How long the rest of a refused body is still read, so that the refusal arrives before the connection is reset."""

STOP_S: Final = 2.0
"""How long calls get to end by themselves when the face is taken down; the drain was before."""

BACKLOG: Final = 512
"""Connections that the kernel holds until they are accepted."""

# --- params -----------------------------------------------------------------------------------------------------------

NOTE_CHARS_MAX: Final = 1000
RUN_ID_CHARS_MAX: Final = 256
OUTCOME_CHARS_MAX: Final = 256
FILTER_CHARS_MAX: Final = 256
CURSOR_CHARS_MAX: Final = 1024
INTEGER_MAX: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly."""

SCHEDULES_PAGE: Final = 100
SCHEDULES_PAGE_MAX: Final = 1000
OCCURRENCES_PAGE: Final = 50
OCCURRENCES_PAGE_MAX: Final = 100

# --- settings ---------------------------------------------------------------------------------------------------------

CONFIG_BYTES_MAX: Final = 1 << 20
TOKEN_BYTES_MAX: Final = 2048
"""A token travels in one header line, with the word Bearer before it."""

POLL_S: Final = (0.05, 60.0)
RUNS_AT_ONCE: Final = (1, 10_000)
DRAIN_S: Final = (0.0, 86_400.0)
LATENESS_S: Final = (1.0, 86_400.0)
PREFLIGHT_TTL_S: Final = (3.0, 3600.0)
"""More than the 2 s by which an answer is fetched ahead of its instant: it would be stale when it is needed."""
RECONCILE_GRACE_S: Final = (0.0, 86_400.0)
RETENTION_ROWS: Final = (10, 1_000_000)
RETENTION_DAYS: Final = (1, 36_500)
RETENTION_BYTES: Final = (1 << 16, 1 << 40)

NEXT_COUNT_MAX: Final = 1000
"""Instants that `scheduler-daemon next` lists."""
