"""What is damaged in a store is named and counted, and keeps nobody from the rest."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from magistrate import Run
from magistrate.errors import StoreError
from reported import outcomes_of, samples_of, stored
from terminal import Call

DAMAGES: dict[str, object] = {
    "cut": '{"output": "The bridge',
    "empty": "",
    "another form": "[1, 2]",
    "another value": '{"spans": 3, "claims": [{}]}',
    "a flipped bit": sqlite3.Binary(b'{"output": "The br\xeddge"}'),
}


def damage(store: Path, table: str, which: str, body: object, cast: bool) -> None:
    """Put `body` where a sample (`which` its id) or an outcome has its own."""
    value = "CAST(? AS TEXT)" if cast else "?"
    of = "key = (SELECT sample_key FROM run_samples WHERE sample_id = ?)"
    if table == "outcomes":
        of = "position = (SELECT position FROM run_samples WHERE sample_id = ?)"
    with closing(sqlite3.connect(store)) as connection:
        assert (
            connection.execute(f"UPDATE {table} SET body = {value} WHERE {of}", (body, which)).rowcount == 1
        )
        connection.commit()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    samples = samples_of(20)
    return stored(tmp_path, samples, outcomes_of(samples))


@pytest.mark.parametrize("tables", [1, pytest.param(2, marks=pytest.mark.full)])
def test_one_damaged_sample_or_outcome_stops_no_export_and_no_report(
    tmp_path: Path, call: Call, tables: int
) -> None:
    """Every damage in one of the tables, whose turn it is, or in both."""
    for number, (name, body) in enumerate(DAMAGES.items()):
        for table in ("samples", "outcomes", "samples")[number % 2 :][:tables]:
            folder = tmp_path / f"{number}-{table}"
            folder.mkdir()
            samples = samples_of(20)
            run = stored(folder, samples, outcomes_of(samples))
            damage(Path(run.store), table, "bridge-003", body, cast=True)
            case = (name, table)
            for ending in ("jsonl", "csv", "parquet", "html"):
                target = folder / f"o.{ending}"
                done = call("export", run.id, "--to", target, "--store", run.store)
                assert done.code == 2 and target.stat().st_size, (case, ending, done)
                assert "bridge-003" in done.err and "is damaged in the store" in done.err, (case, done)
                assert "(and " not in done.err, (case, done)
            rows = [json.loads(line) for line in (folder / "o.jsonl").read_text().splitlines()]
            assert [row["sample_id"] for row in rows] == [s.id for s in samples if s.id != "bridge-003"], case
            shown = call("show", run.id, "--store", run.store)
            assert shown.code == 2 and "1 damaged in the store" in shown.out, (case, shown)
            assert "bridge-003" in shown.err, (case, shown)
            data = call("show", run.id, "--json", "--gate", "coverage>=0.1", "--store", run.store)
            (judge,) = data.data["judges"].values()
            assert data.code == 2 and len(data.data["run"]["damaged"]) == 1, (case, data)
            assert (judge["n_total"], judge["n_judged"]) == (20, 19), (case, judge)
            one = call("show", run.id, "--sample", "bridge-003", "--store", run.store)
            assert one.code == 2 and "bridge-003" in one.err and "Traceback" not in one.err, (case, one)
            other = call("show", run.id, "--sample", "bridge-004", "--store", run.store)
            assert other.code == 0, (case, other)


def test_in_python_an_export_that_lacks_something_raises_when_it_is_written(run: Run, tmp_path: Path) -> None:
    for which in ("bridge-003", "bridge-004"):
        damage(Path(run.store), "samples", which, "{", cast=False)
    target = tmp_path / "o.jsonl"
    with pytest.raises(
        StoreError, match=r"is written without damaged entries: sample 'bridge-003' .*\(and 1 more\)"
    ):
        run.export(target)
    assert len(target.read_text().splitlines()) == 18
    assert len(run.summary().run.damaged) == 2


def test_figures_that_are_damaged_are_counted_anew(run: Run) -> None:
    sound = run.summary().to_dict()
    with closing(sqlite3.connect(run.store)) as connection:
        assert connection.execute("UPDATE figures SET body = '{', scores = x'01'").rowcount == 1
        connection.commit()
    assert run.summary().to_dict() == sound
