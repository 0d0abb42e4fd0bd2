"""The page of a run and its API: figures are exact, every outcome is listed once, and nothing breaks it."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from math import nextafter

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sklearn import metrics
from sqlalchemy import delete

from magistrate.errors import SpecError
from magistrate.judges.rubric import decided
from magistrate.report.counts import count, counted
from magistrate.server.app import create_app, warm_up
from magistrate.server.figures import Detail, JudgePart, RunQuery, ThresholdPart, roundest
from magistrate.server.outcomes import ABSTAINED, FAILED, UNLABELLED, ListFilter, ListLine, neighbours
from magistrate.server.run import RunView, run_view
from magistrate.server.settings import Settings
from magistrate.server.state import JobQueue, RunCache, RunCounter, StorePool
from magistrate.store import Store
from magistrate.store.schema import run_samples
from magistrate.types import Abstention, Failure, Outcome, Recipe, Sample, Scoring, Verdict
from reported import CLAIMS, outcomes_of, samples_of

H, F = "hallucinated", "faithful"
LABELS = (F, H, None, "odd")


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with Store.open(place) as opened:
        yield opened


Look = Callable[..., RunView]


@pytest.fixture
def look(store: Store) -> Iterator[Look]:
    """A look at a run with nothing in the back of the mind but what this test saw."""
    warm_up()
    stores, jobs = StorePool(store.place), JobQueue()
    counter = RunCounter(stores)
    counter.stop()  # nothing is counted in the background here
    cache = RunCache(stores, jobs, counter)

    def looked(run_id: str, judge: str | None = None, by: str | None = None, **query: object) -> RunView:
        names = ("after", "before", "limit")
        place = {name: query.pop(name) for name in names if name in query}
        wanted = ListFilter(**query)  # type: ignore[arg-type]
        asked = RunQuery(judge=judge, by=by, wanted=wanted, **place)  # type: ignore[arg-type]
        return run_view(store, cache, run_id, asked)

    yield looked
    jobs.close()
    stores.close()


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(store=store.place)), follow_redirects=False) as opened:
        yield opened


def made(
    store: Store,
    samples: Sequence[Sample],
    outcomes: Sequence[Outcome],
    *,
    judges: Sequence[str] = ("j",),
    status: str = "done",
    **options: object,
) -> str:
    told = {
        "dataset": "set",
        "dataset_digest": "d" * 64,
        "model": "tiny",
        "engine_fingerprint": "f",
        "recipes": {each: Recipe(f"{each}@1", "tiny", "f", None, None, 0, 9, "1") for each in judges},
        "scoring": {each: Scoring("minimize", ("faithful", "hallucinated"), 0.5) for each in judges},
        "n_total": len(samples),
    }
    run = store.create_run(**{**told, **options})  # type: ignore[arg-type]
    store.add_samples(run, samples)
    store.add_outcomes(run, outcomes)
    if status != "running":
        store.finish_run(run, status)  # type: ignore[arg-type]
    return run


def mixed(store: Store, n: int = 90, *, turned: bool = False, by_score: bool = True) -> str:
    """A run with every kind of outcome and label, many equal scores, and four samples a context."""
    chance = random.Random(7)
    samples = [
        Sample(f"s{i}", f"output {i}", (f"c{i // 4}",), label=LABELS[i % 4], metadata={"part": f"p{i % 3}"})
        for i in range(n)
    ]
    outcomes: list[Outcome] = []
    for i in range(n):
        match chance.randrange(8):
            case 0:
                outcomes.append(Failure(f"s{i}", "j", chance.choice(["timeout", "budget"]), f"broke at {i}"))
            case 1:
                outcomes.append(Abstention(f"s{i}", "j", "uncertain", "hm"))
            case 2:
                outcomes.append(Verdict(f"s{i}", "j", "unclear", chance.random()))
            case _:
                score = chance.choice([chance.randrange(9) / 8, round(chance.random(), 2)])
                high = score >= 0.5 if by_score else chance.random() < 0.5
                outcomes.append(Verdict(f"s{i}", "j", F if high == turned else H, score, 0.9))
    scoring = Scoring("maximize" if turned else "minimize", (H, F), 0.5)
    return made(store, samples, outcomes, scoring={"j": scoring})


def detail(view: RunView) -> Detail:
    assert view.detail is not None
    return view.detail


def part(view: RunView) -> JudgePart:
    found = detail(view).part
    assert found is not None
    return found


def cut(view: RunView) -> ThresholdPart:
    found = part(view).threshold
    assert found is not None
    return found


def walked(look: Look, run: str, limit: int = 7, **query: object) -> list[ListLine]:
    """All lines from the first stretch to the last, and each stretch's way back leads to the one before."""
    found: list[ListLine] = []
    before: tuple[ListLine, ...] = ()
    after = None
    for _ in range(1000):
        stretch = detail(look(run, after=after, limit=limit, **query)).outcomes
        found += stretch.lines
        assert (stretch.earlier is not None) == (after is not None and bool(stretch.lines))
        if stretch.earlier is not None:
            back = detail(look(run, before=stretch.earlier, limit=limit, **query)).outcomes
            assert back.lines == before
        if stretch.later is None:
            return found
        before, after = stretch.lines, stretch.later
    raise AssertionError("the list has no end")


