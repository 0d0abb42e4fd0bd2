"""Helpers for test suites: `assert_faithful`, and judging the same sample several times.

    from magistrate.testing import assert_faithful

    def test_answer():
        assert_faithful(answer(question), context=documents, input=question)

A failed judgement or an abstention never passes: it raises `NoVerdict` or, on request, AssertionError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from magistrate.errors import NoVerdict as NoVerdict
from magistrate.errors import SpecError
from magistrate.types import FAITHFUL, Abstention, Claim, Failure, Outcome, Sample, Verdict

if TYPE_CHECKING:
    from magistrate.engines.base import Engine
    from magistrate.judges.base import Judge

OnFailure = Literal["error", "fail"]
DEADLINE = 300.0  # seconds, as in the rest of the package
SHOWN = 600  # characters of an output or a context shown in a message


@dataclass(frozen=True, slots=True)
class Judging:
    """A judge on an engine, for tests: call it with an output to get the verdict.

    Use it as `judging(output, context=…)` or `judging(sample)`. `judging.outcome(…)` takes the same
    arguments and also returns failures and abstentions. `judging.assert_faithful(…)` fails unless the
    verdict is faithful. `deadline` is in seconds.
    """

    judge: Judge
    engine: Engine
    deadline: float = DEADLINE

    def __call__(
        self,
        output: str | Sample,
        context: str | Sequence[str] = (),
        *,
        input: str | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
        on_failure: OnFailure = "error",
    ) -> Verdict:
        """Return the verdict, faithful or not. Raises `NoVerdict` or AssertionError if there is none."""
        __tracebackhide__ = True
        _check_failure(on_failure)
        sample = _sample(output, context, input, messages)
        return _verdict(sample, self.outcome(sample), on_failure)

    def outcome(
        self,
        output: str | Sample,
        context: str | Sequence[str] = (),
        *,
        input: str | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
    ) -> Outcome:
        """Return the verdict, failure or abstention."""
        from magistrate.api.judge import judge_sample

        sample = _sample(output, context, input, messages)
        return judge_sample(sample, judge=self.judge, model=self.engine, deadline=self.deadline)

    def assert_faithful(
        self,
        output: str | Sample,
        context: str | Sequence[str] = (),
        *,
        input: str | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
        on_failure: OnFailure = "error",
    ) -> Verdict:
        """Return the verdict if it is faithful, like the function of the same name."""
        __tracebackhide__ = True
        _check(self.judge, on_failure)
        sample = _sample(output, context, input, messages)
        return _faithful(sample, self.outcome(sample), on_failure)


def assert_faithful(
    output: str | Sample,
    context: str | Sequence[str] = (),
    *,
    input: str | None = None,
    messages: Sequence[Mapping[str, Any]] = (),
    judge: str | Judge | None = None,
    model: str | Path | Engine | None = None,
    base_url: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    deadline: float = DEADLINE,
    on_failure: OnFailure = "error",
) -> Verdict:
    """Return the verdict if `judge` finds the output (or the sample) faithful to its context.

    Otherwise raises AssertionError with label, score, probability, and every claim with both quotes. A
    failure or an abstention raises `NoVerdict`, or AssertionError with `on_failure="fail"`. The other
    options are those of `magistrate.judge`; an engine is loaded once per process.
    """
    __tracebackhide__ = True
    from magistrate.engines.base import EngineSettings
    from magistrate.judges import registry

    asked = registry.judge(registry.DEFAULT_JUDGE if judge is None else judge)
    _check(asked, on_failure)
    settings = EngineSettings(base_url=base_url, device=device, threads=threads, timeout=timeout)
    judging = Judging(asked, registry.engine_for([asked], model, settings), deadline)
    return judging.assert_faithful(output, context, input=input, messages=messages, on_failure=on_failure)


def described(sample: Sample, outcome: Outcome) -> str:
    """Return the message of a failed test: the outcome, the texts, and every claim with its quotes.

    Terminal control characters are made visible.
    """
    from magistrate.report.formatting import plain

    return plain("\n".join([_headline(outcome), *_texts(sample), *_evidence(outcome)]))


def _sample(
    output: str | Sample,
    context: str | Sequence[str],
    input: str | None,
    messages: Sequence[Mapping[str, Any]],
) -> Sample:
    from magistrate.api.judge import sample_of

    if isinstance(output, Sample):
        if context or input is not None or messages:
            raise SpecError(
                "a sample has its own context, input and messages; give either a sample or texts, not both"
            )
        return output
    return sample_of(output=output, context=context, input=input, messages=messages)


def _check(judge: Judge, on_failure: str) -> None:
    """Raise `SpecError` if an assertion could never pass, or for an unknown `on_failure`."""
    _check_failure(on_failure)
    info = judge.info
    if info.labels and FAITHFUL not in info.labels:
        raise SpecError(
            f"judge {info.name!r} has no label {FAITHFUL!r}, so nothing could pass; its labels: "
            f"{', '.join(info.labels)}. Compare labels of judge(…) instead"
        )


def _check_failure(on_failure: str) -> None:
    if on_failure not in ("error", "fail"):
        raise SpecError(f"on_failure is 'error' or 'fail', got {on_failure!r}")


def _verdict(sample: Sample, outcome: Outcome, on_failure: OnFailure) -> Verdict:
    __tracebackhide__ = True
    if not isinstance(outcome, Failure | Abstention):
        return outcome
    if on_failure == "error":
        raise NoVerdict(described(sample, outcome), outcome)
    raise AssertionError(described(sample, outcome))


def _faithful(sample: Sample, outcome: Outcome, on_failure: OnFailure) -> Verdict:
    __tracebackhide__ = True
    verdict = _verdict(sample, outcome, on_failure)
    if verdict.label != FAITHFUL:
        raise AssertionError(described(sample, verdict))
    return verdict


def _headline(outcome: Outcome) -> str:
    match outcome:
        case Failure():
            return f"{outcome.judge} has no verdict: failed ({outcome.code}): {outcome.message}"
        case Abstention():
            return f"{outcome.judge} has no verdict: abstained ({outcome.reason}): {outcome.message}"
    known = "unknown" if outcome.probability is None else f"{outcome.probability:.3f}"
    return f"{outcome.judge} says {outcome.label} (score {outcome.score:.3f}, probability {known})"


def _texts(sample: Sample) -> list[str]:
    named = [] if sample.id == "sample" else [f"sample: {sample.id}"]
    named += [] if sample.input is None else [f"input: {_cut(sample.input)}"]
    sources = sample.sources
    for number, text in enumerate(sources, 1):
        named.append(f"context{f' {number}' if len(sources) > 1 else ''}: {_cut(text)}")
    return [*named, f"output: {_cut(sample.output or '')}"]


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text)} characters)"


def _evidence(outcome: Outcome) -> list[str]:
    if not isinstance(outcome, Verdict):
        return []
    told = [] if outcome.explanation is None else [f"because: {outcome.explanation}"]
    for number, claim in enumerate(outcome.claims, 1):
        told += _claim(number, claim)
    return told


def _claim(number: int, claim: Claim) -> list[str]:
    sure = "" if claim.probability is None else f", probability {claim.probability:.3f}"
    where = "" if claim.context_index is None else f" {claim.context_index + 1}"
    theirs = "nothing quoted" if claim.context_text is None else f"“{claim.context_text}”"
    lines = [
        f"claim {number}: {claim.kind}{sure}",
        f"  output: “{claim.output_text}”",
        f"  context{where}: {theirs}",
    ]
    return [*lines, f"  reasoning: {claim.reasoning}"] if claim.reasoning else lines


def case_ids(samples: Sequence[Sample]) -> list[str]:
    """Return test-case ids from the samples' ids, with dashes for characters that test runners interpret."""
    return [re.sub(r"[^\w.-]+", "-", sample.id).strip("-") or "sample" for sample in samples]
