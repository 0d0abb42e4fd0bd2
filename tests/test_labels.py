"""What people label: drawn with known probabilities, decided between, and counted without bias."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from furnished import run_of
from magistrate.api.agree import agree
from magistrate.errors import InputError, SpecError, StoreError
from magistrate.labels.decisions import anonymous, conflict_of, finding, findings, span_f1
from magistrate.labels.estimates import (
    hallucinated_share,
    is_active,
    judge_right,
    more_needed,
    people,
    progress,
)
from magistrate.labels.files import export, import_labels
from magistrate.labels.queues import QueueOptions, queue_name, queue_of_run, queue_of_samples
from magistrate.labels.sampling import POLICIES, Candidate, draw, inclusion, share, wanted
from magistrate.metrics.classification import Estimate
from magistrate.store import Store
from magistrate.store import labels as shelf
from magistrate.store.labels import Answer, Item, Label, Queue
from magistrate.types import FAITHFUL, HALLUCINATED, Failure, Outcome, Sample, Span, Verdict

NOW = datetime(2026, 1, 2, tzinfo=UTC)
N = 60


def hard(at: int) -> bool:
    return at % 3 == 0


def wrong(at: int) -> bool:
    """Whether sample `at` is hallucinated: most of the hard ones are, few of the others."""
    return (at % 3 == 0 and at % 4 != 0) or at % 20 == 1


def samples_of(n: int = N) -> list[Sample]:
    return [
        Sample(f"s{at}", f"output number {at}", (f"context {at}",), metadata={"topic": "ab"[at % 2]})
        for at in range(n)
    ]


def outcomes_of(samples: list[Sample]) -> list[Outcome]:
    """Two judges that differ on the hard third; one of them failed on the last sample."""
    found: list[Outcome] = []
    for at, sample in enumerate(samples):
        one, other = (0.9, 0.1) if hard(at) else (0.1, 0.1)
        for judge, score in (("one", one), ("two", other)):
            if at == len(samples) - 1 and judge == "two":
                found.append(Failure(sample.id, judge, "timeout", "slow"))
            else:
                found.append(Verdict(sample.id, judge, HALLUCINATED if score > 0.5 else FAITHFUL, score))
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "runs.db") as opened:
        yield opened


def queue_over(store: Store, name: str = "q", **options: object) -> Queue:
    samples = samples_of()
    runs = store.runs()
    run = runs[0].id if runs else run_of(store, samples, outcomes_of(samples), name="judged")
    return queue_of_run(store, store.find_run(run), name, QueueOptions(**options), NOW)  # type: ignore[arg-type]


def say(
    store: Store, queue: Queue, position: int, who: str, label: str, *spans: Span, revision: int = 0
) -> None:
    answer = Answer(label=label, spans=spans)
    assert store.labels.add(queue.name, position, who, answer, revision=revision, now=NOW)


def label_all(store: Store, queue: Queue, who: str = "ana", most: int = N) -> None:
    for item in store.labels.items(queue.name)[:most]:
        label = HALLUCINATED if wrong(int(item.sample_id[1:])) else FAITHFUL
        say(store, queue, item.position, who, label)


# --- drawing --------------------------------------------------------------------------------------


def test_samples_are_drawn_exactly_as_often_as_their_probability_says() -> None:
    candidates = [Candidate(f"k{at}", (0.02 * at, 0.9), None) for at in range(30)]
    wants = wanted("mixed", candidates)
    chances = inclusion([each.weight for each in wants], 12)
    assert sum(chances) == pytest.approx(12) and 0 < min(chances) < max(chances) <= 1
    drawn, first = [0] * 30, [0] * 30
    seeds = 2000
    for seed in range(seeds):
        found = draw(candidates, wants, 12, seed)
        assert len({each.place for each in found}) == 12
        assert all(each.inclusion == chances[each.place] for each in found)
        for each in found:
            drawn[each.place] += 1
        first[found[0].place] += 1
    for at in range(30):
        noise = 5 * (chances[at] * (1 - chances[at]) / seeds) ** 0.5
        assert abs(drawn[at] / seeds - chances[at]) < noise, at
        # Whoever stops after one label has labelled a random one of those drawn.
        expected = chances[at] / 12
        assert abs(first[at] / seeds - expected) < 5 * (expected / seeds) ** 0.5, at
    assert draw(candidates, wants, 12, 7) == draw(candidates, wants, 12, 7) != draw(candidates, wants, 12, 8)


def test_every_policy_wants_what_it_says() -> None:
    def weights(policy: str, *scores: tuple[float | None, ...], **more: object) -> list[float]:
        found = [
            Candidate(str(at), each, "x: failed" if None in each else None) for at, each in enumerate(scores)
        ]
        return [each.weight for each in wanted(policy, found, **more)]  # type: ignore[arg-type]

    assert weights("uniform", (0.1,), (None,)) == [1, 1]
    assert weights("disagreement", (0.1, 0.9), (0.5, 0.5), (None, None)) == pytest.approx([0.8, 0, 0])
    assert weights("disagreement", (0.5,), (1.0,)) == [1, 0]
    assert weights("failures", (0.1,), (None,)) == [0, 1]
    near, far, none = weights("threshold", (0.3,), (0.9,), (None,), threshold=0.3)
    assert near == 1 and 0 < far < 0.01 and none == 0
    tenths = [(at / 10,) for at in range(10)]
    assert weights("stratified", *tenths, (None,)) == [0.5] * 10 + [1]
    half, rest = weights("mixed", (0.0, 1.0), (0.5, 0.5))
    assert (half, rest) == (0.75, 0.25)  # half of the draws at random, half by disagreement
    for policy in set(POLICIES) - {"uniform", "failures", "drift"}:
        with pytest.raises(SpecError, match="needs verdicts"):
            weights(policy, (None,))
    for policy in ("threshold", "stratified"):  # which go by the first judge, and it failed everywhere
        with pytest.raises(SpecError, match="needs verdicts of one judge"):
            weights(policy, (None, 0.1), (None, 0.9))
    with pytest.raises(InputError, match="cannot be drawn"):
        inclusion([1.0, 0.0], 2)


def test_queues_hold_what_they_say_and_double_a_share_by_hash(store: Store) -> None:
    queue = queue_over(store, size=20, double=0.3)
    assert (queue.policy, queue.n_items, queue.population, queue.covered) == ("mixed", 20, N, N)
    items = store.labels.items("q")
    assert {each.policy for each in items} == {"mixed"} and max(each.priority for each in items) == 1
    assert sum(hard(int(each.sample_id[1:])) for each in items) > 10  # a third of all samples
    everything = queue_over(store, "all", policy="uniform", double=0.3)
    assert everything.n_items == N and not is_active(everything, findings(store, everything))
    wants_two = {each.sample_id for each in store.labels.items("all") if each.wanted == 2}
    assert 8 <= len(wants_two) <= 28
    assert {each.sample_id for each in items if each.wanted == 2} == wants_two & {
        each.sample_id for each in items
    }
    failed = queue_over(store, "failed", policy="failures")
    (item,) = store.labels.items("failed")
    assert (item.sample_id, item.reason, failed.covered) == ("s59", "two: failed", 1)
    slices = queue_over(store, "slices", policy="stratified", by="metadata.topic", judge="two", size=10)
    assert {each.reason[-3:] for each in store.labels.items(slices.name)} == {", a", ", b"}
    rows = [*samples_of(4), Sample("none", None), Sample("empty", "")]
    plain = queue_of_samples(store, rows, "rows", "rows.jsonl", "d", QueueOptions(), NOW)
    assert (plain.policy, plain.n_items, plain.settings["without_output"]) == ("uniform", 4, 2)
    for options, message in (
        ({"policy": "uniform", "by": "metadata.topic"}, "--by needs --policy stratified"),
        ({"judge": "three"}, "no judge 'three'"),
        ({"double": 2}, "--double"),
        ({"width": 0}, "--width"),
        ({"kinds": ()}, "1 to 9"),
    ):
        with pytest.raises(SpecError, match=message):
            queue_over(store, "bad", **options)
    assert queue_name("../a\x1b b?.jsonl") == "a- b-.jsonl" and 0 <= share(0, "x", "\ud800") < 1


# --- figures --------------------------------------------------------------------------------------


def test_the_weighted_share_is_that_of_all_samples_and_the_bare_one_is_refused(store: Store) -> None:
    samples, truth = samples_of(), sum(map(wrong, range(N))) / N
    queue = queue_over(store, size=20)
    scores = [(0.9, 0.1) if hard(at) else (0.1, 0.1) for at in range(N)]
    candidates = [Candidate(str(at), each) for at, each in enumerate(scores)]
    wants = wanted("mixed", candidates)
    shares, bare = [], []
    for seed in range(200):
        found, kept = [], []
        for position, each in enumerate(draw(candidates, wants, 20, seed)):
            kept.append(samples[each.place])
            item = Item(
                position=position,
                sample_id=kept[-1].id,
                policy="mixed",
                priority=each.priority,
                inclusion=each.inclusion,
                reason="",
                wanted=1,
            )
            label = HALLUCINATED if wrong(each.place) else FAITHFUL
            given = Label(
                **vars_of(Answer(label=label)),
                id=1,
                position=position,
                annotator="a",
                revision=1,
                shown=False,
                at=NOW,
            )
            found.append(finding(item, [given], None))
        estimate = hallucinated_share(queue, found, kept)
        assert estimate.value is not None and estimate.low < estimate.value < estimate.high  # type: ignore[operator]
        shares.append(estimate.value)
        bare.append(sum(each.label == HALLUCINATED for each in found) / 20)
    assert abs(sum(shares) / 200 - truth) < 0.02
    assert sum(bare) / 200 - truth > 0.1  # what it would have said
    with pytest.raises(InputError, match="drawn by the policy mixed, which takes some samples more"):
        hallucinated_share(queue, found, kept, weighted=False)
    even = queue_over(store, "even", policy="uniform")
    label_all(store, even, most=15)
    known = findings(store, even), store.labels.samples("even")
    assert hallucinated_share(even, *known, weighted=False) == hallucinated_share(even, *known)
    apart = queue_over(store, "apart", policy="disagreement")
    told = hallucinated_share(apart, findings(store, apart), store.labels.samples("apart"))
    assert told.value is None and "could not draw 39 of 60" in (told.undefined or "")


def vars_of(answer: Answer) -> dict[str, object]:
    return {each.name: getattr(answer, each.name) for each in fields(answer)}


def test_what_has_no_label_is_counted_and_never_taken_for_faithful(store: Store) -> None:
    queue = queue_over(store, policy="uniform", double=1.0)

    def now() -> object:
        return progress(queue, findings(store, queue), store.labels.samples("q"))

    empty = now()
    assert (empty.share.value, empty.share.undefined, empty.more) == (None, "nothing is labelled yet", None)  # type: ignore[attr-defined]
    for who, labels in (("ana", "fhfuss"), ("ben", "fhhu")):
        for at, letter in enumerate(labels):
            word = {"f": FAITHFUL, "h": HALLUCINATED, "u": "unsure", "s": "skip"}[letter]
            say(store, queue, at, who, word)
    found = now()
    counts = (found.n_decided, found.n_conflicts, found.n_unsure, found.n_open, found.n_waiting)  # type: ignore[attr-defined]
    assert counts == (2, 1, 1, N - 4, N - 4)
    assert found.share.value == 0.5 and found.annotators["ana"]["skip"] == 2  # type: ignore[attr-defined]
    assert "about" in found.words and "±.05" in found.words  # type: ignore[attr-defined]


def test_more_labels_are_needed_until_the_interval_is_narrow_enough() -> None:
    from magistrate.metrics.distributions import wilson_interval

    before = None
    for n in (10, 50, 200, 380, 1000):
        estimate = Estimate(0.5, *wilson_interval(0.5, n))
        more = more_needed(estimate, n, 0.05)
        assert more is not None and (before is None or more <= before)
        before = more
        if more:
            _, high = wilson_interval(0.5, n + more)
            assert high - 0.5 <= 0.05 + 1e-9 and abs(n + more - 381) <= 5
    assert before == 0
    # Labels that share contexts, or were drawn unevenly, are worth less: it takes as many times more.
    assert more_needed(Estimate(0.5, *wilson_interval(0.5, 50)), 100, 0.05) == pytest.approx(662, abs=10)
    assert more_needed(Estimate.none("x"), 5, 0.05) is None
    assert more_needed(Estimate(0.5, None, None, "x"), 5, 0.05) is None


# --- people ---------------------------------------------------------------------------------------


def test_conflicts_are_labels_or_words_that_differ_and_a_decision_ends_them(store: Store) -> None:
    queue = queue_over(store, policy="uniform", double=1.0)
    say(store, queue, 0, "ana", FAITHFUL)
    say(store, queue, 0, "ben", HALLUCINATED, Span(0, 6))
    say(store, queue, 1, "ana", HALLUCINATED, Span(0, 6))
    say(store, queue, 1, "ben", HALLUCINATED, Span(4, 13))
    say(store, queue, 2, "ana", HALLUCINATED, Span(0, 6))
    say(store, queue, 2, "ben", HALLUCINATED, Span(0, 5))
    say(store, queue, 3, "ana", HALLUCINATED, Span(0, 6))
    say(store, queue, 3, "ben", HALLUCINATED)  # says nothing of where
    found = findings(store, queue)
    assert [each.conflict for each in found[:4]] == [
        "the labels differ",
        "the marked words differ",
        None,
        None,
    ]
    assert [each.label for each in found[:4]] == [None, None, HALLUCINATED, HALLUCINATED]
    assert (span_f1([], []), span_f1([Span(0, 2)], []), conflict_of([])) == (1.0, 0.0, None)
    sides = anonymous(queue, found[0])
    assert [letter for letter, _ in sides] == ["A", "B"]
    answer = Answer(label=HALLUCINATED, spans=(Span(0, 6, "evident_conflict"),))
    told = {"reason": "it is six", "adjudicator": "cem", "revision": 0, "now": NOW}
    assert store.labels.decide("q", 0, answer, **told)  # type: ignore[arg-type]
    decided = findings(store, queue)[0]
    assert (decided.state, decided.label, decided.spans) == ("adjudicated", HALLUCINATED, answer.spans)
    assert decided.conflict == "the labels differ"
    among = people(queue, findings(store, queue), store.labels.samples("q"))
    assert among.n == 4 and among.raters is not None and among.raters.n_raters == 2
    assert among.spans is not None and among.spans.n == 2 and among.remark is None
    assert [each.n for each in (people(queue, found[4:], store.labels.samples("q")[4:]),)] == [0]


def test_a_label_given_with_the_verdict_in_sight_says_nothing_about_the_judge(store: Store) -> None:
    queue = queue_over(store, policy="uniform", double=0.0)
    label_all(store, queue, most=20)
    verdicts = {each.sample_id: each for each in store.outcomes(str(queue.run_id), judge="one")}

    def right() -> Estimate:
        return judge_right(queue, findings(store, queue), store.labels.samples("q"), verdicts)

    ids = [int(each.sample_id[1:]) for each in store.labels.items("q")[:20]]
    expected = sum(hard(at) == wrong(at) for at in ids) / 20
    assert right().value == pytest.approx(expected)
    store.labels.lease("q", 0, "ana", NOW, shown=True)
    opposite = FAITHFUL if hard(ids[0]) else HALLUCINATED
    say(store, queue, 0, "ana", opposite, revision=1)
    assert right().value == pytest.approx(sum(hard(at) == wrong(at) for at in ids[1:]) / 19)
    assert findings(store, queue)[0].labels[0].shown


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.full
def test_labels_go_out_as_agree_reads_them_and_come_back_the_same(store: Store, tmp_path: Path) -> None:
    queue = queue_over(store, policy="uniform", double=1.0)
    label_all(store, queue, "ana", most=20)
    for at in range(10):
        say(store, queue, at, "=ben()", FAITHFUL)
    say(store, queue, 0, "cem", "unsure")
    say(store, queue, 1, "cem", HALLUCINATED, Span(0, 6, "evident_conflict"))
    rows, lines = tmp_path / "labels.csv", tmp_path / "labels.jsonl"
    assert (export(store, queue, rows), export(store, queue, lines)) == (32, 32)
    assert "'=ben()" in rows.read_text()
    report = agree(str(queue.run_id), rows, judge="one", store=store.place)
    assert report.raters is not None and report.raters.n_raters == 3 and report.problems == ()
    assert report.overall.n == 20 - report.left_out.get("tied among people", 0)
    spoken = [json.loads(line) for line in lines.read_text().splitlines()]
    (marked,) = [each for each in spoken if each["labels"]]
    assert marked["labels"] == [
        {"start": 0, "end": 6, "text": "output", "meta": "", "label_type": "evident_conflict"}
    ]
    other = queue_of_run(
        store, store.find_run(str(queue.run_id)), "other", QueueOptions(policy="uniform"), NOW
    )
    first = import_labels(store, other, lines, NOW)
    assert (first.n_new, first.n_known, first.unknown) == (32, 0, ())
    again = import_labels(store, other, lines, NOW)
    assert (again.n_new, again.n_known) == (0, 32)

    def told(name: str) -> list[object]:
        kept = [replace(each, id=0) for each in store.labels.labels(name)]
        return sorted(kept, key=lambda each: (each.position, each.annotator))

    assert told("other") == told("q")
    gold = tmp_path / "gold.csv"
    held = export(store, queue, gold, gold=True)
    assert held == sum(each.label is not None for each in findings(store, queue)) <= 20
    with pytest.raises(SpecError, match="already exists"):
        export(store, queue, gold)
    with pytest.raises(SpecError, match=r"\.csv or \.jsonl"):
        export(store, queue, tmp_path / "labels.parquet")


def test_cells_that_were_kept_from_being_formulas_come_back_as_they_were(
    store: Store, tmp_path: Path
) -> None:
    queue = queue_over(store, policy="uniform", double=1.0)
    rows = tmp_path / "labels.csv"
    given = Answer(label=FAITHFUL, note="=fine")
    store.labels.add("q", 0, "@ben", given, revision=0, now=NOW)
    say(store, queue, 1, "ana", HALLUCINATED, Span(0, 6, "evident_conflict"))
    export(store, queue, rows)
    assert "'@ben" in rows.read_text()
    again = import_labels(store, queue, rows, NOW)
    assert (again.n_new, again.n_known) == (0, 2)
    label, marked = store.labels.labels("q")
    assert (label.annotator, label.note) == ("@ben", "=fine")
    assert marked.spans == (Span(0, 6, "evident_conflict"),)
    lines = tmp_path / "labels.jsonl"  # where nothing is a formula, and a quote is one
    lines.write_text(json.dumps({"id": "s1", "label": "pass", "annotator": "'@ben"}) + "\n")
    import_labels(store, queue, lines, NOW)
    assert {each.annotator for each in store.labels.labels("q")} == {"@ben", "ana", "'@ben"}


def test_an_import_brings_all_labels_or_none(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_over(store, policy="uniform")
    lines = tmp_path / "labels.jsonl"
    rows = [{"id": f"s{at}", "label": "pass", "annotator": "ana"} for at in range(3)]
    lines.write_text("".join(json.dumps(each) + "\n" for each in rows))
    original, asked = shelf._append, list[int]()

    def breaks(*args: Any, **more: Any) -> None:
        asked.append(1)
        if len(asked) == 3:
            raise StoreError("the disk is full")
        original(*args, **more)

    monkeypatch.setattr(shelf, "_append", breaks)
    with pytest.raises(StoreError):
        import_labels(store, queue, lines, NOW)
    assert store.labels.labels("q") == []


def test_a_file_with_one_bad_row_brings_nothing(store: Store, tmp_path: Path) -> None:
    queue = queue_over(store, policy="uniform")
    for row, message in (
        ({"id": "s1", "label": "maybe", "annotator": "a"}, "not a known label"),
        ({"id": "s1", "label": "", "annotator": "a"}, "no label"),
        ({"id": "s1", "label": "faithful"}, "annotator"),
        ({"id": "s0", "label": "fail", "annotator": "a"}, "twice"),
        ({"id": "s1", "label": "fail", "annotator": "a", "spans": [{"start": 0, "end": 999}]}, "outside"),
        ({"id": "s1", "label": "fail", "annotator": "a", "spans": [{"start": "x", "end": 9}]}, "spans"),
    ):
        path = tmp_path / "rows.jsonl"
        good = {"id": "s0", "label": "PASS", "annotator": "a"}
        path.write_text("".join(json.dumps(each) + "\n" for each in (good, row)))
        with pytest.raises(InputError, match=f"nothing was imported.*{message}"):
            import_labels(store, queue, path, NOW)
        assert store.labels.labels("q") == []
    path.write_text('{"id": "s0", "label": "pass"}\n{"id": "who", "label": "pass"}\n')
    found = import_labels(store, queue, path, NOW, annotator="ana")
    assert (found.n_new, found.unknown) == (1, ("who",))
    path.write_text('{"id": "who", "label": "pass"}\n')
    with pytest.raises(InputError, match="no row"):
        import_labels(store, queue, path, NOW, annotator="ana")
