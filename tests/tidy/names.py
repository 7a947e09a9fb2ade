"""What a source file refers to, by full name, whatever it calls it locally.

`import datetime as dt; dt.datetime.now()` and `from datetime import datetime as D; D.now()` are both reported as
`datetime.datetime.now`. Shadowing is not followed: a local variable that takes an imported name counts as the import,
which errs on the side of a finding.
"""

import ast
from collections.abc import Iterator

from tests.tidy.tree import Source

Reference = tuple[int, str]


def imports(source: Source) -> Iterator[Reference]:
    """Each import with its line: `a.b` for `import a.b`, `a.b.c` for `from a.b import c`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{_origin(source, node)}.{alias.name}") for alias in node.names)


def references(source: Source) -> Iterator[Reference]:
    """Each use of an imported name with its line, as the longest dotted name that the source spells out."""
    known = _bound_names(source)
    pending: list[ast.AST] = [source.tree]
    while pending:
        node = pending.pop()
        name = _dotted(node, known)
        if name is None:
            pending.extend(ast.iter_child_nodes(node))
        else:
            yield getattr(node, "lineno", 0), name


def word_set(text: str) -> frozenset[str]:
    """The words of a text as a set, so that a long list reads as one."""
    return frozenset(text.split())


def within(name: str, prefixes: frozenset[str]) -> bool:
    """Whether the dotted name is one of the prefixes or lies below one of them."""
    parts = name.split(".")
    return any(".".join(parts[:end]) in prefixes for end in range(1, len(parts) + 1))


def terminal(node: ast.AST) -> str:
    """The last name of an expression, without leading underscores: `fs` for `self._fs`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lstrip("_")
        case ast.Call(func=func):
            return terminal(func)
        case _:
            return ""


def _origin(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    base = source.package.split(".")
    return ".".join([*base[: len(base) - node.level + 1], *([node.module] if node.module else [])])


def _bound_names(source: Source) -> dict[str, str]:
    known: dict[str, str] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                known[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                known[alias.asname or alias.name] = f"{_origin(source, node)}.{alias.name}"
    return known


def _dotted(node: ast.AST, known: dict[str, str]) -> str | None:
    match node:
        case ast.Name(id=name):
            return known.get(name)
        case ast.Attribute(value=value, attr=attr):
            base = _dotted(value, known)
            return f"{base}.{attr}" if base else None
        case _:
            return None
