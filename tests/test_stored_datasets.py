"""A stored data set gives back what it was given, once for every content, whatever happened meanwhile."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from magistrate.datasets import load
from magistrate.errors import DatasetError, InputError, SpecError
from magistrate.store import Store
from magistrate.store.codec import sample_body
from magistrate.store.datasets import Spool, StoredSource, keep_content, open_dataset
from magistrate.store.difference import LINE, difference
from magistrate.types import Recipe, Sample, Span, Turn, Verdict
from tiers import tries

NOON = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
TABLES = ("samples", "dataset_contents", "dataset_samples", "dataset_versions")
HOSTILE = ["it's", '"; DROP TABLE runs; --', "a\nb", "../../etc", "NUL \0 in", "\\u0041", "👩‍⚖️", "", "%_"]


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    """A new store, once in a file and once on a server."""
    moments = (NOON + timedelta(seconds=second) for second in count())
    with Store.open(place, clock=lambda: next(moments), randomness=random.Random(1)) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("shared") / "runs.db") as opened:
        yield opened


def numbered(n: int, first: int = 0) -> list[Sample]:
    return [Sample(f"s{i}", f"output {i}", (f"context {i}",)) for i in range(first, first + n)]


def held(store: Store) -> dict[str, int]:
    """How many rows each table of data sets has."""
    place = store.place
    url = place.replace("postgresql:", "postgresql+psycopg:") if "://" in place else f"sqlite:///{place}"
    engine = create_engine(url)
    with engine.connect() as connection:
        found = {name: connection.scalar(text(f"SELECT count(*) FROM {name}")) for name in TABLES}
    engine.dispose()
    return found


def judged(store: Store, samples: list[Sample], version: str | None) -> str:
    """A run over these samples that says which version it read."""
    recipe = Recipe("j", "tiny", "f" * 64, "j@1", "choice", 0, 1, "0.1.0")
    run = store.create_run(
        dataset="x",
        dataset_digest="d",
        model="tiny",
        engine_fingerprint="f",
        recipes={"j": recipe},
        dataset_version=version,
    )
    store.add_samples(run, samples)
    store.add_outcome(run, Verdict(samples[0].id, "j", "faithful", 0.1))
    return run


# --- what comes out is what went in -----------------------------------------------------------------

texts = st.text(max_size=20) | st.sampled_from(HOSTILE)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    output = draw(texts)
    ends = draw(st.lists(st.tuples(*[st.integers(0, len(output))] * 2), max_size=2))
    return Sample(
        id=draw(st.text(min_size=1, max_size=8)),
        output=output,
        context=tuple(draw(st.lists(texts, max_size=3))),
        input=draw(st.none() | texts),
        expected=draw(st.none() | texts),
        messages=tuple(Turn(*pair) for pair in draw(st.lists(st.tuples(texts, texts), max_size=2))),
        alternatives=tuple(draw(st.lists(texts, max_size=2))),
        label=draw(st.sampled_from([None, "faithful", "hallucinated"])),
        spans=tuple(Span(min(pair), max(pair), draw(texts) or "x") for pair in ends),
        metadata=draw(st.dictionaries(texts, plain, max_size=3)),
    ).answered()


lists = st.lists(samples(), min_size=1, max_size=4, unique_by=lambda sample: sample.id)


@settings(max_examples=tries(60), deadline=None)
@given(lists)
def test_what_comes_out_is_what_went_in(shared: Store, given_samples: list[Sample]) -> None:
    added = shared.add_dataset("any", iter(given_samples), source="test")
    assert list(shared.dataset_samples(added.digest)) == given_samples
    opened = open_dataset(shared, added.ref)
    assert list(opened) == list(opened) == given_samples and opened.problems == []
    assert (opened.name, opened.size) == (added.ref, len(given_samples))
    again = shared.add_dataset("any", opened, source="another")
    assert again == added and not again.new and again.source == added.source


@pytest.mark.full
@settings(max_examples=30, deadline=None)
@given(lists, st.randoms(use_true_random=False))
def test_a_digest_is_of_what_is_held_and_of_its_order(
    shared: Store, given_samples: list[Sample], draw: random.Random
) -> None:
    first = shared.add_dataset("one", given_samples, source="a")
    assert shared.add_dataset("two", given_samples, source="b").digest == first.digest
    other = draw.sample(given_samples, len(given_samples))
    assert (shared.add_dataset("one", other, source="c").digest == first.digest) == (other == given_samples)


def test_the_same_content_is_one_version_and_another_is_the_next(store: Store) -> None:
    first = store.add_dataset("refunds", numbered(3), source="a.jsonl")
    assert (first.ref, first.version, first.n_samples, first.new) == ("refunds@1", 1, 3, True)
    assert (first.created_at, first.source) == (NOON, "a.jsonl")
    same = store.add_dataset("refunds", iter(numbered(3)), source="b.jsonl")
    assert same == first and not same.new
    second = store.add_dataset("refunds", numbered(4), source="b.jsonl")
    assert (second.ref, second.new) == ("refunds@2", True)
    assert store.add_dataset("refunds", numbered(3), source="c.jsonl") == first, "an older one counts, too"
    assert store.dataset_versions() == store.dataset_versions("refunds") == [first, second]
    assert store.find_dataset("refunds") == second and store.find_dataset("refunds@1") == first
    assert [s.id for s in store.dataset_samples(first.digest)] == ["s0", "s1", "s2"]
    assert held(store) == {"samples": 4, "dataset_contents": 2, "dataset_samples": 7, "dataset_versions": 2}


def test_two_names_of_one_content_share_it(store: Store) -> None:
    first, second = (store.add_dataset(name, numbered(5), source="x") for name in ("one", "two"))
    assert first.digest == second.digest and first.ref != second.ref
    assert held(store) == {"samples": 5, "dataset_contents": 1, "dataset_samples": 5, "dataset_versions": 2}
    store.delete_dataset("one")
    assert list(store.dataset_samples(second.digest)) == numbered(5)
    store.delete_dataset("two@1")
    assert set(held(store).values()) == {0}


def test_what_no_file_can_hold_is_kept_too(store: Store) -> None:
    odd = [Sample("\ud800", "lone \udc00", metadata={"t": (1, 2.5), "n": None, 3: float("inf")})]
    added = store.add_dataset("odd", odd, source="\ud800 \0")
    assert list(store.dataset_samples(added.digest)) == odd
    assert store.find_dataset("odd").source == "\ud800 \0"


# --- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            " ",
            " x",
            "x ",
            "a\nb",
            "\x1b[2J",
            "a\u202eb",
            "\u200b",
            "a/b",
            "a\\b",
            "..",
            "../x",
            "a@1",
            "@",
        ),
        *(
            "a:b",
            "C:",
            "~",
            "~root",
            ".hidden",
            "-",
            "--yes",
            "x.jsonl",
            "x.csv.gz",
            "x.parquet",
            "x.json.zst",
        ),
        *("quickstart", "RAGTruth", "halueval-qa", "hf://a/b", "x" * 101, "NUL\0", "\ud800"),
    ],
)
def test_names_that_a_data_set_cannot_have(shared: Store, name: str) -> None:
    with pytest.raises(SpecError, match="a data set cannot be named") as caught:
        shared.add_dataset(name, numbered(1), source="x")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "name", ["refunds", "Übung 3", "日本語", "it's; DROP TABLE runs", "a.b", "1", "last", "%", "a_b"]
)
def test_names_that_it_can_have(store: Store, name: str) -> None:
    added = store.add_dataset(name, numbered(1), source="x")
    assert store.find_dataset(name) == store.find_dataset(f"{name}@1") == added
    assert [each.name for each in store.dataset_versions()] == [name]


def test_names_that_look_alike_are_one(store: Store) -> None:
    added = store.add_dataset(unicodedata.normalize("NFD", "Übung"), numbered(1), source="x")
    assert added.name == unicodedata.normalize("NFC", "Übung")
    assert store.find_dataset(unicodedata.normalize("NFD", "Übung@1")) == added


def test_what_is_not_there_is_said_with_what_is(store: Store) -> None:
    with pytest.raises(SpecError, match="unknown data set 'refunds'; there are none yet"):
        store.find_dataset("refunds")
    store.add_dataset("refunds", numbered(1), source="x")
    for ref, message in [
        ("refund", "unknown data set 'refund'; near: 'refunds'; see 'magistrate datasets'"),
        ("refunds@2", "data set 'refunds' has no version 2; it has 1"),
        ("refunds@0", "has no version 0"),
        ("refunds@x", "a version must be a number of at least 1"),
        ("refunds@", "a version must be a number of at least 1"),
        ("refunds@²", "a version must be a number of at least 1"),
        ("refunds@" + "9" * 40, "a version must be a number of at least 1"),
    ]:
        for ask in (store.find_dataset, store.delete_dataset, store.dataset_runs):
            with pytest.raises(SpecError, match=message):
                ask(ref)
    with pytest.raises(SpecError, match="no data set has the content"):
        list(store.dataset_samples("0" * 64))
    assert store.dataset_versions("nope") == []


def test_which_words_mean_a_stored_set(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added = store.add_dataset("answers", numbered(1), source="x")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answers").mkdir()
    assert store.stored_dataset("answers") == store.stored_dataset("answers@1") == added
    for words in (
        "-",
        "quickstart",
        "halueval-qa:dev",
        "answers.jsonl",
        "./answers",
        "hf://a/answers",
        "other",
        "other@1",
    ):
        assert store.stored_dataset(words) is None
    with pytest.raises(SpecError, match="has no version 7"):
        store.stored_dataset("answers@7")


# --- what is refused --------------------------------------------------------------------------------


def test_nothing_bad_leaves_a_trace(store: Store) -> None:
    def broken() -> Iterator[Sample]:
        yield from numbered(700)
        raise DatasetError("the file ends early")

    for given_samples, error, message in [
        ([], InputError, "there are no samples to store as 'refunds'"),
        ([*numbered(600), Sample("s3", "again")], InputError, "sample id 's3' is given twice"),
        (
            [Sample("bad", "x", metadata={"when": NOON})],
            InputError,
            r"sample 'bad': \$\.metadata\.when is a datetime",
        ),
        (broken(), DatasetError, "the file ends early"),
    ]:
        with pytest.raises(error, match=message):
            store.add_dataset("refunds", given_samples, source="x")
    assert set(held(store).values()) == {0} and store.dataset_versions() == []


# --- differences ------------------------------------------------------------------------------------


def test_a_difference_is_by_ids_and_names_the_fields(store: Store) -> None:
    before = [
        Sample("same", "o", ("c",), metadata={"a": 1, "b": 2}),
        Sample("gone", "o"),
        Sample("output", "old", spans=(Span(0, 1, "x"),)),
        Sample("many", "o", ("c",), label="faithful", messages=(Turn("user", "hi"),)),
    ]
    after = [
        Sample("new", "o"),
        replace(before[3], label=None, context=("c", ""), messages=(Turn("user", "ho"),)),
        replace(before[2], output="new", spans=(Span(0, 1, "y"),), metadata={"a": [1]}),
        replace(before[0], metadata={"b": 2, "a": 1}),
    ]
    found = difference(before, after)
    assert (found.added, found.removed, found.n_same) == (("new",), ("gone",), 1)
    assert found.changed == {
        "output": ("output", "spans", "metadata"),
        "many": ("context", "messages", "label"),
    }
    back = difference(after, before)
    assert (back.added, back.removed, set(back.changed)) == (("gone",), ("new",), {"output", "many"})
    assert not difference(before, before) and difference(before, before).n_same == 4


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(lists, lists)
def test_every_sample_is_in_one_part_of_a_difference(
    shared: Store, before: list[Sample], after: list[Sample]
) -> None:
    found = difference(before, after)
    left, right = {s.id: s for s in before}, {s.id: s for s in after}
    both = left.keys() & right.keys()
    assert len(found.added) == len(right) - len(found.changed) - found.n_same
    assert len(found.removed) == len(left) - len(found.changed) - found.n_same
    if any(LINE.fullmatch(id) for id in left.keys() | right.keys()):
        return
    assert set(found.added) == right.keys() - left.keys() and set(found.removed) == left.keys() - right.keys()
    assert set(found.changed) == {id for id in both if sample_body(left[id]) != sample_body(right[id])}
    for id, names in found.changed.items():
        assert names and all(
            repr(getattr(left[id], name)) != repr(getattr(right[id], name)) for name in names
        )


# --- deleting ---------------------------------------------------------------------------------------


def test_a_version_that_was_judged_stays_until_it_is_forced_away(store: Store) -> None:
    store.add_dataset("refunds", numbered(2), source="x")
    store.add_dataset("refunds", numbered(3), source="x")
    first = judged(store, numbered(2), "refunds@1")
    last = judged(store, numbered(2), "refunds@1")
    for ref in ("refunds", "refunds@1"):
        with pytest.raises(
            SpecError, match=rf"'{ref}' was judged by run {last} and 1 more; delete these runs first"
        ):
            store.delete_dataset(ref)
    assert [run.id for run in store.dataset_runs("refunds@1")] == [last, first]
    assert store.dataset_runs("refunds@2") == []
    assert [each.ref for each in store.delete_dataset("refunds@2")] == ["refunds@2"]
    assert [each.ref for each in store.delete_dataset("refunds", force=True)] == ["refunds@1"]
    assert list(store.samples(first)) == numbered(2), "a run keeps what it judged"
    assert held(store) == {"samples": 2, "dataset_contents": 0, "dataset_samples": 0, "dataset_versions": 0}


def test_a_number_that_a_run_speaks_of_is_not_given_again(store: Store) -> None:
    store.add_dataset("refunds", numbered(1), source="x")
    store.add_dataset("refunds", numbered(2), source="x")
    judged(store, numbered(2), "refunds@2")
    judged(store, numbered(2), "refunds_@7")
    store.delete_dataset("refunds", force=True)
    assert store.add_dataset("refunds", numbered(3), source="x").ref == "refunds@3"


def test_deleting_a_run_leaves_the_samples_of_data_sets_and_the_other_way_round(store: Store) -> None:
    added = store.add_dataset("refunds", numbered(3), source="x")
    run = judged(store, numbered(4), None)
    store.delete(run)
    assert list(store.dataset_samples(added.digest)) == numbered(3) and held(store)["samples"] == 3
    run = judged(store, numbered(2), None)
    store.delete_dataset("refunds")
    assert list(store.samples(run)) == numbered(2) and held(store)["samples"] == 2
    store.delete(run)
    assert set(held(store).values()) == {0}


# --- as any other data set --------------------------------------------------------------------------


def test_a_stored_set_is_read_with_the_options_of_any_other(store: Store) -> None:
    rows = [
        {"id": f"r{n}", "answer": "x", "label": "PASS" if n % 3 else "FAIL", "gold": f"g{n}"}
        for n in range(30)
    ]
    added = store.add_dataset("refunds", load(rows), source="x")
    assert [s.id for s in open_dataset(store, "refunds", limit=2)] == ["r0", "r1"]
    drawn = [s.id for s in open_dataset(store, "refunds", sample=6, balance="label", seed=3)]
    assert drawn == [s.id for s in load(rows, sample=6, balance="label", seed=3)]
    mapped = open_dataset(store, "refunds@1", mapping={"expected": "metadata.gold"}, limit=1)
    assert [(s.expected, s.metadata) for s in mapped] == [("g0", {})]
    dataset = open_dataset(store, "refunds")
    assert isinstance(dataset.source, StoredSource) and dataset.source.ref == added.ref
    assert dataset.source.digest() == added.digest != dataset.digest
    assert dataset.digest == open_dataset(store, "refunds@1").digest
    store.close()
    assert len(list(dataset)) == 30, "it opens the store by itself"
    with pytest.raises(SpecError, match="unknown field"), Store.open(store.place) as again:
        open_dataset(again, "refunds", mapping={"gold": "x"})


def test_samples_without_an_output_are_for_a_task(store: Store) -> None:
    asked = [Sample("q", None, input="Where?")]
    store.add_dataset("questions", asked, source="x")
    assert list(open_dataset(store, "questions", need_output=False)) == asked
    with pytest.raises(DatasetError, match="questions@1 sample q: no output"):
        list(open_dataset(store, "questions"))


def test_a_reader_sees_one_moment(store: Store) -> None:
    added = store.add_dataset("refunds", numbered(1200), source="x")
    reading = store.dataset_samples(added.digest)
    first = next(reading)
    with Store.open(store.place) as other:
        other.delete_dataset("refunds")
    assert [first, *reading] == numbered(1200)


# --- many, interrupted, at once ---------------------------------------------------------------------

MANY = """
import sys, resource
from magistrate.store import Store
from magistrate.types import Sample
filler = "something was said about this " * 8
def samples(n):
    for i in range(n):
        yield Sample(f"sample-{i}", f"{i} {filler}", (f"context {i} {filler}",), metadata={"n": i})
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
"""


@pytest.mark.full
def test_a_hundred_thousand_samples_in_flat_memory(tmp_path: Path) -> None:
    code = (
        MANY
        + f"""
