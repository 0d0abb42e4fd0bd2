"""The judge `recorded_logprob`: how unsure the generator was, from the log-probabilities it recorded."""

from __future__ import annotations

from dataclasses import dataclass

from magistrate.engines.base import Engine
from magistrate.errors import InputError
from magistrate.features.likelihoods import KEY, Recorded, recorded_logprobs
from magistrate.judges.base import (
    LABELS,
    NO_LIMIT,
    JudgeInfo,
    check_threshold,
    heat_map,
    label_of,
    unsupported,
)
from magistrate.types import HALLUCINATED, Abstention, Outcome, Sample, Verdict

HOTTEST = 5.0  # nats: a probability of 1 in 150


@dataclass(frozen=True)
class RecordedLogprob:
    """Scores an output by the log-probabilities in its metadata under `logprobs`. Needs no model.

    The score is 1 - exp(mean), one minus the geometric mean of the tokens' probabilities: 0 if the
    generator was certain of each. It is not a probability of hallucination. At `threshold`, in (0, 1), and
    above the label is `hallucinated`. The least probable tokens are then claims, if the tokens were
    recorded too. Abstains (`missing_input`), with a reason, if nothing is recorded or something other than
    log-probabilities is.
    """

    name: str = "recorded_logprob"
    threshold: float = 0.5

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo(
            name=self.name,
            summary="how unsure the generator was, from its recorded log-probabilities",
            labels=LABELS,
            threshold=self.threshold,
            reads=("output", KEY),
            requires=("output", KEY),
            kind="code",
            long=NO_LIMIT,
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        try:
            found = recorded_logprobs(sample)
        except InputError as error:
            return Abstention(sample.id, self.name, "missing_input", str(error))
        score = found.doubt
        label = label_of(score, self.threshold)
        output = sample.output or ""
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=score,
            explanation=f"A token had {found.mean:.2f} nats on average, perplexity {found.perplexity:.3g}.",
            claims=tuple(
                unsupported(output, start, end, f"its log-probability was {value:.2f} nats")
                for start, end, value in (found.least_probable(output) if label == HALLUCINATED else ())
            ),
            details={"signals": found.signals(), **_heat(found, output)},
        )


def _heat(found: Recorded, output: str) -> dict[str, object]:
    """Return a heat map of how improbable each token was; empty if the tokens have no positions."""
    if found.offsets is None:
        return {}
    pieces = [[start, end, round(min(-value, HOTTEST), 3)] for start, end, value in found.placed()]
    name = "how improbable a token was to the generator"
    return {"heat": heat_map(name, "nats", output, pieces, high=HOTTEST)}
