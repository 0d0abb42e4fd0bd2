"""What each judge of several calls is worth beside a single judge that gets as many tokens.

Run: .venv/bin/python -m benchmarks.panels [--set NAME …] [--judge SPEC …] [--model NAME] [--samples N]

SETs are labelled sets of `benchmarks.quality` and `llmbar` (pairs of answers); all are read from
MAGISTRATE_DATA_DIR. On labelled sets each panel is held against self-consistency of the single judge
(`chainpoll`): of every sample as many of its votes as fit into the tokens that the panel took for that very
sample, and one at least. The difference is of the same samples, with a 95 % interval by whole contexts. On
`llmbar`, which has no context, judges say which of two answers follows the instruction better.

Every judge is a stored run: what is done is not asked again, and what was interrupted goes on. Answers of the
cache are not used, so that tokens are those of a first run. Tables are printed as Markdown. With `--append`
the figures are appended to a file, too; `python -m benchmarks.quality.publish` takes those of panels.jsonl
into the package.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.judges import markdown
from benchmarks.machine import machine
from benchmarks.quality.measure import DEADLINE, IN_FLIGHT, stored_run
from benchmarks.quality.protocol import SEED, draw, named, smallest
from magistrate import _async
from magistrate._paths import home
from magistrate.analysis.comparison import Side, compare
from magistrate.api.evaluate import evaluate, resume
from magistrate.api.run import Run
from magistrate.datasets.named import VARIABLE
from magistrate.engines.base import Engine, Option
from magistrate.engines.embedded.cores import available_cores
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.models import default
from magistrate.errors import InputError
from magistrate.judges import registry
from magistrate.judges.base import Judge, label_of
from magistrate.judges.committee import Committee, members_of
from magistrate.judges.geval import GEval
from magistrate.judges.pairwise import BETTER, TIE, WORSE, Pairwise
from magistrate.metrics.classification import Estimate, proportion
from magistrate.report.formatting import decimal, interval
from magistrate.runs.limits import Limits
from magistrate.runs.prepare import recipe
from magistrate.types import HALLUCINATED, Outcome, Prompt, Sample, Usage, Verdict

PAIRS = "llmbar"
SETS = ("summedits", "begin")
SINGLE = "faithfulness"
PANELS = (
    "courtroom:least=1",
    "courtroom:least=1,rounds=0,order=first",
    "jury:members=novelty+faithfulness+hallucination",
    "geval",
    "geval:scale=5",
    "sentences",
    "selfcheck:n=3",
    "semantic_entropy:n=3",
    "rubric",
    "candidates",
)
METRIC, RANKING = "balanced_accuracy", "auroc"
CRITERION = (
    "Instruction following: the better answer does what the instruction asks, all of it and nothing else; "
    "how long, fluent or polite an answer is does not count."
)
GRADED = "Instruction following: the text does what the instruction asks, all of it and nothing else."
WARM = (Option("yes", ("Yes",)), Option("no", ("No",)))


Facts = dict[str, Any]
"""The figures of a row, as they are appended to a file."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The outcomes of a judge on a set, by sample id, and the seconds that the run took."""

    name: str
    judge: Judge
    samples: Mapping[str, Sample]
    outcomes: Mapping[str, Outcome]
    seconds: float | None

    def usage(self) -> Usage:
        """The usage of all outcomes."""
        return sum((each.usage for each in self.outcomes.values()), Usage())

    def side(self) -> Side:
        """The outcomes as a side of a comparison."""
        scoring = self.judge.info.scoring
        return Side(
            self.name, "", self.judge.info.name, len(self.samples), self.samples, self.outcomes, scoring
        )


def judged(name: str, judge: Judge, samples: Sequence[Sample], engine: Engine, store: Path) -> Judged:
    """Return a judge's outcomes: stored, resumed, or new."""
    tag = f"panels/{name}/{engine.info.model}"
    found = stored_run(store, tag, samples, recipe(judge, engine, SEED))
    print(f"{name}: {'judging' if found is None else found.status}", file=sys.stderr)
    if found is None:
        limits = Limits(concurrency=IN_FLIGHT, deadline=DEADLINE)
        run = evaluate(
            samples,
            judge,
            model=engine,
            store=store,
            seed=SEED,
            name=name,
            tags=[tag],
            limits=limits,
            cache=False,
            progress=False,
        )
    elif found.status == "done":
        run = Run(found.id, store)
    else:
        run = resume(Run(found.id, store), dataset=samples, judges=judge, model=engine, progress=False)
    outcomes = {each.sample_id: each for each in run.outcomes(with_steps=True)}
    return Judged(name, judge, {each.id: each for each in samples}, outcomes, run.record.seconds)