store = Store.open({str(tmp_path / "runs.db")!r})
store.add_dataset("few", samples(2_000), source="x")
before = peak()
added = store.add_dataset("many", samples(100_000), source="x")
assert sum(1 for sample in store.dataset_samples(added.digest)) == 100_000
print(before, peak())
store.close()
"""
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    # The ids alone are some 12 MB; the texts would be 60.
    assert after - before < 40, f"{before} MB, then {after} MB"
    assert time.perf_counter() - start < 120


@pytest.mark.parametrize("after", [3, *(pytest.param(each, marks=pytest.mark.full) for each in (0, 11))])
def test_a_killed_addition_has_no_name_and_the_next_one_completes_it(tmp_path: Path, after: int) -> None:
    path = tmp_path / "runs.db"
    with Store.open(path) as store:
        store.add_dataset("kept", numbered(3), source="x")
    code = (
        MANY
        + f"""
import magistrate.store.datasets as datasets
keep, left = datasets.keep_content, {after}
def slowly(*given):
    global left
    keep(*given)
    if left == 0:
        print("now", flush=True)
        import time; time.sleep(60)
    left -= 1
datasets.keep_content = slowly
Store.open({str(path)!r}).add_dataset("many", samples(6_000), source="x")
"""
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "now\n"
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT count(*) FROM dataset_samples").fetchone()[0] == 3 + 500 * after
    namespace: dict[str, Any] = {}
    exec(MANY, namespace)
    with Store.open(path) as store:
        assert [each.ref for each in store.dataset_versions()] == ["kept@1"]
        with pytest.raises(SpecError, match="unknown data set 'many'"):
            store.find_dataset("many")
        added = store.add_dataset("many", namespace["samples"](6_000), source="x")
        assert added.ref == "many@1" and added.new
        assert list(store.dataset_samples(added.digest)) == list(namespace["samples"](6_000))
        store.delete_dataset("many")
        assert held(store) == {
            "samples": 3,
            "dataset_contents": 1,
            "dataset_samples": 3,
            "dataset_versions": 1,
        }


def test_what_a_killed_addition_left_goes_with_the_next_deletion(store: Store) -> None:
    left = [(sample.id, sample_body(sample)) for sample in numbered(5)]
    with store._writing() as connection:
        keep_content(connection, "f" * 64, 9, 0, left)
    store.add_dataset("small", numbered(2, first=4), source="x")
    store.delete_dataset("small")
    assert set(held(store).values()) == {0}


def test_an_addition_whose_parts_are_deleted_meanwhile_is_completed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting clears what seems to be left by an interrupted addition, also of one that goes on."""
    store.add_dataset("small", numbered(2, first=5_000), source="x")
    usual = Spool.chunks

    def disturbed(spool: Spool, size: int) -> Iterator[Any]:
        for place, chunk in enumerate(usual(spool, size)):
            if place == 2 and store.dataset_versions("small"):
                assert held(store)["dataset_samples"] == 1_002
                with Store.open(store.place) as other:
                    other.delete_dataset("small")
                assert held(store)["dataset_samples"] == 0
            yield chunk

    monkeypatch.setattr(Spool, "chunks", disturbed)
    added = store.add_dataset("many", numbered(1_300), source="x")
    assert added.new and list(store.dataset_samples(added.digest)) == numbered(1_300)
    assert held(store) == {
        "samples": 1_300,
        "dataset_contents": 1,
        "dataset_samples": 1_300,
        "dataset_versions": 1,
    }


