"""What the reading of samples promises: every name understood, every bad row reported, nothing lost."""

from __future__ import annotations

import csv
import gzip
import http.server
import itertools
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magistrate._paths import datasets_dir, default_store, home, models_dir
from magistrate.datasets import Dataset, describe, load
from magistrate.datasets.fields import ALIASES
from magistrate.datasets.rows import RowError
from magistrate.datasets.samples import to_row, to_sample
from magistrate.errors import DatasetError, SpecError
from magistrate.types import Sample, Span, Turn

# Read before any test sets it to a folder of its own.
DATA_FOLDER = os.environ.get("MAGISTRATE_DATA_DIR")
GOOD = {"input": "Where?", "context": "Bern is in Switzerland.", "output": "In Switzerland."}


def write(path: Path, *rows: Any) -> Path:
    """A JSONL file of rows; bytes stand as they are."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    data = b"".join(line + b"\n" for line in lines)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def one(row: dict[str, Any], **options: Any) -> Sample:
    return to_sample(row, id="row-1", **options)


def reasons(dataset: Dataset) -> list[str]:
    list(dataset)
    return [str(problem) for problem in dataset.problems]


# --- where files are kept --------------------------------------------------------------------------


def test_home_is_where_the_variable_says_and_naming_it_creates_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path / "kept"))
    assert home() == tmp_path / "kept"
    assert {models_dir().parent, datasets_dir().parent, default_store().parent} == {home()}
    assert default_store().name == "magistrate.db"
    monkeypatch.delenv("MAGISTRATE_HOME")
    assert home().name == "magistrate"
    assert not (tmp_path / "kept").exists()


# --- one row ---------------------------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "id": "a7",
    "input": "asked",
    "output": "said",
    "context": ["one", "two"],
    "expected": "right",
    "label": "hallucinated",
    "hallucination": "yes",
    "faithful": "no",
    "spans": [{"start": 0, "end": 4, "kind": "conflict"}],
    "messages": [{"role": "user", "content": "hello"}],
    "alternatives": ["other"],
    "metadata": {"domain": "law"},
}
READ: dict[str, Any] = {
    **VALUES,
    "context": ("one", "two"),
    "spans": (Span(0, 4, "conflict"),),
    "messages": (Turn("user", "hello"),),
    "alternatives": ("other",),
}


def test_every_known_column_name_gives_its_field():
    for field, alias in [(field, alias) for field, names in ALIASES.items() for alias in names]:
        camel = "".join(word.capitalize() if at else word for at, word in enumerate(alias.split("_")))
        for name in (alias, alias.upper(), alias.replace("_", " ").title(), camel):
            row = {"output": "said", name: VALUES[field]} if field != "output" else {name: "said"}
            sample = one(row)
            part = "label" if field in ("hallucination", "faithful") else field
            assert getattr(sample, part) == READ[part], name
            assert field == "metadata" or sample.metadata == {}, name


@pytest.mark.parametrize(
    ("row", "label"),
    [
        ({"label": "Faithful"}, "faithful"),
        ({"label": "PASS"}, "faithful"),
        ({"label": "fail"}, "hallucinated"),
        ({"label": "Non_Factual"}, "hallucinated"),
        ({"label": None}, None),
        ({"hallucination": "NO"}, "faithful"),
        ({"hallucination": True}, "hallucinated"),
        ({"hallucination": 0}, "faithful"),
        ({"is_faithful": False}, "hallucinated"),
        ({}, None),
    ],
)
def test_label_words_of_other_tools(row, label):
    assert one({**GOOD, **row}).label == label


@pytest.mark.parametrize("value", [0, 1, True, "1", "yes"])
def test_a_label_that_does_not_say_which_way_round_is_refused_until_mapped(value):
    with pytest.raises(RowError, match=r"label .* is unclear; give it with --labels"):
        one({**GOOD, "label": value})
    yes = value != 0
    assert one({**GOOD, "label": value}, mapping={"faithful": "label"}).label == (
        "faithful" if yes else "hallucinated"
    )
    assert one({**GOOD, "label": value}, mapping={"hallucination": "label"}).label == (
        "hallucinated" if yes else "faithful"
    )


def test_two_columns_for_one_field_are_an_error_that_a_mapping_resolves_without_loss():
    row = {"question": "?", "response": "gold", "actual_output": "said"}
    with pytest.raises(RowError, match=r"'response' and 'actual_output' both give the output.*--map output="):
        one(row)
    sample = one(row, mapping={"output": "actual_output", "expected": "response"})
    assert (sample.output, sample.expected, sample.metadata) == ("said", "gold", {})
    assert one(row, mapping={"output": "actual_output"}).metadata == {"response": "gold"}
    assert one({"answer": None, "response": "said"}).output == "said"


def test_a_mapping_reaches_into_objects_and_leaves_the_rest_of_them_in_the_metadata():
    row = {"reply": {"text": "said", "model": "m"}, "docs": [{"body": "one"}, {"body": "two"}]}
    sample = one(row, mapping={"output": "reply.text", "context": "docs.1.body"})
    assert (sample.output, sample.context) == ("said", ("two",))
    assert sample.metadata == {"reply": {"model": "m"}, "docs": row["docs"]}
    with pytest.raises(RowError, match=r"no column 'reply\.body', given by --map; columns: reply, docs"):
        one(row, mapping={"output": "reply.body"})


def test_mappings_are_checked_before_anything_is_read():
    with pytest.raises(SpecError, match=r"unknown field 'ouput'.*did you mean 'output'"):
        load([GOOD], mapping={"ouput": "x"})
    with pytest.raises(SpecError, match="label twice"):
        load([GOOD], mapping={"label": "a", "hallucination": "b"})


@pytest.mark.parametrize(
    ("given", "context"),
    [
        (None, ()),
        ("", ()),
        ("one", ("one",)),
        (["one", ""], ("one", "")),
        ("[1] a text", ("[1] a text",)),
        ([{"page_content": "one", "url": "u"}, "two"], ("one", "two")),
    ],
)
def test_shapes_of_a_context(given, context):
    sample = one({"output": "said", "context": given})
    assert sample.context == context
    if isinstance(given, list) and isinstance(given[0], dict):
        assert sample.metadata == {"context": given}, "the address of the document is not lost"


@pytest.mark.parametrize(
    ("cell", "context"),
    [
        ('["one", "two"]', ("one", "two")),
        ("['one', \"it's\"]", ("one", "it's")),
        ("[1]", ("[1]",)),
        ("[note] see below [end]", ("[note] see below [end]",)),
        ("", ()),
    ],
)
def test_a_list_in_a_table_cell(cell, context):
    assert one({"output": "said", "contexts": cell}, cells=True).context == context


def test_shapes_of_spans_and_messages_keep_what_does_not_fit_as_metadata():
    row = {"output": "said", "spans": [[0, 2], [1, 4, "conflict"], {"start": 3, "end": 4, "label_type": "x"}]}
    assert one(row).spans == (Span(0, 2), Span(1, 4, "conflict"), Span(3, 4, "x"))
    assert one({**row, "spans": [{"start": 0, "end": 1, "why": "?"}]}).metadata["spans"][0]["why"] == "?"
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert one({"output": "said", "messages": parts}).messages == (Turn("user", "ab"),)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"question": "?"}, "no output; columns: question; give its column with --map output=COLUMN"),
        ({"answer": 3}, "answer must be text, got a number"),
        ({"output": "x", "docs": "d", "contexts": ["a", None]}, r"contexts\[1\] must be text, got null"),
        ({"output": "x", "context": 7}, "context must be text or a list of texts, got a number"),
        ({"output": "x", "context": [{"url": "u"}]}, "context is an object without a text"),
        ({"output": "four", "spans": [[0, 5]]}, r"spans\[0\] is \[0, 5\), outside the output's 4 characters"),
        ({"output": "four", "spans": [[2, 1]]}, r"spans\[0\] is \[2, 1\)"),
        ({"output": "x", "spans": [{"start": 0}]}, r"spans\[0\]\.end is missing"),
        ({"output": "x", "spans": [{"start": True, "end": 1}]}, "must be a whole number, got true or false"),
        ({"output": "x", "messages": [{"content": "a"}]}, r"messages\[0\]\.role is missing"),
        ({"output": "x", "label": "maybe"}, "label 'maybe' is not a known label; known: faithful"),
        ({"output": "x", "hallucination": 0.7}, "hallucination 0.7 is not yes or no"),
    ],
)
def test_a_bad_row_says_why_in_a_few_words(row, reason):
    with pytest.raises(RowError, match=reason) as caught:
        one(row)
    assert len(str(caught.value)) < 250 and "\n" not in str(caught.value)


def test_what_a_foreign_file_names_reaches_no_terminal_as_it_is():
    with pytest.raises(RowError) as caught:
        one({"\x1b[2J" + "x" * 500: "a", "b\nc": "d"})
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


def test_a_task_may_produce_the_output():
    assert one({"question": "?"}, need_output=False).output is None
    with pytest.raises(DatasetError, match="no output"):
        list(load([{"question": "?"}]))
    assert [s.output for s in load([{"question": "?"}], need_output=False)] == [None]


# --- round trips -----------------------------------------------------------------------------------

text = st.text(max_size=30)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    output = draw(text)
    ends = draw(st.lists(st.tuples(*[st.integers(0, len(output))] * 2), max_size=2))
    return Sample(
        id=draw(st.text(min_size=1, max_size=8)),
        output=output,
        context=tuple(draw(st.lists(text, max_size=3))),
        input=draw(st.none() | text),
        expected=draw(st.none() | text),
        messages=tuple(Turn(*pair) for pair in draw(st.lists(st.tuples(text, text), max_size=2))),
        alternatives=tuple(draw(st.lists(text, max_size=2))),
        label=draw(st.sampled_from([None, "faithful", "hallucinated"])),
        spans=tuple(Span(min(pair), max(pair), draw(text) or "x") for pair in ends),
        metadata=draw(st.dictionaries(text, plain, max_size=3)),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    given_samples=st.lists(samples(), min_size=1, max_size=3, unique_by=lambda s: s.id), escaped=st.booleans()
)
def test_any_unicode_survives_a_round_trip(tmp_path, given_samples, escaped):
    lines = [json.dumps(to_row(sample), ensure_ascii=escaped).encode() for sample in given_samples]
    assert list(load(write(tmp_path / "any.jsonl", *lines))) == given_samples
    assert list(load(write(tmp_path / "any.jsonl.gz", *lines))) == given_samples
    assert list(load(given_samples)) == given_samples


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cells=st.lists(st.text(min_size=1, max_size=20).filter(lambda t: "\0" not in t), min_size=1, max_size=4)
)
def test_any_text_survives_a_table(tmp_path, cells):
    path = tmp_path / "any.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as stream:
        table = csv.writer(stream, quoting=csv.QUOTE_ALL)
        table.writerows([["answer", "note"], *([cell, cell] for cell in cells)])
    assert [(s.output, s.metadata["note"]) for s in load(path)] == [(cell, cell) for cell in cells]


# --- files -----------------------------------------------------------------------------------------


def test_bad_lines_are_reported_with_file_and_line_and_the_others_go_on(tmp_path):
    path = write(
        tmp_path / "rows.jsonl",
        b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r",
        b"",
        b"{not json}",
        b'{"output": "\xc3\x28"}',
        b"[1, 2]",
        {"question": "?"},
        b'{"output": "a", "output": "b"}',
        b'{"output": "x", "score": NaN}',
        b'{"output": "x", "score": 1e999}',
        b'{"output": "\\ud800"}',
        b"   ",
        GOOD,
    )
    dataset = load(path)
    assert [s.id for s in dataset] == ["rows-1", "rows-12"]
    assert {s.output for s in dataset} == {"In Switzerland."}
    found = [str(problem).removeprefix(f"{path}:") for problem in dataset.problems]
    assert [line.partition(":")[0] for line in found] == ["3", "4", "5", "6", "7", "8", "9", "10"]
    assert found[1] == "4: not UTF-8: byte 0xc3 at byte 13 of the line"
    assert found[2] == "5: must be an object with columns, got a list"
    assert "no output" in found[3] and "duplicate key" in found[4].lower()
    assert all("not JSON" in found[k] for k in (0, 4, 5, 6, 7))


def test_bad_table_rows_are_reported_and_the_others_go_on(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(
        b"\xef\xbb\xbfquestion,answer,contexts,hallucination\r\n"
        b'"two\r\nlines",one,"[""a"", ""b""]",yes\r\n'
        b"\r\n"
        b"short,row\r\n"
        b"q,caf\xe9,c,no\r\n"
        b'q,"bro"ken,c,no\r\n'
        b"q,,c,no\r\n"
        b"q,fine,c,NO\r\n"
        b'q,"never closed,c,no\r\nq,lost,c,no\r\n'
    )
    dataset = load(path)
    first, second = dataset
    assert (first.input, first.context, first.label) == ("two\r\nlines", ("a", "b"), "hallucinated")
    assert (first.id, second.id, second.output, second.label) == ("rows-2", "rows-9", "fine", "faithful")
    found = [str(problem).removeprefix(f"{path}:") for problem in dataset.problems]
    assert found[0] == "5: 2 cells under 4 columns"
    assert found[1] == "6: not UTF-8: byte 0xe9 at byte 4 of 'answer'"
    assert found[2].startswith("7: not CSV:") and found[3].startswith(
        "8: column 'answer' with the output is blank"
    )
    assert found[4] == "10: a quote that starts here is not closed, so the rest of the file is one cell"
    assert found[5] == "11: it is inside a cell that a quote in line 10 opened"


def test_rows_that_a_stray_quote_swallows_are_all_counted(tmp_path):
    for broken, swallowed in ({30: '30,"o,c'}, 11), ({30: '30,"o,c', 34: '34,"o",c'}, 5):
        rows = ["id,answer,context", *(f"{at},o,c" for at in range(2, 41))]
        for line, row in broken.items():
            rows[line - 1] = row
        (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n\n")
        dataset = load(tmp_path / "rows.csv")
        read = len(list(dataset))
        assert (read, dataset.unread.n, dataset.unread.rows) == (39 - swallowed, swallowed, 39)
        with pytest.raises(DatasetError, match="inside a cell that a quote in line 30 opened"):
            dataset.check(0.1)


def test_a_huge_cell_and_a_huge_line_are_read(tmp_path):
    long = "word " * 60_000
    (tmp_path / "a.csv").write_text(f"answer,context\n{long},{long}\n")
    assert [len(s.output or "") for s in load(tmp_path / "a.csv")] == [len(long)]
    assert [len(s.output or "") for s in load(write(tmp_path / "a.ndjson", {"answer": long}))] == [len(long)]


def test_files_that_cannot_be_read_say_what_to_do(tmp_path):
    whole = write(tmp_path / "claims.jsonl.gz", *[{**GOOD, "note": os.urandom(64).hex()}] * 3000)
    half = tmp_path / "half.jsonl.gz"
    half.write_bytes(whole.read_bytes()[:-200])
    (tmp_path / "fake.jsonl.gz").write_bytes(b"not gzip at all")
    (tmp_path / "wide.jsonl").write_bytes(json.dumps(GOOD).encode("utf-16"))
    (tmp_path / "twice.csv").write_text("answer,answer\na,b\n")
    (tmp_path / "one.json").write_text('{\n "output": "x"\n}')
    (tmp_path / "two.json").write_text('[{"output": "x", "label": "hallucinated", "label": "faithful"}]')
    (tmp_path / "endless.json").write_text('[{"output": "x", "cost": 1e999}]')
    (tmp_path / "odd.docx").write_bytes(b"x")
    (tmp_path / "sheet.xlsx").write_bytes(b"x")
    (tmp_path / "twice.parquet.gz").write_bytes(b"x")
    write(tmp_path / "empty.jsonl")
    (tmp_path / "header.csv").write_text("answer,context\n")
    write(tmp_path / "bad.jsonl", {"a": 1}, {"a": 2})
    for name, error, message in [
        ("half.jsonl.gz", DatasetError, "ends early: its gzip data is cut short"),
        ("fake.jsonl.gz", DatasetError, "not valid gzip data"),
        ("wide.jsonl", DatasetError, "UTF-16; save it as UTF-8"),
        ("twice.csv", DatasetError, "two columns have the name 'answer'"),
        ("one.json", DatasetError, "one JSON object; samples must be a list"),
        ("two.json", DatasetError, "not JSON: duplicate key 'label'"),
        ("endless.json", DatasetError, "not JSON: "),
        ("empty.jsonl", DatasetError, "empty.jsonl has no samples"),
        ("header.csv", DatasetError, "header.csv has no samples"),
        ("bad.jsonl", DatasetError, r"none of the 2 rows of bad can be read; .*bad\.jsonl:1: no output"),
        (
            "odd.docx",
            SpecError,
            r"unknown file type 'odd\.docx'; supported are \.jsonl.*\.zst, and \.parquet",
        ),
        ("sheet.xlsx", SpecError, r"'sheet\.xlsx' is a spreadsheet; save the sheet as CSV"),
        ("twice.parquet.gz", SpecError, r"unknown file type 'twice\.parquet\.gz'"),
        ("clams.jsonl.gz", SpecError, r"no file .*did you mean 'claims\.jsonl\.gz'"),
        ("no/such.jsonl", SpecError, "there is no folder"),
        ("", SpecError, r"is a folder, not a file of samples; it holds bad\.jsonl"),
    ]:
        with pytest.raises(error, match=message):
            list(load(tmp_path / name))


def test_a_wrong_mapping_is_noticed_before_a_long_file_is_through(tmp_path):
    path = write(tmp_path / "long.jsonl", *[{"said": "x"}] * 1500)
    dataset = load(path, mapping={"output": "sad"})
    with pytest.raises(DatasetError, match=r"first 1000 rows.*no column 'sad'.*columns: said"):
        list(dataset)
    assert len(dataset.problems) == 1000


def test_json_files_hold_a_list_or_lines(tmp_path):
    path = tmp_path / "list.json"
    path.write_text(json.dumps([GOOD, 3, {**GOOD, "id": 7}], indent=1))
    dataset = load(path)
    assert [s.id for s in dataset] == ["list-1", "7"]
    assert reasons(dataset) == [f"{path} item 2: must be an object with columns, got a number"]
    assert len(list(load(write(tmp_path / "lines.json", GOOD, GOOD)))) == 2


def test_standard_input_is_a_dataset_with_a_digest():
    code = "from magistrate.datasets import load; d = load('-'); "
    code += "print(d.digest, [s.id for s in d], len(d), d.problems[0])"
    given_lines = json.dumps(GOOD) + "\nnonsense\n" + json.dumps(GOOD) + "\n"
    done = subprocess.run(
        [sys.executable, "-c", code], input=given_lines, capture_output=True, text=True, check=True
    )
    assert "['stdin-1', 'stdin-3'] 2 stdin:2: not JSON" in done.stdout
    assert len(done.stdout.split()[0]) == 64


@pytest.mark.full
def test_a_hundred_thousand_rows_stream_in_flat_memory(tmp_path):
    path = tmp_path / "many.jsonl"
    filler = "something was said about this " * 8
    with path.open("w") as stream:
        for number in range(100_000):
            stream.write(f'{{"question": "{number}", "answer": "{filler}", "context": "{filler}"}}\n')
    assert path.stat().st_size > 45e6
    dataset = load(path)
    assert sum(1 for _ in dataset) == len(dataset) == dataset.size == 100_000
    tracemalloc.start()
    try:
        taken = list(load(path, sample=50, seed=3))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(taken) == 50
    assert peak < 20e6, "only the ids seen so far and the chosen samples are kept"


# --- which samples, under which ids ----------------------------------------------------------------


def labelled(*labels: str | None) -> list[dict[str, Any]]:
    return [
        {**GOOD, "id": f"s{at}", "label": label, "domain": "ab"[at % 2]} for at, label in enumerate(labels)
    ]


def test_ids_are_unique_and_no_row_is_lost():
    rows = [{**GOOD, "id": id} for id in ("x", "x", "x~2", "rows-5", None, "x")]
    assert [s.id for s in load(rows)] == ["x", "x~2", "x~2~2", "rows-5", "rows-5~2", "x~3"]


def test_a_random_sample_is_fixed_by_its_seed_and_comes_in_the_order_of_the_source():
    rows = labelled(*["PASS"] * 200)
    taken = [s.id for s in load(rows, sample=20, seed=1)]
    assert taken == [s.id for s in load(rows, sample=20, seed=1)] == sorted(taken, key=lambda id: int(id[1:]))
    assert taken != [s.id for s in load(rows, sample=20, seed=2)]
    assert len(set(taken)) == 20


def test_every_row_is_as_likely_as_any_other():
    rows = labelled(*["PASS"] * 4)
    drawn = Counter(next(iter(load(rows, sample=1, seed=seed))).id for seed in range(400))
    assert set(drawn) == {"s0", "s1", "s2", "s3"}
    assert max(drawn.values()) < 140 and min(drawn.values()) > 60


def test_balance_takes_equally_many_of_each_value_or_says_why_not():
    rows = labelled(*["PASS"] * 30, *["FAIL"] * 10, None, None)
    taken = list(load(rows, sample=12, balance="label"))
    assert Counter(s.label for s in taken) == {"faithful": 6, "hallucinated": 6}
    assert [s.id for s in taken] == sorted((s.id for s in taken), key=lambda id: int(id[1:]))
    assert Counter(s.label for s in load(rows, balance="label")) == {"faithful": 10, "hallucinated": 10}
    by_domain = Counter(s.metadata["domain"] for s in load(rows, sample=8, balance="metadata.domain"))
    assert by_domain == {"a": 4, "b": 4}
    for options, message in [
        (
            {"sample": 30, "balance": "label"},
            r"15 of each label: there are faithful 30, hallucinated 10; take at most 20",
        ),
        (
            {"sample": 5, "balance": "label"},
            r"5 equally from 2 values of label \(faithful 30, hallucinated 10\); take 4 or 6",
        ),
        ({"balance": "metadata.none"}, "no sample has it"),
        ({"sample": 43}, "cannot take 43 random samples: there are 42"),
    ]:
        with pytest.raises(DatasetError, match=message):
            list(load(rows, **options))


def test_selections_that_make_no_sense_are_refused():
    for options, message in [
        ({"limit": 0}, "limit must be a whole number of at least 1, got 0"),
        ({"limit": 2, "sample": 2}, "give only one"),
        ({"balance": "domain"}, r"did you mean 'metadata\.domain'"),
        ({"view": "article200"}, "views such as 'article200' need a named set"),
    ]:
        with pytest.raises(SpecError, match=message):
            load([GOOD], **options)


def test_limit_takes_the_first_good_rows(tmp_path):
    path = write(tmp_path / "r.jsonl", b"x", GOOD, GOOD, GOOD)
    dataset = load(path, limit=2)
    assert [s.id for s in dataset] == ["r-2", "r-3"] and dataset.size == len(dataset) == 2

    def endless() -> Iterator[dict[str, str]]:
        while True:
            yield GOOD

    assert len(list(load(endless(), limit=3))) == 3


def test_the_digest_is_that_of_what_is_read(tmp_path):
    path = write(tmp_path / "a.jsonl", GOOD, {**GOOD, "label": "PASS"})
    same = write(tmp_path / "b.jsonl.gz", GOOD, {**GOOD, "label": "PASS"})
    digest = load(path).digest
    assert digest == load(path).digest == load(same).digest == load(path, seed=5).digest
    others = [
        load(path, mapping={"expected": "input"}),
        load(path, limit=1),
        load(path, sample=1),
        load(path, sample=1, seed=1),
        load(path, need_output=False),
        load(write(tmp_path / "c.jsonl", GOOD)),
        load([GOOD]),
        load([{**GOOD, "output": "Else."}]),
    ]
    assert len({digest, *(other.digest for other in others)}) == len(others) + 1
    assert load([GOOD]).digest == load([dict(reversed(GOOD.items()))]).digest


def test_a_file_that_changes_under_a_run_is_noticed(tmp_path):
    path = write(tmp_path / "a.jsonl", GOOD)
    dataset = load(path)
    write(path, GOOD, GOOD)
    with pytest.raises(DatasetError, match="has changed since it was opened"):
        list(dataset)


def test_rows_in_memory_may_be_samples_and_what_json_cannot_hold_is_reported():
    dataset = load(
        [Sample("a", "said"), {"output": "x", "when": {1}}, "t", Sample("b", None), {"output": "\ud800"}]
    )
    assert [s.id for s in dataset] == ["a"] and len(dataset) == 1
    found = [str(problem) for problem in dataset.problems]
    assert found[0].startswith("rows:2: contains a value that JSON cannot represent")
    assert found[1:3] == ["rows:3: must be a dict or a Sample, got text", "rows:4: no output"]
    assert found[3] == "rows:5: contains half of a surrogate pair, which is not valid UTF-8"
    assert next(iter(load([{"output": "x", "label": float("nan")}]))).label is None
    with pytest.raises(SpecError, match="a name, a path or a list of rows, got dict"):
        load({"output": "x"})
    assert load(dataset) is dataset and [s.id for s in load(dataset, limit=1)] == ["a"]
    with pytest.raises(TypeError, match="length is unknown"):
        len(load([GOOD]))


# --- named sets ------------------------------------------------------------------------------------


def test_unknown_names_are_answered_with_what_is_known():
    with pytest.raises(
        SpecError,
        match=r"unknown dataset 'halueval'.*did you mean 'halueval-qa'.*summedits.*path to a \.jsonl",
    ):
        load("halueval")
    with pytest.raises(
        SpecError, match=r"no view 'article20' \(did you mean 'article200'\?\); known: dev, full, article200"
    ):
        load("halueval-qa", view="article20")


def test_a_text_that_is_no_name_at_all_is_an_unknown_dataset():
    with pytest.raises(SpecError, match=r"unknown dataset 'xxx.*…") as caught:
        load("x" * 5000)
    assert len(str(caught.value)) < 300


def local_row(id: str, label: str) -> dict[str, Any]:
    """A row in the layout of `MAGISTRATE_DATA_DIR`."""
    row = {"id": id, "dataset": "halueval_qa", "split": "dev", "task": "qa", "question": "?"}
    return {**row, "context": None, "answer": "a", "label": label, "spans": [], "meta": {"pair": 1}}


def test_a_named_set_is_read_from_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MAGISTRATE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path / "home"))
    write(tmp_path / "halueval_qa_dev.jsonl.gz", local_row("d", "faithful"))
    write(tmp_path / "halueval_qa_article200.jsonl.gz", local_row("v", "hallucinated"))
    assert [s.id for s in load("halueval-qa")] == ["d"]
    (sample,) = dataset = load("halueval-qa", view="article200")
    assert dataset.name == "halueval-qa:article200" == load("halueval-qa:article200").name
    assert (sample.input, sample.output, sample.context, sample.label) == ("?", "a", (), "hallucinated")
    assert sample.metadata == {"pair": 1, "dataset": "halueval_qa", "split": "dev", "task": "qa"}
    with pytest.raises(
        DatasetError,
        match=r"summedits:dev is not installed.*set MAGISTRATE_DATA_DIR to a folder with summedits_dev",
    ):
        load("summedits", view="dev")
    where = {listing.name: listing.where for listing in describe()}
    assert where["halueval-qa"] == str(tmp_path / "halueval_qa_dev.jsonl.gz")
    assert where["begin"] == "not here; downloaded when first used, or set MAGISTRATE_DATA_DIR"
    assert where["quickstart"] == "in the package"
    assert not (tmp_path / "home").exists()


def test_quickstart_is_in_the_package_and_labelled():
    dataset = load("quickstart")
    assert {s.label for s in dataset} == {"faithful", "hallucinated"} and dataset.problems == []
    assert next(row for row in describe() if row.name == "quickstart").rows == len(dataset)


class Upstream(http.server.ThreadingHTTPServer):
    """A stand-in for the git hosting: the body at each path, and what was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.cut = 0