# --- labelled sets ----------------------------------------------------------------------------------


def votes_of(outcome: Outcome) -> list[tuple[bool, int]]:
    """Return the votes of a `chainpoll` in the order of their seeds: whether against, and the tokens taken.

    Invalid votes are no votes; the first valid one pays for their tokens.
    """
    if not isinstance(outcome, Verdict):
        return []
    left = [(_written(step.result), step.usage.prompt + step.usage.generated) for step in outcome.steps]
    found = []
    for vote in outcome.details["votes"]:
        at = next(at for at, (written, _) in enumerate(left) if written == vote)
        found.append((vote["verdict"] == HALLUCINATED, left.pop(at)[1]))
    lost = sum(tokens for _, tokens in left)
    return [(against, tokens + (0 if at else lost)) for at, (against, tokens) in enumerate(found)]


def _written(result: Mapping[str, Any]) -> Any:
    try:
        return json.loads(str(result.get("text")))
    except ValueError:
        return None


def at_budget(poll: Judged, panel: Judged) -> tuple[Judged, int]:
    """Return self-consistency within the panel's tokens of each sample, and for how many votes ran out.

    A sample that the panel or the poll has no verdict of keeps the poll's outcome, and is not compared.
    """
    outcomes, short = dict[str, Outcome](), 0
    for sample_id, outcome in poll.outcomes.items():
        votes, theirs = votes_of(outcome), panel.outcomes.get(sample_id)
        if not isinstance(outcome, Verdict) or not votes or theirs is None:
            outcomes[sample_id] = outcome
            continue
        budget, spent, taken = theirs.usage.prompt + theirs.usage.generated, 0, list[bool]()
        for against, tokens in votes:
            if taken and spent + tokens > budget:
                break
            spent += tokens
            taken.append(against)
        else:
            short += spent < budget
        score = sum(taken) / len(taken)
        usage = Usage(calls=len(taken), prompt=spent)
        label = label_of(score, 0.5)
        outcomes[sample_id] = replace(outcome, label=label, score=score, usage=usage, claims=())
    name = f"chainpoll within {panel.name}"
    return Judged(name, poll.judge, poll.samples, outcomes, None), short


def labelled_rows(
    panels: Sequence[Judged], single: Judged, poll: Judged
) -> Iterator[tuple[list[str], Facts]]:
    """Yield a row of the table, and its figures, for the single judge and each panel."""
    for each in (single, *panels):
        rival, short = at_budget(poll, each)
        votes, tokens = _mean(rival)
        row, known = [f"`{each.name}`", *cost(each)], facts_of(each)
        try:
            found = compare([each.side(), rival.side()], (METRIC, RANKING), seed=SEED)
        except InputError as error:
            yield [*row, *["–"] * 6, str(error)], known
            continue
        mine, theirs = ([side.figures[metric] for metric in (METRIC, RANKING)] for side in found.sides)
        difference = found.pairs[0].differences[METRIC].value
        note = f"; votes ran out on {short}" if short else ""
        cells = [
            *row,
            *map(estimate, mine),
            *map(estimate, theirs),
            f"{votes:.1f} votes, {tokens:,.0f} tokens{note}",
            estimate(difference, signed=True),
            f"{found.n}/{found.n_all}",
        ]
        figures = {METRIC: mine[0], RANKING: mine[1], "votes": theirs[0], "difference": difference}
        yield cells, {**known, "n": found.n, **{name: figure(value) for name, value in figures.items()}}


def _mean(rival: Judged) -> tuple[float, float]:
    """Return the mean number of votes and tokens of a sample."""
    usage, n = rival.usage(), max(len(rival.outcomes), 1)
    return usage.calls / n, (usage.prompt + usage.generated) / n