# --- the list --------------------------------------------------------------------------------------

FILTERS = [
    {},
    {"said": H},
    {"said": FAILED},
    {"said": ABSTAINED, "truth": UNLABELLED},
    {"said": "unclear"},
    {"truth": "odd"},
    {"right": "wrong"},
    {"right": "right", "truth": H},
    {"code": "timeout"},
    {"code": "timeout", "truth": F},
    {"said": F, "truth": H},
]


@pytest.mark.full
@pytest.mark.parametrize("turned", [False, True])
def test_every_outcome_that_fits_is_listed_once_in_order(store: Store, look: Look, turned: bool) -> None:
    run = mixed(store, turned=turned)
    everything = {line.position: line for line in walked(look, run)}
    assert list(everything) == list(range(90))
    for wanted in FILTERS:
        for threshold in (None, 0.25, 0.625):
            for order in ("sample", "score"):
                query = {**wanted, "threshold": threshold, "order": order}
                lines = walked(look, run, **query)
                told = detail(look(run, **query)).outcomes
                fitting = [line for line in everything.values() if fits(at(line, threshold, turned), wanted)]
                scored = [line for line in fitting if line.score is not None]
                expected = (
                    sorted(scored, key=lambda line: (-line.score, line.position))
                    if told.by_score
                    else fitting
                )
                assert [line.position for line in lines] == [line.position for line in expected], query
                assert lines == [at(line, threshold, turned) for line in expected]
                assert told.n == len(fitting) and told.n_all == 90
                assert told.n_unscored == (len(fitting) - len(scored) if told.by_score else 0)
                assert told.by_score or order == "sample"


def at(line: ListLine, threshold: float | None, turned: bool) -> ListLine:
    """The line as it is at a threshold, worked out one by one."""
    if threshold is None or line.said not in (H, F) or line.score is None:
        return line
    said = H if (line.score < threshold if turned else line.score >= threshold) else F
    return replace(line, said=said, right=said == line.gold if line.gold in (H, F) else None)


def fits(line: ListLine, wanted: dict[str, str]) -> bool:
    said = {"failure": FAILED, "abstention": ABSTAINED}.get(line.kind, line.said)
    truth = UNLABELLED if line.gold is None else line.gold
    return (
        wanted.get("said", said) == said
        and wanted.get("truth", truth) == truth
        and wanted.get("code", line.code) == line.code
        and ("right" not in wanted or line.right is (wanted["right"] == "right"))
    )


@pytest.mark.full
def test_neighbours_are_those_of_the_list(store: Store, look: Look) -> None:
    run = mixed(store)
    counted(store, run)
    for query in ({}, {"right": "wrong"}, {"said": F, "threshold": 0.7}, {"truth": H, "order": "score"}):
        ids = [line.sample_id for line in walked(look, run, **query)]
        positions = [line.position for line in walked(look, run, **query)]
        with store.snapshot() as moment:
            found = [neighbours(moment, run, "j", ListFilter(**query), position) for position in positions]  # type: ignore[arg-type]
        assert found == list(zip([None, *ids[:-1]], [*ids[1:], None], strict=True))


