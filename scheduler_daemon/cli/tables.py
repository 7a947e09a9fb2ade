"""Tables and times for people.

Owns: how rows become aligned text.  Must never know: what is in them.  Everything shown came from elsewhere at some time, so nothing
unprintable reaches the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Left-aligned columns, two blanks apart, under their heads."""
    cells = [[printable(head) for head in heads], *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def printable(value: Any) -> str:
    """The value on one line: nothing is a dash, true and false are yes and no, what is nested is JSON."""
    match value:
        case None | () | []:
            text = "-"
        case bool():
            text = "yes" if value else "no"
        case dict() | list():
            text = msgspec.json.encode(value).decode() if value else "-"
        case _:
            text = str(value)
    return "".join(letter if letter.isprintable() else "?" for letter in text)
