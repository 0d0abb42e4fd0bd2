"""Rows for other tools, and frames that find back to the rows they came from."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pandas
import polars
import pytest
from pyarrow import parquet

import magistrate
from magistrate import Run, ScriptedEngine
from magistrate.errors import MissingExtra, SpecError
from magistrate.report.export import ENDINGS, export
from magistrate.types import Sample, Verdict
from reported import CLAIMS, outcomes_of, samples_of, stored


@pytest.fixture
def run(tmp_path: Path) -> Run:
    samples = samples_of(20)
    return stored(tmp_path, samples, outcomes_of(samples))


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- files -------------------------------------------------------------------------------------------


def test_every_format_has_the_same_rows(run: Run, tmp_path: Path) -> None:
    for ending in ENDINGS:
        assert run.export(tmp_path / f"o{ending}") == 20
    wanted = rows_of(tmp_path / "o.jsonl")
    found = parquet.read_table(tmp_path / "o.parquet").to_pylist()
    for row, other in zip(wanted, found, strict=True):
        assert {**other, "claims": json.loads(other["claims"])} == row
    table = pandas.read_csv(tmp_path / "o.csv")
    assert list(table["sample_id"]) == [row["sample_id"] for row in wanted]
    assert list(table.columns) == list(wanted[0]) == list(found[0])
    assert gzip.decompress((tmp_path / "o.csv.gz").read_bytes()) == (tmp_path / "o.csv").read_bytes()
    assert "<!doctype html>" in (tmp_path / "o.html").read_text(encoding="utf-8")


def test_parquet_columns_are_nullable_and_typed(run: Run, tmp_path: Path) -> None:
    run.export(tmp_path / "o.parquet")
    frame = pandas.read_parquet(tmp_path / "o.parquet", dtype_backend="numpy_nullable")
    assert str(frame["score"].dtype) == "Float64" and str(frame["tokens"].dtype) == "Int64"
    assert frame["score"].isna().tolist() == (frame["kind"] != "verdict").tolist()
    first = frame[frame["label"] == "hallucinated"].iloc[0]
    (sample,) = (each for each in run.samples() if each.id == first["sample_id"])
    assert list(first["context"]) == list(sample.context)
    assert [claim["output_text"] for claim in json.loads(first["claims"])] == [c.output_text for c in CLAIMS]
    assert polars.read_parquet(tmp_path / "o.parquet")["label"].null_count() == 4


def test_an_empty_run_is_a_file_with_columns(tmp_path: Path) -> None:
    run = stored(tmp_path, [], [])
    for ending in ENDINGS:
        assert run.export(tmp_path / f"o{ending}") == 0
    assert parquet.read_table(tmp_path / "o.parquet").num_rows == 0
    assert len(pandas.read_csv(tmp_path / "o.csv").columns) == 18


def test_half_of_a_surrogate_pair_is_written_as_its_escape(tmp_path: Path) -> None:
    text = "\ud800 half"
    verdict = Verdict("s", "rubric", "faithful", 0.1, explanation=text)
    samples = {"s": Sample("s", text, (text,))}
    for ending in (".jsonl", ".csv", ".parquet"):
        assert export(samples, [verdict], tmp_path / f"o{ending}") == 1
    (row,) = parquet.read_table(tmp_path / "o.parquet").to_pylist()
    assert row["output"] == row["context"][0] == row["explanation"] == "\\ud800 half"


def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path) -> None:
    lead = ["", "\n", "\r\n", "\t", " ", "\u00a0", "\ufeff", " \n\t"]
    texts = [f"{before}{sign}cmd|' /C calc'!A0" for before in lead for sign in "=+-@"]
    samples = {str(n): Sample(str(n), text, input=text) for n, text in enumerate(texts)}
    target = tmp_path / "rows.csv"
    export(samples, [Verdict(id, "j", "faithful", 0.1) for id in samples], target)
    with target.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["output"] for row in rows] == [f"'{text}" for text in texts]
    export({"a": Sample("a", "1 - 2\n=x")}, [Verdict("a", "j", "faithful", 0.1)], tmp_path / "plain.csv")
    assert "'1 - 2" not in (tmp_path / "plain.csv").read_text()


def test_one_judge_can_be_asked_for(tmp_path: Path) -> None:
    samples = samples_of(4)
    run = stored(tmp_path, samples, [*outcomes_of(samples, "a"), *outcomes_of(samples, "b")])
    assert run.export(tmp_path / "o.jsonl", judge="b") == 4
    assert {row["judge"] for row in rows_of(tmp_path / "o.jsonl")} == {"b"}


def test_a_file_is_replaced_only_when_asked_and_appears_whole(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "o.parquet"
    target.write_text("mine")
    with pytest.raises(SpecError, match="--force"):
        run.export(target)
    with pytest.raises(SpecError, match=r"must end in \.jsonl, .* or \.html"):
        run.export(tmp_path / "o.xlsx")
    for name in ("o.html", "o.csv", "o.parquet"):
        place = tmp_path / "nothere" / name
        with pytest.raises(SpecError, match=rf"^cannot write {re.escape(str(place))}: No such file"):
            run.export(place)
    assert target.read_text() == "mine"
    assert run.export(target, replace=True) == 20
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith("runs.db")} == {"o.parquet"}


def test_without_pyarrow_the_extra_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"magistrate\[parquet\]"):
        run.export(tmp_path / "o.parquet")
    assert not (tmp_path / "o.parquet").exists()


# --- frames ------------------------------------------------------------------------------------------

BASE = pandas.DataFrame({"answer": ["true one", "false two", "true three"], "context": "c"})
INDEXES = {
    "counted": pandas.RangeIndex(3),
    "named": pandas.RangeIndex(3, name="row"),
    "texts": pandas.Index(["x", "y", "z"]),
    "numbers": pandas.Index([7, 9, 8], name="number"),
    "floats": pandas.Index([0.5, 1.5, 2.5]),
    "times": pandas.to_datetime(["2026-01-01", "2026-07-01 12:00:00.5", "2026-03-03"], format="ISO8601"),
    "zoned": pandas.to_datetime(["2026-01-01", "2026-07-01", "2026-03-03"]).tz_localize("Europe/Zurich"),
    "days": pandas.Index([date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 3)]),
    "levels": pandas.MultiIndex.from_tuples([("a", 1), ("b", 2), ("a", 3)], names=["letter", "n"]),
    "mixed": pandas.Index(["a", 1, "b"], dtype=object),
    "categories": pandas.CategoricalIndex(["p", "q", "r"]),
    "repeated": pandas.Index(["a", "a", "b"]),
}


@pytest.fixture
def scripted() -> ScriptedEngine:
    return ScriptedEngine(by_word)


def by_word(prompt: Any) -> dict[str, float]:
    (output,) = [part.text for part in prompt.data() if part.name == "output"]
    return {"faithful": 1} if "true" in output else {"hallucinated": 1}


@pytest.mark.full
@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize("extra", [{}, {"id": ["i", "j", "k"]}, {"index": 5, "frame_index": 6}])
def test_an_index_comes_out_as_it_went_in(
    kind: str, extra: dict[str, Any], scripted: ScriptedEngine, tmp_path: Path
) -> None:
    frame = BASE.set_index(INDEXES[kind]).assign(**extra)
    run = magistrate.evaluate(frame, "faithfulness", model=scripted, store=tmp_path / "e.db", progress=False)
    for found in (run.to_pandas(), Run(run.id, run.store).to_pandas(wide=True)):
        pandas.testing.assert_index_equal(found.index, frame.index, exact="equiv")
    labels = run.to_pandas(wide=True)["faithfulness.label"]
    assert labels.tolist() == ["faithful", "hallucinated", "faithful"]
    if frame.index.is_unique:
        joined = frame.join(run.to_pandas(wide=True))
        assert joined["faithfulness.label"].tolist() == labels.tolist()


def test_a_part_of_a_frame_keeps_its_places(scripted: ScriptedEngine, tmp_path: Path) -> None:
    def judged(rows: Any, **options: Any) -> pandas.DataFrame:
        judges = ["faithfulness", "relevance"]
        return magistrate.evaluate(
            rows, judges, model=scripted, store=tmp_path / "e.db", progress=False, **options
        ).to_pandas()

    both = judged(BASE.assign(question="q").iloc[[2, 0]])
    assert both.index.tolist() == [2, 2, 0, 0]
    limited = judged(BASE.assign(question="q", answer=[None, "true", "true"]), limit=1, max_unread=1)
    assert limited.index.tolist() == [1, 1], "a row that cannot be read leaves its place empty"


def test_wide_has_one_row_a_sample_and_says_what_is_missing(tmp_path: Path) -> None:
    samples = samples_of(9)
    run = stored(tmp_path, samples, [*outcomes_of(samples, "a"), *outcomes_of(samples[:4], "b")])
    frame = run.to_pandas(wide=True)
    assert frame["sample_id"].tolist() == [sample.id for sample in samples]
    assert frame.index.tolist() == list(range(9))
    assert frame["a.kind"].tolist()[6:] == ["verdict", "failure", "abstention"]
    assert frame["a.reason"].tolist()[7:] == ["timeout", "over_length"]
    assert frame["b.kind"].isna().tolist() == [False] * 4 + [True] * 5
    assert str(frame["b.score"].dtype) == "Float64"


def test_polars_and_lists_have_no_index(scripted: ScriptedEngine, tmp_path: Path) -> None:
    for rows in (
        polars.from_pandas(BASE).with_columns(id=polars.Series(["i", "j", "k"])),
        [{"id": i, "answer": "true", "context": "c"} for i in "ijk"],
    ):
        run = magistrate.evaluate(
            rows, "faithfulness", model=scripted, store=tmp_path / "e.db", progress=False
        )
        frame = run.to_pandas()
        assert (frame.index.tolist(), frame["sample_id"].tolist()) == ([0, 1, 2], ["i", "j", "k"])