def test_a_sample_without_a_score_has_no_place_among_scores(store: Store, look: Look) -> None:
    run = mixed(store)
    failed = walked(look, run, said=FAILED)[0]
    with store.snapshot() as moment:
        assert neighbours(moment, run, "j", ListFilter(order="score"), failed.position) == (None, None)


def test_a_cursor_of_another_list_begins_at_the_start(store: Store, look: Look) -> None:
    run = mixed(store)
    first = detail(look(run)).outcomes
    for cursor in ("0.5,3", "x", "-1", "9" * 40, "nan,3", "١"):
        assert detail(look(run, after=cursor)).outcomes.lines == first.lines
    scored = detail(look(run, order="score")).outcomes
    assert detail(look(run, order="score", after="12")).outcomes.lines == scored.lines
    nothing = detail(look(run, after="90")).outcomes
    assert nothing.lines == () and nothing.n == 90


# --- figures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("turned", [False, True])
def test_figures_at_a_threshold_are_those_of_scikit_learn(store: Store, look: Look, turned: bool) -> None:
    run = mixed(store, 160, turned=turned)
    known = [each for each in walked(look, run) if each.gold in (H, F) and each.said in (H, F)]
    truth = np.array([each.gold == H for each in known])
    scores = np.array([each.score for each in known])
    for threshold in [0.0, 1.0, 0.5, 0.31, *np.unique(scores)[::9], nextafter(scores.max(), 2)]:
        if not 0 <= threshold <= 1:
            continue
        said = scores < threshold if turned else scores >= threshold
        view = look(run, threshold=float(threshold))
        report = part(view).report
        assert report.result is not None
        c = report.result.confusion
        assert [
            [c.true_negative, c.false_positive],
            [c.false_negative, c.true_positive],
        ] == metrics.confusion_matrix(truth, said, labels=[False, True]).tolist()
        values = {name: estimate.value for name, estimate in report.result.metrics.items()}
        assert values["accuracy"] == pytest.approx(metrics.accuracy_score(truth, said))
        assert values["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(truth, said))
        assert values["recall"] == pytest.approx(metrics.recall_score(truth, said))
        assert values["auroc"] == pytest.approx(metrics.roc_auc_score(truth, -scores if turned else scores))
        if said.any():
            assert values["precision"] == pytest.approx(metrics.precision_score(truth, said))
            assert values["f1"] == pytest.approx(metrics.f1_score(truth, said))
        else:
            assert values["precision"] is None
        assert report.verdicts["unclear"] == part(look(run)).report.verdicts["unclear"]
        assert cut(view).n_now == report.verdicts.get(H, 0)


def test_each_cell_of_the_matrix_leads_to_as_many_lines(store: Store, look: Look) -> None:
    run = mixed(store)
    for threshold in (None, 0.3, 0.5):
        report = part(look(run, threshold=threshold)).report
        assert report.result is not None
        c = report.result.confusion
        counts = {
            (H, H): c.true_positive,
            (H, F): c.false_negative,
            (F, H): c.false_positive,
            (F, F): c.true_negative,
        }
        for (truth, said), n in counts.items():
            found = detail(look(run, truth=truth, said=said, threshold=threshold)).outcomes
            assert found.n == n == len(walked(look, run, truth=truth, said=said, threshold=threshold))
    table = detail(look(run)).table
    assert table is not None and "odd" in table.truths and "unclear" in table.labels
    for i, truth in enumerate(table.truths):
        for j, said in enumerate(table.labels):
            assert detail(look(run, truth=truth, said=said)).outcomes.n == table.counts[i][j]


@pytest.mark.parametrize("turned", [False, True])
def test_the_own_threshold_gives_the_own_labels(store: Store, look: Look, turned: bool) -> None:
    run = mixed(store, turned=turned)
    judged = look(run)
    own = cut(judged).own
    assert own is not None and cut(judged).value is None and cut(judged).shown == own
    moved = look(run, threshold=own)
    assert part(moved).report.result is not None
    assert part(moved).report.result.confusion == part(judged).report.result.confusion  # type: ignore[union-attr]
    assert cut(moved).n_now == cut(moved).n_judged == cut(judged).n_now
    lines = [replace(line, probability=None) for line in walked(look, run)]
    assert [replace(line, probability=None) for line in walked(look, run, threshold=own)] == lines


def test_labels_that_no_threshold_gives_have_none(store: Store, look: Look) -> None:
    assert cut(look(mixed(store, by_score=False))).own is None


@pytest.mark.full
@pytest.mark.parametrize("turned", [False, True])
def test_no_threshold_is_better_than_the_best(store: Store, look: Look, turned: bool) -> None:
    run = mixed(store, turned=turned)
    best = cut(look(run))
    assert best.best is not None and best.best_value is not None
    scores = sorted({line.score for line in walked(look, run) if line.score is not None})
    beyond = [nextafter(score, way) for score in scores for way in (0.0, 1.0)]

    def value(threshold: float) -> float:
        result = part(look(run, threshold=threshold)).report.result
        assert result is not None and result.metrics["balanced_accuracy"].value is not None
        return result.metrics["balanced_accuracy"].value

    assert value(best.best) == pytest.approx(best.best_value)
    assert max(map(value, [*scores, *beyond])) <= best.best_value + 1e-12


def test_round_thresholds_stay_between_their_scores() -> None:
    chance = random.Random(1)
    for _ in range(300):
        low, high = sorted((chance.random() ** chance.randrange(1, 9), chance.random()))
        found = roundest(low, high, high)
        assert found is not None and low < found <= high
        assert len(repr(found)) <= max(len(repr(high)), 3)
    assert roundest(0.5, nextafter(0.5, 1), nextafter(0.5, 1)) == nextafter(0.5, 1)


def test_marks_stand_on_the_curve_where_the_figures_are(store: Store, look: Look) -> None:
    run = mixed(store, 160)
    pictures = {each.chart.title: each for each in part(look(run, threshold=0.3)).pictures}
    c = part(look(run, threshold=0.3)).report.result
    assert c is not None
    recall = c.metrics["recall"].value
    assert recall is not None
    roc = pictures["ROC"]
    assert roc.now is not None and roc.judged is not None and roc.now != roc.judged
    assert roc.now == roc.chart.area.at(c.confusion.false_positive / c.confusion.negatives, recall)
    (path,) = re.findall(r'<path d="([^"]*)"[^>]*class="stroke-accent"', roc.chart.svg)
    curve = [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path)]
    assert min(distance(roc.now, *ends) for ends in pairwise(curve)) < 0.1
    scores = pictures["Scores"]
    assert scores.upright and scores.now is not None and scores.now[0] == scores.chart.area.at(0.3, 0)[0]
    assert pictures["Reliability"].now is None
    assert all(each.judged is None for each in part(look(run)).pictures)


