"""Runs made by hand, with something of everything that a report can show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from magistrate import Run
from magistrate.store import Store
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Abstention,
    Claim,
    ClaimKind,
    Failure,
    Outcome,
    Recipe,
    Sample,
    Scoring,
    Span,
    Turn,
    Usage,
    Verdict,
)

CONTEXT = (
    "The harbour bridge at Holm was opened on 4 May 1931. It is 412 metres long and carries two lanes.",
    "A second bridge, of steel, stands upstream. It was built in 1964 for the railway.",
)
OUTPUT = "The bridge was opened in 1931 and carries four lanes of traffic. It was painted by the mayor."
SPENT = Usage(calls=3, prompt=1200, cached=800, generated=90, forced=20)


def claim(kind: ClaimKind, quote: str, beside: str | None = None, why: str = "", source: int = 0) -> Claim:
    """A claim about `OUTPUT`, beside words of `CONTEXT`."""
    start = OUTPUT.index(quote)
    place = None if beside is None else CONTEXT[source].index(beside)
    return Claim(
        kind=kind,
        output_quote=Span(start, start + len(quote), "quote"),
        context_quote=None if place is None or beside is None else Span(place, place + len(beside), "quote"),
        context_index=None if beside is None else source,
        reasoning=why,
        probability=0.9,
        output_text=quote,
        context_text=beside,
    )


CLAIMS = (
    claim("agreement", "opened in 1931", "opened on 4 May 1931", "Both say 1931."),
    claim("contradiction", "four lanes of traffic", "two lanes", "Two, not four."),
    claim("unsupported", "painted by the mayor", why="Nobody is named."),
    claim("agreement", "1931 and carries four", "4 May 1931. It is 412 metres long and carries"),
)


def samples_of(n: int, labelled: bool = True) -> list[Sample]:
    """`n` samples, every other one hallucinated, each with a context of its own.

    Some have labelled spans, some a conversation.
    """
    start = OUTPUT.index("four lanes")
    gold = (Span(start, start + len("four lanes of traffic. It"), "evident conflict"),)
    said = (Turn("user", "Which bridges are there?"), Turn("assistant", "Two."), Turn("user", "The first?"))
    return [
        Sample(
            f"bridge-{i:03d}",
            OUTPUT,
            (*CONTEXT, f"Page {i} of the survey."),
            input="What is known of the bridge at Holm?",
            expected="Opened in 1931, two lanes." if i % 4 == 0 else None,
            label=(HALLUCINATED, FAITHFUL)[i % 2] if labelled else None,
            spans=gold if labelled and i % 2 == 0 else (),
            messages=said if i % 3 == 0 else (),
            metadata={"domain": "bridges", "n": i},
        )
        for i in range(n)
    ]


def outcomes_of(samples: Sequence[Sample], judge: str = "rubric") -> list[Outcome]:
    """A verdict each, right two times out of three, but for one failure and one abstention in ten."""
    found: list[Outcome] = []
    for i, sample in enumerate(samples):
        if i % 10 == 7:
            found.append(Failure(sample.id, judge, "timeout", "no answer in 300 s", usage=SPENT, seconds=300))
        elif i % 10 == 8:
            found.append(Abstention(sample.id, judge, "over_length", "40,000 tokens are too many"))
        else:
            score = (i * 37 % 100) / 100
            label = HALLUCINATED if score >= 0.5 else FAITHFUL
            words = "It says four lanes where there are two." if label == HALLUCINATED else None
            found.append(
                Verdict(
                    sample.id,
                    judge,
                    label,
                    score,
                    max(score, 1 - score),
                    words,
                    claims=CLAIMS if label == HALLUCINATED else CLAIMS[:1],
                    details={"asked": 3},
                    usage=SPENT,
                    seconds=1.5,
                )
            )
    return found


def stored(
    folder: Path,
    samples: Iterable[Sample],
    outcomes: Sequence[Outcome],
    *,
    name: str | None = "Bridges",
    dataset: str = "bridges",
    judges: Iterable[str] = ("rubric",),
    status: str = "done",
    n_total: int | None = None,
) -> Run:
    """A run in the store of a folder, as if these judges had just judged."""
    samples = list(samples)
    named = list(dict.fromkeys([*judges, *(outcome.judge for outcome in outcomes)]))
    recipes = {
        judge: Recipe(f"{judge}@2", "tiny", "0123456789abcdef", "p/1#aa", "choice(yes,no)", 0, 8, "0.1.0")
        for judge in named
    }
    place = folder / "runs.db"
    with Store.open(place) as store:
        run = store.create_run(
            dataset=dataset,
            dataset_digest="ab" * 32,
            model="tiny",
            engine_fingerprint="0123456789abcdef",
            recipes=recipes,
            scoring={name: Scoring("minimize", (FAITHFUL, HALLUCINATED), 0.5) for name in named},
            name=name,
            n_total=len(samples) if n_total is None else n_total,
        )
        store.add_samples(run, samples)
        store.add_outcomes(run, outcomes)
        if status in ("done", "interrupted", "failed"):
            store.add_seconds(run, 95.3)
            store.finish_run(run, status)  # type: ignore[arg-type]
    return Run(run, place)
