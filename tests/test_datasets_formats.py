"""Parquet, Zstandard and data frames say what the same rows in JSONL say."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import magistrate
from magistrate import ScriptedEngine
from magistrate.datasets import load
from magistrate.datasets.files import unpacked
from magistrate.datasets.rows import json_value
from magistrate.errors import DatasetError, SpecError
from magistrate.types import Sample, Span, Turn

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ROWS = [
    {
        "id": "a",
        "question": "Where?",
        "contexts": ["Bern is in Switzerland.", "It is old."],
        "answer": "In Switzerland.",
        "label": "PASS",
        "spans": [{"start": 0, "end": 2, "kind": "conflict"}],
        "messages": [{"role": "user", "content": "hello"}],
        "metadata": {"domain": "geography", "n": 3},
    },
    {
        "id": "b",
        "question": None,
        "contexts": [],
        "answer": "two\nlines 👩‍⚖️ \u0000 end",
        "label": "FAIL",
        "spans": [],
        "messages": [],
        "metadata": {"domain": None, "n": 4},
    },
]


def parquet(path: Path, rows: list[dict[str, Any]] | pyarrow.Table, **options: Any) -> Path:
    table = rows if isinstance(rows, pyarrow.Table) else pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, path, **options)
    return path


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def problems(path: Path) -> list[str]:
    dataset = load(path)
    list(dataset)
    return [str(problem) for problem in dataset.problems]


# --- Parquet ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_nested_parquet_columns_are_the_same_samples(tmp_path: Path, compression: str) -> None:
    path = parquet(tmp_path / "rows.parquet", ROWS, compression=compression)
    dataset = load(path)
    assert dataset.size == 2
    first, second = samples = list(dataset)
    assert samples == list(load(ROWS)) and dataset.problems == []
    assert first.spans == (Span(0, 2, "conflict"),) and first.messages == (Turn("user", "hello"),)
    assert second.output == ROWS[1]["answer"] and second.metadata == {"domain": None, "n": 4}
    assert load(path).digest == dataset.digest and len(dataset.digest) == 64


def test_rows_without_an_id_are_numbered_and_named_where_they_are_bad(tmp_path: Path) -> None:
    path = parquet(tmp_path / "runs.parquet", [{"answer": "a"}, {"answer": None}, {"answer": "c"}])
    dataset = load(path)
    assert [sample.id for sample in dataset] == ["runs-1", "runs-3"]
    (problem,) = dataset.problems
    assert str(problem).startswith(f"{path} row 2: column 'answer' with the output is blank")


def test_what_json_has_no_word_for_is_a_text_or_a_visible_problem(tmp_path: Path) -> None:
    row = {
        "answer": "x",
        "day": date(2026, 11, 22),
        "moment": datetime(2026, 11, 22, 8, 30),
        "hour": time(8, 30),
        "long": timedelta(days=1, seconds=2),
        "price": Decimal("12.50"),
        "odd": float("nan"),
        "table": {"inner": [date(2026, 1, 1)]},
    }
    (sample,) = load(parquet(tmp_path / "types.parquet", [row]))
    assert sample.metadata == {
        "day": "2026-11-22",
        "moment": "2026-11-22T08:30:00",
        "hour": "08:30:00",
        "long": "1 day, 0:00:02",
        "price": "12.50",
        "odd": None,
        "table": {"inner": ["2026-01-01"]},
    }
    rows = [{"answer": "x", "image": None}, {"answer": "y", "image": b"\x89PNG"}]
    (found,) = problems(parquet(tmp_path / "bytes.parquet", rows))
    where = f"{tmp_path}/bytes.parquet row 2: "
    assert found == f"{where}'image' contains 4 bytes, which JSON cannot represent; decode them first"
    rows = [{"answer": "x", "n": 1.0}, {"answer": "y", "n": float("inf")}]
    (found,) = problems(parquet(tmp_path / "inf.parquet", rows))
    assert found.endswith("row 2: 'n' contains an infinite number, which JSON cannot represent")


def test_a_map_is_an_object_and_a_text_that_is_no_utf8_spoils_one_row(tmp_path: Path) -> None:
    kind = pyarrow.map_(pyarrow.string(), pyarrow.int64())
    answers = pyarrow.array([b"fine", b"caf\xe9", b"last"]).cast(pyarrow.binary())
    text = pyarrow.Array.from_buffers(pyarrow.string(), 3, answers.buffers())
    counts = pyarrow.array([[("a", 1)], [("b", 2)], []], type=kind)
    table = pyarrow.table({"answer": text, "counts": counts})
    dataset = load(parquet(tmp_path / "odd.parquet", table))
    assert [(s.output, s.metadata) for s in dataset] == [
        ("fine", {"counts": {"a": 1}}),
        ("last", {"counts": {}}),
    ]
    (problem,) = dataset.problems
    assert "row 2: cannot be read: 'utf-8' codec can't decode byte 0xe9" in str(problem)


def test_damaged_parquet_files_are_named(tmp_path: Path) -> None:
    whole = parquet(
        tmp_path / "whole.parquet", [{"answer": f"{'word ' * 50}{n}"} for n in range(2000)]
    ).read_bytes()
    half = tmp_path / "half.parquet"
    half.write_bytes(whole[: len(whole) // 2])
    (tmp_path / "fake.parquet").write_bytes(b"PAR1 is only how it begins")
    middle = bytearray(whole)
    middle[200:400] = bytes(200)
    (tmp_path / "middle.parquet").write_bytes(middle)
    (tmp_path / "none.parquet").write_bytes(b"")
    for name in ("half", "fake", "middle", "none"):
        with pytest.raises(DatasetError, match=rf"{name}\.parquet is not valid Parquet data"):
            list(load(tmp_path / f"{name}.parquet"))
    with pytest.raises(DatasetError, match="has no samples"):
        list(
            load(parquet(tmp_path / "empty.parquet", pyarrow.table({"answer": pyarrow.array([], "string")})))
        )
    double = pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["answer", "answer"])
    with pytest.raises(DatasetError, match="two columns have the name 'answer'"):
        list(load(parquet(tmp_path / "double.parquet", double)))


def test_a_parquet_file_is_read_in_parts(tmp_path: Path) -> None:
    """One row group of 20 MB of text, and the memory that Arrow takes for it stays far below that."""
    filler = "something was said about this " * 30
    table = pyarrow.table({"answer": [f"{n} {filler}" for n in range(22_500)]})
    path = parquet(
        tmp_path / "big.parquet", table, row_group_size=50_000, compression="none", use_dictionary=False
    )
    del table
    code = f"""
