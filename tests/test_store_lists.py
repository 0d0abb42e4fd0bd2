"""Lists that pages show: all of it is gone through once, in order, whatever the cells, scores and filters."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from magistrate.errors import SpecError
from magistrate.report.counts import MADE_BY, counted
from magistrate.store import Snapshot, Store
from magistrate.store.figures import RunFilter
from magistrate.store.outcome_lists import Cell, OutcomeLine, Scored
from magistrate.types import Abstention, Failure, Outcome, Recipe, Sample, Verdict

LABELS = ("faithful", "hallucinated", None, "odd")


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with Store.open(place) as opened:
        yield opened


def start(store: Store, samples: list[Sample], **options: object) -> str:
    recipe = Recipe("j@1", "tiny", "f", None, None, 0, len(samples), "1")
    told = {
        "dataset": "set",
        "dataset_digest": "d",
        "model": "tiny",
        "engine_fingerprint": "f",
        "recipes": {"j": recipe},
    }
    run = store.create_run(**{**told, **options})  # type: ignore[arg-type]
    store.add_samples(run, samples)
    return run


def filled(store: Store, n: int = 120) -> tuple[str, list[Outcome]]:
    """A run of `n` samples of every label, with outcomes of every kind and many equal scores."""
    chance = random.Random(5)
    samples = [Sample(f"s{i}", f"output {i}", ("c",), label=LABELS[i % 4]) for i in range(n)]
    run = start(store, samples)
    outcomes: list[Outcome] = []
    for i in range(n):
        match chance.randrange(6):
            case 0:
                outcomes.append(Failure(f"s{i}", "j", chance.choice(["timeout", "engine_error"]), "broke"))
            case 1:
                outcomes.append(Abstention(f"s{i}", "j", "uncertain", "hm"))
            case _:
                score = chance.randrange(5) / 4
                label = "hallucinated" if score >= 0.5 else "faithful"
                outcomes.append(Verdict(f"s{i}", "j", label, score, score))
    mixed = list(outcomes)
    chance.shuffle(mixed)
    store.add_outcomes(run, mixed)
    return run, outcomes


def walked(ask: Callable[[OutcomeLine | None], list[OutcomeLine]]) -> list[OutcomeLine]:
    found: list[OutcomeLine] = []
    for _ in range(1000):
        page = ask(found[-1] if found else None)
        if not page:
            return found
        found += page
    raise AssertionError("the list has no end")


def cell_of(outcome: Outcome, gold: str | None) -> Cell:
    kind = type(outcome).__name__.lower()
    return Cell(kind, outcome.label if isinstance(outcome, Verdict) else None, gold)


def test_cells_count_every_outcome_once_and_are_gone_through_in_order(store: Store) -> None:
    run, outcomes = filled(store)
    golds = {f"s{i}": LABELS[i % 4] for i in range(len(outcomes))}
    with store.snapshot() as moment:
        cells = moment.cells(run, "j")
        assert sum(cells.values()) == len(outcomes)
        expected: dict[Cell, list[str]] = {}
        for outcome in outcomes:
            cell = cell_of(outcome, golds[outcome.sample_id])
            expected.setdefault(cell, []).append(outcome.sample_id)
        assert cells == {cell: len(ids) for cell, ids in expected.items()}
        chosen = [cell for cell in cells if cell.gold != "odd"]
        lines = walked(
            lambda last: moment.in_cells(
                run, "j", chosen, beyond=None if last is None else last.position, limit=7
            )
        )
        assert [line.sample_id for line in lines] == [
            f"s{i}" for i in range(len(outcomes)) if LABELS[i % 4] != "odd"
        ]
        assert all(line.output == f"output {line.position}" for line in lines)
        everything = moment.in_cells(run, "j", None, limit=500)
        assert [line.sample_id for line in everything] == [outcome.sample_id for outcome in outcomes]
        back = moment.in_cells(run, "j", chosen, beyond=lines[20].position, direction="before", limit=5)
        assert back == lines[15:20]


def test_a_code_takes_only_its_failures(store: Store) -> None:
    run, outcomes = filled(store)
    late = [o.sample_id for o in outcomes if isinstance(o, Failure) and o.code == "timeout"]
    with store.snapshot() as moment:
        found = moment.in_cells(run, "j", moment.cells(run, "j"), code="timeout", limit=500)
        assert [line.sample_id for line in found] == late
        assert moment.failure_codes(run, "j")["failure", "timeout"] == len(late)


@pytest.mark.parametrize("low", [0.0, 0.5])
def test_scores_are_gone_through_from_the_highest_also_where_many_are_equal(store: Store, low: float) -> None:
    run, outcomes = filled(store)
    verdicts = [(o.score, int(o.sample_id[1:])) for o in outcomes if isinstance(o, Verdict)]
    wanted = sorted(
        ((score, at) for score, at in verdicts if LABELS[at % 4] in ("faithful", None) and score >= low),
        key=lambda pair: (-pair[0], pair[1]),
    )
    ranges = [
        Scored(said, gold, low, 2.0) for said in ("faithful", "hallucinated") for gold in ("faithful", None)
    ]

    def ask(moment: Snapshot, last: OutcomeLine | None) -> list[OutcomeLine]:
        beyond = None if last is None or last.score is None else (last.score, last.position)
        return moment.by_score(run, "j", ranges, beyond=beyond, limit=4)

    with store.snapshot() as moment:
        lines = walked(lambda last: ask(moment, last))
        assert [(line.score, line.position) for line in lines] == wanted
        assert moment.count_scored(run, "j", ranges) == len(wanted)
        assert moment.lines_at(run, "j", [line.position for line in lines[3:9]]) == sorted(
            lines[3:9], key=lambda line: line.position
        )
        middle = lines[10]
        assert middle.score is not None
        before = moment.by_score(
            run, "j", ranges, beyond=(middle.score, middle.position), direction="before", limit=3
        )
        assert before == lines[7:10]


def test_runs_are_gone_through_newest_first_and_filters_leave_out_the_others(store: Store) -> None:
    sample = [Sample("a", "b", ("c",))]
    ids = [
        start(store, sample, name=f"night {i}", dataset="x%_" if i % 3 else "y", tags=[f"t{i % 2}"])
        for i in range(25)
    ]
    with store.snapshot() as moment:
        found: list[str] = []
        before = None
        while page := moment.runs(before=before, limit=4):
            found += [line.id for line in page]
            before = page[-1].number
        assert found == ids[::-1]
        newer = moment.runs(after=10, limit=3)
        assert [line.number for line in newer] == [13, 12, 11]

        def names(**wanted: object) -> list[str | None]:
            return [line.name for line in moment.runs(RunFilter(**wanted), limit=99)]  # type: ignore[arg-type]

        assert names(dataset="y") == [f"night {i}" for i in range(24, -1, -3)]
        assert names(words=("NIGHT", "%_"), tag="t1") == [f"night {i}" for i in (23, 19, 17, 13, 11, 7, 5, 1)]
        assert names(words=("t1", "night 24")) == []
        assert names(words=("x\\",)) == []
        assert names(judge="j") == []  # no outcome of it yet
        assert moment.count_runs(RunFilter(dataset="y")) == 9
        assert moment.run_choices()["dataset"] == ["x%_", "y"]


def test_what_is_around_a_sample_and_what_others_said_of_it(store: Store) -> None:
    samples = [Sample(name, f"text of {name}", ("c",)) for name in ("a", "b", "c")]
    first = start(store, samples)
    second = start(store, [Sample("other id", "text of b", ("c",))], name="again")
    store.add_outcome(second, Verdict("other id", "j", "faithful", 0.2, 0.2))
    store.add_outcome(second, Failure("other id", "k", "timeout", "slow"))
    with store.snapshot() as moment:
        assert moment.position(first, "b") == 1
        assert moment.position(first, "z") is None
        assert [moment.beside(first, at) for at in range(3)] == [(None, "b"), ("a", "c"), ("b", None)]
        said = moment.elsewhere(first, "b")
        assert [(each.run_id, each.sample_id, each.judge, each.label, each.code) for each in said] == [
            (second, "other id", "j", "faithful", None),
            (second, "other id", "k", None, "timeout"),
        ]
        assert moment.elsewhere(first, "a") == []
        with pytest.raises(SpecError, match="has no sample"):
            moment.sample(first, "bb")


# --- figures that are kept ------------------------------------------------------------------------


def test_figures_are_counted_once_and_anew_when_the_run_has_changed(store: Store) -> None:
    run, _ = filled(store)
    store.finish_run(run, "done")
    first = counted(store, run)
    with store.snapshot() as moment:
        revision, kept = moment.figures(run, MADE_BY)
        assert revision == moment.record(run).revision
        assert [each.judge for each in kept] == ["j"]
        assert moment.uncounted(MADE_BY, 10) == []
    again = counted(store, run)
    assert again.report == first.report
    for name in ("hallucinated", "faithful", "unlabelled"):
        assert getattr(again.scores["j"], name).tolist() == getattr(first.scores["j"], name).tolist()
    failed = next(iter(store.failed(run)))
    store.add_outcome(run, Verdict(failed[0], "j", "faithful", 0.0, 0.0), replace_failure=True)
    with store.snapshot() as moment:
        assert moment.uncounted(MADE_BY, 10) == [run]
    third = counted(store, run)
    assert third.revision > first.revision
    assert third.report.judges[0].n_ok == first.report.judges[0].n_ok + 1


def test_figures_of_a_judge_of_any_name_are_kept(store: Store) -> None:
    run = start(store, [Sample("a", "b", ("c",), label="faithful")], recipes={})
    store.add_outcome(run, Verdict("a", "half \ud800\x00\\", "faithful", 0.25, 0.25))
    store.finish_run(run, "done")
    first = counted(store, run)
    assert counted(store, run).report == first.report
    with store.snapshot() as moment:
        assert [each.judge for each in moment.figures(run, MADE_BY)[1]] == ["half \ud800\x00\\"]


def test_figures_of_an_earlier_revision_are_not_kept(store: Store) -> None:
    run, _ = filled(store, 8)
    store.finish_run(run, "done")
    found = counted(store, run)
    with store.snapshot() as moment:
        _, kept = moment.figures(run, MADE_BY)
    store.expect(run, 99)
    assert not store.keep_figures(run, found.revision, kept)
    store.delete(run)
    assert not store.keep_figures(run, found.revision, kept)


def test_a_run_under_way_is_counted_and_nothing_is_kept(store: Store) -> None:
    run, _ = filled(store, 8)
    with store.hold(run):
        assert counted(store, run).report.run.status == "running"
        with store.snapshot() as moment:
            assert moment.figures(run, MADE_BY) == (-1, [])
            assert moment.uncounted(MADE_BY, 10) == []


def test_trends_are_of_one_dataset_and_judge_oldest_first(store: Store) -> None:
    numbers = count()
    for _ in range(5):
        run, _ = filled(store, 40 + 4 * next(numbers))
        store.finish_run(run, "done")
        counted(store, run)
    with store.snapshot() as moment:
        found = moment.trends(["set", "other"], 3)
        assert list(found) == [("set", "j")]
        assert [point.number for point in found["set", "j"]] == [3, 4, 5]
        heads = [line.heads[0].value for line in moment.runs(limit=3)]
        assert [point.value for point in found["set", "j"]] == heads[::-1]


def test_the_pulse_beats_with_everything_that_happens_to_a_run(store: Store) -> None:
    def pulse() -> tuple[int, ...]:
        with store.snapshot() as moment:
            return moment.pulse(run)

    run, _ = filled(store, 8)
    seen = [pulse()]
    store.finish_run(run, "interrupted")
    seen.append(pulse())
    store.reopen_run(run)
    seen.append(pulse())
    store.add_outcome(run, Failure("s1", "k", "timeout", "slow"))
    seen.append(pulse())
    store.finish_run(run, "done")
    seen.append(pulse())
    counted(store, run)
    seen.append(pulse())
    store.delete(run)
    seen.append(pulse())
    assert len(set(seen)) == 7
