"""The command line: `scheduler-daemon`, for the service manager and for people."""

from scheduler_daemon.cli.root import main

__all__ = ["main"]