import pyarrow
from magistrate.datasets import load
most = count = 0
for sample in load({str(path)!r}):
    count += 1
    if not count % 500:
        most = max(most, pyarrow.total_allocated_bytes())
print(count, most)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, most = map(int, done.stdout.split())
    assert count == 22_500 and path.stat().st_size > 20_000_000 and most < 8_000_000


def test_reading_can_stop_early_and_begin_again(tmp_path: Path) -> None:
    path = parquet(tmp_path / "rows.parquet", [{"answer": f"a{n}"} for n in range(1000)], row_group_size=100)
    dataset = load(path, limit=3)
    assert [s.output for s in dataset] == [s.output for s in dataset] == ["a0", "a1", "a2"]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_cells_are_parted_as_the_header_is(tmp_path: Path, mark: str) -> None:
    rows = [["id", "answer", "context"], ["a", '"one; two, \tthree\nfour"', "c"], ["b", "five", "c"]]
    (tmp_path / "rows.csv").write_text("\n" + "".join(mark.join(row) + "\n" for row in rows))
    found = load(tmp_path / "rows.csv")
    assert [(s.id, s.output, s.context) for s in found] == [
        ("a", "one; two, \tthree\nfour", ("c",)),
        ("b", "five", ("c",)),
    ]
    assert (found.size, found.problems) == (2, [])


# --- Zstandard -------------------------------------------------------------------------------------


