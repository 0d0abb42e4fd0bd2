"""A store with something of everything that a page can show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from magistrate.labels.queues import QueueOptions, queue_of_run
from magistrate.report.counts import counted
from magistrate.server.labels import Annotators
from magistrate.server.settings import Settings
from magistrate.store import Store
from magistrate.store.labels import Answer
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Failure,
    Outcome,
    Recipe,
    Sample,
    Scoring,
    Span,
    Step,
    Usage,
    Verdict,
)
from reported import OUTPUT, outcomes_of, samples_of

N = 40
NIGHTS = 36  # more runs than a stretch of the list has
LONG = "a-name-without-any-place-to-break-it-" * 4


@dataclass(frozen=True)
class Furnished:
    """A store, and the ids of its runs by what they are."""

    place: Path
    bridges: str
    again: str
    unlabelled: str
    failed: str
    empty: str

    @property
    def paths(self) -> dict[str, str]:
        """An address of every page, by the name of a picture of it."""
        return {
            "runs": "/",
            "runs-older": "/?before=6",
            "runs-none": "/?q=nothing+is+called+this",
            "run": f"/runs/{self.bridges}?by=built+of",
            "run-threshold": f"/runs/{self.bridges}?judge=second&threshold=0.3&said=hallucinated",
            "run-unlabelled": f"/runs/{self.unlabelled}",
            "run-failed": f"/runs/{self.failed}",
            "run-empty": f"/runs/{self.empty}",
            "delete": f"/runs/{self.empty}/delete",
            "sample": f"/runs/{self.bridges}/samples/bridge-012",
            "sample-claim": f"/runs/{self.bridges}/samples/bridge-010?claim=2",
            "sample-failed": f"/runs/{self.bridges}/samples/bridge-007",
            "run-found": f"/runs/{self.bridges}?q=four+lanes&least=0.2&order=lowest",
            "data": "/datasets",
            "data-judged": f"/datasets/data?digest={'ab' * 32}",
            "start": "/start",
            "choose": "/compare",
            "compare": f"/compare?run={self.bridges}:rubric&run={self.again}:rubric",
            "compare-three": f"/compare?run={self.bridges}&run={self.again}",
            "try": "/try?example=1",
            "judges": "/judges",
            "judge": "/judges/novelty",
            "judge-asking": "/judges/faithfulness",
            "models": "/models",
            "labels": "/label",
            "label-queue": "/label/Bridges",
            "label-item": "/label/Bridges/1",
            "label-said": "/label/Bridges/2?verdict=1",
            "label-conflict": "/label/Bridges/conflicts/3",
            "watch": "/watch",
            "traces": "/watch/traces",
            "audit": "/audit",
        }


def furnished(folder: Path) -> Furnished:
    """Runs with claims, without labels, failed, without outcomes, and many more; all are counted."""
    place = folder / "runs.db"
    samples = [
        replace(sample, metadata={**sample.metadata, "built of": ("steel", "stone")[n % 3 > 0]})
        for n, sample in enumerate(samples_of(N))
    ]
    with Store.open(place) as store:
        for n in range(NIGHTS):
            few = samples_of(4)
            run_of(store, few, outcomes_of(few, "nightly"), name=f"night {n}", dataset="nights", tags=["ci"])
        failed = run_of(store, samples, [], name="broken", status="failed", reason="the model is gone")
        empty = run_of(store, [], [], name=LONG, dataset=LONG, status="interrupted", tags=[LONG])
        bare = [replace(sample, label=None, spans=()) for sample in samples]
        unlabelled = run_of(store, bare, outcomes_of(bare), name="no truth", dataset="unlabelled")
        again = run_of(store, samples, turned(outcomes_of(samples)), name="Bridges again")
        outcomes = [*told_why(outcomes_of(samples)), *outcomes_of(samples, "second")]
        bridges = run_of(store, samples, outcomes, name="Bridges", tags=["good", "of steel & stone"])
        labelled(store, bridges)
    return Furnished(place, bridges, again, unlabelled, failed, empty)


def labelled(store: Store, run: str) -> None:
    """A queue over the run, of which its user has labelled an item and two others disagree on one."""
    options = QueueOptions(policy="uniform", double=1.0, instructions="Mark what the context does not say.")
    now = datetime.now(UTC)
    queue_of_run(store, store.find_run(run), "Bridges", options, now)
    here = Annotators(Settings(store="x")).usual or "local"
    marked = Answer(label=HALLUCINATED, spans=(Span(0, 3, "evident_conflict"),), note="It is not so.")
    said = ((1, here, marked), (2, "ana", marked), (2, "ben", Answer(label=FAITHFUL)))
    for position, who, answer in said:
        store.labels.add("Bridges", position, who, answer, revision=0, now=now, by=who)


def run_of(
    store: Store,
    samples: Sequence[Sample],
    outcomes: Iterable[Outcome],
    *,
    name: str | None = None,
    dataset: str = "bridges",
    status: str = "done",
    reason: str | None = None,
    tags: Iterable[str] = (),
    model: str = "tiny",
    judge: str = "rubric",
    settings: dict[str, Any] | None = None,
) -> str:
    """A run that has ended, its figures counted; `judge` is the one that it has where there is no outcome."""
    outcomes = list(outcomes)
    judges = dict.fromkeys(outcome.judge for outcome in outcomes) or {judge: None}
    recipes = {
        name: Recipe(f"{name}@2", model, "0123456789abcdef", "p/1#aa", "choice(yes,no)", 0, 8, "0.1.0")
        for name in judges
    }
    run = store.create_run(
        dataset=dataset,
        dataset_digest="ab" * 32,
        model=model,
        engine_fingerprint="0123456789abcdef",
        recipes=recipes,
        scoring={name: Scoring("minimize", (FAITHFUL, HALLUCINATED), 0.5) for name in judges},
        name=name,
        n_total=len(samples),
        tags=tags,
        settings=settings,
    )
    store.add_samples(run, samples)
    store.add_outcomes(run, outcomes)
    store.add_seconds(run, 95.3)
    store.finish_run(run, status, reason=reason)  # type: ignore[arg-type]
    counted(store, run)
    return run


def told_why(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The same outcomes, decided by their claims, with steps on the way and a heat map."""
    found: list[Outcome] = []
    for outcome in outcomes:
        if isinstance(outcome, Verdict):
            heat = {
                "name": "doubt",
                "unit": "nats",
                "low": 0,
                "high": 4,
                "pieces": [[0, 10, 3.5], [11, 14, 1]],
            }
            details = {**outcome.details, "flag": ["contradiction", "unsupported"], "heat": heat}
            outcome = replace(outcome, details=details, steps=steps())
        elif isinstance(outcome, Failure):
            outcome = replace(outcome, steps=steps()[:1])
        found.append(outcome)
    return found


def steps() -> tuple[Step, ...]:
    """A call that chose and one that wrote."""
    said = (("system", "You compare texts."), ("user", f"The output:\n{OUTPUT}\nIs it so?"))
    chosen = {"best": "no", "probabilities": {"no": 0.9, "yes": 0.1}}
    written = {"text": '{"claims": ["four lanes"]}', "finish": "stop"}
    return (
        Step("choose", said, chosen, Usage(1, 300, 200, 0), 0.4),
        Step("generate", said, written, Usage(1, 320, 300, 40), 1.2),
    )


def turned(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Every fourth verdict says the opposite."""
    found: list[Outcome] = []
    for n, outcome in enumerate(outcomes):
        if isinstance(outcome, Verdict) and n % 4 == 0:
            label = FAITHFUL if outcome.label == HALLUCINATED else HALLUCINATED
            outcome = replace(outcome, label=label, score=1 - (outcome.score or 0))
        found.append(outcome)
    return found
