"""Sampled answers to the same input, and entailment between texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from magistrate.engines.base import Engine, Sampling, in_role, require
from magistrate.errors import SpecError
from magistrate.judges.base import Call, present
from magistrate.judges.composite import gather_or_cancel
from magistrate.judges.question import Answers, Label, LabelProbabilities, choose_label
from magistrate.judges.template import builtin_prompt, fields_of
from magistrate.types import Prompt, Sample

Given = Literal["present", "absent"]

NO_ANSWERS = "there are no alternatives, and no input or context to generate them from"

YES, NO = "yes", "no"
ENTAILS = (Label(YES, 0.0, answers=("Yes",)), Label(NO, 1.0, answers=("No",)))


def question(premise: str, hypothesis: str, asked: str | None = None) -> Prompt:
    """Return the prompt that asks if `premise` entails `hypothesis`; both answer the question `asked`."""
    fields = {"premise": premise, "hypothesis": hypothesis, "input": asked or ""}
    return builtin_prompt("entails").prompt(fields, {"reply": Answers(ENTAILS).reply()})


async def entails(
    engine: Engine, premise: str, hypothesis: str, asked: str | None = None
) -> LabelProbabilities:
    """Return the probabilities of `yes` and `no` that `premise` entails `hypothesis`."""
    return await choose_label(engine, ENTAILS, lambda _: question(premise, hypothesis, asked))


def seeds(n: int, tokens: int, temperature: float, seed: int) -> list[Sampling]:
    """Return the sampling of `n` answers: equal but for the seed, which counts up from `seed`."""
    return [Sampling(max_tokens=tokens, temperature=temperature, seed=seed + at) for at in range(n)]


def recorded(sample: Sample) -> list[str]:
    """Return the sample's own alternatives, without blank ones."""
    return [text.strip() for text in sample.alternatives if text.strip()]


@dataclass(frozen=True)
class Draws:
    """Settings for sampling `n` new answers, of at most `tokens` tokens each, to a sample's input.

    `context` says whether the prompt shows the sample's context; `generator` is None for the run's engine.
    """

    n: int
    context: Given
    generator: Engine | None
    temperature: float
    tokens: int
    seed: int

    def check(self, role: str) -> None:
        """Raise `SpecError` for invalid settings, and for a temperature at which all answers are equal."""
        if self.n and not self.temperature > 0:
            raise SpecError(f"at temperature {self.temperature:g}, all answers would be the same")
        seeds(self.n, self.tokens, self.temperature, self.seed)
        if self.generator is not None:
            require(self.generator.info, frozenset({"generate"}), role)

    def possible(self, sample: Sample) -> bool:
        """Return whether answers are sampled, and the prompt would have an input or a context."""
        shown = self.context == "present" and present(sample, "context", ())
        return bool(self.n) and (bool((sample.input or "").strip()) or shown)

    def call(self, sample: Sample) -> Call:
        """Return the calls that sampling makes."""
        return Call(self._prompt(sample), self.tokens, engine=self.generator, times=self.n)

    async def draw(self, sample: Sample, engine: Engine) -> list[str]:
        """Sample the answers. Returns them in the order of their seeds, without blank ones."""
        prompt, asked = self._prompt(sample), in_role(engine, self.generator)
        how = seeds(self.n, self.tokens, self.temperature, self.seed)
        written = await gather_or_cancel(asked.generate(prompt, sampling=each) for each in how)
        return [each.text.strip() for each in written if each.text.strip()]

    def _prompt(self, sample: Sample) -> Prompt:
        fields = fields_of(sample, ("context", "messages", "input"))
        return builtin_prompt("answer").prompt(
            fields if self.context == "present" else {**fields, "context": ""}
        )


def comparing(times: int, texts: Sequence[str], asked: str | None, tokens: int) -> Call:
    """Return the longest of `times` comparisons of one of `texts` with an answer of up to `tokens` tokens."""
    longest = max(texts, key=len, default="") or "…"
    # Twice the tokens: a text may be tokenized differently when read again.
    return Call(question("…", longest, asked), extra=2 * tokens, times=times)