def test_zstandard_is_read_as_gzip_is(tmp_path: Path) -> None:
    rows = [{**row, "answer": row["answer"].replace("\0", "")} for row in ROWS]
    (tmp_path / "rows.jsonl.zst").write_bytes(zstd.compress(jsonl(rows)))
    (tmp_path / "frames.ndjson.zst").write_bytes(
        zstd.compress(jsonl(rows[:1])) + zstd.compress(jsonl(rows[1:]))
    )
    (tmp_path / "list.json.zst").write_bytes(zstd.compress(json.dumps(rows).encode()))
    (tmp_path / "rows.csv.zst").write_bytes(zstd.compress(b"\xef\xbb\xbfid,answer\na,one\nb,two\n"))
    for name in ("rows.jsonl.zst", "frames.ndjson.zst", "list.json.zst"):
        assert list(load(tmp_path / name)) == list(load(rows)), name
    assert [(s.id, s.output) for s in load(tmp_path / "rows.csv.zst")] == [("a", "one"), ("b", "two")]
    plain = tmp_path / "rows.jsonl"
    plain.write_bytes(jsonl(rows))
    assert load(plain).digest == load(tmp_path / "rows.jsonl.zst").digest
    assert load(tmp_path / "rows.jsonl.zst").size == 2


def test_damaged_zstandard_is_named(tmp_path: Path) -> None:
    whole = zstd.compress(
        jsonl([{"answer": numpy.random.default_rng(1).bytes(99).hex()} for _ in range(3000)])
    )
    (tmp_path / "half.jsonl.zst").write_bytes(whole[:-100])
    (tmp_path / "fake.jsonl.zst").write_bytes(b"not packed at all")
    with pytest.raises(DatasetError, match=r"half\.jsonl\.zst ends early: its Zstandard data is cut short"):
        list(load(tmp_path / "half.jsonl.zst"))
    with pytest.raises(DatasetError, match=r"fake\.jsonl\.zst is not valid Zstandard data"):
        list(load(tmp_path / "fake.jsonl.zst"))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=2000))
def test_unpacking_gives_the_bytes_that_were_packed(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any.zst"
    path.write_bytes(zstd.compress(data))
    with path.open("rb") as raw, unpacked(raw, path.suffix, "any") as stream:
        assert stream.read() == data


# --- data frames -----------------------------------------------------------------------------------


def test_a_pandas_frame_keeps_its_index_and_its_missing_cells_are_missing() -> None:
    frame = pandas.DataFrame(
        {"answer": ["one", "two", "three"], "note": [1.5, None, 3.0], "question": ["?", None, "!"]}
    )
    plain, filtered = load(frame), load(frame[frame.note > 1])
    assert [s.id for s in plain] == ["rows-1", "rows-2", "rows-3"]
    assert [s.id for s in filtered] == ["0", "2"]
    assert [s.input for s in plain] == ["?", None, "!"]
    assert [s.metadata["note"] for s in plain] == [1.5, None, 3.0]
    named = load(frame.set_index(pandas.Index(["x", "y", "z"], name="key")))
    assert [s.id for s in named] == ["x", "y", "z"] and next(iter(named)).metadata == {
        "note": 1.5,
        "index": "x",
    }
    both = frame.set_index([pandas.Index(["x", "y", "z"]), pandas.Index([1, 2, 3])])
    assert [s.id for s in load(both)] == ["x/1", "y/2", "z/3"]
    assert [s.id for s in load(frame.iloc[1:])] == ["1", "2"]


def test_an_id_column_wins_over_the_index_which_is_not_lost() -> None:
    frame = pandas.DataFrame({"sample_id": ["a", "b"], "answer": ["one", "two"]}, index=[7, 9])
    assert [(s.id, s.metadata) for s in load(frame)] == [("a", {"index": 7}), ("b", {"index": 9})]
    frame.index.name = "row"
    assert [(s.id, s.metadata) for s in load(frame)] == [
        ("a", {"row": 7, "index": 7}),
        ("b", {"row": 9, "index": 9}),
    ]
    mapped = load(frame.drop(columns="sample_id"), mapping={"id": "row"})
    assert [s.id for s in mapped] == ["7", "9"]


def test_the_types_of_frames_become_texts_numbers_and_lists() -> None:
    frame = pandas.DataFrame(
        {
            "answer": ["one", "two"],
            "contexts": [["a", "b"], numpy.array(["c"])],
            "when": pandas.to_datetime(["2026-11-22", None]),
            "whole": pandas.array([1, None], dtype="Int64"),
            "small": numpy.array([1, 2], dtype="int8"),
            "yes": [numpy.bool_(True), numpy.bool_(False)],
            "kind": pandas.Categorical(["x", "y"]),
        }
    )
    first, second = load(frame)
    assert (first.context, second.context) == (("a", "b"), ("c",))
    assert first.metadata == {"when": "2026-11-22T00:00:00", "whole": 1, "small": 1, "yes": True, "kind": "x"}
    assert second.metadata == {"when": None, "whole": None, "small": 2, "yes": False, "kind": "y"}
    assert type(first.metadata["small"]) is int and type(first.metadata["yes"]) is bool


def test_a_polars_frame_is_its_rows() -> None:
    frame = polars.DataFrame(
        {
            "answer": ["one", "two"],
            "contexts": [["a"], None],
            "spans": [[{"start": 0, "end": 1}], []],
            "day": [date(2026, 1, 2), None],
            "n": [float("nan"), 2.0],
        }
    )
    first, second = load(frame)
    assert [s.id for s in (first, second)] == ["rows-1", "rows-2"]
    assert (first.context, first.spans, second.context) == (("a",), (Span(0, 1),), ())
    assert (first.metadata, second.metadata) == ({"day": "2026-01-02", "n": None}, {"day": None, "n": 2.0})
    assert load(frame).digest == load(frame.clone()).digest != load(frame.head(1)).digest
    with pytest.raises(SpecError, match=r"LazyFrame has no rows yet; pass frame\.collect\(\)"):
        load(frame.lazy())


def test_bad_rows_of_frames_are_visible_and_the_others_go_on() -> None:
    frame = pandas.DataFrame({"answer": ["one", b"two", "three"], "n": [1.0, 2.0, float("inf")]})
    dataset = load(frame)
    assert [s.output for s in dataset] == ["one"]
    assert [str(problem) for problem in dataset.problems] == [
        "rows:2: 'answer' contains 3 bytes, which JSON cannot represent; decode them first",
        "rows:3: 'n' contains an infinite number, which JSON cannot represent",
    ]
    double = pandas.DataFrame([["a", "b"]], columns=["answer", "answer"])
    with pytest.raises(DatasetError, match="two columns of the frame have the name 'answer'"):
        load(double)
    binary = load(polars.DataFrame({"answer": ["x", "y"], "raw": [None, b"z"]}))
    assert [s.output for s in binary] == ["x"] and "contains 1 bytes" in str(binary.problems[0])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=5))
