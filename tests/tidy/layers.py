"""Who may import whom, and which library has which one home.

The direction is wiring → api → runtime → store → core; what stands on top (cli, demo, wiring) may see everything, and
`embedded` and `rpc_client` see nothing of the layers, so that the one could be replaced by a real workflow server and
the other be used without the daemon.

One deliberate departure from the first design, which gave jsonrpcserver to `api` and to `embedded`: both need the same
hardened call of its dispatcher (explicit validator, serializer and batch bound), so that lives once, in the leaf
`scheduler_daemon/jsonrpc.py`, and only the leaf imports the library.
"""

import ast
from collections.abc import Iterator
from fnmatch import fnmatch

from tests.tidy.names import imports, references, within, word_set
from tests.tidy.tree import Finding, Source

ON_TOP = frozenset({"wiring", "cli", "demo", "__main__"})
LEAVES = frozenset({"errors", "limits"})
MAY_IMPORT: dict[str, frozenset[str]] = {
    "core": LEAVES,
    "store": LEAVES | {"core"},
    "runtime": LEAVES | {"core", "store", "rpc_client"},
    "api": LEAVES | {"core", "store", "runtime", "jsonrpc"},
    "embedded": LEAVES | {"jsonrpc"},
    "config": LEAVES | {"core"},
    "jsonrpc": LEAVES,
    "errors": frozenset(),
    "limits": frozenset(),
    "rpc_client": frozenset(),
    "scheduler_daemon": frozenset(),
}

# Library → the files that may import it. A shell pattern stands for a module that was split.
HOMES: dict[str, tuple[str, ...]] = {
    "croniter": ("scheduler_daemon/core/calendar.py",),
    # The embedded server checks inputs as a real one does, on its own side of the wire, and cannot see core.
    "jsonschema": ("scheduler_daemon/core/bindings.py", "scheduler_daemon/embedded/schemas.py"),
    "referencing": ("scheduler_daemon/core/bindings.py", "scheduler_daemon/embedded/schemas.py"),
    "filelock": ("scheduler_daemon/store/lock.py",),
    "aiohttp": (
        "scheduler_daemon/api/http.py",
        "scheduler_daemon/api/http_*.py",
        "scheduler_daemon/embedded/server.py",
        "rpc_client/exchange.py",
    ),
    "jsonrpcserver": ("scheduler_daemon/jsonrpc.py",),
    "structlog": ("scheduler_daemon/runtime/logs.py",),
    "logging": ("scheduler_daemon/runtime/logs.py",),
    "click": ("scheduler_daemon/cli.py", "scheduler_daemon/cli_*.py", "scheduler_daemon/cli/*.py"),
}

# The part of the standard library that computes and does nothing else. zoneinfo reads its tables once, as data.
PURE = word_set(
    """
    __future__ abc base64 binascii bisect collections copy dataclasses datetime decimal difflib enum fractions functools
    hashlib heapq itertools json math numbers operator re string textwrap types typing zlib zoneinfo
    msgspec scheduler_daemon
    """
)
# The version of croniter is stored with the state, and the installation's record is the only honest source of it.
PURE_ENOUGH = frozenset({("scheduler_daemon/core/calendar.py", "importlib.metadata.version")})
IMPURE_BUILTINS = word_set("open print input eval exec compile __import__ breakpoint")


def layer(module: str) -> str:
    """The name of the layer that a dotted module name lies in, or the first part of a stranger's name."""
    package, _, rest = module.partition(".")
    if package != "scheduler_daemon" or not rest or rest.startswith("__version__"):
        return package
    top = rest.partition(".")[0]
    return "cli" if top.startswith("cli_") else top


def imports_point_downwards(source: Source) -> Iterator[Finding]:
    """No module imports a layer above its own, and only those on top import everything."""
    own = layer(source.module)
    if own in ON_TOP:
        return
    if own not in MAY_IMPORT:
        yield 1, f"{own} has no place among the layers: give it one in tests/tidy/layers.py"
        return
    for line, name in imports(source):
        other = layer(name)
        ours = name.partition(".")[0] in {"scheduler_daemon", "rpc_client", "tests"}
        if ours and other not in {own, "scheduler_daemon"} | MAY_IMPORT[own]:
            yield line, f"{own} imports {name}; it may import only {', '.join(sorted(MAY_IMPORT[own])) or 'itself'}"


def client_knows_no_daemon(source: Source) -> Iterator[Finding]:
    """`rpc_client` can be installed and used alone: not even a leaf of the daemon is imported."""
    if source.path.startswith("rpc_client/"):
        for line, name in imports(source):
            if within(name, frozenset({"scheduler_daemon"})):
                yield line, f"rpc_client imports {name} of the daemon"


def libraries_stay_at_home(source: Source) -> Iterator[Finding]:
    """Each library with a home is imported there and nowhere else."""
    for line, name in imports(source):
        library = name.partition(".")[0]
        homes = HOMES.get(library)
        if homes and not any(fnmatch(source.path, home) for home in homes):
            yield line, f"{library} is imported outside its home, {' or '.join(homes)}"


def core_is_pure(source: Source) -> Iterator[Finding]:
    """core computes: no I/O, clock, randomness, logging, threads or coroutines."""
    if layer(source.module) != "core":
        return
    for line, name in imports(source):
        library = name.partition(".")[0]
        at_home = any(fnmatch(source.path, home) for home in HOMES.get(library, ()))
        if library not in PURE and not at_home and (source.path, name) not in PURE_ENOUGH:
            yield line, f"core imports {library}, which can do more than compute"
    yield from _impure_constructs(source)


def nothing_is_imported_by_a_string(source: Source) -> Iterator[Finding]:
    """An import that only exists at run time would pass every other rule here."""
    for line, name in references(source):
        if within(name, frozenset({"importlib.import_module", "importlib.util", "runpy"})):
            yield line, f"{name} hides an import from these rules"


def _impure_constructs(source: Source) -> Iterator[Finding]:
    for node in ast.walk(source.tree):
        match node:
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield node.lineno, "core has a coroutine"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                yield node.lineno, f"core calls {name}()"
            case _:
                pass
