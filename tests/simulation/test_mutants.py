"""The negative control: a simulation that finds nothing in a wrong daemon proves nothing about a right one."""

import subprocess
import sys

import pytest

from tests.tidy.tree import ROOT

SEEDS_MAX = 150
MUTANTS_MIN = 10


@pytest.mark.timeout(600)
def test_every_wrong_line_is_found_out_by_some_seed():
    asked = [sys.executable, "-m", "tests.simulation.mutants", "--seeds", str(SEEDS_MAX)]
    hunted = subprocess.run(asked, cwd=ROOT, check=False, capture_output=True, text=True)
    print(hunted.stdout)
    assert hunted.returncode == 0, f"a wrong line escaped:\n{hunted.stdout}\n{hunted.stderr}"
    assert hunted.stdout.count(" seed ") >= MUTANTS_MIN
