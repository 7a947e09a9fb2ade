"""The daemon's settings: which there are, where each value comes from, and which combinations cannot stand.

Owns: the order of the sources and the refusals.  Must never know: what a setting is used for.
"""

from scheduler_daemon.config.loading import load
from scheduler_daemon.config.settings import SETTINGS, Address, Config, Setting

__all__ = ["SETTINGS", "Address", "Config", "Setting", "load"]