def distance(point: tuple[float, float], start: tuple[float, float], end: tuple[float, float]) -> float:
    """How far a point is from the line between two others."""
    p, a, b = (np.array(each) for each in (point, start, end))
    length = ((b - a) ** 2).sum()
    share = np.clip(((p - a) * (b - a)).sum() / length, 0, 1) if length else 0.0
    return float(np.hypot(*(a + share * (b - a) - p)))


def test_slices_are_the_figures_of_their_samples(store: Store, look: Look) -> None:
    run = mixed(store)
    assert detail(look(run)).keys == ("part",)
    for threshold in (None, 0.4):
        slices = detail(look(run, by="part", threshold=threshold)).slices
        assert slices is not None and [each.value for each in slices.slices] == sorted(
            (each.value for each in slices.slices),
            key=lambda value: -next(s.n for s in slices.slices if s.value == value),
        )
        known = [
            each
            for each in walked(look, run, threshold=threshold)
            if each.gold in (H, F) and each.said in (H, F)
        ]
        for each in slices.slices:
            inside = [line for line in known if f"p{line.position % 3}" == each.value]
            assert each.n == len(inside)
            assert each.n_hallucinated == sum(line.gold == H for line in inside)
            assert each.n_called == sum(line.said == H for line in inside)
            assert each.balanced_accuracy.value == pytest.approx(
                metrics.balanced_accuracy_score(
                    [line.gold for line in inside], [line.said for line in inside]
                )
            )
        assert sum(each.n for each in slices.slices) == len(known)
    nothing = detail(look(run, by="nobody")).slices
    assert nothing is not None and nothing.slices == () and nothing.n_without == len(known)


