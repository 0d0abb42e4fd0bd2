"""The store gives back what it was given, to whoever asks, whatever happened meanwhile."""

from __future__ import annotations

import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, inspect

from magistrate.errors import InputError, SpecError, StoreError
from magistrate.store import RunRecord, Store
from magistrate.store.migrations import LATEST, upgrade
from magistrate.store.outcome_lists import Cell
from magistrate.store.schema import metadata
from magistrate.types import (
    Abstention,
    Claim,
    Failure,
    Outcome,
    Recipe,
    Sample,
    Span,
    Step,
    Turn,
    Usage,
    Verdict,
)
from postgres import Server
from privileges import unprivileged
from tiers import tries

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
HOSTILE = [
    "it's",
    '"; DROP TABLE runs; --',
    "two\nlines\r\n",
    "../../etc/passwd",
    "👩‍⚖️ e\u0301",
    "%_\\u0000 \\",
    "NUL \0 inside",
    "lone \ud800 surrogate",
    "\\ud800",
    "",
    "x" * 10_000,
    "<script>alert(1)</script>",
]


def recipe(judge: str = "faithfulness") -> Recipe:
    return Recipe(judge, "tiny", "f" * 64, "faithfulness@1", "choice", 0, 3, "0.1.0")


def start(store: Store, samples: list[Sample] | None = None, **given: Any) -> str:
    words: dict[str, Any] = {
        "dataset": "quickstart",
        "dataset_digest": "d" * 64,
        "model": "tiny",
        "engine_fingerprint": "f" * 64,
        "recipes": {"faithfulness": recipe()},
    }
    run = store.create_run(**(words | given))
    store.add_samples(run, samples or [])
    return run


def numbered(n: int) -> list[Sample]:
    return [Sample(f"s{i}", f"output {i}", (f"context {i}",)) for i in range(n)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folder" / "runs.db"


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    moments = (NOON + timedelta(seconds=second) for second in count())
    with Store.open(place, clock=lambda: next(moments), randomness=random.Random(1)) as opened:
        yield opened


# --- what comes out equals what went in ---------------------------------------------------------

texts = st.text(st.characters(exclude_categories=()), max_size=20) | st.sampled_from(HOSTILE)
numbers = st.floats(allow_nan=False)
keys = texts | st.integers() | st.none() | st.tuples(texts) | st.sampled_from(["$tuple", "$map", "$float"])
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts, inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)
documents = st.dictionaries(keys, plain, max_size=3)
counts = st.integers(0, 2**63 - 1)
shares = st.floats(0, 1)
spans = st.builds(Span, counts, counts, texts)
usages = st.builds(Usage, counts, counts, counts, counts, counts)
steps = st.builds(
    Step,
    st.sampled_from(["generate", "choose", "likelihood"]),
    st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
    documents,
    usages,
    numbers.filter(math.isfinite),
)
claims = st.builds(
    Claim,
    st.sampled_from(["contradiction", "unsupported", "agreement"]),
    spans,
    st.none() | spans,
    st.none() | counts,
    texts,
    st.none() | shares,
    texts,
    st.none() | texts,
)
endings = {
    "sample_id": st.just("s"),
    "judge": texts,
    "steps": st.lists(steps, max_size=2).map(tuple),
    "usage": usages,
    "seconds": st.floats(0, 1e6),
}
samples = st.builds(
    Sample,
    texts,
    st.none() | texts,
    st.lists(texts, max_size=2).map(tuple),
    st.none() | texts,
    st.none() | texts,
    st.lists(st.builds(Turn, texts, texts), max_size=2).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
    st.none() | texts,
    st.lists(spans, max_size=2).map(tuple),
    documents,
)
outcomes = (
    st.builds(
        Verdict,
        label=texts,
        score=shares,
        probability=st.none() | shares,
        explanation=st.none() | texts,
        explanation_agrees=st.none() | st.booleans(),
        mass=st.none() | shares,
        claims=st.lists(claims, max_size=2).map(tuple),
        details=documents,
        **endings,
    )
    | st.builds(Failure, code=st.sampled_from(["timeout", "budget"]), message=texts, **endings)
    | st.builds(Abstention, reason=st.sampled_from(["no_context", "uncertain"]), message=texts, **endings)
)


