"""The judge `selfcheck`: compares each sentence with other answers to the same input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magistrate.engines.base import Capability, Engine
from magistrate.errors import SpecError
from magistrate.features.splitting import sentences
from magistrate.features.words import word_runs, words
from magistrate.judges.base import (
    LABELS,
    NO_LIMIT,
    Call,
    JudgeInfo,
    check_threshold,
    heat_map,
    label_of,
    unsupported,
)
from magistrate.judges.composite import Aggregate, aggregated, gather_or_cancel
from magistrate.judges.sampled_answers import (
    NO,
    NO_ANSWERS,
    Draws,
    Given,
    comparing,
    entails,
    question,
    recorded,
)
from magistrate.judges.template import builtin_prompt
from magistrate.types import (
    Abstention,
    Outcome,
    Sample,
    Span,
    Verdict,
)


@dataclass(frozen=True)
class SelfCheck:
    """Compares every sentence of the output with other answers to the same input.

    This is SelfCheckGPT (Manakul and others 2023, arXiv:2303.08896). The answers are the sample's
    `alternatives`. If it has none, `n` answers of at most `max_tokens` tokens are sampled from `generator`
    (None: the run's engine) at `temperature`, with `seed`, `seed` + 1, …. The generator sees the context
    or, with `context=absent`, only the input.

    With `check=ask` the run's engine decides for each answer whether it says all that the sentence says.
    The sentence's score is the mean probability of no. `check=ngrams` needs no model: the score is the
    share of the sentence's runs of `size` words that an answer lacks, averaged over the answers. Sentences
    without words are left out. With `n=0` only recorded alternatives are used, and with `check=ngrams` then
    no engine.

    `aggregate` combines the sentences' scores, by default as their mean, as in the paper. At a score of
    `threshold`, in (0, 1], and above the label is `hallucinated`, and each sentence with such a score is a
    claim.
    """

    name: str = "selfcheck"
    n: int = 5
    check: Literal["ask", "ngrams"] = "ask"
    size: int = 1
    context: Given = "present"
    generator: Engine | None = None
    temperature: float = 1.0
    max_tokens: int = 160
    seed: int = 0
    aggregate: Aggregate = "mean"
    threshold: float = 0.5
    language: str = "en"

    def __post_init__(self) -> None:
        if not 0 <= self.n <= 50 or self.size < 1:
            raise SpecError(f"n must be 0 to 50 and size at least 1, got {self.n} and {self.size}")
        check_threshold(self.threshold, one=True)
        self._draws.check("the generator of a self-check")

    @property
    def info(self) -> JudgeInfo:
        needs: set[Capability] = {"choose"} if self.check == "ask" else set()
        needs |= {"generate"} if self.n and self.generator is None else set()
        recorded_only = not self.n and self.check == "ngrams"
        return JudgeInfo(
            name=self.name,
            version=builtin_prompt("entails").version,
            summary="compares each sentence with other answers of the generator to the same input",
            labels=LABELS,
            threshold=self.threshold,
            reads=("input", "context", "messages", "output", "alternatives"),
            requires=("output", *(() if self.n else ("alternatives",))),
            needs=frozenset(needs),
            kind="code" if recorded_only else "llm",
            long=NO_LIMIT if recorded_only else "refuse",
            prompt=f"{builtin_prompt('answer').digest}+{builtin_prompt('entails').digest}",
            constraint="" if recorded_only else "choice",
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return the calls that sample the answers, and the longest comparison with a sentence."""
        spoken = self._sentences(sample)
        texts = [text for _, text in spoken]
        given = recorded(sample)
        calls: list[Call] = []
        if not given and self.n:
            calls = [self._draws.call(sample)]
        if self.check == "ask" and given:
            longest = max(given, key=len), max(texts, key=len, default="…")
            calls.append(Call(question(*longest, sample.input), times=len(given) * len(texts)))
        elif self.check == "ask":
            calls.append(comparing(self.n * len(texts), texts, sample.input, self.max_tokens))
        return calls

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        answers = recorded(sample)
        own = not answers
        if own and not self._draws.possible(sample):
            return Abstention(sample.id, self.name, "missing_input", NO_ANSWERS)
        spoken = self._sentences(sample)
        if not spoken:
            message = "the output has no words that other answers could support"
            return Abstention(sample.id, self.name, "uncertain", message)
        if own:
            answers = await self._draws.draw(sample, engine)
        if not answers:
            message = f"all {self.n} generated answers are blank"
            return Abstention(sample.id, self.name, "uncertain", message)
        if self.check == "ask":
            scores = await gather_or_cancel(self._asked(text, answers, sample, engine) for _, text in spoken)
        else:
            scores = [_unseen(text, answers, self.size) for _, text in spoken]
        return self._verdict(sample, spoken, scores, answers, own)

    @property
    def _draws(self) -> Draws:
        return Draws(self.n, self.context, self.generator, self.temperature, self.max_tokens, self.seed)

    def _verdict(
        self,
        sample: Sample,
        spoken: list[tuple[Span, str]],
        scores: list[float],
        answers: list[str],
        own: bool,
    ) -> Verdict:
        score = aggregated(scores, self.aggregate)
        label = label_of(score, self.threshold)
        flagged = [at for at, each in enumerate(scores) if each >= self.threshold]
        n, output = len(answers), sample.output or ""
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=score,
            explanation=f"{len(flagged)} of {len(scores)} sentences are not supported by {n} other answers",
            claims=tuple(
                unsupported(
                    output,
                    spoken[at][0].start,
                    spoken[at][0].end,
                    f"not supported by {n} other answers: score {scores[at]:.2f}",
                )
                for at in flagged
            ),
            details={
                "sentences": [
                    [span.start, span.end, each] for (span, _), each in zip(spoken, scores, strict=True)
                ],
                "answers": answers,
                "drawn": own,
                "heat": heat_map(
                    "how little other answers support a sentence",
                    "share",
                    output,
                    [
                        [span.start, span.end, round(each, 3)]
                        for (span, _), each in zip(spoken, scores, strict=True)
                    ],
                ),
            },
        )

    def _sentences(self, sample: Sample) -> list[tuple[Span, str]]:
        output = sample.output or ""
        cut = [(Span(start, end), output[start:end]) for start, end in sentences(output, self.language)]
        return cut if self.check == "ask" else [each for each in cut if words(each[1])]

    async def _asked(self, sentence: str, answers: list[str], sample: Sample, engine: Engine) -> float:
        found = await gather_or_cancel(entails(engine, answer, sentence, sample.input) for answer in answers)
        return sum(each.probability(NO) for each in found) / len(found)


def _unseen(sentence: str, answers: list[str], size: int) -> float:
    """Return the share, in [0, 1], of a sentence's runs of words that an answer lacks; mean over answers."""
    said = words(sentence)
    width = min(size, len(said))
    runs = list(word_runs(said, width))
    known = [set(word_runs(words(answer), width)) for answer in answers]
    return sum(run not in each for run in runs for each in known) / (len(runs) * len(known))
