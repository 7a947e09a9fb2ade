"""What a seed changes in the daemon's modules is put back for whatever test comes next in the same process."""

import pytest

from scheduler_daemon.core import decide


@pytest.fixture(autouse=True)
def modules_are_put_back(monkeypatch):
    monkeypatch.setattr(decide, "WRITTEN_MAX", decide.WRITTEN_MAX)