def exact(value: Any) -> Any:
    """`value` with the type of every part beside it, so that 1, 1.0 and True differ."""
    if is_dataclass(value):
        return type(value), [exact(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, dict):
        return dict, {(type(key), key): exact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [exact(item) for item in value]
    return type(value), value


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def shared(request: pytest.FixtureRequest) -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/runs.db"
        if request.param == "postgresql":
            server: Server = request.getfixturevalue("postgres")
            place = server.new_database()
        with Store.open(place) as opened:
            yield opened


@settings(deadline=None, max_examples=tries(150))
@given(given_samples=st.lists(samples, max_size=4, unique_by=lambda sample: sample.id))
def test_samples_come_back_as_they_were(shared: Store, given_samples: list[Sample]) -> None:
    run = start(shared)
    assert shared.add_samples(run, iter(given_samples)) == len(given_samples)
    assert exact(list(shared.samples(run))) == exact(given_samples)
    assert all(shared.sample(run, sample.id) == sample for sample in given_samples)


@settings(deadline=None, max_examples=tries(150))
@given(outcome=outcomes)
def test_outcomes_come_back_as_they_were(shared: Store, outcome: Outcome) -> None:
    run = start(shared, [Sample("s", None)])
    shared.add_outcome(run, outcome)
    assert exact(list(shared.outcomes(run, with_steps=True))) == exact([outcome])
    assert list(shared.outcomes(run)) == [replace(outcome, steps=())]
    assert list(shared.outcomes(run, judge=outcome.judge, sample_id="s", with_steps=True)) == [outcome]


def test_hostile_words_name_what_they_name_and_nothing_else(store: Store) -> None:
    run = start(store, [Sample(word, word) for word in HOSTILE], tags=HOSTILE[:4], dataset=HOSTILE[1])
    for word in HOSTILE:
        assert store.sample(run, word).output == word
        store.add_outcome(run, Verdict(word, word, word, 0.5))
        assert [outcome.label for outcome in store.outcomes(run, sample_id=word)] == [word]
    named = [word for word in HOSTILE if word]
    for word in named:
        assert store.rename(run, word).name == word
        assert store.find_run(word).id == run
    assert store.find_run(run).judges == ("faithfulness", *sorted(HOSTILE))
    assert [record.id for record in store.runs(tag=HOSTILE[1], dataset=HOSTILE[1])] == [run]
    assert store.runs(tag="%") == []


def test_a_value_that_cannot_come_back_is_refused_with_its_place(store: Store) -> None:
    run = start(store, [Sample("s", "text")])
    with pytest.raises(InputError, match=r"sample 'bad': \$\.metadata\.when\[1\] is a datetime"):
        store.add_samples(run, [Sample("bad", "text", metadata={"when": [1, NOON]})])
    with pytest.raises(InputError, match=r"judge 'j' for sample 's': score must be a finite number, got nan"):
        store.add_outcome(run, Verdict("s", "j", "faithful", math.nan))
    endless: dict[str, Any] = {}
    endless["self"] = endless
    with pytest.raises(InputError, match="contains itself"):
        store.add_outcome(run, Verdict("s", "j", "faithful", 0.5, details=endless))
    bad_step = Step("choose", (), {"logits": object()}, Usage(), 0.1)
    with pytest.raises(InputError, match=r"\$\[0\]\.result\.logits is a object"):
        store.add_outcome(run, Verdict("s", "j", "faithful", 0.5, steps=(bad_step,)))
    assert list(store.outcomes(run)) == []
    assert [sample.id for sample in store.samples(run)] == ["s"]


def test_not_a_number_in_metadata_survives(store: Store) -> None:
    run = start(store, [Sample("s", "text", metadata={"seen": math.nan})])
    assert math.isnan(store.sample(run, "s").metadata["seen"])


# --- a run as it goes ---------------------------------------------------------------------------


def test_a_run_remembers_all_it_was_told(store: Store) -> None:
    options = {"judges": ["faithfulness"], "limits": (1, 2.5), "map": {"a": "b\0"}}
    recipes = {"z": recipe("z@1"), "a": recipe("a@2")}
    run = start(
        store,
        numbered(3),
        name="nightly",
        n_total=3,
        tags=["ci", "blue", "ci"],
        recipes=recipes,
        settings=options,
        package_version="9.9",
    )
    store.add_outcome(run, Verdict("s0", "a", "faithful", 0.1))
    store.add_outcome(run, Failure("s1", "a", "timeout", "too slow"))
    store.add_outcome(run, Abstention("s1", "extra", "no_context", "nothing to judge by"))
    expected = RunRecord(
        id=run,
        number=1,
        name="nightly",
        created_at=NOON,
        finished_at=None,
        status="running",
        dataset="quickstart",
        dataset_digest="d" * 64,
        model="tiny",
        engine_fingerprint="f" * 64,
        n_total=3,
        package_version="9.9",
        recipes=recipes,
        settings=options,
        tags=("blue", "ci"),
        judges=("z", "a", "extra"),
        n_samples=3,
        n_verdicts=1,
        n_failures=1,
        n_abstentions=1,
        revision=4,
    )
    assert store.find_run("last") == expected
    assert expected.n_outcomes == 3
    store.finish_run(run, "interrupted", n_total=2)
    later = NOON + timedelta(seconds=1)
    finished = replace(expected, status="interrupted", finished_at=later, seconds=1.0, n_total=2, revision=5)
    assert store.runs() == [finished]


def test_run_ids_are_readable_differ_and_repeat_with_the_seed(tmp_path: Path) -> None:
    def ids(name: str) -> list[str]:
        with Store.open(tmp_path / name, clock=lambda: NOON, randomness=random.Random(7)) as opened:
            return [start(opened) for _ in range(20)]

    first = ids("a.db")
    assert first == ids("b.db")
    assert len(set(first)) == 20
    assert all(run.startswith("20261121-120000-") and len(run) == 20 for run in first)


def test_a_taken_run_id_is_drawn_again(place: str) -> None:
    runs = []
    for _ in range(3):
        with Store.open(place, clock=lambda: NOON, randomness=random.Random(7)) as opened:
            runs.append(start(opened))
            assert opened.find_run("last").id == runs[-1]
    assert len(set(runs)) == 3


def test_outcomes_stream_in_the_order_of_the_samples_over_one_moment(store: Store) -> None:
    run = start(store, numbered(1200))
    order = list(range(1200))
    random.Random(3).shuffle(order)
    for i in order:
        store.add_outcome(run, Verdict(f"s{i}", "b", "faithful", i / 1200))
    store.add_outcome(run, Verdict("s5", "a", "faithful", 0.5))
    stream = store.outcomes(run)
    first = next(stream)
    store.add_samples(run, [Sample("late", "text")])
    store.add_outcome(run, Verdict("late", "b", "faithful", 1.0))
    read = [(outcome.sample_id, outcome.judge) for outcome in (first, *stream)]
    expected = [(f"s{i}", "b") for i in range(1200)]
    expected.insert(5, ("s5", "a"))
    assert read == expected
    assert len(list(store.outcomes(run))) == 1202
    assert [outcome.sample_id for outcome in store.outcomes(run, judge="a")] == ["s5"]


def test_nothing_is_judged_or_added_twice(store: Store) -> None:
    run = start(store, numbered(2))
    store.add_outcome(run, Failure("s1", "j", "timeout", "slow"))
    with pytest.raises(StoreError, match=r"already has an outcome of judge 'j' for sample 's1'"):
        store.add_outcome(run, Verdict("s1", "j", "faithful", 0.1))
    with pytest.raises(InputError, match="sample id 's1' is given twice"):
        store.add_samples(run, [Sample("new", "text"), Sample("s1", "other text")])
    with pytest.raises(InputError, match="sample id 'new' is given twice"):
        store.add_samples(run, [Sample("new", "text"), Sample("new", "text")])
    assert list(store.outcomes(run)) == [Failure("s1", "j", "timeout", "slow")]
    assert list(store.samples(run)) == numbered(2)


def test_an_outcome_needs_its_sample_and_its_run(store: Store) -> None:
    run = start(store, numbered(1))
    with pytest.raises(SpecError, match="has no sample 's9'; add samples before"):
        store.add_outcome(run, Verdict("s9", "j", "faithful", 0.1))
    with pytest.raises(SpecError, match="unknown run 'nope'"):
        store.add_outcome("nope", Verdict("s0", "j", "faithful", 0.1))
    with pytest.raises(SpecError, match="unknown run 'nope'"):
        store.add_samples("nope", numbered(1))
    with pytest.raises(SpecError, match="unknown run 'nope'"):
        store.finish_run("nope", "done")
    with pytest.raises(SpecError, match="unknown run 'nope'"):
        store.outcomes("nope")
    with pytest.raises(SpecError, match="unknown run 'nope'"):
        store.samples("nope")
    questions: list[Callable[[], object]] = [
        lambda: store.expect("nope", 3),
        lambda: store.add_seconds("nope", 1.0),
        lambda: store.reopen_run("nope"),
        lambda: store.replace_sample("nope", numbered(1)[0]),
        lambda: store.spent("nope"),
        lambda: store.dearest("nope"),
        lambda: store.sample_ids("nope"),
        lambda: next(store.samples_by_page("nope")),
    ]
    for question in questions:
        with pytest.raises(SpecError, match="unknown run 'nope'"):
            question()
    with pytest.raises(SpecError, match=r"has no sample 's00'; near: 's0'"):
        store.sample(run, "s00")
    with pytest.raises(SpecError, match="cannot finish as 'over'; known: done, interrupted, failed"):
        store.finish_run(run, "over")  # type: ignore[arg-type]


# --- finding, naming, deleting ------------------------------------------------------------------


def test_a_run_is_found_by_what_is_said_of_it(store: Store) -> None:
    with pytest.raises(SpecError, match="the store has no runs yet"):
        store.find_run("last")
    first = start(store, name="nightly")
    second = start(store, name="release")
    third = start(store, name="nightly")
    assert store.find_run(first).id == first
    assert store.find_run("release").id == second
    assert store.find_run(second[:-1]).id == second
    assert store.find_run("last").id == third
    with pytest.raises(SpecError, match=f"'nightly' matches 2 runs: '{third}', '{first}'"):
        store.find_run("nightly")
    with pytest.raises(SpecError, match="'20261121' matches 3 runs"):
        store.find_run("20261121")
    with pytest.raises(SpecError, match="unknown run 'nightlly'; near: 'nightly'"):
        store.find_run("nightlly")
    for nothing in ("", "%", "2026%", "_", "\ud800", "x" * 100_000):
        with pytest.raises(SpecError, match="unknown run"):
            store.find_run(nothing)
    assert store.rename(third, "20261121").id == third
    assert store.find_run("20261121").id == third
    assert store.rename(third, None).name is None
    for name in ("last", "", " "):
        with pytest.raises(SpecError, match="cannot be named"):
            store.rename(first, name)


def test_runs_are_listed_newest_first_and_chosen(store: Store) -> None:
    ids = [start(store, dataset=f"set{i % 2}", tags=["even"] if i % 2 == 0 else []) for i in range(5)]
    assert [record.id for record in store.runs()] == ids[::-1]
    assert [record.id for record in store.runs(limit=2)] == ids[:2:-1]
    assert [record.id for record in store.runs(tag="even")] == [ids[4], ids[2], ids[0]]
    assert [record.id for record in store.runs(dataset="set1", limit=1)] == [ids[3]]
    assert store.tag(ids[0], add=["even", "red"], remove=["never"]).tags == ("even", "red")
    assert store.tag(ids[0], remove=["even"]).tags == ("red",)
    assert [record.id for record in store.runs(tag="even")] == [ids[4], ids[2]]
    with pytest.raises(SpecError, match="a tag must have a visible character"):
        store.tag(ids[0], add=[" "])


def rows(store: Store, table: str) -> int:
    return int(asked(store.place, f"SELECT count(*) FROM {table}")[0][0])


def asked(place: str, *statements: str) -> list[Any]:
    """What the last of these statements answers, run in the database itself."""
    url = place.replace("postgresql:", "postgresql+psycopg:") if "://" in place else f"sqlite:///{place}"
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            done = connection.exec_driver_sql(statement)
        found = list(done) if done.returns_rows else []
    engine.dispose()
    return found


def test_a_sample_is_stored_once_and_goes_with_the_last_run_that_uses_it(store: Store) -> None:
    common = numbered(700)
    first = start(store, [*common, Sample("own", "only here")])
    second = start(store, [replace(sample, id=f"other-{sample.id}") for sample in common])
    step = Step("choose", (("user", "?"),), {"p": 0.5}, Usage(1), 0.1)
    for run, sample_id in ((first, "s1"), (second, "other-s1")):
        store.add_outcome(run, Verdict(sample_id, "j", "faithful", 0.2, steps=(step,)))
    store.tag(first, add=["gone"])
    assert rows(store, "samples") == 701
    assert store.delete(first).n_outcomes == 1
    assert [rows(store, name) for name in ("runs", "samples", "run_samples", "outcomes", "steps")] == [
        1,
        700,
        700,
        1,
        1,
    ]
    assert rows(store, "run_tags") == 0
    assert [sample.output for sample in store.samples(second)] == [sample.output for sample in common]
    store.delete("last")
    assert [rows(store, name) for name in ("runs", "samples", "run_samples", "outcomes", "steps")] == [0] * 5
    with pytest.raises(SpecError, match="unknown run"):
        store.delete(first)


# --- several programs, and programs that end ----------------------------------------------------

WRITER = """
import sys
from magistrate.store import Store
from magistrate.types import Step, Usage, Verdict

path, run, judge = sys.argv[1:]
step = Step("choose", (("user", "text " * 500),), {"p": 0.5}, Usage(1), 0.1)
with Store.open(path) as store:
    for place, sample in enumerate(store.samples(run)):
        store.add_outcome(run, Verdict(sample.id, judge, "faithful", 0.5, steps=(step,)))
        print(place, flush=True)
        if place == 99:
            sys.stdin.readline()
"""

OPENER = """
import sys
from magistrate.store import Store

sys.stdin.readline()
with Store.open(sys.argv[1]) as store:
    store.create_run(dataset="d", dataset_digest="", model="m", engine_fingerprint="", recipes={})
"""


def program(source: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_two_programs_write_while_a_third_reads(store: Store, place: str) -> None:
    run = start(store, numbered(200))
    with program(WRITER, place, run, "one") as one, program(WRITER, place, run, "two") as two:
        seen = [0]
        while one.poll() is None or two.poll() is None:
            seen.append(len(list(store.outcomes(run, with_steps=True))))
            store.tag(run, add=[f"seen-{len(seen)}"])
            if not seen[-2] and seen[-1]:
                for writer in (one, two):  # each waits for this at its middle
                    assert writer.stdin is not None
                    writer.stdin.write("\n")
                    writer.stdin.flush()
        one.communicate()
        two.communicate()
    assert (one.returncode, two.returncode) == (0, 0)
    assert seen == sorted(seen)
    assert any(0 < number < 400 for number in seen)
    assert Counter(outcome.judge for outcome in store.outcomes(run)) == {"one": 200, "two": 200}


def test_programs_that_make_the_store_at_once_agree(place: str) -> None:
    programs = [program(OPENER, place) for _ in range(4)]
    for each in programs:
        each.communicate("go\n")
    assert [each.returncode for each in programs] == [0] * 4
    with Store.open(place) as store:
        assert len(store.runs()) == 4


def test_kill_9_loses_nothing_that_was_stored(store: Store, place: str) -> None:
    run = start(store, numbered(5000))
    with program(WRITER, place, run, "j") as writer:
        assert writer.stdin is not None and writer.stdout is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
        returned = [next(writer.stdout) for _ in range(150)]
        os.kill(writer.pid, signal.SIGKILL)
        returned += writer.stdout.readlines()
    assert writer.returncode == -signal.SIGKILL
    kept = [outcome.sample_id for outcome in store.outcomes(run, with_steps=True)]
    assert len(returned) <= len(kept) <= len(returned) + 1
    assert kept == [f"s{i}" for i in range(len(kept))]
    assert store.find_run(run).status == "running"
    store.add_outcome(run, Verdict(f"s{len(kept)}", "j", "faithful", 0.5))
    assert store.find_run(run).n_verdicts == len(kept) + 1


FULL = """
import resource, sys
from magistrate.errors import StoreError
from magistrate.store import Store
from magistrate.types import Verdict

path, run = sys.argv[1:]
with Store.open(path) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    stored = 0
    try:
        for sample in store.samples(run):
            store.add_outcome(run, Verdict(sample.id, "j", "faithful", 0.5, explanation="x" * 5000))
            stored += 1
    except StoreError as error:
        print(stored, error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.add_outcome(run, Verdict(sample.id, "j", "faithful", 0.5))
    print(len(list(store.outcomes(run))))
"""


def test_a_full_disk_is_said_and_what_was_stored_stays(path: Path) -> None:
    with Store.open(path) as store:
        run = start(store, numbered(200))
        with program(FULL, str(path), run) as writer:
            printed, _ = writer.communicate()
        assert writer.returncode == 0
        said, after = printed.splitlines()
        stored = int(said.split()[0])
        assert 0 < stored < 200
        assert "free some space and run again, committed data is safe" in said
        assert int(after) == stored + 1 == len(list(store.outcomes(run)))


# --- stores that cannot be used, and older ones -------------------------------------------------


def test_a_locked_store_is_said_and_works_again_afterwards(path: Path) -> None:
    with Store.open(path, busy_seconds=0.05) as store:
        run = start(store, numbered(2))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="another program has locked it; wait for that program"):
                store.add_outcome(run, Verdict("s0", "j", "faithful", 0.5))
            assert len(list(store.samples(run))) == 2
        store.add_outcome(run, Verdict("s0", "j", "faithful", 0.5))
        assert len(list(store.outcomes(run))) == 1


def test_a_place_that_cannot_hold_a_store_is_named_with_what_to_do(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, and long enough to be taken for one " * 20)
    with pytest.raises(StoreError, match=r"notes\.txt: it is not a Magistrate store and not an SQLite"):
        Store.open(text)
    with pytest.raises(StoreError, match="it is a folder; give a file in it"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match="its folder cannot be created"):
        Store.open(text / "below" / "runs.db")
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(StoreError, match=r"database of another program \(tables: bookmarks\)"):
        Store.open(foreign)
    assert text.read_text().startswith("not a database")
    with closing(sqlite3.connect(foreign)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("bookmarks",)]


def test_a_read_only_place_is_said() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        with Store.open(path) as store:
            start(store)
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        with unprivileged(), Store.open(path) as reading:
            run = reading.find_run("last")
            with pytest.raises(StoreError, match="its file or folder is read-only"):
                reading.rename(run.id, "other")
        with unprivileged(), pytest.raises(StoreError, match="check that its folder exists and is writable"):
            Store.open(Path(folder) / "new.db")
        with unprivileged(), pytest.raises(StoreError, match="its folder cannot be created"):
            Store.open(Path(folder) / "new" / "runs.db")
        Path(folder).chmod(0o755)


@pytest.mark.parametrize(
    "place",
    [
        "mysql://me:secret@host/db",
        "postgresql://me:secret",
        "postgresql+psycopg2://me:secret@h/d",
        "sqlite://",
        "sqlite://h/x",
        ":memory:",
        "",
        "a://b:secret@c:x",
    ],
)
def test_a_place_that_is_no_file_is_refused_without_its_password(place: str) -> None:
    with pytest.raises(SpecError, match=r"known: a path, sqlite:///PATH") as caught:
        Store.open(place)
    assert "secret" not in str(caught.value)


def test_a_store_opens_by_path_and_by_url(tmp_path: Path) -> None:
    path = tmp_path / "odd name ?#%20é.db"
    with Store.open(str(path)) as store:
        run = start(store)
    assert path.is_file()
    with Store.open(f"sqlite:///{tmp_path / 'plain.db'}") as store:
        assert store.runs() == []
    with Store.open(path) as store:
        assert store.find_run("last").id == run


def test_a_closed_store_says_so(place: str) -> None:
    with Store.open(place) as store:
        run = start(store, numbered(1))
    with pytest.raises(StoreError, match="it was closed; open it again"):
        store.add_outcome(run, Verdict("s0", "j", "faithful", 0.5))
    with pytest.raises(StoreError, match="it was closed; open it again"):
        store.runs()


def old_store(place: str, version: int) -> None:
    url = place.replace("postgresql:", "postgresql+psycopg:") if "://" in place else f"sqlite:///{place}"
    engine = create_engine(url)
    with engine.begin() as connection:
        upgrade(connection, upto=version)
    engine.dispose()


FIRST_WITH_LABELS = 4  # the version in which outcomes bear the labels of their samples
OLD_LABEL = "fai\\th\ud800"
OLD_ROWS = (
    """INSERT INTO runs (number, id, name, created_at, finished_at, status, dataset, dataset_digest,
        model, engine_fingerprint, n_total, package_version, recipes, settings)
    VALUES (1, '20260101-000000-abcd', 'old', '2026-01-01T00:00:00.000000+00:00',
        NULL, 'running', 'quickstart', 'd', 'tiny', 'f', 1, '0.1.0', '{}', '{"seed":1}')""",
    """INSERT INTO samples VALUES ('k', '{"context":["c"],"label":"fai\\\\th\\ud800","output":"o"}')""",
    """INSERT INTO run_samples (run_id, position, sample_id, sample_key)
    VALUES ('20260101-000000-abcd', 0, 's', 'k')""",
    """INSERT INTO outcomes (run_id, position, judge, kind, label, score, probability, code, seconds,
        calls, prompt_tokens, cached_tokens, generated_tokens, forced_tokens, body)
    VALUES ('20260101-000000-abcd', 0, 'j', 'verdict', 'faithful', 0.25, NULL,
        NULL, 1.5, 1, 2, 3, 4, 5, '{"explanation":"why"}')""",
)


@pytest.mark.parametrize("version", range(1, LATEST + 1))
def test_an_older_store_is_upgraded_with_all_it_holds(tmp_path: Path, place: str, version: int) -> None:
    if "://" not in place:
        place = str(tmp_path / "old.db")
    old_store(place, version)
    asked(place, *OLD_ROWS)
    with Store.open(place) as store:
        record = store.find_run("old")
        assert (record.status, record.settings, record.n_verdicts) == ("running", {"seed": 1}, 1)
        assert record.scoring == {}, "an older run does not say how its scores are read"
        assert list(store.samples(record.id)) == [Sample("s", "o", ("c",), label=OLD_LABEL)]
        verdict = Verdict(
            "s", "j", "faithful", 0.25, explanation="why", usage=Usage(1, 2, 3, 4, 5), seconds=1.5
        )
        assert list(store.outcomes(record.id)) == [verdict]
        if version < FIRST_WITH_LABELS:
            with store.snapshot() as moment:
                assert moment.cells(record.id, "j") == {Cell("verdict", "faithful", OLD_LABEL): 1}
        store.add_outcome(record.id, Failure("s", "k", "timeout", "slow"))
    versions = [number for (number,) in asked(place, "SELECT version FROM schema_version ORDER BY version")]
    assert versions == list(range(1, LATEST + 1))


def test_a_newer_store_is_left_alone(place: str) -> None:
    with Store.open(place) as store:
        start(store)
    asked(place, f"INSERT INTO schema_version VALUES ({LATEST + 1}, 'later')")
    with pytest.raises(
        StoreError, match=rf"newer Magistrate \(schema {LATEST + 1}.*pip install -U magistrate"
    ):
        Store.open(place)


def shape(url: str) -> dict[str, Any]:
    engine = create_engine(url)
    found = inspect(engine)
    tables = {
        name: (
            [(c["name"], c["type"].python_type, c["nullable"]) for c in found.get_columns(name)],
            found.get_pk_constraint(name)["constrained_columns"],
            sorted((i["name"], i["column_names"]) for i in found.get_indexes(name) if not i["unique"]),
            sorted(u["column_names"] for u in found.get_unique_constraints(name)),
            sorted(
                (
                    f["constrained_columns"],
                    f["referred_table"],
                    f["referred_columns"],
                    sorted(f["options"]),
                )
                for f in found.get_foreign_keys(name)
            ),
        )
        for name in found.get_table_names()
    }
    engine.dispose()
    return tables


def test_the_migrations_make_the_tables_that_the_queries_use(tmp_path: Path, postgres: Server) -> None:
    def urls() -> list[str]:
        database = postgres.new_database().replace("postgresql:", "postgresql+psycopg:")
        return [f"sqlite:///{tmp_path / str(next(numbers))}.db", database]

    numbers = count()
    for declared, migrated in zip(urls(), urls(), strict=True):
        for url, make in ((declared, metadata.create_all), (migrated, upgrade)):
            engine = create_engine(url)
            with engine.begin() as connection:
                make(connection)
            engine.dispose()
        assert shape(migrated) == shape(declared)


# --- size ---------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.full
def test_twenty_thousand_outcomes_are_a_matter_of_seconds(path: Path) -> None:
    with Store.open(path) as store:
        twenty_thousand_outcomes(store)


def twenty_thousand_outcomes(store: Store) -> None:
    run = start(store, numbered(10_000))
    begin = time.perf_counter()
    for judge in ("a", "b"):
        for i in range(10_000):
            label = "faithful" if i % 4 else "hallucinated"
            store.add_outcome(run, Verdict(f"s{i}", judge, label, i / 10_000, explanation="because"))
    written = time.perf_counter()
    labels = Counter((outcome.judge, outcome.label) for outcome in store.outcomes(run))  # type: ignore[union-attr]
    record = store.find_run(run)
    read = time.perf_counter()
    assert labels == {(j, w): n for j in "ab" for w, n in (("faithful", 7500), ("hallucinated", 2500))}
    assert record.n_verdicts == 20_000
    assert written - begin < 20
    assert read - written < 5


@pytest.mark.full
def test_the_benchmark_of_the_store_runs(place: str) -> None:
    script = Path(__file__).parent.parent / "benchmarks" / "store.py"
    words = ["--store", place, "--outcomes", "400", "--runs", "20", "--singles", "50"]
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "400 outcomes in\n" in done.stdout
    assert "| one by one, each committed |" in done.stdout
    assert "| delete a run |" in done.stdout
    again = subprocess.run([sys.executable, script, *words], capture_output=True, text=True)
    assert "holds runs already; name a new store" in again.stderr
