"""Nothing is lost, doubled or wrongly faithful, whatever breaks; and who counts that can count."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = 60


def load_chaos() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chaos", ROOT / "benchmarks" / "chaos.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["chaos"] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


CHAOS = load_chaos()


@pytest.mark.full
@pytest.mark.parametrize("fault", CHAOS.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_costs_nothing_but_time(fault: object, tmp_path: Path) -> None:
    row = CHAOS.suffered(fault, SAMPLES, tmp_path / "scene")
    assert (row.lost, row.twice, row.wrong) == (0, 0, 0), row
    assert row.seen and row.struck, row


@pytest.mark.full
def test_what_is_lost_doubled_or_wrong_is_counted(tmp_path: Path) -> None:
    scene = CHAOS.Scene(tmp_path / "scene", 20, CHAOS.FAULTS[0])
    words = ("run", str(scene.data), "--judge", "faithfulness", "--no-cache")
    assert scene.go({}, *words)[0] == 0
    assert (scene.lost(), scene.twice, scene.wrong) == (0, 0, 0)
    with closing(sqlite3.connect(scene.store)) as peek, peek:
        peek.execute("DELETE FROM outcomes WHERE position = 4")
        peek.execute("UPDATE outcomes SET score = .5 WHERE position = 6")
        peek.execute("UPDATE outcomes SET label = 'faithful' WHERE position = 7")
    assert scene.lost() == 3
    assert scene.go({}, "resume", scene.runs()[0][0])[0] == 0
    assert (scene.twice, scene.wrong) == (0, 1)
    assert scene.go({}, *words)[0] == 0
    assert scene.twice == 19


def test_the_page_shows_every_fault() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    page = page.partition("<!-- end: chaos -->")[0]
    shown = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \| [\d.]+ \|", page, re.MULTILINE)
    assert [row[0] for row in shown] == [fault.name for fault in CHAOS.FAULTS]
    assert all(row[1:] == ("0", "0", "0") for row in shown)
