"""What an operator may do with a store from outside: check it, copy it, put a copy back.

Owns: nothing but the names.  `verify` reads, `backup` reads and writes elsewhere, and both may do so while a daemon writes; `restore` wants
a place without a store.
"""

from scheduler_daemon.store.backup import Copied, backup, restore
from scheduler_daemon.store.verify import Problem, Report, verify

__all__ = ["Copied", "Problem", "Report", "backup", "restore", "verify"]