def test_verdicts_decided_anew_stand_beside_their_own_texts_where_samples_were_deleted(
    store: Store, look: Look
) -> None:
    run = rubric(store)
    gone = next(store.samples(run)).id
    with store.traces._writing() as connection:
        connection.execute(delete(run_samples).where(run_samples.c.sample_id == gone))
    lines = walked(look, run, flag=("unsupported",))
    assert {line.sample_id for line in lines} == {sample.id for sample in store.samples(run)}
    again = {each.sample_id: decided(each, ("unsupported",)) for each in verdicts(store, run)}
    for line in lines:
        if line.sample_id in again:
            assert (line.said, line.score) == (again[line.sample_id].label, again[line.sample_id].score)


def test_failures_are_counted_by_code_with_what_one_says(store: Store, look: Look) -> None:
    run = mixed(store)
    codes = detail(look(run)).codes
    failed = [line for line in walked(look, run) if line.kind != "verdict"]
    assert sum(each.n for each in codes) == len(failed)
    for each in codes:
        own = [line for line in failed if line.code == each.code]
        assert len(own) == each.n == detail(look(run, code=each.code)).outcomes.n
        assert each.message in ("hm", *(f"broke at {line.position}" for line in own))


# --- rubrics ---------------------------------------------------------------------------------------


def rubric(store: Store, n: int = 80) -> str:
    chance = random.Random(2)
    samples = samples_of(n)
    outcomes: list[Outcome] = []
    for outcome in outcomes_of(samples):
        if isinstance(outcome, Verdict):
            chosen = chance.sample(CLAIMS, chance.randrange(4))
            claims = tuple(replace(claim, probability=chance.randrange(5) / 4) for claim in chosen)
            outcomes.append(decided(replace(outcome, claims=claims), ["contradiction"]))
        else:
            outcomes.append(outcome)
    return made(store, samples, outcomes, judges=("rubric",))


@pytest.mark.full
@pytest.mark.parametrize("flag", [("unsupported",), ("contradiction", "unsupported"), ("agreement",)])
def test_other_flags_decide_figures_and_list_anew(store: Store, look: Look, flag: tuple[str, ...]) -> None:
    run = rubric(store)
    own = detail(look(run)).flags
    assert own is not None and own.own == ("contradiction",) and own.chosen == ()
    with store.snapshot() as moment:
        (expected,) = count(moment, moment.record(run), flag).report.judges
    view = look(run, flag=flag)
    assert part(view).report == expected
    assert detail(view).flags.chosen == flag and not view.pending  # type: ignore[union-attr]
    again = {each.sample_id: decided(each, flag) for each in verdicts(store, run)}
    for threshold in (None, 0.4):
        for order in ("sample", "score"):
            lines = walked(look, run, flag=flag, order=order, threshold=threshold, right="wrong")
            wrong = {
                each.sample_id: each.score
                for each in again.values()
                if (each.score >= 0.4 if threshold else each.label == H)
                != (int(each.sample_id[-3:]) % 2 == 0)
            }
            assert {line.sample_id: line.score for line in lines} == wrong
            assert (
                len(lines)
                == len(wrong)
                == detail(look(run, flag=flag, threshold=threshold, right="wrong")).outcomes.n
            )
            keys = [(-line.score, line.position) if order == "score" else line.position for line in lines]  # type: ignore[operator]
            assert keys == sorted(keys)  # type: ignore[type-var]


def verdicts(store: Store, run: str) -> list[Verdict]:
    return [each for each in store.outcomes(run) if isinstance(each, Verdict)]


def test_the_own_flags_change_nothing_and_other_judges_have_none(store: Store, look: Look) -> None:
    run = rubric(store)
    same = look(run, flag=("contradiction",))
    assert part(same).report == part(look(run)).report
    assert detail(same).flags.chosen == ()  # type: ignore[union-attr]
    plain = look(mixed(store), flag=("contradiction",))
    assert detail(plain).flags is None and not plain.pending


# --- runs that lack something ----------------------------------------------------------------------


