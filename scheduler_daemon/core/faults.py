"""What one schedule can do wrong without stopping the others.

Owns: the list of errors that count as the fault of the schedule being looked at.  They come out of its calendar, its bindings and its
own records, all of which hold what a caller once wrote.  Must never know: what is done about it; `closing.block` stops that schedule.

Anything else is a fault of ours, concerns every schedule alike, and is not caught in the core.
"""

from __future__ import annotations

from typing import Final

from scheduler_daemon.core.calendar import CalendarBroken
from scheduler_daemon.core.lifecycle import Contradiction

SCHEDULE_FAULTS: Final = (
    CalendarBroken,
    Contradiction,
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    RecursionError,
)


def code_of(fault: Exception) -> str:
    """The code of the diagnostic that an operator finds."""
    match fault:
        case CalendarBroken():
            return "calendar-broken"
        case Contradiction():
            return "contradiction"
        case _:
            return "schedule-fault"
