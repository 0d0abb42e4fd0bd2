"""Other answers of a generator to the same input, and whether one text says all that another says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from magistrate.engines.base import Engine, Sampling
from magistrate.judges.base import Call
from magistrate.judges.composite import gather_or_cancel
from magistrate.judges.preflight import present
from magistrate.judges.question import Answers, Label, LabelProbabilities, choose_label
from magistrate.judges.template import builtin_prompt, fields_of
from magistrate.types import Prompt, Sample

Given = Literal["present", "absent"]

YES, NO = "yes", "no"
ENTAILS = (Label(YES, 0.0, answers=("Yes",)), Label(NO, 1.0, answers=("No",)))


def question(premise: str, hypothesis: str, asked: str | None = None) -> Prompt:
    """Whether `premise` says all of `hypothesis`; `asked` is the question that both answer, if any."""
    fields = {"premise": premise, "hypothesis": hypothesis, "input": asked or ""}
    return builtin_prompt("entails").prompt(fields, {"reply": Answers(ENTAILS).reply()})


async def entails(
    engine: Engine, premise: str, hypothesis: str, asked: str | None = None
) -> LabelProbabilities:
    """How probable `yes` and `no` are."""
    return await choose_label(engine, ENTAILS, lambda _: question(premise, hypothesis, asked))


def answering(sample: Sample, context: Given) -> Prompt:
    """What the generator is asked: the sample's input, with its context or without."""
    fields = fields_of(sample, ("context", "messages", "input"))
    return builtin_prompt("answer").prompt(fields if context == "present" else {**fields, "context": ""})


def answerable(sample: Sample, context: Given) -> bool:
    """Whether a generator would know what to answer."""
    return bool((sample.input or "").strip()) or (context == "present" and present(sample, "context", ()))


def draws(n: int, tokens: int, temperature: float, seed: int) -> list[Sampling]:
    """How each of `n` answers is drawn: alike but for the seed."""
    return [Sampling(max_tokens=tokens, temperature=temperature, seed=seed + at) for at in range(n)]


async def drawn(engine: Engine, prompt: Prompt, how: Sequence[Sampling]) -> list[str]:
    """One answer a draw, those that are blank left out."""
    written = await gather_or_cancel(engine.generate(prompt, sampling=each) for each in how)
    return [each.text.strip() for each in written if each.text.strip()]


def recorded(sample: Sample) -> list[str]:
    """The alternatives that a sample brings with it, but for blank ones."""
    return [text.strip() for text in sample.alternatives if text.strip()]


def comparing(times: int, texts: Sequence[str], asked: str | None, tokens: int) -> Call:
    """The longest of so many comparisons: of the longest of `texts` with one that is not written yet, of at
    most `tokens` tokens."""
    longest = max(texts, key=len, default="") or "…"
    return Call(
        question("…", longest, asked), extra=2 * tokens, times=times
    )  # read again it may be cut otherwise
