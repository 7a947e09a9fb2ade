"""DESIGN.md says what the code says: its generated parts are made from the tables."""

from pathlib import Path

from scheduler_daemon.core import lifecycle, reconcile

DESIGN = Path(__file__).parents[2] / "scheduler_daemon" / "DESIGN.md"


def test_the_lifecycle_diagram_is_the_table():
    text = DESIGN.read_text()
    shown = text.split("<!-- generated: lifecycle -->\n```mermaid\n")[1].split("\n```\n<!-- end -->")[0]
    assert shown == lifecycle.mermaid()


def test_every_letter_of_the_recovery_table_has_its_row():
    rows = [line.split("|")[1].strip() for line in DESIGN.read_text().splitlines() if line.startswith("| ")]
    assert [row for row in rows if len(row) == 1] == sorted(set(reconcile.LETTERS))
