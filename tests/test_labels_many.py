"""Ten thousand items and two annotators at once, of whom one is killed while labelling."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from sqlalchemy import create_engine, text

from magistrate.labels.decisions import findings
from magistrate.store import Store
from magistrate.store.labels import Answer, ItemCounts, NewItem, Queue
from magistrate.types import Sample

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
N, DONE, EVERY = 10_000, 9_940, 200  # items, those with a label by `before`, each of these wants two labels
LABEL = """
import sys
import time
from datetime import UTC, datetime, timedelta
from magistrate.store import Store
from magistrate.store.labels import Answer
with Store.open(sys.argv[1]) as store:
    now = datetime.now(UTC)
    end = now + timedelta(hours=1)
    while (at := store.labels.claim("q", sys.argv[2], now=now, until=end)) is not None:
        assert store.labels.add("q", at, sys.argv[2], Answer(label="faithful"), revision=0, now=now)
        print(at, flush=True)
        time.sleep(0.05)  # else one of them is done before the other has started
"""


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with Store.open(place) as opened:
        yield opened


def filled(store: Store, n: int) -> None:
    queue = Queue(
        name="q",
        created_at=NOON,
        source="rows.jsonl",
        run_id=None,
        digest="d",
        policy="uniform",
        population=n,
        covered=n,
        settings={},
    )
    items = (
        NewItem(
            sample=Sample(f"s{at}", f"output {at}", ("context",)),
            policy="uniform",
            priority=0.5,
            inclusion=1.0,
            reason="at random",
            wanted=1 + (at % EVERY == 0),
        )
        for at in range(n)
    )
    store.labels.create(queue, items)


@contextmanager
def labelling(place: str, who: str) -> Iterator[subprocess.Popen[str]]:
    """A process that labels everything that it is given, and prints what is stored."""
    words = [sys.executable, "-c", LABEL, place, who]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.full
def test_two_at_once_and_one_killed_label_every_item_as_often_as_wanted(store: Store) -> None:
    filled(store, N)
    url = store.place.replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(url if "://" in url else f"sqlite:///{url}")
    with engine.begin() as connection:
        columns = "queue, position, annotator, revision, label, spans, note, shown, at"
        values = "queue, position, 'before', 1, 'faithful', '[]', '', 0, '2026-01-01T00:00:00.000000+00:00'"
        chosen = f"SELECT {values} FROM label_items WHERE position < {DONE}"
        connection.execute(text(f"INSERT INTO labels ({columns}) {chosen}"))
    engine.dispose()
    told: dict[str, list[int]] = {"ana": [], "ben": []}
    with labelling(store.place, "ben") as ben:
        with labelling(store.place, "ana") as ana:
            assert ana.stdout is not None
            for _ in range(10):
                told["ana"].append(int(ana.stdout.readline()))
            ana.kill()
            told["ana"] += [int(line) for line in ana.communicate()[0].splitlines()]
        kept = {each.position for each in store.labels.labels("q") if each.annotator == "ana"}
        assert kept >= set(told["ana"]), "what was told to be stored is stored"
        with labelling(store.place, "ana") as again:
            for who, process in (("ana", again), ("ben", ben)):
                out, errors = process.communicate()
                assert process.returncode == 0, errors
                told[who] += [int(line) for line in out.splitlines()]
    every = store.labels.labels("q", history=True)
    assert {each.revision for each in every} == {1}, "nobody was given an item twice"
    by_item = Counter(each.position for each in every)
    assert by_item == {at: 1 + (at % EVERY == 0) for at in range(N)}
    for who, positions in told.items():
        theirs = [each.position for each in every if each.annotator == who]
        assert len(positions) == len(set(positions)) and set(positions) <= set(theirs)
        assert len(theirs) <= len(positions) + 1, "only the one being stored when it was killed is untold"


def test_counts_are_those_of_the_findings(store: Store) -> None:
    filled(store, 60)
    answers = ("faithful", "hallucinated", "unsure", "skip")
    for at in range(0, 60, 2):
        for who in ("ana", "ben")[: 1 + at % 3]:
            answer = Answer(label=answers[(at // 2 + len(who + str(at))) % 4])
            store.labels.add("q", at, who, answer, revision=0, now=NOON)
    store.labels.undo("q", "ana", NOON)
    store.labels.add("q", 0, "ana", Answer(label="unsure"), revision=1, now=NOON)
    store.labels.decide(
        "q", 1, Answer(label="faithful"), reason="so", adjudicator="cem", revision=0, now=NOON
    )
    found = findings(store, store.labels.find("q"))
    for who in ("ana", "ben", "zoe"):
        assert store.labels.counts("q", who) == ItemCounts(
            n_items=60,
            mine=sum(any(label.annotator == who for label in each.labels) for each in found),
            waiting=sum(each.waits for each in found),
            labelled=sum(each.gold is not None or bool(each.said) for each in found),
        )