LABELLED = ["judge", "verdicts", "calls", "tokens", "s", "balanced accuracy", "AUROC"]
LABELLED += ["self-consistency", "its AUROC", "of which a sample", "difference", "compared"]


# --- pairs ------------------------------------------------------------------------------------------


def pairs(n: int) -> list[Sample]:
    """Return `n` pairs of LLMBar, 0 for all: those with the smallest digests, as in `benchmarks.quality`."""
    path = Path(os.environ.get(VARIABLE, ".")) / f"{PAIRS}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    samples = [
        Sample(
            row["id"],
            row["response_a"],
            input=row["question"],
            alternatives=(row["response_b"],),
            metadata={"better": BETTER if row["label"] == "A" else WORSE, "subset": row["meta"]["subset"]},
        )
        for row in rows
    ]
    return list(smallest(samples, n))


def pair_rows(samples: Sequence[Sample], engine: Engine, store: Path) -> Iterator[tuple[list[str], Facts]]:
    """Yield a row of the table, and its figures, for each way to say which of two answers is better."""
    committee = Committee(members_of(()), criteria=CRITERION)
    for name, judge in (
        ("pairwise", Pairwise(CRITERION)),
        ("pairwise:ties=false", Pairwise(CRITERION, ties=False)),
        ("committee of three personas", committee),
    ):
        yield pair_row(judged(name, judge, samples, engine, store))
    for scale in (2, 5):
        yield graded_row(
            f"geval:scale={scale}, each answer alone", GEval(GRADED, scale=scale), samples, engine, store
        )


def pair_row(own: Judged) -> tuple[list[str], Facts]:
    """Return the row of a judge that compares: a tie is no right answer, and is counted."""
    verdicts = [each for each in own.outcomes.values() if isinstance(each, Verdict)]
    said = {each.sample_id: each.label for each in verdicts}
    consistent = [bool(each.details.get("consistent")) for each in verdicts if "consistent" in each.details]
    lean = [each.details["first_preferred"] for each in verdicts if "first_preferred" in each.details]
    hits, ties = right(own.samples, said)
    same = proportion(sum(consistent), len(consistent), "no pair was asked in both orders")
    cells = [
        f"`{own.name}`",
        *cost(own),
        estimate(hits),
        str(ties),
        estimate(same),
        f"{sum(lean) / len(lean):+.2f}" if lean else "–",
    ]
    return cells, {**facts_of(own), "right": figure(hits), "ties": ties, "consistent": figure(same)}


def graded_row(
    name: str, judge: GEval, samples: Sequence[Sample], engine: Engine, store: Path
) -> tuple[list[str], Facts]:
    """Return the row of a judge that grades each answer alone; the better grade wins, equal ones tie."""
    alone = [
        replace(each, id=f"{each.id}/{side}", output=text, alternatives=())
        for each in samples
        for side, text in (("a", each.output), ("b", each.alternatives[0]))
    ]
    own = judged(name, judge, alone, engine, store)
    said = dict[str, str]()
    for each in samples:
        both = [own.outcomes[f"{each.id}/{side}"] for side in "ab"]
        scores = [one.score for one in both if isinstance(one, Verdict)]
        if len(scores) == 2:
            said[each.id] = TIE if scores[0] == scores[1] else BETTER if scores[0] > scores[1] else WORSE
    halved = replace(own, samples={each.id: each for each in samples})
    hits, ties = right(halved.samples, said)
    cells = [
        f"`{name}`",
        f"{len(said)}/{len(samples)}",
        *cost(halved)[1:],
        estimate(hits),
        str(ties),
        "1 by design",
        "–",
    ]
    known = {**facts_of(halved), "n": len(samples), "n_ok": len(said)}
    return cells, {**known, "judge": f"geval:scale={judge.scale}", "right": figure(hits), "ties": ties}


def right(samples: Mapping[str, Sample], said: Mapping[str, str]) -> tuple[Estimate, int]:
    """Return the share that is right, of all pairs with a verdict, and the number of ties."""
    hits = sum(label == samples[sample_id].metadata["better"] for sample_id, label in said.items())
    ties = sum(label == TIE for label in said.values())
    return proportion(hits, len(said), "there is no verdict"), ties


