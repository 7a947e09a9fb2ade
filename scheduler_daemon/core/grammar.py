"""The five-field grammar, and the one spelling in which an expression reaches the calendar library.

Owns: what an operator may write, the words in which a refusal says why, and the canonical form.  Must never know: croniter, zones,
instants.

croniter's own parser cannot stand at this door.  It takes six and seven fields, `@daily`, random fields (`R`), ranges that run
backwards, and reads `5-5` as *every* value.  Even of what this grammar takes, it understands some differently from how it is
meant: whether `1-31` restricts the day of the month depends, there, on whether an asterisk occurs anywhere in the day of the week
(`0 0 1-31 * */2` is then every other weekday, while `0 0 1-31 * 0,2,4,6` is every day).  So an expression is read here, and
croniter is only ever given what cannot be misread: for each field `*`, or the plain list of its values.

Two rules follow from the canonical form and hold everywhere:

* A day field is *restricted* unless one of its items is a plain `*`.  `*/2`, `*/1` and `1-31` restrict.  Both restricted: OR.
* Minute, hour and month fields that list every value are `*`, however they were written.  For the hour that decides what
  happens in a daylight-saving gap (see `core/calendar.py`).

Fields are separated by one or more blanks; blanks around the whole are ignored.  Tabs, line breaks and everything that is not
printable ASCII are refused: an expression is shown in logs and tables.
"""

from __future__ import annotations

import re

import msgspec

EXPRESSION_CHARS_MAX = 256
"""Longest expression that is looked at.  Source: spec section 3."""


class CronRefused(ValueError):
    """The caller asked for a calendar that does not exist; `field` says where, `reason` why, in an operator's words.

    `field` is `expression`, `minute`, `hour`, `day_of_month`, `month`, `day_of_week` or `timezone`.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class Reading(msgspec.Struct, frozen=True):
    """One expression, understood: its canonical spelling and whether the two day fields match with OR."""

    canonical: str
    days_match_with_or: bool
    restricted_by_step: tuple[str, ...]
    """The day fields of an OR that only a `*/n` restricts: Vixie cron would match those with AND."""


class _Field(msgspec.Struct, frozen=True):
    """What one field may hold.  `written_max` is the largest number that may be written: 7 for the day of the week, else `high`."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    written_max: int = 0
    is_day: bool = False

    @property
    def size(self) -> int:
        return self.high - self.low + 1


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (
    _Field("minute", 0, 59, written_max=59),
    _Field("hour", 0, 23, written_max=23),
    _Field("day_of_month", 1, 31, written_max=31, is_day=True),
    _Field("month", 1, 12, _MONTHS, written_max=12),
    _Field("day_of_week", 0, 6, _WEEKDAYS, written_max=7, is_day=True),
)

_ITEM = re.compile(
    r"(?:(?P<star>\*)|(?P<low>[0-9]{1,2}|[a-z]+)(?:-(?P<high>[0-9]{1,2}|[a-z]+))?)(?:/(?P<step>[0-9]{1,2}))?",
    re.IGNORECASE,
)


def read(expression: str) -> Reading:
    """Understand `expression`, or raise `CronRefused`."""
    texts = _split(expression)
    values = [_values(field, text) for field, text in zip(_FIELDS, texts, strict=True)]
    canonical = " ".join(_spelling(field, found) for field, found in zip(_FIELDS, values, strict=True))
    days = [
        (field.name, text, found) for field, text, found in zip(_FIELDS, texts, values, strict=True) if field.is_day
    ]
    with_or = all(found is not None for _, _, found in days)
    # Vixie cron looks at the first character only: a field that begins with an asterisk does not restrict.
    by_step = tuple(name for name, text, _ in days if with_or and text.startswith("*"))
    return Reading(canonical=canonical, days_match_with_or=with_or, restricted_by_step=by_step)