def test_several_judges_stand_side_by_side_and_one_is_looked_at(store: Store, look: Look) -> None:
    samples = samples_of(20)
    outcomes = [*outcomes_of(samples, "a b/ä"), *outcomes_of(samples[:5], "second")]
    run = made(store, samples, outcomes, judges=("a b/ä", "second", "idle"))
    view = look(run)
    assert [row.judge for row in view.judges] == ["a b/ä", "second", "idle"]
    assert detail(view).judge == "a b/ä" and detail(look(run, "second")).outcomes.n_all == 5
    idle = detail(look(run, "idle"))
    assert idle.outcomes.lines == () and idle.part is not None and idle.part.threshold is None
    with pytest.raises(SpecError, match=r"no judge 'third'; it has: 'a b/ä', 'second', 'idle'"):
        look(run, "third")


def lacking(store: Store) -> dict[str, str]:
    """Runs that lack something, by what their page says of it."""
    samples = samples_of(40)
    bare = samples_of(40, labelled=False)
    alike = [replace(sample, label=F) for sample in samples]
    odd = [replace(sample, label=str(i % 3)) for i, sample in enumerate(samples)]
    marks = [Verdict(sample.id, "j", str(i % 4), i / 40) for i, sample in enumerate(odd)]
    failures = [Failure(sample.id, "j", "timeout", "too slow") for sample in samples]
    return {
        "none has a gold label": made(store, bare, outcomes_of(bare, "j")),
        "every sample is faithful": made(store, alike, outcomes_of(alike, "j")),
        "Truth and verdict, all labels": made(store, odd, marks),
        "There is no verdict": made(store, samples, failures),
        "This judge has no outcome yet": made(store, samples, [], status="interrupted"),
        "This run has no judge": made(store, samples, [], judges=()),
        "This run was killed. 0 of 40 judgements are done": made(store, samples, [], status="running"),
    }


def test_what_is_not_there_is_said(store: Store, client: TestClient) -> None:
    for words, run in lacking(store).items():
        page = client.get(f"/runs/{run}")
        assert page.status_code == 200 and words in page.text, words
        moved = client.get(f"/runs/{run}", params={"threshold": 0.3, "right": "wrong", "by": "domain"})
        assert moved.status_code == 200
        assert client.get(f"/api/runs/{run}").json()["current"] is True


def test_a_run_under_way_shows_how_far_it_is(store: Store, client: TestClient) -> None:
    samples = samples_of(30)
    run = made(store, samples, outcomes_of(samples, "j")[:10], status="running", n_total=50)
    with store.hold(run):
        page = client.get(f"/runs/{run}").text
    assert 'value="10"' in page and "10 of 50 outcomes" in page
    assert f'data-live="/live/runs/{run}"' in page
    assert "data-live" not in client.get(f"/runs/{run}").text, "nobody is at it any more"
    assert "This run was killed" in client.get(f"/runs/{run}").text


def test_many_outcomes_are_counted_aside_and_listed_at_once(store: Store, client: TestClient) -> None:
    samples = [Sample(f"s{i}", "o", (f"c{i}",), label=LABELS[i % 2]) for i in range(700)]
    outcomes = [Verdict(each.id, "j", LABELS[i % 3 % 2], i % 100 / 100) for i, each in enumerate(samples)]  # type: ignore[arg-type]
    run = made(store, samples, outcomes)
    first = client.get(f"/runs/{run}").text
    assert "700 of 700 outcomes" in first and "s29" in first
    page = awaited(lambda: client.get(f"/runs/{run}").text, "Right on ")
    assert "data-again" not in page and "being counted" not in page
    assert client.get(f"/api/runs/{run}").json()["judges"][0]["n_measured"] == 700


def awaited(ask: Callable[[], str], words: str) -> str:
    end = time.monotonic() + 60
    while words not in (page := ask()):
        assert time.monotonic() < end, page[:2000]
        time.sleep(0.1)
    return page


def test_many_claims_are_decided_anew_aside(store: Store, client: TestClient) -> None:
    run = rubric(store, 600)
    awaited(lambda: client.get(f"/runs/{run}").text, "Right on ")
    first = client.get(f"/runs/{run}", params={"flag": "agreement"}).text
    page = awaited(lambda: client.get(f"/runs/{run}", params={"flag": "agreement"}).text, "Recomputed with")
    assert "Verdicts are being recomputed" in first or first == page
    assert "data-again" not in page and "flagged by agreement instead" in page


# --- over HTTP -------------------------------------------------------------------------------------


