"""The runbook as tables, and the closed lists of the code that it must cover.

What the code keeps as data (actions, letters, codes) is imported.  Statuses and reasons of rows and the codes of diagnostics
are arguments of a few functions, so they are read off the syntax trees of `core`: a word that is passed somewhere new turns up by
itself, and an expression that cannot be read fails loudly instead of being overlooked.
"""

import ast
import re
from collections.abc import Iterable, Iterator

from tests.tidy.tree import ROOT, Source

PAGE = (ROOT / "deploy" / "RUNBOOK.md").read_text("utf-8")

# Who writes rows: where status and reason stand among the arguments. A status given as text is the only one possible.
WRITERS: dict[str, tuple[int | str, int]] = {
    "close_one": (3, 4),
    "close_due": (3, 4),
    "close_all": (3, 4),
    "close_range": (3, 4),
    "close_candidate": (2, 3),
    "close_span": ("superseded", 2),
    "end_unsent": (2, 3),
    "settle_unsent": (2, 3),
    "reject": ("preflight-rejected", 2),
    "fail": ("failed", 2),
    "_row": (1, 99),
    "_run_row": (1, 99),
}

Pair = tuple[str, str]
"""A status and a reason; the reason is empty for none."""


def tables(page: str) -> dict[str, list[list[str]]]:
    """The body rows of the table under each heading of the second level, as cells."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in page.splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif line.startswith("| ") and heading:
            found.setdefault(heading, []).append([cell.strip() for cell in line.strip("|").split(" |")])
    return {heading: rows[1:] for heading, rows in found.items()}


def word(cell: str) -> str:
    """What stands in a cell between backticks; empty for an empty cell."""
    return cell.strip("`") if cell else ""


def anchors(page: str) -> set[str]:
    """What a link to a heading of the page may name."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: str) -> set[str]:
    """Every heading that the page links to."""
    return set(re.findall(r"\]\(#([^)]*)\)", page))


# --- words that are arguments -----------------------------------------------------------------------------------------


class Unreadable(AssertionError):
    """An expression for a status or a reason that is neither a constant nor known."""


def row_pairs(sources: Iterable[Source], known: dict[str, Iterable[str]]) -> set[Pair]:
    """Each status with each reason that a call of a writer can give it.  `known` explains expressions that are no constants."""
    return {pair for source in sources for pair in _pairs_of(source, known)}


def _pairs_of(source: Source, known: dict[str, Iterable[str]]) -> Iterator[Pair]:
    for function in ast.walk(source.tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in _calls(function):
            name = _name(call.func)
            if name not in WRITERS:
                continue
            status_at, reason_at = WRITERS[name]
            status = ast.Constant(status_at) if isinstance(status_at, str) else _argument(call, status_at, "status")
            reason = _argument(call, reason_at, "reason") or ast.Constant("")
            if status is None or _is_passed_through(function, reason) or _is_passed_through(function, status):
                continue
            where = f"{source.path}:{call.lineno}"
            yield from (
                (one, other)
                for one in _texts(function, status, known, where)
                for other in _texts(function, reason, known, where)
            )


def _calls(function: ast.FunctionDef) -> Iterator[ast.Call]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Call))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    if position < len(call.args):
        return call.args[position]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _is_passed_through(function: ast.FunctionDef, node: ast.expr) -> bool:
    """Whether it is an argument of the function itself, whose callers are looked at."""
    return isinstance(node, ast.Name) and node.id in {argument.arg for argument in function.args.args}


def _texts(
    function: ast.FunctionDef, node: ast.expr, known: dict[str, Iterable[str]], where: str, depth: int = 0
) -> list[str]:
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp(body=one, orelse=other):
            return _texts(function, one, known, where, depth) + _texts(function, other, known, where, depth)
        case _ if ast.unparse(node) in known:
            return list(known[ast.unparse(node)])
        case ast.Name(id=name) if depth == 0:
            values = [
                assign.value
                for assign in ast.walk(function)
                if isinstance(assign, ast.Assign) and any(_name(target) == name for target in assign.targets)
            ]
            if values:
                return [text for value in values for text in _texts(function, value, known, where, depth + 1)]
    message = f"{where}: {ast.unparse(node)} is a status or a reason that cannot be read off; explain it in `known`"
    raise Unreadable(message)


def returned_texts(source: Source, function_name: str) -> set[str]:
    """The constants that a function returns."""
    functions = [node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef)]
    (function,) = [node for node in functions if node.name == function_name]
    returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    return {value.value for value in returns if isinstance(value, ast.Constant) and isinstance(value.value, str)}


def first_texts(sources: Iterable[Source], class_name: str) -> set[str]:
    """The constants that instances of a class are made with as their first argument."""
    return {
        call.args[0].value
        for source in sources
        for call in ast.walk(source.tree)
        if isinstance(call, ast.Call) and _name(call.func) == class_name and call.args
        if isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    }
