"""How this process ends, and what is raised when it cannot begin.

Owns: the exit codes with their meanings, and the exceptions that end a command.  Must never know: why anything was refused; the text
comes from whoever refuses.  A leaf.

The codes are those of sysexits.h where it has one, since service managers and people look them up there.  A service manager
should restart after all of them but 75 and 78, which do not go away by trying again.
"""

from __future__ import annotations

from typing import Any, Final

EXIT_OK: Final = 0
EXIT_REJECTED: Final = 1
EXIT_USAGE: Final = 2
EXIT_AMBIGUOUS: Final = 3
EXIT_UNAVAILABLE: Final = 69
EXIT_BUG: Final = 70
EXIT_STORAGE_FAILED: Final = 74
EXIT_HELD: Final = 75
EXIT_OWNERSHIP_LOST: Final = 76
EXIT_UNUSABLE: Final = 78

EXIT_MEANINGS: Final[dict[int, str]] = {
    EXIT_OK: "done; for serve: stopped in order",
    EXIT_REJECTED: "the request is at fault and nothing was done; the message says what to change",
    EXIT_USAGE: "the command line is at fault",
    EXIT_AMBIGUOUS: "the outcome is not known: look first, do not just repeat",
    EXIT_UNAVAILABLE: "nothing was done, because somebody did not answer; the same may succeed later",
    EXIT_BUG: "an error that should not exist",
    EXIT_STORAGE_FAILED: "a write could not be made durable; a restart reads what is really on disk",
    EXIT_HELD: "another daemon owns the store; it was not disturbed",
    EXIT_OWNERSHIP_LOST: "the store was taken away while the daemon ran; a restart finds out who has it",
    EXIT_UNUSABLE: "the configuration, an address to listen on, the store or the workflow server cannot be used as it is",
}


class ConfigRefused(Exception):
    """A setting that cannot stand; `key` names it as the operator wrote it, `reason` says what to do."""

    def __init__(self, reason: str, key: str | None = None) -> None:
        super().__init__(reason if key is None else f"{key}: {reason}")
        self.reason = reason
        self.key = key


class ServerRefused(Exception):
    """The workflow server's own error to a call that was only passed on: it goes to the caller as it came."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.message = message
        self.data = data
