"""A durable scheduler daemon for workflow servers: `__version__`, and nothing else."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__: str = version("scheduler-daemon")
except PackageNotFoundError:
    # Run from a bare tree, without an installation: say so instead of inventing a number.
    __version__ = "0+uninstalled"

__all__ = ["__version__"]
