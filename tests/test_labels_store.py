"""Label queues in both databases: leases, revisions, decisions, and what stays when other things go."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from magistrate.errors import InputError, SpecError
from magistrate.store import Store
from magistrate.store.labels import Answer, NewItem, Queue, Quote
from magistrate.types import Sample, Span

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=15)
TEXT = "né 𝔾old \\ \x00 out"


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with Store.open(place) as opened:
        yield opened


def filled(store: Store, n: int = 3, double: tuple[int, ...] = (), name: str = "q") -> Queue:
    made = Queue(
        name=name,
        created_at=NOON,
        source="rows.jsonl",
        run_id=None,
        digest="d",
        policy="uniform",
        population=n,
        covered=n,
        settings={"blind": True},
    )
    items = (
        NewItem(
            sample=Sample(f"s{at}", f"{TEXT} {at}", ("context",)),
            policy="uniform",
            priority=0.5,
            inclusion=1.0,
            reason="at random",
            wanted=1 + (at in double),
        )
        for at in range(n)
    )
    return store.labels.create(made, items)


def claim(store: Store, who: str, now: datetime = NOON, but: tuple[int, ...] = ()) -> int | None:
    return store.labels.claim("q", who, now=now, until=now + timedelta(minutes=15), but=but)


def say(store: Store, at: int, who: str, label: str, revision: int = 0, **more: object) -> object:
    answer = Answer(label=label, **more)  # type: ignore[arg-type]
    return store.labels.add("q", at, who, answer, revision=revision, now=NOON)


def test_a_queue_is_kept_whole_and_found_by_near_names(store: Store) -> None:
    queue = filled(store, 1200, name="trial ü")
    assert (queue.n_items, queue.settings) == (1200, {"blind": True})
    assert store.labels.find("trial ü") == queue == store.labels.queues()[0]
    item, sample = store.labels.item(queue.name, 1199)
    assert (item.sample_id, sample.output) == ("s1199", f"{TEXT} 1199")
    with pytest.raises(SpecError, match="near: 'trial ü'"):
        store.labels.find("trial")
    with pytest.raises(SpecError, match="already"):
        filled(store, name="trial ü")
    with pytest.raises(InputError, match="nothing to label"):
        filled(store, 0, name="none")
    for name in ("", " a", "a/b", "-a", "..", "a\nb", "x" * 101):
        with pytest.raises(SpecError, match="cannot be named"):
            filled(store, name=name)
    assert [each.name for each in store.labels.queues()] == ["trial ü"]


def test_no_two_people_have_one_item_unless_two_labels_are_wanted(store: Store) -> None:
    filled(store, 3, double=(1,))
    assert [claim(store, "ana"), claim(store, "ana")] == [0, 0]  # what one has at hand comes again
    assert claim(store, "ana", but=(0,)) == 1
    assert claim(store, "ben") == 1  # two are wanted
    assert claim(store, "cem") == 2
    assert claim(store, "dia") is None
    say(store, 0, "ana", "faithful")
    say(store, 1, "ana", "skip")  # not a label: somebody else is still wanted
    say(store, 1, "ben", "hallucinated")
    assert claim(store, "ana") is None  # she skipped it and cem has the last one
    after = LATER + timedelta(seconds=1)
    assert claim(store, "dia", after) == 1
    assert claim(store, "ana", after) == 2  # cem's lease ran out
    assert claim(store, "ben", after) is None
    assert claim(store, "ben", after + timedelta(hours=1)) == 2


def test_answers_are_appended_sent_twice_stored_once_and_never_overwritten(store: Store) -> None:
    filled(store)
    spans = (Span(5, 8, "evident_conflict"), Span(0, 2, "evident_conflict"))
    given = {"spans": spans, "quote": Quote(0, 0, 3), "note": " \x00 why ", "seconds": 2.5}
    first = say(store, 0, "ana", "hallucinated", **given)
    assert first == say(store, 0, "ana", "hallucinated", **given)
    assert first.spans == spans[::-1] and first.note == "\x00 why" and not first.shown  # type: ignore[attr-defined]
    assert say(store, 0, "ana", "faithful") is None  # another window was quicker
    second = say(store, 0, "ana", "faithful", revision=1)
    assert (second.revision, second.label) == (2, "faithful")  # type: ignore[attr-defined]
    assert store.labels.undo("q", "ana", NOON) == 0
    assert store.labels.labels("q") == []
    assert [each.label for each in store.labels.labels("q", history=True)] == [
        "hallucinated",
        "faithful",
        "undone",
    ]
    assert store.labels.undo("q", "ana", NOON) is None
    assert claim(store, "ana") == 0
    assert say(store, 0, "ana", "unsure", revision=3) is not None
    assert [each.revision for each in store.labels.labels("q")] == [4]


def test_what_cannot_be_is_refused_and_nothing_is_stored(store: Store) -> None:
    filled(store)
    length = len(f"{TEXT} 0")
    wrong: list[tuple[str, dict[str, object], str]] = [
        ("maybe", {}, "a label must be one of"),
        ("undone", {}, "a label must be one of"),
        ("faithful", {"spans": (Span(0, 1),)}, "a faithful output has no wrong words"),
        ("hallucinated", {"spans": (Span(3, 3),)}, "outside"),
        ("hallucinated", {"spans": (Span(0, length + 1),)}, "outside"),
        ("hallucinated", {"spans": (Span(-1, 2),)}, "outside"),
        ("hallucinated", {"spans": (Span(0, 2, " "),)}, "kind"),
        ("hallucinated", {"quote": Quote(1, 0, 2)}, "not a place"),
        ("hallucinated", {"quote": Quote(0, 0, 99)}, "not a place"),
        ("hallucinated", {"note": "x" * 10_001}, "note"),
    ]
    for label, more, message in wrong:
        with pytest.raises(InputError, match=message):
            say(store, 0, "ana", label, **more)
    for who in ("", "  ", "a\x1b[2J", "x" * 81):
        with pytest.raises(SpecError, match="annotator"):
            say(store, 0, who, "faithful")
    with pytest.raises(SpecError, match="items 1 to 3, but no 4"):
        say(store, 3, "ana", "faithful")
    assert store.labels.labels("q", history=True) == []


def test_a_label_given_after_the_verdict_was_shown_says_so_for_good(store: Store) -> None:
    filled(store)
    assert claim(store, "ana") == 0
    assert say(store, 0, "ana", "faithful").shown is False  # type: ignore[attr-defined]
    store.labels.lease("q", 0, "ana", LATER, shown=True)
    store.labels.lease("q", 0, "ana", LATER)
    store.labels.undo("q", "ana", NOON)
    assert say(store, 0, "ana", "hallucinated", revision=2).shown is True  # type: ignore[attr-defined]
    assert say(store, 0, "ben", "faithful").shown is False  # type: ignore[attr-defined]


def test_decisions_name_their_labels_and_keep_their_history(store: Store) -> None:
    filled(store)
    ids = [say(store, 0, who, label).id for who, label in (("a", "faithful"), ("b", "hallucinated"))]  # type: ignore[attr-defined]

    def decide(label: str, reason: str, revision: int) -> object:
        told = {"reason": reason, "adjudicator": "cem", "revision": revision, "now": NOON}
        return store.labels.decide("q", 0, Answer(label=label), **told)  # type: ignore[arg-type]

    gold = decide("hallucinated", "the context says five", 0)
    assert gold.labels == tuple(ids) and gold.revision == 1  # type: ignore[attr-defined]
    assert decide("faithful", "x", 0) is None  # somebody decided meanwhile
    decide("faithful", "it does not", 1)
    assert [each.label for each in store.labels.gold("q")] == ["faithful"]
    assert [each.reason for each in store.labels.gold("q", history=True)] == [
        "the context says five",
        "it does not",
    ]
    for label, reason in (("unsure", "x"), ("faithful", "  ")):
        with pytest.raises(InputError, match="a decision"):
            decide(label, reason, 2)


def test_labelled_samples_outlive_their_data_and_nothing_outlives_all_of_them(store: Store) -> None:
    filled(store)
    store.add_dataset("rows", [store.labels.item("q", at)[1] for at in range(3)], source="x")
    store.delete_dataset("rows")
    assert store.labels.item("q", 2)[1].output == f"{TEXT} 2"
    say(store, 2, "ana", "faithful")
    assert store.labels.delete("q").n_items == 3
    assert store.labels.queues() == []
    with store._reading() as connection:
        for table in ("samples", "label_items", "labels", "label_leases"):
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == 0, table