class Answer(http.server.BaseHTTPRequestHandler):
    server: Upstream

    def do_GET(self) -> None:
        path = self.path.split("/", 4)[4]
        self.server.asked.append(self.path)
        body = self.server.files.get(path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write((body or b"")[: len(body or b"") - self.server.cut])

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def upstream(tmp_path, monkeypatch):
    server = Upstream()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("MAGISTRATE_GIT_RAW", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("MAGISTRATE_DATA_DIR", raising=False)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def halueval(items: int) -> bytes:
    keys = ("knowledge", "question", "right_answer", "hallucinated_answer")
    return b"".join(json.dumps({key: f"{key} {at}" for key in keys}).encode() + b"\n" for at in range(items))


def test_halueval_is_downloaded_once_and_made_the_view_the_article_used(upstream):
    upstream.files["data/qa_data.json"] = halueval(10_000)
    full = load("halueval-qa")
    first = list(itertools.islice(full, 3))
    assert full.name == "halueval-qa:full"
    # random.seed(42) draws .639, .025, .275 first, and above .5 is the hallucinated answer.
    assert [s.id for s in first] == ["halueval_qa-0-hall", "halueval_qa-1-right", "halueval_qa-2-right"]
    assert first[0].output == "hallucinated_answer 0" and first[1].output == "right_answer 1"
    assert first[0].context == ("knowledge 0",) and first[0].input == "question 0"
    article = list(load("halueval-qa", view="article200"))
    assert [s.metadata["pair"] for s in article[:8]] == [2039, 5927, 3530, 1497, 6446, 2129, 3264, 554]
    assert [s.label for s in article] == ["hallucinated"] * 100 + ["faithful"] * 100
    assert len(upstream.asked) == 1


def test_what_was_downloaded_first_holds_from_then_on(upstream, tmp_path):
    upstream.files["data/qa_data.json"] = halueval(4)
    load("halueval-qa")
    (kept,) = (tmp_path / "home").rglob("qa_data.json")
    assert sorted(path.name for path in kept.parent.iterdir()) == ["qa_data.json", "qa_data.json.sha256"]
    kept.write_bytes(halueval(5))
    with pytest.raises(DatasetError, match="is not what was downloaded; delete it"):
        load("halueval-qa")
    kept.unlink()
    upstream.files["data/qa_data.json"] = halueval(5)
    with pytest.raises(
        DatasetError, match=r"has sha256 .* is pinned; the file was deleted.*set MAGISTRATE_DATA_DIR"
    ):
        load("halueval-qa", view="article200")
    upstream.files["data/qa_data.json"] = halueval(4)
    assert len(list(load("halueval-qa"))) == 4


def test_downloads_that_fail_leave_nothing_and_say_what_to_do(upstream, tmp_path, monkeypatch):
    with pytest.raises(
        DatasetError,
        match=r"begin:dev is not .*answered 404.*set MAGISTRATE_DATA_DIR to a folder with begin_dev",
    ):
        load("begin")
    upstream.files["data/qa_data.json"], upstream.cut = halueval(50), 100
    with pytest.raises(DatasetError, match=r"it stopped after|the connection broke"):
        load("halueval-qa")
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == []
    monkeypatch.setenv("MAGISTRATE_GIT_RAW", "http://127.0.0.1:9")
    with pytest.raises(DatasetError, match="check the network"):
        load("halueval-qa")
    monkeypatch.setenv("MAGISTRATE_GIT_RAW", "file:///etc")
    with pytest.raises(DatasetError, match="must start with http"):
        load("halueval-qa")
    (tmp_path / "taken").write_text("a file where the folder should be")
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path / "taken"))
    monkeypatch.setenv("MAGISTRATE_GIT_RAW", "http://127.0.0.1:9")
    with pytest.raises(DatasetError, match="cannot write under"):
        load("summedits")


