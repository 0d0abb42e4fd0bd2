"""A store in which every text that somebody else may choose attacks the page, and its harmless twin."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from browsing import HOSTILE, PAYLOADS
from furnished import run_of
from magistrate import _async
from magistrate.datasets.spans.span import Event, Link
from magistrate.datasets.spans.span import Span as SpanOfTrace
from magistrate.store import Store
from magistrate.types import Abstention, Claim, Failure, Outcome, Sample, Span, Step, Turn, Usage, Verdict
from magistrate.watch.rules import Rule
from watched import Clock, Obedient, watcher

N = 1000
SAMPLES = 240
IN_DETAIL = 8  # samples with many claims and steps
CLAIMS, STEPS = 125, 40
TRACES = 12
LISTED = 60  # runs of which only the names are to be seen
AROUND = [
    "",
    "]]>",
    "'\">",
    "\u202e",
    "\x00",
    "{{7*7}}",
    "&lt;",
    "\ufeff\u200b",
    "%00%0a",
    "\\u003c",
    "w" * 400,
    "\ud800",
    "\n\r\t",
    "javascript:",
    "ﷺ" * 30,
    "Z̸̡̢̛͓" * 20,
]

HARMLESS = [f"word {n} of the list" for n in range(N)]


def attacks() -> list[str]:
    """A thousand texts, no two alike: what is known to attack, and the same behind and before odd letters."""
    dice = random.Random(0)
    found = dict.fromkeys(HOSTILE)
    while len(found) < N:
        found[dice.choice(AROUND) + dice.choice(PAYLOADS) + dice.choice(AROUND)] = None
    return list(found)


@dataclass(frozen=True)
class Attacked:
    """The store, its two runs with samples, the judges of the first one, and a trace that is watched."""

    place: Path
    run: str
    other: str
    judges: tuple[str, str]
    field: str
    trace: str


def filled(folder: Path, texts: Sequence[str]) -> Attacked:
    """Put the texts wherever texts go: every one of them is somewhere in every kind of field."""
    word = itertools.cycle(texts).__next__
    place = folder / "runs.db"
    # Forms carry every letter but this one, which no page can hold.
    judges = (texts[3] + texts[1], texts[26].replace("\0", "") + texts[10])
    field = texts[2]
    with Store.open(place) as store:
        for _ in range(LISTED):
            tags = {_name(word()) for _ in range(4)}
            run_of(
                store, [], [], name=_name(word()), dataset=word(), model=word()[:300], tags=tags, judge=word()
            )
        samples = [_sample(at, word, {field: texts[at % 3], word()[:100]: word()}) for at in range(SAMPLES)]
        first = [_outcome(at, sample, judges[0], word) for at, sample in enumerate(samples)]
        second = [_outcome(at + 1, sample, judges[1], word) for at, sample in enumerate(samples)]
        named = {"name": "".join(texts[:8])[:200], "dataset": word(), "model": word()}
        run = run_of(store, samples, [*first, *second], tags=map(_name, texts[:20]), **named)
        turned = [replace(each, judge=texts[5]) for each in second]
        named = {"name": texts[12][:200], "dataset": word(), "model": word()}
        other = run_of(store, samples, turned, status="failed", reason=texts[9], **named)
        trace = watched_traces(store, word)
    return Attacked(place, run, other, judges, field, trace)


def watched_traces(store: Store, word: Callable[[], str]) -> str:
    """Rules, and traces with what they decided, judged with claims; the answer is the id of a flagged one."""
    clock = Clock(datetime.now(UTC) - timedelta(minutes=5))

    def says(sample: Sample) -> Verdict:
        claims = tuple(Claim("contradiction", Span(0, 5), Span(0, 5), 0, word()) for _ in range(3))
        return Verdict(sample.id, "obedient", "hallucinated", 0.9, 0.9, word(), claims=claims)

    these = [
        Rule.model_validate({"name": f"{n} {_sent(word)}"[:100], "judges": ["novelty"], "quiet": 0.0})
        for n in range(2)
    ]
    worker = watcher(store, these, clock, Obedient(says))
    flagged = ""
    for n in range(TRACES):
        told = {"openinference.span.kind": "CHAIN", "input.value": word(), word()[:300]: word()}
        told |= {"output.value": f"{word()} It closes at six."} if n % 4 < 3 else {}
        found = {"openinference.span.kind": "RETRIEVER", word()[:300]: [word()]}
        found["retrieval.documents.0.document.content"] = f"It closes at five. {word()}"
        trace, begin = f"{n} {_sent(word)}", 10**18
        events = (Event(word(), begin, {word()[:300]: word()}),)
        resource = {"service.name": word(), word()[:300]: word()}
        more = {"resource": resource, "events": events, "scope": word(), "status": "error"}
        chain = SpanOfTrace(
            trace, f"a{word()[:300]}", None, word(), "internal", begin, begin + 9, told, **more
        )
        more["links"] = (Link(word(), word(), {word()[:300]: word()}),)
        search = SpanOfTrace(
            trace, f"b{word()}", chain.span_id, word(), "internal", begin + 1, begin + 2, found, **more
        )
        store.traces.put([chain, search], clock())
        flagged = trace if n % 4 < 3 else flagged
    clock.pass_(seconds=10)
    _async.run(worker.drain())
    store.traces.put([replace(chain, trace_id=f"unread {word()}")], clock())
    return flagged


def _sent(word: Callable[[], str]) -> str:
    """A text that a form sends back unchanged: line ends and halves of surrogate pairs it does not."""
    return next(text for _ in range(N) if (text := word()[:300]).isprintable())


def _name(text: str) -> str:
    """Names and tags hold something that can be seen."""
    return text[:200] if text[:200].strip() else f"a {text}"[:200]


def _sample(at: int, word: Callable[[], str], metadata: dict[str, str]) -> Sample:
    output = word()
    return Sample(
        f"{at} {word()[:300]}",
        f"{output} It closes at six.",
        (word(), "It closes at five.", word()),
        input=word(),
        expected=word(),
        label=f"{at} {word()}"[:40] if at % 4 == 3 else ("hallucinated", "faithful")[at % 2],
        spans=(Span(0, len(output), word()),),
        messages=(Turn(word(), word()),) if at % 2 else (),
        alternatives=(word(),) if at % 3 == 0 else (),
        metadata=metadata,
    )


def _outcome(at: int, sample: Sample, judge: str, word: Callable[[], str]) -> Outcome:
    steps = tuple(_step(word) for _ in range(STEPS if at < IN_DETAIL else 1))
    if at % 7 == 6:
        return Failure(sample.id, judge, "engine_error", word(), steps=steps)
    if at % 11 == 10:
        return Abstention(sample.id, judge, "uncertain", word())
    label = f"{at} {word()}"[:40] if at % 9 == 8 else ("hallucinated", "faithful")[at % 3 % 2]
    heat = {"name": word(), "unit": word(), "low": 0, "high": 1, "pieces": [[0, 3, 0.9]]}
    claims = tuple(_claim(number, sample, word) for number in range(CLAIMS if at < IN_DETAIL else 1))
    details = {"flag": ["contradiction"], word(): word(), "heat": heat}
    score = (at * 37 % 100) / 100
    return Verdict(sample.id, judge, label, score, score, word(), claims=claims, details=details, steps=steps)


def _claim(number: int, sample: Sample, word: Callable[[], str]) -> Claim:
    kind = ("contradiction", "unsupported", "agreement")[number % 3]
    start = number % len(sample.output or "")
    mark = Span(start, start + 5, word())
    return Claim(kind, mark, Span(0, 4, word()), number % 3, word(), 0.5, word(), word())  # type: ignore[arg-type]


def _step(word: Callable[[], str]) -> Step:
    said = (("system", word()), (word(), word()))
    if len(said[0][1]) % 2:
        return Step("generate", said, {"text": word(), word(): word()}, Usage(1, 3, 2, 1), 0.1)
    shares = {word(): 0.7, word() + "b": 0.3}
    return Step("choose", said, {"best": next(iter(shares)), "probabilities": shares}, Usage(1, 3, 2, 1), 0.1)
