"""What every tier stands on: a neutral environment, Hypothesis profiles, and a guard against blocking the loop.

Nothing here knows the daemon. Builders of schedules, fakes and virtual clocks live beside the tests that use them.
"""

import os
import time
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import settings

# A zone that no developer, server or CI lives in, with minutes in its offset: code that lets local time slip in shows
# it here and not one winter later. The POSIX form needs no zone files.
ODD_ZONE = "<+1245>-12:45"

# Deadlines measure the machine and not the code: they are off. CI repeats the same examples on the same code, so that
# a red run can be looked at; everybody else's runs keep searching.
settings.register_profile("short", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.register_profile("long", deadline=None, print_blob=True, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))


def pytest_configure() -> None:
    """Forget the operator's settings and clock zone, for this process and for every child that a test starts."""
    for name in [name for name in os.environ if name.startswith("SCHEDULER_")]:
        del os.environ[name]
    os.environ["TZ"] = ODD_ZONE
    time.tzset()


@pytest.fixture
def blocking_the_loop_fails() -> Iterator[BlockBuster]:
    """Make a blocking call on the event loop raise `blockbuster.BlockingError` for the length of the test."""
    with blockbuster_ctx() as guard:
        yield guard
