"""Another project that uses Magistrate: what its public names promise, as type checkers read it.

`tests/test_consumer.py` checks this file with mypy, strict, against the built wheel and runs it;
`make release-check` checks it with pyright, strict. `assert_type` holds what a name returns; a line with
`type: ignore` holds that a mistake is seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, assert_never, assert_type

import magistrate
from magistrate import (
    Abstention,
    Claim,
    Engine,
    Failure,
    Guarded,
    Judge,
    JudgeInfo,
    Limits,
    MagistrateError,
    Run,
    Sample,
    ScriptedEngine,
    Span,
    Verdict,
)
from magistrate.testing import assert_faithful

CONTEXT = ["The museum closes at five."]


# --- one verdict ---------------------------------------------------------------------------------


def told(outcome: Verdict | Failure | Abstention) -> str:
    """Every outcome is one of three: a type checker sees that none is left out."""
    match outcome:
        case Verdict():
            assert_type(outcome.score, float)
            assert_type(outcome.label, str)
            assert_type(outcome.probability, float | None)
            assert_type(outcome.claims, tuple[Claim, ...])
            return f"{outcome.label} {outcome.score:.2f}"
        case Failure():
            return f"{outcome.code}: {outcome.message}"
        case Abstention():
            return outcome.reason
        case _:
            assert_never(outcome)


def one() -> str:
    outcome = magistrate.judge(output="It closes at five.", context=CONTEXT, judge="novelty")
    return told(assert_type(outcome, Verdict | Failure | Abstention))


async def several() -> list[str]:
    outputs = ["It closes at five.", "It closes at nine."]
    calls = [magistrate.ajudge(output=each, context=CONTEXT, judge="novelty") for each in outputs]
    return [told(each) for each in await asyncio.gather(*calls)]


def mistakes() -> None:
    """What a type checker must see; it is never called."""
    magistrate.judge(outptu="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    magistrate.judge(output=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    answer(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    magistrate.verdikt  # type: ignore[attr-defined]  # pyright: ignore  # noqa: B018


# --- a judge and an engine of its own ------------------------------------------------------------


@dataclass(frozen=True)
class Brief:
    """A judge of another project: an output is good if it is short."""

    most: int = 40

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo(
            name="brief",
            version=1,
            summary="is it short",
            labels=("brief", "long"),
            kind="code",
            threshold=0.5,
        )

    async def judge(self, sample: Sample, engine: Engine) -> Verdict | Failure | Abstention:
        score = min(1.0, len(sample.output or "") / (2 * self.most))
        return Verdict(sample.id, "brief", "long" if score >= 0.5 else "brief", score)


def own_judge() -> str:
    judge: Judge = Brief()
    return told(magistrate.judge(output="Short.", judge=judge))


def scripted() -> Engine:
    return ScriptedEngine(lambda prompt: {"faithful": 0.9, "hallucinated": 0.1})


# --- a run ---------------------------------------------------------------------------------------


def a_run(store: Path) -> Run:
    samples = [
        Sample(id="a", context=tuple(CONTEXT), output="It closes at five.", label="faithful"),
        Sample(
            id="b",
            context=tuple(CONTEXT),
            output="It closes at nine.",
            label="hallucinated",
            spans=(Span(14, 18),),
        ),
    ]
    run = magistrate.evaluate(
        samples, judges=["novelty", Brief()], store=store, limits=Limits(concurrency=2), progress=False
    )
    assert_type(run, Run)
    assert_type(run.samples(), list[Sample])
    assert_type(run.outcomes(), list[Verdict | Failure | Abstention])
    assert_type(run.table(), list[dict[str, Any]])
    assert_type(run.record.name, str | None)
    print(run.summary())
    return run


def rows(path: Path) -> Sequence[str]:
    dataset = magistrate.load(path, mapping={"output": "reply"}, max_unread=0.0)
    return [sample.output or "" for sample in dataset]


# --- structured generation -----------------------------------------------------------------------


@dataclass
class Ticket:
    topic: Literal["billing", "delivery"]
    urgent: bool


def generated() -> Ticket:
    engine = ScriptedEngine(['{"topic": "billing", "urgent": true}', "free text"])
    ticket = magistrate.generate("Sort this message.", Ticket, model=engine)
    assert_type(ticket, Ticket)
    assert_type(magistrate.generate("Say something.", model=engine), str)
    return ticket


async def generated_too(engine: Engine) -> Ticket:
    return assert_type(await magistrate.agenerate("Sort this message.", Ticket, model=engine), Ticket)


# --- a guard, and tests --------------------------------------------------------------------------


def note(guarded: Guarded) -> None:
    assert_type(guarded.allowed, bool)
    print(guarded.header)


@magistrate.guard(judge="novelty", watch=note, on_failure="open")
def answer(question: str) -> dict[str, Any]:
    return {"input": question, "output": "It closes at five.", "context": CONTEXT}


@magistrate.guard(judge="novelty")
async def answer_later(question: str) -> dict[str, Any]:
    return answer(question)


def guarded() -> str:
    found = assert_type(answer("When does it close?"), dict[str, Any])
    return str(found["output"])


def tested() -> None:
    assert_type(assert_faithful("It closes at five.", context=CONTEXT, judge="novelty"), Verdict)


def main() -> None:
    print(one(), asyncio.run(several()), own_judge(), guarded(), generated())
    tested()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "replies.csv"
        path.write_text("reply,context\nAt five.,It closes at five.\n", encoding="utf-8")
        print(rows(path))
        run = a_run(Path(folder) / "runs.db")
        compared = magistrate.agree(run, judge="novelty")
        print(type(compared).__name__)
        try:
            magistrate.compare(run, judges=["novelty", "nobody"])
        except MagistrateError as error:
            print(error)


if __name__ == "__main__":
    main()
