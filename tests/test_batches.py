"""Batches of rows that several processes judge into one run: each row comes out, and is paid for once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from magistrate import _async
from magistrate.engines.base import Engine
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import DatasetError, EngineError, EngineGone, SpecError, StoreError
from magistrate.integrations.batches import BatchJudge, finish_run, open_run
from magistrate.integrations.judged_files import import_judged, write_manifest
from magistrate.judges.base import JudgeInfo
from magistrate.store import Store
from magistrate.types import Outcome, Sample, Verdict
from postgres import Server


class Counting:
    """Judges by a word of the output, and counts how often it is asked about each sample."""

    def __init__(self, version: int = 1, meanwhile: Callable[[], object] | None = None) -> None:
        self.version, self.meanwhile, self.asked = version, meanwhile, Counter[str]()

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo(name="counting", version=self.version, summary="counts", kind="code")

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        self.asked[sample.id] += 1
        if self.meanwhile is not None:
            await _async.in_thread(self.meanwhile)
        if sample.output == "break":
            raise EngineError("it broke")
        bad = "lie" in (sample.output or "")
        return Verdict(
            sample.id,
            "counting",
            "hallucinated" if bad else "faithful",
            float(bad),
            explanation=str(id(self)),
        )


def row(id: str | None, output: Any) -> Mapping[str, Any]:
    return {"id": id, "output": output, "context": "It is so."}


ROWS = [row("a", "true"), row("b", "a lie"), row("c", "break"), row("d", None), row(None, "true")]


def test_each_row_comes_out_once_with_its_outcome_or_the_reason_of_none() -> None:
    judge = Counting()
    table = BatchJudge(judge)(pyarrow.Table.from_pylist([*ROWS, row("a", "true"), row("a", "a lie")]))
    found = table.to_pylist()
    assert [each["id"] for each in found] == ["a", "b", "c", "d", None, "a", "a"]
    kinds = [each["counting.kind"] for each in found]
    assert kinds == ["verdict", "verdict", "failure", "unread", "verdict", "verdict", "verdict"]
    labels = [each["counting.label"] for each in found]
    assert labels == ["faithful", "hallucinated", None, None, "faithful", "faithful", "hallucinated"]
    assert found[2]["counting.reason"] == "engine_error" and "it broke" in found[2]["counting.message"]
    assert "output" in found[3]["counting.message"] and found[3]["counting.score"] is None
    assert {each["counting.recipe"] for each in found} == {BatchJudge(judge).recipes["counting"]}
    # One id with two contents is two samples, and the same row twice is one.
    assert len({found[0]["sample_id"], found[6]["sample_id"]}) == 2
    assert max(judge.asked.values()) == 1 and judge.asked.total() == 5
    empty = BatchJudge(judge)(pyarrow.Table.from_pylist(ROWS).slice(0, 0))
    assert empty.num_rows == 0 and empty.schema == table.schema
    with pytest.raises(SpecError, match=r"already have a column 'sample_id'"):
        BatchJudge(judge)(table)


def test_what_a_run_has_is_read_back_by_whoever_meets_it_again(tmp_path: Path) -> None:
    run = open_run(tmp_path / "runs.db", "july")
    first, second, third = Counting(), Counting(), Counting()
    one, two = BatchJudge(first, run=run), BatchJudge(second, run=run)
    before = one.columns(ROWS[:3])
    after = two.columns([*ROWS, row("b", "another lie")])
    assert after[:3] == before and after[5]["sample_id"].startswith("b~")
    assert first.asked.keys().isdisjoint(second.asked)
    # Started again under its name, it continues; failures are judged again on demand.
    assert open_run(tmp_path / "runs.db", "july") == run
    again = BatchJudge(third, run=run, retry_failures=True)
    assert again.columns([*ROWS, row("b", "another lie")]) == after
    assert dict(third.asked) == {"c": 1}
    report = finish_run(run).summary()
    (figures,) = report.judges
    assert (report.run.n_total, figures.n_ok, figures.failures) == (5, 4, {"engine_error": 1})
    with Store.open(run.store) as store:
        assert store.attempts(run.id) == {("c", "counting"): 2}


def test_the_first_outcome_of_a_pair_counts(tmp_path: Path) -> None:
    run = open_run(tmp_path / "runs.db", "july")
    early, late = Counting(), Counting(meanwhile=lambda: BatchJudge(early, run=run).columns(ROWS[:1]))
    found = BatchJudge(late, run=run).columns(ROWS[:1])
    assert (early.asked.total(), late.asked.total()) == (1, 1)
    with Store.open(run.store) as store:
        (stored,) = store.outcomes(run.id)
    assert isinstance(stored, Verdict) and stored.explanation == str(id(early))
    assert [each["counting.explanation"] for each in found] == [stored.explanation]


@pytest.mark.full
def test_workers_at_once_store_each_outcome_once_and_all_see_it(postgres: Server, tmp_path: Path) -> None:
    given = [row(str(number % 60), f"output {number % 60}") for number in range(120)]

    def work(seed: int) -> dict[str, Mapping[str, Any]]:
        judge, mine = BatchJudge(Counting(), run=run), random.Random(seed).sample(given, len(given))
        found = [each for start in range(0, 120, 20) for each in judge.columns(mine[start : start + 20])]
        judge.close()
        return {each["sample_id"]: each for each in found}

    for place in (tmp_path / "runs.db", postgres.new_database()):
        run = open_run(place, "july")
        with ThreadPoolExecutor(4) as pool:
            first, *others = pool.map(work, range(4))
        assert len(first) == 60 and all(each == first for each in others)
        with Store.open(run.store) as store:
            stored = {each.sample_id: each for each in store.outcomes(run.id)}
            assert store.find_run(run.id).n_outcomes == len(stored) == 60
        for sample_id, outcome in stored.items():
            assert isinstance(outcome, Verdict)
            assert outcome.explanation == first[sample_id]["counting.explanation"]


def test_what_was_written_is_counted_and_becomes_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "judged"
    folder.mkdir()
    judge = BatchJudge(["novelty", Counting()])
    table = judge(pyarrow.Table.from_pylist(ROWS))
    parquet.write_table(table.slice(0, 2), folder / "part-0.parquet")
    parquet.write_table(table.slice(2), folder / "part-1.parquet")
    manifest = write_manifest(folder)
    assert json.loads((folder / "_manifest.json").read_text()) == manifest
    assert (manifest["rows"], manifest["files"]) == (5, {"part-0.parquet": 2, "part-1.parquet": 3})
    counted = manifest["judges"]["counting"]
    assert counted["kinds"] == {"failure": 1, "unread": 1, "verdict": 3}
    assert counted["labels"] == {"faithful": 2, "hallucinated": 1}
    assert counted["recipe"]["judge"] == "counting@1"
    run = import_judged(folder, name="july", store=tmp_path / "runs.db")
    assert run.record.scoring["novelty"].direction == "minimize" and run.record.status == "done"
    stored = {(each["sample_id"], each["judge"]): each for each in run.table()}
    for row in table.to_pylist():
        for name in ("novelty", "counting") if row["sample_id"] else ():
            found = stored.pop((row["sample_id"], name))
            for column in ("kind", "label", "score", "probability", "reason", "message"):
                assert found[column] == row[f"{name}.{column}"], column
    assert not stored and run.summary().run.unread.n == 1  # type: ignore[union-attr]
    parquet.write_table(BatchJudge(Counting(2))(pyarrow.Table.from_pylist(ROWS)), folder / "part-2.parquet")
    with pytest.raises(DatasetError, match="several recipes"):
        write_manifest(folder)
    with pytest.raises(DatasetError, match="another recipe"):
        import_judged(folder, store=tmp_path / "runs.db")


def test_another_recipe_or_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    run = open_run(tmp_path / "runs.db", "july")
    with pytest.raises(SpecError, match="no samples yet"):
        finish_run(run)
    BatchJudge(Counting(), run=run).columns(ROWS)
    with pytest.raises(SpecError, match="judge was 'counting@1', is 'counting@2'"):
        BatchJudge(Counting(version=2), run=run)
    BatchJudge("novelty", run=run).columns(ROWS[:1])
    with pytest.raises(SpecError, match="lacks 3 of 8 outcomes"):
        finish_run(run)
    with Store.open(run.store) as store:
        store.rename(run.id, "june")
        store.create_run(
            dataset="d", dataset_digest="", model="", engine_fingerprint="", recipes={}, name="july"
        )
    with pytest.raises(SpecError, match="not judged in batches"):
        open_run(tmp_path / "runs.db", "july")
    (tmp_path / "runs.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(StoreError, match=r"no file .* on this machine"):
        BatchJudge(Counting(), run=run)
    assert not (tmp_path / "runs.db").exists()


def test_an_engine_that_is_gone_ends_the_batch_and_loses_nothing_that_was_paid(tmp_path: Path) -> None:
    run = open_run(tmp_path / "runs.db", "july")
    given = [row(str(number), f"output {number}") for number in range(4)]
    answers = [{"faithful": 0.9, "hallucinated": 0.1}, {"faithful": 0.2, "hallucinated": 0.8}]
    with pytest.raises(EngineGone):
        BatchJudge("faithfulness", ScriptedEngine(list(answers)), run=run).columns(given)
    with Store.open(run.store) as store:
        assert store.find_run(run.id).n_verdicts == 2
    engine = ScriptedEngine(list(answers))
    found = BatchJudge("faithfulness", engine, run=run).columns(given)
    assert [each["faithfulness.kind"] for each in found] == ["verdict"] * 4
    finish_run(run)


def test_ray_is_imported_when_it_is_used_and_named_if_it_is_missing() -> None:
    code = """
import sys
from magistrate.integrations.ray import judge
assert not {"ray", "pyarrow"} & set(sys.modules)
sys.modules["ray"] = None
judge(None)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith("install it with: pip install 'magistrate[ray]'")
