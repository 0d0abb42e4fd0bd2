"""The policy `drift`: what differs from a reference is drawn more often, and still speaks for all."""

from __future__ import annotations

from datetime import timedelta

import pytest

from magistrate import _async
from magistrate.errors import InputError, SpecError
from magistrate.labels.decisions import findings
from magistrate.labels.drift import Part, drift
from magistrate.labels.estimates import hallucinated_share
from magistrate.labels.queues import QueueOptions, queue_of_run
from magistrate.labels.sampling import Candidate, wanted
from magistrate.store import Store
from magistrate.types import Recipe, Sample, Scoring, Verdict
from watched import NOON, Clock, Obedient, answer, rules, watcher

OLD = "How many people live in Bern"
NEW = "How much is a refund of the ticket"


def period(name: str, n: int, odd: int = 0, high: int = 0, words: str = OLD) -> Part:
    """Questions of which the first `odd` are about something new, and the last `high` have high scores."""
    samples = [Sample(f"{name}{at}", "x", input=f"{NEW if at < odd else words} {at}") for at in range(n)]
    scores = {each.id: 0.9 if at >= n - high else 0.2 for at, each in enumerate(samples)}
    return Part(samples, {"one": scores})


def test_only_what_is_more_frequent_than_in_the_reference_differs() -> None:
    found = drift(period("now", 60, odd=9, high=6), period("then", 200))
    assert all(found[f"now{at}"].weight > 0.7 for at in range(9)), "new words of the input"
    assert all(0.6 < found[f"now{at}"].weight < 0.7 for at in range(54, 60)), "scores that were not there"
    assert max(found[f"now{at}"].weight for at in range(9, 54)) < 0.1
    assert "the words of the input by .75" in found["now0"].reason and "score of one" in found["now0"].reason
    same = drift(period("now", 60), period("then", 60))
    assert {each.weight for each in same.values()} == {0.0}
    alone = drift(period("now", 60, odd=1), period("then", 60))
    assert 0.2 < alone["now0"].weight < 0.3, "what occurs once may be chance"
    wants = wanted("drift", [Candidate(name, drift=each) for name, each in found.items()])
    assert min(each.weight for each in wants) > 0, "everything can be drawn"
    assert {
        each.weight for each in wanted("drift", [Candidate("a", drift=each) for each in same.values()])
    } == {1.0}


def kept(store: Store, part: Part, name: str, model: str = "m") -> str:
    run = store.create_run(
        dataset=name,
        dataset_digest=name,
        model=model,
        engine_fingerprint="f",
        recipes={"one": Recipe("one@1", model, "f", "p", "c", 0, 1, "0")},
        scoring={"one": Scoring(("faithful", "hallucinated"), 0.5)},
        name=name,
    )
    store.add_samples(run, part.samples)
    store.add_outcomes(run, [Verdict(n, "one", "faithful", score) for n, score in part.scores["one"].items()])
    return run


def test_a_queue_holds_a_run_against_another_and_its_figures_are_weighted(place: str) -> None:
    with Store.open(place) as store:
        kept(store, period("then", 60), "before")
        kept(store, period("then", 60, high=60), "other model", "n")
        run = store.find_run(kept(store, period("now", 80, odd=8), "after"))

        def queue(name: str, **options: object) -> list[float]:
            made = queue_of_run(store, run, name, QueueOptions(**options), NOON)  # type: ignore[arg-type]
            assert (made.covered, made.population) == (80, 80)
            return [each.inclusion for each in store.labels.items(name) if int(each.sample_id[3:]) < 8]

        chances = queue("q", policy="drift", reference="before", size=20)
        assert len(chances) >= 6 and all(each > 0.6 for each in chances), "8 of 80, and most are drawn"
        made = store.labels.find("q")
        assert made.settings["reference"] == "before"
        assert "score of one" in store.labels.items("q")[0].reason
        queue("by words", policy="drift", reference="other model", size=20)
        told = " ".join(each.reason for each in store.labels.items("by words"))
        assert "words of the input" in told and "score" not in told, "another model's scores are no reference"
        with pytest.raises(InputError, match="the plain share"):
            hallucinated_share(made, findings(store, made), store.labels.samples("q"), weighted=False)
        for options, message in (
            ({"policy": "drift"}, "--reference and --policy drift go together"),
            ({"policy": "mixed", "reference": "before"}, "go together"),
            ({"policy": "drift", "reference": "after"}, "no reference for itself"),
            ({"policy": "drift", "reference": "7d"}, "is for the run of a rule"),
            ({"policy": "drift", "reference": "nowhere"}, "unknown run"),
        ):
            with pytest.raises(SpecError, match=message):
                queue("wrong", **options)
        small = kept(store, period("few", 5), "small")
        with pytest.raises(SpecError, match="at least 30 samples"):
            queue("wrong", policy="drift", reference=small)


def test_of_what_is_watched_earlier_answers_are_the_reference(place: str) -> None:
    clock = Clock()
    with Store.open(place, clock=clock) as store:
        worker = watcher(
            store, rules("name: all\njudges: [novelty]"), clock, Obedient(lambda s: float("9" in s.output))
        )
        for day, n in ((0, 35), (5, 12)):
            clock.now = NOON + timedelta(days=day)
            for at in range(n):
                text = "It has 9." if day and at < 4 else "It has 8."
                store.traces.put(answer(100 * day + at, text, begin=clock()), clock())
            clock.pass_(seconds=10)
            _async.run(worker.drain())
        run = store.find_run("last")
        queue_of_run(store, run, "q", QueueOptions(policy="drift", reference="2d", size=20), clock())
        by_id = {each.sample_id: each for each in store.labels.items("q")}
        odd = [by_id.get(f"{500 + at:032x}.{'a' * 16}") for at in range(4)]
        assert [each is not None and each.inclusion == 1.0 for each in odd] == [True] * 4
        rest = [each for each in by_id.values() if each not in odd]
        assert len(rest) == 16 and all(each.inclusion < 0.5 for each in rest)
        assert any("of the reference itself" in each.reason for each in rest)
