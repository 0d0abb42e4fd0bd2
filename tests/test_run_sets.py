"""`magistrate run` on several data sets: a run for each, and one table at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magistrate.store import Store
from terminal import Call

SETS = ("easy.jsonl", "hard.jsonl")


@pytest.fixture
def sets(home: Path) -> tuple[str, ...]:
    """Two files of labelled samples: in one the words give hallucinations away, in the other nothing does."""
    for name in SETS:
        rows = []
        for number in range(40):
            wrong = number % 2 == 0
            strange = wrong and name == "easy.jsonl"
            rows.append(
                {
                    "id": str(number),
                    "context": f"Bridge {number} is old and narrow.",
                    "output": f"Bridge {number} is {'gilded by dragons' if strange else 'old'}.",
                    "expected": "old",
                    "label": "hallucinated" if wrong else "faithful",
                }
            )
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return SETS


def test_each_set_is_a_run_and_a_row(call: Call, sets: tuple[str, ...]) -> None:
    words = ("--judge", "novelty", "--judge", "contains", "--store", "runs.db", "--tag", "both")
    done = call("run", *sets, *words)
    assert done.code == 0, done.err
    with Store.open(Path("runs.db")) as store:
        runs = list(store.runs(tag="both"))
    assert len(runs) == 2
    assert all(f"magistrate show {run.id}" in done.out for run in runs)
    table = done.out.rpartition("magistrate show")[2].splitlines()
    head = next(line for line in table if line.split()[:2] == ["set", "n"])
    assert "novelty" in head and "contains" in head
    easy, hard = (next(line for line in table if line.split()[:1] == [name]) for name in ("easy", "hard"))
    assert easy.split()[1] == hard.split()[1] == "40"
    assert "AUROC 1.00 [" in easy and "AUROC 1.00 [" not in hard
    assert sum("bal. acc." in line for line in table) >= 2


def test_the_worst_exit_code_counts(call: Call, sets: tuple[str, ...]) -> None:
    words = ("--judge", "novelty", "--store", "runs.db", "--gate", "auroc>=0.9")
    done = call("run", *sets, *words)
    assert done.code == 1, done.err
    assert call("run", sets[0], *words).code == 0


def test_what_is_for_one_set_is_refused_before_anything_is_judged(call: Call, sets: tuple[str, ...]) -> None:
    for option in (["--json"], ["--name", "x"], ["--dry-run"], ["--junit", "x.xml"]):
        done = call("run", *sets, "--judge", "novelty", "--store", "runs.db", *option)
        assert (done.code, done.out) == (2, ""), option
        assert f"{option[0]} works with one data set; 2 were given" in " ".join(done.err.split())
    assert not Path("runs.db").exists()
