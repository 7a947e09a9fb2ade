"""How large things get and what each module says first."""

import ast
from collections.abc import Iterator

from tests.tidy.tree import Finding, Source

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
HEAD_LINES_MIN = 2


def files_stay_small(source: Source) -> Iterator[Finding]:
    """A file that outgrows this has taken on a second subject."""
    lines = source.text.count("\n")
    if lines > FILE_LINES_MAX:
        yield lines, f"{lines} lines, at most {FILE_LINES_MAX}"


def functions_stay_small(source: Source) -> Iterator[Finding]:
    """A function that outgrows this decides and does at once."""
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"


def modules_say_what_they_own(source: Source) -> Iterator[Finding]:
    """A module's head says what it owns and must never know; that takes more than a title."""
    head = ast.get_docstring(source.tree) or ""
    said = [line for line in head.splitlines() if line.strip()]
    wanted = 1 if source.path.endswith("/__init__.py") else HEAD_LINES_MIN
    if len(said) < wanted:
        yield 1, f"its head has {len(said)} lines of text, at least {wanted}"
