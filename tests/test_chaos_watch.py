"""No fault costs a watched application spans, decisions or peace; and who counts that can count."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks import chaos_watch

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reliability.md"
ANSWERS = 20


@pytest.mark.full
@pytest.mark.parametrize("fault", chaos_watch.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_costs_watching_nothing_but_time(fault: chaos_watch.Fault, tmp_path: Path) -> None:
    row = chaos_watch.suffered(fault, ANSWERS, tmp_path / "scene")
    assert (row.lost, row.undecided, row.twice, row.doubled) == (0, 0, 0, 0), row
    assert row.seen and row.struck, row


@pytest.mark.full
def test_what_is_lost_undecided_or_doubled_is_counted(tmp_path: Path) -> None:
    scene = chaos_watch.Scene(tmp_path / "scene", 10, chaos_watch.FAULTS[0])
    row = chaos_watch.counted(scene)
    assert row.is_good, row
    with closing(sqlite3.connect(scene.store)) as peek, peek:
        peek.execute("DELETE FROM spans WHERE rowid IN (SELECT rowid FROM spans LIMIT 4)")
        peek.execute(
            "UPDATE decisions SET state = 'queued' WHERE rowid IN (SELECT rowid FROM decisions LIMIT 2)"
        )
        other = "SELECT id FROM outcomes WHERE label = 'faithful' ORDER BY id DESC LIMIT 1"
        peek.execute(f"UPDATE outcomes SET label = 'hallucinated' WHERE id IN ({other})")
    assert (scene.lost, scene.undecided) == (4, 3)
    (name, *_) = scene.verdicts()
    with scene.ledger.open("a") as ledger:
        ledger.write(f"said {name} 1\nsaid new 1\nasked new 2\nsaid new 2\nstored new 2\n")
    assert scene.twice == 2
    scene.alerts.write_text(2 * scene.alerts.read_text())
    assert scene.told == 2
    assert not chaos_watch.Row("a", 0, 0, 0, 0, 1.0, "", struck=False).is_good


def test_the_page_shows_every_fault_of_watching() -> None:
    block = PAGE.read_text(encoding="utf-8").partition("<!-- begin: chaos watch -->")[2]
    pattern = r"^\| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| [\d.]+ \|"
    shown = re.findall(pattern, block.partition("<!-- end: chaos watch -->")[0], re.MULTILINE)
    assert [row[0] for row in shown] == [fault.name for fault in chaos_watch.FAULTS]
    assert all(row[1:] == ("0", "0", "0", "0") for row in shown)
