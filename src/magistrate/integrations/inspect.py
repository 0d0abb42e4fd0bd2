"""A judge as a scorer of Inspect (`pip install inspect-ai`)."""

from __future__ import annotations

import functools
from typing import Any

from magistrate.datasets.inspect_logs import targets, values_of
from magistrate.integrations.judged import Adapted, Model, missing, told
from magistrate.judges.base import Judge
from magistrate.types import Abstention, Outcome, Verdict

try:
    import anyio
    from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer, stderr
    from inspect_ai.solver import TaskState
except ModuleNotFoundError as error:
    raise missing(error, "inspect_ai", "inspect-ai") from None


@scorer(metrics=[accuracy(), stderr()])
def judge_scorer(
    judge: str | Judge = "auto", model: Model = None, context: str = "", *, base_url: str | None = None
) -> Scorer:
    """Create a scorer that runs a judge, for `Task(scorer=judge_scorer("faithfulness"))`.

    The value is `C` if the judge accepts the output and `I` otherwise, so accuracy is the share of faithful
    outputs and higher is better. The judge's own score is in the metadata with its direction. A sample
    without a verdict is unscored (NaN, which metrics leave out), with the cause in `reason` and
    `explanation`. `context` is the place of the context: `metadata.NAME`, `store.NAME` or `tools` (the
    results of tools). Without it, metadata under a known name, such as `documents`, is used, and the
    messages before the output are a source too. The metadata is the evidence: claims with quotes and
    offsets, probability, recipe.
    """
    adapted = Adapted(judge, model, base_url)
    mapping = {"context": context} if context else None

    async def score(state: TaskState, target: Target) -> Score:
        values = values_of(state, targets(list(target)))
        sample = adapted.sample(values, id=str(state.sample_id), mapping=mapping)
        # Not on the caller's event loop, which may be trio.
        work = functools.partial(adapted.outcome, sample)
        return _score(adapted, await anyio.to_thread.run_sync(work, abandon_on_cancel=True), sample.output)

    return score


def _score(adapted: Adapted, outcome: Outcome, output: str | None) -> Score:
    if not isinstance(outcome, Verdict):
        return Score.unscored(
            reason=_reason(outcome),
            answer=output,
            explanation=told(outcome),
            metadata={"judge": outcome.judge, "recipe": adapted.recipe},
        )
    metadata: dict[str, Any] = adapted.evidence(outcome)
    return Score(
        value=CORRECT if adapted.passes(outcome) else INCORRECT,
        answer=output,
        explanation=told(outcome),
        metadata=metadata,
    )


def _reason(outcome: Outcome) -> str:
    """Return Inspect's term for why there is no value."""
    if isinstance(outcome, Abstention):
        return "no_response" if outcome.reason == "no_output" else "scoring_failed"
    return "grader_failed"
