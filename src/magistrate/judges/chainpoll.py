"""The judge `chainpoll`: request reasons and a verdict several times, and count the votes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from magistrate.constraints import Constraint, constraint
from magistrate.constraints.schema import closed_object, short_text
from magistrate.engines.base import Engine, Generation, Sampling
from magistrate.errors import InvalidOutput, SpecError
from magistrate.judges.base import LABELS, READS, Call, JudgeInfo, check_threshold, label_of
from magistrate.judges.composite import gather_or_cancel
from magistrate.judges.sampled_answers import seeds
from magistrate.judges.template import builtin_prompt, fields_of
from magistrate.types import FAITHFUL, HALLUCINATED, Outcome, Prompt, Sample, Verdict


@dataclass(frozen=True)
class ChainPoll:
    """Asks `n` times for reasons and a verdict; the score is the share of votes for hallucinated.

    Answers are sampled at `temperature` with the seeds `seed`, `seed` + 1, … (Friel & Sanyal 2023,
    arXiv:2310.18344). Reasons have at most `characters` characters. At a score of `threshold`, in (0, 1],
    and above, the label is `hallucinated`. The verdict has no probability, since a share of votes is not a
    probability of the engine. An invalid vote is left out and counted in `details["broken"]`. If more than
    half are invalid, the judgement fails.
    """

    name: str = "chainpoll"
    n: int = 5
    temperature: float = 1.0
    characters: int = 300
    seed: int = 0
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.n <= 50 or self.characters < 1:
            raise SpecError(
                f"n must be 1 to 50 and characters at least 1, got {self.n} and {self.characters}"
            )
        check_threshold(self.threshold, one=True)
        if self.n > 1 and not self.temperature > 0:
            raise SpecError(f"at temperature {self.temperature:g}, all votes would be the same")
        seeds(self.n, self._budget, self.temperature, self.seed)

    @cached_property
    def constraint(self) -> Constraint:
        """The schema of every vote."""
        verdict = {"enum": [FAITHFUL, HALLUCINATED]}
        return constraint(closed_object({"reasoning": short_text(self.characters), "verdict": verdict}))

    @property
    def info(self) -> JudgeInfo:
        prompt = builtin_prompt("chainpoll")
        return JudgeInfo(
            name=self.name,
            version=prompt.version,
            summary="several answers with reasons and a vote; the score is the share of votes for "
            "hallucinated",
            labels=LABELS,
            threshold=self.threshold,
            reads=READS,
            needs=frozenset({"generate", "constraints"}),
            prompt=prompt.digest,
            constraint=self.constraint.digest,
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return one call, made `n` times."""
        return [Call(self._prompt(sample), self._budget, times=self.n)]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        prompt = self._prompt(sample)
        how = seeds(self.n, self._budget, self.temperature, self.seed)
        votes, broken = await self._votes(prompt, how, engine)
        against = [each for each in votes if each["verdict"] == HALLUCINATED]
        score = len(against) / len(votes)
        label = label_of(score, self.threshold)
        reasons = [each["reasoning"].strip() for each in votes if each["verdict"] == label]
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=score,
            explanation=f"{len(against)} of {len(votes)} votes say hallucinated"
            + (f": {reasons[0]}" if reasons and reasons[0] else ""),
            details={"votes": votes, "broken": broken},
        )

    async def _votes(
        self, prompt: Prompt, how: list[Sampling], engine: Engine
    ) -> tuple[list[dict[str, str]], int]:
        """Return the valid votes, in the order of the seeds, and the number of invalid ones."""

        async def vote(each: Sampling) -> Generation | InvalidOutput:
            try:
                return await engine.generate(prompt, self.constraint, sampling=each)
            except InvalidOutput as error:
                return error

        found = await gather_or_cancel(vote(each) for each in how)
        votes = [each.value for each in found if not isinstance(each, InvalidOutput)]
        broken = [each for each in found if isinstance(each, InvalidOutput)]
        if 2 * len(broken) > len(found):
            raise broken[0]
        return [dict(each) for each in votes], len(broken)

    @property
    def _budget(self) -> int:
        """One token per character of the reasons; beyond that the engine steers the text to its end."""
        return self.characters + 48

    def _prompt(self, sample: Sample) -> Prompt:
        return builtin_prompt("chainpoll").prompt(fields_of(sample, READS))
