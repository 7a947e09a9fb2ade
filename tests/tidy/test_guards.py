"""The guards that conftest gives to the other tiers do guard."""

import os
import time
from datetime import datetime, timedelta

import pytest
from blockbuster import BlockingError


async def test_a_blocking_call_on_the_loop_raises(blocking_the_loop_fails):
    with pytest.raises(BlockingError):
        time.sleep(0.001)  # noqa: ASYNC251 -- to be caught is its purpose


def test_local_time_is_nobodys_time():
    assert datetime(2026, 1, 1).astimezone().utcoffset() == timedelta(hours=12, minutes=45)


def test_no_setting_of_the_operator_reaches_a_test():
    assert [name for name in os.environ if name.startswith("SCHEDULER_")] == []