def test_summedits_and_begin_upstream_files_become_samples(upstream):
    edit = {"id": "x_0", "doc": "D", "summary": "S", "original_summary": "O", "edit_types": ["swap"]}
    domains = ["billsum", "ectsum", "news", "podcast", "qmsumm", "sales_call", "sales_email", "samsum"]
    for domain in [*domains, "scitldr", "shakespeare"]:
        rows = [{**edit, "label": 0}, {**edit, "id": "x_1", "label": 1}]
        upstream.files[f"data/summedits/summedits_{domain}.json"] = json.dumps(rows).encode()
    edits = list(load("summedits"))
    assert len(edits) == 20 and edits[0].id == "summedits-billsum-x_0"
    assert (edits[0].label, edits[1].label, edits[0].context, edits[0].output) == (
        "hallucinated",
        "faithful",
        ("D",),
        "S",
    )
    assert edits[0].metadata["edit_types"] == ["swap"] and edits[0].metadata["domain"] == "billsum"
    header = "model_name\tdata_source\tknowledge\tmessage\tresponse\tbegin_label\n"
    lines = ['t5\t{}\tit is "k"\tm\t"r\tFully attributable\n', "t5\t{}\tk\tm\tok\tGeneric\n"]
    lines += ["t5\t{}\tk\tm\tr\tNot fully attributable\n"]
    for path, source in [
        ("wow/begin_dev_wow", "wow"),
        ("cmu-dog/begin_dev_cmu", "cmu"),
        ("topicalchat/begin_dev_tc", "tc"),
    ]:
        upstream.files[f"{path}.tsv"] = (header + "".join(lines).replace("{}", source)).encode()
    turns = list(load("begin"))
    assert [s.id for s in turns[:3]] == [
        "begin-begin_dev_wow-0",
        "begin-begin_dev_wow-2",
        "begin-begin_dev_cmu-0",
    ]
    assert (turns[0].context, turns[0].output, turns[0].label) == (('it is "k"',), '"r', "faithful")
    assert turns[1].label == "hallucinated" and turns[-1].metadata["domain"] == "topicalchat"


def test_the_real_sets_read_completely_and_agree_with_the_converters(upstream, monkeypatch):
    if not DATA_FOLDER:
        pytest.skip("MAGISTRATE_DATA_DIR is not set")
    monkeypatch.setenv("MAGISTRATE_DATA_DIR", DATA_FOLDER)
    article = list(load("halueval-qa", view="article200"))
    assert Counter(s.label for s in article) == {"faithful": 100, "hallucinated": 100}
    for listing in describe():
        if not listing.here:
            continue
        dataset = load(listing.name)
        assert sum(1 for _ in dataset) == listing.rows and dataset.problems == []
    monkeypatch.delenv("MAGISTRATE_DATA_DIR")
    upstream.files["data/qa_data.json"] = halueval(10_000)
    assert [s.id for s in load("halueval-qa", view="article200")] == [s.id for s in article]
