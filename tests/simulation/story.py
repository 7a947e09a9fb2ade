"""A seed told line by line.

Owns: how each thing that is noted looks on one line.
Must never know: why it happened.
"""

from datetime import datetime
from typing import Any

import msgspec

from tests.simulation.daemon import Answer
from tests.simulation.server import Execution
from tests.simulation.wire import Call

_LEFT_OUT = (
    "kind",
    "at",
    "n",
    "number",
    "key",
    "input",
    "detail",
    "deployment_id",
    "artifact_id",
    "artifact_version",
    "interrupt",
    "revision",
)


def line(mono_s: float, at: datetime, more: tuple[Any, ...]) -> str:
    """Monotonic seconds since the beginning, the wall clock, and what happened."""
    return f"{mono_s - 1000.0:11.4f}  {at:%d %H:%M:%S}  {' '.join(_one(one) for one in more)}"


def _one(value: Any) -> str:
    match value:
        case datetime():
            return f"{value:%d_%H:%M:%S}"
        case msgspec.Struct():
            said = {name: getattr(value, name) for name in value.__struct_fields__ if name not in _LEFT_OUT}
            given = [f"{name}={_one(one)}" for name, one in said.items() if one not in (None, False, (), {}, 0)]
            return f"{type(value).__name__}({' '.join(given)})"
        case Call():
            return f"{value.method} {value.key} fate={value.mangle or 'none'}"
        case Execution():
            return f"{value.kind} {value.key} of {value.deployment_id}"
        case Answer():
            return f"→ {value}"
        case tuple():
            return f"({' '.join(_one(one) for one in value)})"
        case dict():
            return " ".join(f"{name}={_one(one)}" for name, one in value.items())
        case _:
            return str(value)