class Parsed(HTMLParser):
    """What a page consists of: its elements with their attributes, and its forms with their fields."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words = ""
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.forms: list[tuple[dict[str, str | None], list[tuple[str, str]]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.elements.append((tag, found))
        if tag == "form":
            self.forms.append((found, []))
        is_set = found.get("type") not in ("checkbox", "radio") or "checked" in found
        if tag == "input" and "name" in found and self.forms and is_set:
            self.forms[-1][1].append((str(found["name"]), found.get("value") or ""))

    def handle_data(self, data: str) -> None:
        self.words += data

    def form(self, marker: str) -> tuple[str, dict[str, str]]:
        """The address and the fields of the form whose class holds this word."""
        found = [(form, fields) for form, fields in self.forms if marker in (form.get("class") or "").split()]
        ((form, fields),) = found
        return str(form["action"]), dict(fields)

    def links(self, start: str) -> list[str]:
        """Where links lead that begin so."""
        hrefs = [found.get("href") or "" for tag, found in self.elements if tag == "a"]
        return [href for href in hrefs if href.startswith(start)]


def test_forms_work_alone_and_keep_what_was_chosen(store: Store, client: TestClient) -> None:
    run = rubric(store)
    address = f"/runs/{run}?judge=rubric&truth=hallucinated&threshold=0.25&flag=unsupported&by=domain"
    page = Parsed(client.get(address).text)
    action, fields = page.form("slide")
    assert fields["threshold"] == "0.25" and fields["truth"] == H and fields["by"] == "domain"
    moved = client.get(action.partition("#")[0], params={**fields, "threshold": "0.75"})
    assert moved.status_code == 200 and "At 0.75" in moved.text
    action, fields = page.form("filter")
    chosen = client.get(action.partition("#")[0], params={**fields, "said": F, "truth": "", "order": "score"})
    assert chosen.status_code == 200
    kept = Parsed(chosen.text).form("slide")[1]
    assert (
        kept["said"] == F
        and "truth" not in kept
        and kept["order"] == "score"
        and kept["flag"] == "unsupported"
    )
    action, fields = page.form("exact")
    assert client.get(action.partition("#")[0], params={**fields, "threshold": ""}).status_code == 200


def test_every_link_of_a_cell_lists_what_the_cell_counts(store: Store, client: TestClient) -> None:
    run = mixed(store)
    page = client.get(f"/runs/{run}?threshold=0.4").text
    links = [href for href in Parsed(page).links(f"/runs/{run}?") if "truth=" in href]
    assert len(links) == 4
    for href in links:
        assert "threshold=0.4" in href and href.endswith("#samples")
        assert "of 90 outcomes" in client.get(href).text


def test_what_cannot_be_is_refused(store: Store, client: TestClient) -> None:
    run = mixed(store)
    assert client.get(f"/runs/{run}x").status_code == 404 and run in client.get(f"/runs/{run}x").text
    assert client.get(f"/runs/{run}", params={"judge": "nobody"}).status_code == 404
    for query in ("threshold=2", "threshold=nan", "threshold=x", "flag=odd", "order=size", "right=left"):
        assert client.get(f"/runs/{run}?{query}").status_code == 422, query
        assert client.get(f"/api/runs/{run}/judges/j/outcomes?{query}").status_code == 422, query
    for query in ("said=", "truth=nobody", "code=%ED%A0%80", "by=", "after=", "threshold=", "right="):
        assert client.get(f"/runs/{run}?{query}").status_code == 200, query


def test_a_sample_is_found_by_its_exact_id(store: Store, client: TestClient) -> None:
    run = mixed(store)
    found = client.get(f"/runs/{run}/find", params={"sample": "s17", "judge": "j"})
    assert (found.status_code, found.headers["location"]) == (303, f"/runs/{run}/samples/s17?judge=j")
    lost = client.get(f"/runs/{run}/find", params={"sample": "s17 "})
    assert lost.status_code == 404 and "near:" in lost.text and "s17" in lost.text


def test_a_run_is_renamed_and_tagged_from_its_page(store: Store, client: TestClient) -> None:
    run = mixed(store)
    store.tag(run, add=["old"])
    forms = Parsed(client.get(f"/runs/{run}").text).forms
    posts = [(str(form["action"]), dict(fields)) for form, fields in forms if form.get("method") == "post"]
    (rename, _), (add, _), (remove, kept) = posts
    assert client.post(rename, data={"name": "A new name"}).status_code == 303
    assert client.post(add, data={"add": "new"}).status_code == 303
    assert client.post(remove, data=kept).status_code == 303
    page = client.get(f"/runs/{run}").text
    assert "<h1>A new name</h1>" in page and store.find_run(run).tags == ("new",)


def test_the_api_says_what_the_page_says(store: Store, client: TestClient, look: Look) -> None:
    run = mixed(store)
    told = client.get(f"/api/runs/{run}").json()
    assert told["record"]["id"] == run and told["current"] is True
    assert told["record"]["created_at"] == store.find_run(run).created_at.isoformat()
    assert told["judges"][0]["result"]["confusion"] == part(look(run)).report.result.confusion.to_dict()  # type: ignore[union-attr]
    query = {"threshold": 0.4, "by": "part"}
    figures = client.get(f"/api/runs/{run}/judges/j/figures", params=query).json()
    assert figures["threshold"]["value"] == 0.4 and len(figures["slices"]["slices"]) == 3
    moved = part(look(run, threshold=0.4)).report.result
    assert moved is not None
    assert figures["report"]["result"]["metrics"]["f1"]["low"] == moved.metrics["f1"].low
    found, after = [], ""
    while after is not None:
        query = {"right": "wrong", "threshold": 0.4, "limit": 5, "after": after}
        page = client.get(f"/api/runs/{run}/judges/j/outcomes", params=query).json()
        found += [line["sample_id"] for line in page["lines"]]
        after = page["later"]
    assert found == [line.sample_id for line in walked(look, run, right="wrong", threshold=0.4)]
    assert client.get(f"/api/runs/{run}/judges/nobody/outcomes").status_code == 404
    assert client.get("/api/runs/none").status_code == 404


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onfocus=alert(1) autofocus x='",
    "</title></select></textarea><svg onload=alert(1)>",
    "{{ 7*7 }}{% raw %}",
    "javascript:alert(1)",
    "\x00\x1b[2J\u202eevil\u2028",
    "\ud800 half",
    "..",
    "a/b//c\\d?e#f%2e&g=h",
    "a" * 3000,
    "",
]


def test_hostile_words_stay_words(store: Store, client: TestClient) -> None:
    names = {"judge": "</h2><script>alert(2)</script>\ud800", "run": "</title><script>alert(3)</script>"}
    samples = [
        Sample(
            text, text, (text,), label=(H, F, text or None)[i % 3], metadata={text or "m": text, "k": i % 2}
        )
        for i, text in enumerate(HOSTILE)
    ]
    outcomes: list[Outcome] = [
        Verdict(each.id, names["judge"], (H, F, HOSTILE[i % 5])[i % 3], i / 20)
        if i % 4
        else Failure(each.id, names["judge"], "engine_error", each.id)
        for i, each in enumerate(samples)
    ]
    run = made(
        store,
        samples,
        outcomes,
        judges=(names["judge"],),
        name=names["run"],
        dataset=HOSTILE[1],
        tags=HOSTILE[:3],
    )
    for query in ("", "?threshold=0.2", "?order=score", "?by=k", "?said=%3Cscript%3E&truth=%22%3E"):
        answer = client.get(f"/runs/{run}{query}")
        assert answer.status_code == 200, answer.text[:500]
        page = Parsed(answer.text)
        for tag, found in page.elements:
            assert tag not in ("img", "iframe", "object", "base", "style"), tag
            assert not any(name.startswith("on") or name == "style" for name in found), found
            assert tag != "script" or str(found["src"]).startswith("/static/")
        assert not {"\x00", "\x1b", "\u202e"} & set(page.words), "only what a form sends back is as it is"
    page = Parsed(client.get(f"/runs/{run}").text)
    links = page.links(f"/runs/{run}/sample")
    assert len(links) == len(HOSTILE)
    assert [client.get(href).status_code for href in links] == [200] * len(HOSTILE)
    for href in page.links(f"/runs/{run}?"):
        assert client.get(href).status_code == 200, href
    told = client.get(f"/api/runs/{run}").json()
    assert told["record"]["judges"] == [names["judge"]] and told["record"]["name"] == names["run"]
