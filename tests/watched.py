"""What tests of watching share: a clock, traces in the keys of OpenInference, rules, and judges that obey."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from magistrate import _async
from magistrate._yaml import parse_document
from magistrate.datasets.spans.span import Span
from magistrate.engines.base import Engine, Option
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import EngineBusy, EngineError
from magistrate.judges.base import JudgeInfo
from magistrate.runs.prepare import RunPlan
from magistrate.runs.spec import spec_from
from magistrate.store import Store
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Abstention,
    Claim,
    Outcome,
    Prompt,
    Sample,
    Verdict,
)
from magistrate.types import Span as Place
from magistrate.watch.rules import Rule, rules_of
from magistrate.watch.worker import Watcher

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
SECOND = 1_000_000_000
OPTIONS = (Option("yes", ("yes",)), Option("no", ("no",)))


class Clock:
    """A clock that stands until somebody moves it."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, **time: float) -> None:
        self.now += timedelta(**time)


class Obedient:
    """A judge that does what `answer` says, and counts how often it gave a verdict on which text.

    Each verdict takes one call and ten tokens.
    """

    def __init__(self, answer: Callable[[Sample], Any], name: str = "obedient") -> None:
        self.answer = answer
        self.given: Counter[str] = Counter()
        self.info = JudgeInfo(name, labels=(FAITHFUL, HALLUCINATED), threshold=0.5)

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        said = self.answer(sample)
        if isinstance(said, EngineError):
            raise said
        await engine.choose(Prompt.of("one two three four five six seven eight nine ten"), OPTIONS)
        if isinstance(said, BaseException):
            raise said
        if not isinstance(said, float):
            return said  # type: ignore[no-any-return]
        self.given[f"{sample.id.split('.')[0]}: {sample.output} {sample.context}"] += 1
        label = HALLUCINATED if said >= 0.5 else FAITHFUL
        return Verdict(sample.id, self.info.name, label, said)


def plan(judge: Any, *, engine: Engine | None = None, cost: Any = None) -> RunPlan:
    """A plan of one judge that is an object."""
    spec = spec_from({"dataset": "watched", "judges": ["novelty"], "limits": {"concurrency": 2}})
    return RunPlan(
        spec=spec,
        judges=[judge],
        engine=engine or ScriptedEngine(lambda prompt: {"yes": 1.0}, name="watched"),
        cost=cost or (lambda usage: usage.calls * 0.01),
        limits=spec.limits.limits(),
    )


def rules(*texts: str) -> list[Rule]:
    """Rules of YAML, each below its dash."""
    lines = [
        ("  - " if number == 0 else "    ") + line
        for text in texts
        for number, line in enumerate(text.strip().splitlines())
    ]
    return rules_of(parse_document("rules:\n" + "\n".join(lines) + "\n", "rules.yaml"))


def answer(
    number: int,
    output: str | None = "Bern has 134,000 people.",
    documents: Sequence[str] = ("Bern has 134,000 people.",),
    *,
    ended: bool = True,
    begin: datetime = NOON,
    service: str = "shop",
    **attributes: Any,
) -> list[Span]:
    """A trace: a chain, the documents that were retrieved in it, and what it answered."""
    trace, start = f"{number:032x}", int(begin.timestamp()) * SECOND
    resource = {"service.name": service}
    said: dict[str, Any] = {"openinference.span.kind": "CHAIN", "input.value": "How many people?"}
    said |= {} if output is None else {"output.value": output}
    found = {f"retrieval.documents.{i}.document.content": text for i, text in enumerate(documents)}
    found |= {"openinference.span.kind": "RETRIEVER"}
    end = start + 9 * SECOND if ended else None
    return [
        Span(trace, "a" * 16, None, "chain", "internal", start, end, said | attributes, resource=resource),
        Span(
            trace,
            "b" * 16,
            "a" * 16,
            "search",
            "internal",
            start + SECOND,
            start + 2 * SECOND,
            found,
            resource=resource,
        ),
    ]


def watcher(
    store: Store, these: Sequence[Rule], clock: Clock, *judges: Any, seed: int = 1, **options: Any
) -> Watcher:
    """A worker whose rules ask these judges, each as many as it names; it is registered."""
    plans = {rule.name: [plan(judge) for judge in judges[: len(rule.judges)]] for rule in these}
    found = Watcher(store, these, clock=clock, randomness=random.Random(seed), plans=plans, **options)
    found.register()
    return found


# --- a store to look at -----------------------------------------------------------------------------

WRONG = "Bern has 999,999 people."
MANY = "name: all <b>\njudges: [novelty]\nsample: .6\nwhere: {user: {in: [a, b]}}"
OUTPUTS = (WRONG, "hard", "maybe", None, "Bern has 134,000 people.", "Bern has 134,000 people. ÄGYPTEN")


def mixed(sample: Sample) -> Any:
    """What a judge says of `OUTPUTS`: verdicts, one with a claim, failures and abstentions."""
    text = str(sample.output)
    if "hard" in text:
        return EngineBusy("full")
    if "maybe" in text:
        return Abstention(sample.id, "obedient", "uncertain", "cannot tell")
    wrong = text.startswith(WRONG)
    quotes = Place(9, 16), Place(9, 16)
    claims = (Claim("contradiction", *quotes, 0, "another number"),) if wrong else ()
    label = HALLUCINATED if wrong else FAITHFUL
    return Verdict(sample.id, "obedient", label, 0.9 if wrong else 0.1, claims=claims)


def watched_store(place: Path | str, begin: datetime = NOON) -> Clock:
    """A store with ninety answers in three hours, several of them at one moment, and three unread traces.

    The answer is the clock, three hours later.
    """
    clock = Clock(begin)
    with Store.open(place, clock=clock) as store:
        worker = watcher(store, rules(MANY), clock, Obedient(mixed))
        for hour in range(3):
            for number in range(30):
                user = "abc"[number // 6 % 3]
                spans = answer(100 * hour + number, OUTPUTS[number % 6], begin=clock(), user=user)
                store.traces.put(spans, clock())
            clock.pass_(seconds=10)
            _async.run(worker.drain())
            clock.pass_(hours=1)
        for number in range(3):
            store.traces.put(answer(900 + number, user="a", begin=clock()), clock())
    return clock
