"""What is done in one place only: reading a clock, sleeping, writing files, catching everything."""

import ast
from collections.abc import Iterator
from fnmatch import fnmatch

from tests.tidy.names import imports, references, terminal, within, word_set
from tests.tidy.tree import Finding, Source

# The embedded server stands for another process: it has a clock and files of its own. The client package cannot reach
# the daemon's clock, and its pause between two tries decides nothing about a schedule: it may sleep, but read no clock.
# The embedded server and the demo stand outside of the daemon: the one is a server of its own, the other a caller.
CLOCK_HOMES = ("scheduler_daemon/runtime/clock.py", "scheduler_daemon/embedded/*.py", "scheduler_daemon/demo.py")
SLEEP_HOMES = (*CLOCK_HOMES, "rpc_client/schedules.py")
CLOCKS = word_set("time datetime.date.today datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today")
SLEEPS = word_set("asyncio.sleep")

# The demo writes a deployments file into a scratch folder; what it writes is no state of the daemon.
WRITE_HOMES = (
    "scheduler_daemon/store/fs.py",
    "scheduler_daemon/store/lock.py",
    "scheduler_daemon/embedded/runs.py",
    "scheduler_daemon/demo.py",
    # A unix socket is a name in a folder, with a mode; nothing about it has to be durable.
    "scheduler_daemon/api/http_door.py",
)
WRITERS = word_set("shutil tempfile") | {
    f"os.{call}"
    for call in word_set(
        """
        chmod fchmod fdatasync fdopen fsync ftruncate link makedirs mkdir mkfifo open pwrite pwritev remove removedirs
        rename renames replace rmdir symlink sync truncate unlink utime write writev
        """
    )
}
# `rename`, `replace` and `touch` are left out: they are words of strings, datetimes and of this project too.
WRITING_METHODS = word_set("write_text write_bytes mkdir rmdir unlink symlink_to hardlink_to")
FILE_LAYERS = word_set("fs files disk")

# Where a task ends and an unforeseen error becomes somebody's decision: `path::qualified name`. Everywhere else an
# `except Exception` would hide which of the errors it was (style: whose fault, and what now).
TASK_BOUNDARIES = frozenset(
    {
        # One call ends here: a handler's bug is reported once and answered -32603, and its batch siblings go on.
        "scheduler_daemon/jsonrpc.py::_guarded.call",
        "scheduler_daemon/jsonrpc.py::_refusal",
        # One call to the server ends here: whatever broke, the request may have left, so the run is ambiguous.
        "scheduler_daemon/runtime/dispatcher.py::Dispatcher._carry",
        # The process ends here, with a code of its own and the trace in the log.
        "scheduler_daemon/wiring.py::serve",
        # One input ends here: it is answered or its schedule is blocked, and the batch is planned again without it.
        "scheduler_daemon/runtime/engine.py::Engine._plan",
    }
)


def clocks_are_read_in_one_place(source: Source) -> Iterator[Finding]:
    """Time is an argument: only `runtime/clock` reads a clock."""
    if _at_home(source, CLOCK_HOMES):
        return
    for line, name in _mentions(source):
        if within(name, CLOCKS):
            yield line, f"{name}: clocks are read in runtime/clock"
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func=ast.Attribute(value=receiver, attr="time"), args=[]) if "loop" in terminal(receiver):
                yield node.lineno, "loop.time(): clocks are read in runtime/clock"
            case _:
                pass


def sleep_is_asked_for_in_one_place(source: Source) -> Iterator[Finding]:
    """Only `runtime/clock` sleeps, so that a test can put a virtual clock in its place."""
    if not _at_home(source, SLEEP_HOMES):
        for line, name in _mentions(source):
            if within(name, SLEEPS):
                yield line, f"{name}: only runtime/clock sleeps"


def files_are_written_in_one_place(source: Source) -> Iterator[Finding]:
    """Only `store/fs` changes files (beside the lock and the embedded server's own): durability is argued there."""
    if _at_home(source, WRITE_HOMES):
        return
    for line, name in _mentions(source):
        if within(name, WRITERS):
            yield line, f"{name}: files are changed in store/fs"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and (what := _writes(node)):
            yield node.lineno, f"{what}: files are changed in store/fs"


def only_task_boundaries_catch_everything(source: Source) -> Iterator[Finding]:
    """`except Exception` (or wider, or suppressed) stands at the listed task boundaries; one that re-raises is free."""
    for where, node in nodes_with_owner(source.tree):
        wide = catches_everything(node)
        if wide and f"{source.path}::{where}" not in TASK_BOUNDARIES:
            yield getattr(node, "lineno", 0), f"{wide} in {where or 'the module'}, which is no listed task boundary"


def _at_home(source: Source, homes: tuple[str, ...]) -> bool:
    return any(fnmatch(source.path, home) for home in homes)


def _mentions(source: Source) -> set[tuple[int, str]]:
    return {*imports(source), *references(source)}


def _writes(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id="open"):
            mode = _mode(call, position=1)
            return f"open(…, {mode!r})" if _is_writing(mode) else ""
        case ast.Attribute(value=receiver, attr="open") if terminal(receiver) not in FILE_LAYERS:
            # Stores and sessions are opened too: only what is plainly a mode counts.
            mode = _mode(call, position=0)
            return f".open({mode!r})" if _is_writing(mode) and set(mode) <= set("rwaxbt+") else ""
        case ast.Attribute(value=receiver, attr=name) if name in WRITING_METHODS:
            return "" if terminal(receiver) in FILE_LAYERS else f".{name}()"
        case _:
            return ""


def _mode(call: ast.Call, *, position: int) -> str:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    given = [*call.args[position : position + 1], *named]
    match given:
        case [ast.Constant(value=str(mode))]:
            return mode
        case [_]:
            return "a computed mode"  # whose letters count as writing, since it may be
        case _:
            return "r"


def _is_writing(mode: str) -> bool:
    return bool(set(mode) & set("wax+"))


def nodes_with_owner(node: ast.AST, owner: str = "") -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        yield owner, child
        named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        yield from nodes_with_owner(child, f"{owner}.{child.name}".lstrip(".") if named else owner)


def catches_everything(node: ast.AST) -> str:
    match node:
        case ast.ExceptHandler(body=[*_, ast.Raise(exc=None)]):
            return ""
        case ast.ExceptHandler(type=None):
            return "bare except"
        case ast.ExceptHandler(type=kinds) if kinds and _too_wide(kinds):
            return "except Exception"
        case ast.Call(func=func, args=args) if terminal(func) == "suppress" and any(map(_too_wide, args)):
            return "suppress(Exception)"
        case _:
            return ""


def _too_wide(kinds: ast.expr) -> bool:
    listed = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
    return any(terminal(kind) in {"Exception", "BaseException"} for kind in listed)
