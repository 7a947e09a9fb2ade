"""Which words the code uses: the glossary (spec section 2), names of times, and what no project file may contain.

Only what a file *defines* is judged: names of functions, classes, parameters, variables and fields. What it calls may
come from a library with words of its own. The glossary's "not" column has words that are also ordinary programming
(task, rule, cursor, close, fire, retry, restore); those are left to the reviewer.
"""

import ast
import re
from collections.abc import Iterator

from tests.tidy.tree import Finding, Source

# Forbidden → the word to use. Keys are whole words of an identifier, or several in a row.
GLOSSARY: dict[str, str] = {
    "job": "schedule, or run",
    "jobs": "schedules, or runs",
    "cronjob": "schedule",
    "cron_job": "schedule",
    "fire_time": "instant",
    "timestamp": "instant, or a name ending in _at",
    "firing": "occurrence",
    "firings": "occurrences",
    "queue_item": "candidate",
    "enqueue": "admit",
    "enqueued": "admitted",
    "launch": "dispatch",
    "launched": "dispatched",
    "retry_count": "attempt",
    "zombie": "ambiguous",
    "worker": "slot",
    "workers": "slots",
}

# The embedded server starts processes, and a process is launched; it knows no dispatch.
FREE_WHEN_EMBEDDED = frozenset({"launch", "launched"})

INSTANT_WORDS = frozenset({"now", "at", "instant", "after", "before", "since", "until", "watermark"})
INSTANT_ENDINGS = ("_at", "_until", "_instant", "_watermark")
UNIT_ENDINGS = {"_sec": "_s", "_secs": "_s", "_seconds": "_s", "_ts": "_at", "_timestamp": "_at"}

# Written so that this file does not contain what it looks for.
UNFINISHED = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w.<>/-])/(?:work|root|home)(?![\w.-])")
REGISTRIES = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("registry", "npmjs", "org"),
            ("deb", "debian", "org"),
            ("security", "debian", "org"),
        )
    )
)


def defined_names(source: Source) -> Iterator[Finding]:
    """Each name that the file gives to something, with its line."""
    for node in ast.walk(source.tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case _:
                pass


def words_of(name: str) -> str:
    """The identifier as lower-case words between underscores: `_job_count_` for `JobCount`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return f"_{spaced.strip('_').lower()}_"


def glossary_is_kept(source: Source) -> Iterator[Finding]:
    """One word for one thing, everywhere."""
    free = FREE_WHEN_EMBEDDED if source.path.startswith("scheduler_daemon/embedded/") else frozenset[str]()
    for line, name in defined_names(source):
        for wrong, right in GLOSSARY.items():
            if wrong not in free and f"_{wrong}_" in words_of(name):
                yield line, f"{name} says {wrong}; the word is {right}"


def units_are_in_the_name(source: Source) -> Iterator[Finding]:
    """Durations end in `_s`, instants in `_at`; no other ending says the same."""
    for line, name in defined_names(source):
        for wrong, right in UNIT_ENDINGS.items():
            if name.lower().endswith(wrong):
                yield line, f"{name} ends in {wrong}; the ending is {right}"


def instants_are_named_as_such(source: Source) -> Iterator[Finding]:
    """A parameter or field that is a datetime says so: `_at`, `_until`, or a word for an instant."""
    for line, name, annotation in _annotated(source):
        plain = name.lstrip("_")
        if _is_datetime(annotation) and plain not in INSTANT_WORDS and not plain.endswith(INSTANT_ENDINGS):
            yield line, f"{name} is a datetime; end it in _at or _until, or call it an instant"


def text_is_finished(source: Source) -> Iterator[Finding]:
    """No note to self is left behind: what is missing stands in an issue."""
    yield from _matches(source, UNFINISHED, "is a note to self")


def text_names_no_machine(source: Source) -> Iterator[Finding]:
    """No path of the machine that it was written on."""
    yield from _matches(source, MACHINE_PATH, "is a path of one machine")


def text_names_no_registry(source: Source) -> Iterator[Finding]:
    """No package registry's host: which one is asked is the reader's own setting."""
    yield from _matches(source, REGISTRIES, "is a package registry's host")


def _matches(source: Source, pattern: re.Pattern[str], what: str) -> Iterator[Finding]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if found := pattern.search(line):
            yield number, f"{found[0]} {what}"


def _annotated(source: Source) -> Iterator[tuple[int, str, ast.expr]]:
    for node in ast.walk(source.tree):
        match node:
            case ast.arg(arg=name, annotation=ast.expr() as annotation):
                yield node.lineno, name, annotation
            case ast.ClassDef(body=body):
                for field in body:
                    match field:
                        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                            yield field.lineno, name, annotation
                        case _:
                            pass
            case _:
                pass


def _is_datetime(annotation: ast.expr) -> bool:
    match annotation:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lower().endswith("datetime")
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_datetime(left) or _is_datetime(right)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[first, *_])):
            return _is_datetime(first)
        case ast.Constant(value=str(text)):
            return _is_datetime(ast.parse(text, mode="eval").body)
        case _:
            return False