@pytest.mark.full
def test_several_programs_add_at_once(place: str) -> None:
    """Six add the same content under two names, two of them other contents, too; none is lost or doubled."""
    with Store.open(place):
        pass
    code = """
import sys
from magistrate.store import Store
from magistrate.types import Sample
place, name, other = sys.argv[1:]
same = [Sample(f"s{i}", f"output {i}") for i in range(2_000)]
with Store.open(place) as store:
    print(store.add_dataset(name, same, source="x").ref)
    if other != "none":
        print(store.add_dataset(name, [*same, Sample("other", other)], source="x").ref)
"""
    wanted = [("a", "none"), ("a", "one"), ("a", "two"), ("b", "none"), ("b", "three"), ("b", "none")]
    children = [
        subprocess.Popen([sys.executable, "-c", code, place, *each], stdout=subprocess.PIPE, text=True)
        for each in wanted
    ]
    for child in children:
        child.communicate(timeout=100)
        assert child.returncode == 0
    with Store.open(place) as store:
        versions = store.dataset_versions()
        assert sorted(each.ref for each in versions) == ["a@1", "a@2", "a@3", "b@1", "b@2"]
        assert len({each.digest for each in versions}) == 4
        for each in versions:
            assert sum(1 for _ in store.dataset_samples(each.digest)) == each.n_samples
        assert held(store)["samples"] == 2_003