def _split(expression: str) -> list[str]:
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise CronRefused("expression", f"{len(expression)} characters, at most {EXPRESSION_CHARS_MAX}")
    if not (expression.isascii() and expression.isprintable()):
        raise CronRefused("expression", "only printable ASCII: no tabs, line breaks or other special characters")
    texts = expression.split()
    if texts and texts[0].startswith("@"):
        raise CronRefused("expression", f"aliases such as {texts[0][:20]} are not taken; write the five fields")
    if len(texts) != len(_FIELDS):
        names = " ".join(field.name for field in _FIELDS)
        raise CronRefused("expression", f"exactly five fields ({names}) are needed, {len(texts)} given")
    return texts


def _values(field: _Field, text: str) -> frozenset[int] | None:
    """The values that a field lists; None when one of its items is a plain `*`, which leaves it unrestricted."""
    items = [_item(field, item) for item in text.split(",")]
    listed = [item for item in items if item is not None]
    return frozenset[int]().union(*listed) if len(listed) == len(items) else None


def _item(field: _Field, text: str) -> frozenset[int] | None:
    if not text:
        raise CronRefused(field.name, "the list has an empty item")
    found = _ITEM.fullmatch(text)
    if found is None:
        raise CronRefused(field.name, f"{text!r} is not understood: an item is *, */n, a, a-b or a-b/n")
    step = _step(field, text, found["step"])
    if found["star"]:
        return frozenset(range(field.low, field.high + 1, step)) if found["step"] else None
    if found["high"] is None:
        if found["step"]:
            raise CronRefused(field.name, f"{text!r}: a step follows * or a range, as in */5 or 1-9/2")
        return frozenset({_folded(field, _value(field, found["low"]))})
    low, high = _range(field, found["low"], found["high"])
    return frozenset(_folded(field, value) for value in range(low, high + 1, step))


def _step(field: _Field, text: str, digits: str | None) -> int:
    step = int(digits or 1)
    if not 1 <= step <= field.size:
        raise CronRefused(field.name, f"{text!r}: the step must be 1 to {field.size}")
    return step


def _range(field: _Field, low_text: str, high_text: str) -> tuple[int, int]:
    """Both ends of a range that runs upwards.  As an end `sun` is 7, as a beginning 0: both are one Sunday."""
    low, high = _value(field, low_text), _value(field, high_text)
    if high_text.lower() == "sun":
        high = 7
    text = f"{low_text}-{high_text}"
    if low == high or low_text.lower() == high_text.lower():
        raise CronRefused(field.name, f"{text!r} begins and ends with the same value; write {low_text}, or * for all")
    if low > high:
        raise CronRefused(field.name, f"{text!r} runs backwards; write {_unwound(field, low_text, high_text)}")
    return low, high


def _unwound(field: _Field, low_text: str, high_text: str) -> str:
    """The list that somebody who wrote a range across the end of the field had in mind."""
    first, last = (field.names[0], field.names[-1]) if field.names else (str(field.low), str(field.high))
    ends = ((low_text, last), (first, high_text))
    return ",".join(begin if begin.lower() == end.lower() else f"{begin}-{end}" for begin, end in ends)


def _value(field: _Field, text: str) -> int:
    if not text.isdigit():
        if text.lower() in field.names:
            return field.low + field.names.index(text.lower())
        known = f"one of {', '.join(field.names)}" if field.names else f"a number {field.low} to {field.high}"
        raise CronRefused(field.name, f"{text!r} is not {known}")
    value = int(text)
    if not field.low <= value <= field.written_max:
        raise CronRefused(field.name, f"{value} is out of range: {field.low} to {field.written_max}")
    return value


def _folded(field: _Field, value: int) -> int:
    """Sunday is written 0 or 7 and is one day."""
    return field.low if value > field.high else value


def _spelling(field: _Field, values: frozenset[int] | None) -> str:
    if values is None or (len(values) == field.size and not field.is_day):
        return "*"
    return ",".join(str(value) for value in sorted(values))