PAIRED = [
    "judge",
    "verdicts",
    "calls",
    "tokens",
    "s",
    "right",
    "ties",
    "same in both orders",
    "leans to the first",
]


# --- cells and figures ------------------------------------------------------------------------------


def facts_of(own: Judged) -> Facts:
    """Return what a row says of any judge; calls, tokens and seconds are means of a sample."""
    usage, n = own.usage(), len(own.samples)
    return {
        "judge": own.name,
        "n": n,
        "n_ok": sum(isinstance(each, Verdict) for each in own.outcomes.values()),
        "calls": round(usage.calls / n, 1),
        "tokens": round((usage.prompt + usage.generated) / n),
        "seconds": None if own.seconds is None else round(own.seconds / n, 2),
    }


def figure(found: Estimate) -> list[float | None]:
    """Return a figure and the ends of its interval; None where there is none."""
    return [None if each is None else round(each, 3) for each in (found.value, found.low, found.high)]


def cost(own: Judged) -> list[str]:
    """Return the cells of verdicts, and of calls, tokens and seconds a sample."""
    usage, n = own.usage(), len(own.samples)
    n_ok = sum(isinstance(each, Verdict) for each in own.outcomes.values())
    seconds = "–" if own.seconds is None else f"{own.seconds / n:,.1f}"
    tokens = f"{(usage.prompt + usage.generated) / n:,.0f}"
    return [f"{n_ok}/{len(own.outcomes)}", f"{usage.calls / n:.1f}", tokens, seconds]


def estimate(found: Estimate, *, signed: bool = False) -> str:
    """Format a figure with its interval, or say that it has none."""
    if found.value is None:
        return "–"
    value = f"{found.value:+.2f}" if signed else decimal(found.value)
    return f"{value} {interval(found)}" if found.low is not None else f"{value} (no interval)"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--set", dest="sets", action="append", metavar="NAME")
    words.add_argument("--judge", dest="judges", action="append", metavar="SPEC")
    words.add_argument("--model", default=default().name)
    words.add_argument("--samples", type=int, default=100, help="of each set; 0 for all")
    words.add_argument("--votes", type=int, default=20, help="of self-consistency, at most; 1 to 50")
    words.add_argument("--append", type=Path, metavar="FILE", help="append the figures as JSONL")
    words.add_argument("--store", type=Path, default=home() / "bench" / "panels.db")
    return words


def main() -> None:
    """Measure what is asked for and print the tables."""
    asked = parser().parse_args()
    asked.store.parent.mkdir(parents=True, exist_ok=True)
    panels, sets = asked.judges or list(PANELS), asked.sets or [*SETS, PAIRS]
    registry.judges(panels)  # fail early on a wrong name
    named([each for each in sets if each != PAIRS])
    engine = LocalEngine(asked.model)
    try:
        _async.run(engine.choose(Prompt.of("Is it warm? Yes or No?"), WARM))
        for name in sets:
            if name == PAIRS:
                rows, head = list(pair_rows(pairs(asked.samples), engine, asked.store)), PAIRED
            else:
                samples = draw(named([name])[0], 0).test[: asked.samples or None]
                found = {
                    spec: judged(spec, registry.judge(spec), samples, engine, asked.store)
                    for spec in (SINGLE, *panels, f"chainpoll:n={asked.votes}")
                }
                single, *own, poll = found.values()
                rows, head = list(labelled_rows(own, single, poll)), LABELLED
            here = machine(available_cores())
            print(f"\n{name}, {asked.samples or 'all'} samples, `{asked.model}`, printed at {here.commit}\n")
            print(markdown(head, [cells for cells, _ in rows]), flush=True)
            if asked.append is not None:
                day = datetime.now(UTC).isoformat(timespec="seconds")
                of = {"kind": "panel", "set": name, "model": asked.model, "commit": here.commit, "date": day}
                with asked.append.open("a", encoding="utf-8") as file:
                    made = [known for _, known in rows if known["judge"] != SINGLE]
                    file.writelines(f"{json.dumps({**of, **known})}\n" for known in made)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)
    finally:
        engine.close()
    print(f"\nAgain: `{shlex.join(['python', '-m', 'benchmarks.panels', *sys.argv[1:]])}`")


if __name__ == "__main__":
    main()
