"""The alert rules: each names metrics that exist and a heading of the runbook, and promtool sees each fire when it should."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tidy import runbook
from tests.tidy.test_runbook import metric_names

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
TEXT = RULES.read_text()
ALERTS = re.findall(r"- alert: (\w+)", TEXT)

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="SKIP: promtool is missing (Debian: prometheus)"
)

# Series, sampled once a minute; then what must have fired when, and what must still be quiet when.
GOOD = {"scheduler_server_up": "1x400", "scheduler_storage_full": "0x400", 'up{job="scheduler-daemon"}': "1x400"}
BAD: dict[str, tuple[dict[str, str], str, str | None]] = {
    "SchedulerDown": ({'up{job="scheduler-daemon"}': "0x60"}, "3m", "1m"),
    "SchedulerRestarting": ({"scheduler_commit_seconds_count": "5 9 1 7 2 8 1 6 2"}, "8m", "4m"),
    "SchedulerNotReady": ({'scheduler_check{name="tick"}': "0x60"}, "6m", "4m"),
    "SchedulerInstantsOverdue": ({"scheduler_overdue_seconds": "30x60"}, "2m", "0m"),
    "SchedulerStorageFull": ({"scheduler_storage_full": "1x60"}, "2m", "0m"),
    "WorkflowServerDown": ({"scheduler_server_up": "0x60"}, "4m", "2m"),
    "SchedulerSlotsHeld": ({"scheduler_slots_used": "4x90", "scheduler_slots_max": "4x90"}, "61m", "59m"),
    "SchedulerBlocked": ({'scheduler_schedules{state="blocked"}': "0 0 1x60"}, "2m", "1m"),
    "SchedulerRunsAmbiguous": ({'scheduler_runs{phase="ambiguous"}': "1x60"}, "16m", "14m"),
    "SchedulerOutcomeUnknown": (
        {'scheduler_decisions_total{status="failed",reason="outcome-unknown"}': "_x9 1x200"},
        "12m",
        "8m",
    ),
    "SchedulerMissed": (
        {'scheduler_decisions_total{status="skipped-misfire",reason="late"}': "3x30 4x30"},
        "33m",
        "25m",
    ),
    "SchedulerPreflightRejected": (
        {'scheduler_decisions_total{status="preflight-rejected",reason="preflight"}': "3x30 4x30"},
        "33m",
        "25m",
    ),
    "SchedulerLate": (
        {
            'scheduler_dispatch_lateness_seconds_bucket{le="5"}': "0x60",
            'scheduler_dispatch_lateness_seconds_bucket{le="10"}': "0+1x60",
            'scheduler_dispatch_lateness_seconds_bucket{le="+Inf"}': "0+1x60",
        },
        "20m",
        "10m",
    ),
    "SchedulerCommitsSlow": (
        {
            'scheduler_commit_seconds_bucket{le="0.5"}': "0x60",
            'scheduler_commit_seconds_bucket{le="1"}': "0+1x60",
            'scheduler_commit_seconds_bucket{le="+Inf"}': "0+1x60",
        },
        "15m",
        "8m",
    ),
    "SchedulerRunWaits": ({'scheduler_runs{phase="interrupted"}': "1x1500"}, "1441m", "1439m"),
}


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=60)


def firing(alert: str, series: dict[str, str], folder: Path, *, fires: list[str], quiet: list[str]) -> Path:
    """A test for promtool, which reads JSON as the YAML that it is."""
    cases = [(at, True) for at in fires] + [(at, False) for at in quiet]
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in {**GOOD, **series}.items()],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0',
                        "eval_time": at,
                        "exp_samples": [{"labels": "{}", "value": 1}] if wanted else [],
                    }
                    for at, wanted in cases
                ],
            }
        ],
    }
    file = folder / "firing.json"
    file.write_text(json.dumps(test))
    return file


def test_each_metric_that_a_rule_names_exists():
    known = metric_names()
    known |= {f"{name}_{part}" for name in known if name.endswith("_seconds") for part in ("bucket", "count")}
    expressions = re.sub(r"summary:.*|credentials_file:.*", "", TEXT)
    named = set(re.findall(r"\bscheduler_\w+", expressions)) - {"scheduler_token"}
    assert named
    assert named <= known


def test_each_rule_leads_to_a_heading_of_the_runbook():
    named = re.findall(r"runbook: RUNBOOK\.md#(\S+)", TEXT)
    assert len(named) == len(ALERTS)
    assert set(named) <= runbook.anchors(runbook.PAGE)


def test_each_rule_has_its_trial():
    assert sorted(ALERTS) == sorted(BAD)


@needs_promtool
def test_promtool_has_nothing_against_the_rules():
    said = promtool("check", "rules", "--lint-fatal", str(RULES))
    assert said.returncode == 0, said.stdout + said.stderr


@needs_promtool
@pytest.mark.parametrize("alert", ALERTS)
def test_the_alert_fires_when_it_should_and_not_before(alert, tmp_path):
    series, fires, quiet = BAD[alert]
    said = promtool(
        "test", "rules", str(firing(alert, series, tmp_path, fires=[fires], quiet=[quiet] if quiet else []))
    )
    assert said.returncode == 0, said.stdout + said.stderr


@needs_promtool
@pytest.mark.parametrize("alert", ALERTS)
def test_the_alert_is_quiet_while_all_is_well(alert, tmp_path):
    said = promtool("test", "rules", str(firing(alert, {}, tmp_path, fires=[], quiet=["1m", "30m", "6h"])))
    assert said.returncode == 0, said.stdout + said.stderr
