"""The negative control: a simulation that finds nothing in a wrong daemon proves nothing about a right one."""

import subprocess
import sys

import pytest

from tests.tidy.tree import ROOT


@pytest.mark.timeout(600)
def test_wrong_lines_are_found_out_within_some_seeds():
    hunted = _hunt("--seeds", "150")
    assert hunted.returncode == 0, f"a wrong line escaped:\n{hunted.stdout}\n{hunted.stderr}"
    assert hunted.stdout.count(" seed ") >= 12


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_wrong_lines_that_seldom_matter_are_found_out_as_well():
    hunted = _hunt("--seeds", "1500", "--rare")
    assert hunted.returncode == 0, f"a wrong line escaped:\n{hunted.stdout}\n{hunted.stderr}"


def _hunt(*how: str) -> subprocess.CompletedProcess[str]:
    asked = [sys.executable, "-m", "tests.simulation.mutants", *how]
    hunted = subprocess.run(asked, cwd=ROOT, check=False, capture_output=True, text=True)
    print(hunted.stdout)
    return hunted