def test_any_text_survives_every_frame(texts: list[str]) -> None:
    rows = [{"answer": text} for text in texts]
    wanted = [Sample(f"rows-{n}", text) for n, text in enumerate(texts, 1)]
    assert list(load(rows)) == wanted
    assert list(load(polars.DataFrame(rows))) == wanted
    assert list(load(pandas.DataFrame(rows))) == wanted


def test_values_that_are_nothing_or_keys_that_are_no_texts() -> None:
    assert json_value({1: [(2, pandas.NA), {3.0}], "a": pandas.NaT}) == {"1": [[2, None], [3.0]], "a": None}
    with pytest.raises(ValueError, match="object with a tuple as key"):
        json_value({(1, 2): 3})
    with pytest.raises(ValueError, match="contains a object, which JSON cannot represent"):
        json_value(object())


def test_a_value_nested_without_end_spoils_one_row() -> None:
    deep: list[Any] = []
    deep.append(deep)
    dataset = load(pandas.DataFrame({"answer": ["one", "two"], "tree": [None, deep]}))
    assert [s.output for s in dataset] == ["one"]
    assert [str(problem) for problem in dataset.problems] == ["rows:2: 'tree' is nested too deep"]


def test_frames_and_parquet_are_judged_like_any_rows(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda prompt: {"faithful": 1})
    rows = [{"answer": "At five.", "context": "It closes at five.", "label": "PASS"}] * 3
    for given_rows in (
        pandas.DataFrame(rows),
        polars.DataFrame(rows),
        parquet(tmp_path / "rows.parquet", rows),
    ):
        run = magistrate.evaluate(
            given_rows, "faithfulness", model=engine, store=tmp_path / "runs.db", progress=False
        )
        assert [outcome.label for outcome in run.outcomes()] == ["faithful"] * 3


def test_frames_and_parquet_are_imported_only_by_those_who_use_them(tmp_path: Path) -> None:
    code = """
import sys
from magistrate.datasets import load
list(load([{"answer": "x"}])), list(load("quickstart"))
print(sorted({"pandas", "polars", "pyarrow", "huggingface_hub", "numpy"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
