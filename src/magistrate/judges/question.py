"""A question with known answers: ask an engine for the probability of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Literal

from magistrate.engines.base import Choice, ChoiceMethod, Engine, Option
from magistrate.errors import InvalidOutput, SpecError
from magistrate.judges.composite import gather_or_cancel
from magistrate.types import Prompt

TINY = 1e-12  # keeps odds finite where a probability rounds to 0

Explain = Literal["none", "before", "after"]


@dataclass(frozen=True, slots=True)
class Label:
    """An answer: its name, its score in [0, 1] and its description.

    `answers` are the words with which a model gives this answer. Without any the model answers with the
    letter before the label in the list it is shown. `opening` starts an explanation of the label.
    """

    name: str
    score: float
    description: str = ""
    answers: tuple[str, ...] = ()
    opening: str = ""

    @property
    def surfaces(self) -> tuple[str, ...]:
        """The accepted spellings of its answers."""
        spelled = [
            spelling for word in self.answers for spelling in (word, word.lower(), word.upper(), f" {word}")
        ]
        return tuple(dict.fromkeys([*spelled, *(f" {word.lower()}" for word in self.answers)]))


@dataclass(frozen=True, slots=True)
class LabelProbabilities:
    """Probabilities of the labels by name, None if the engine only named one; `mass` is the least seen."""

    best: str
    probabilities: dict[str, float] | None
    mass: float | None
    method: ChoiceMethod

    def probability(self, label: str) -> float:
        """Return the label's probability; 1 or 0 if the engine only named a label."""
        if self.probabilities is None:
            return 1.0 if self.best == label else 0.0
        return self.probabilities[label]


@dataclass(frozen=True, slots=True)
class Answers:
    """The labels in the order shown to the model, and the text that asks for a reply."""

    labels: tuple[Label, ...]

    @property
    def options(self) -> tuple[Option, ...]:
        """The options that the engine chooses among."""
        if self._lettered:
            return tuple(
                Option(label.name, (letter, f" {letter}"))
                for letter, label in zip(ascii_uppercase, self.labels, strict=False)
            )
        return tuple(Option(label.name, label.surfaces) for label in self.labels)

    def reply(self, explain: Explain = "none") -> str:
        """Return the end of the prompt: the possible answers, and the form of the reply."""
        first = "First say in one sentence what decides it. Then reply" if explain == "before" else "Reply"
        if self._lettered:
            listed = [
                _described(letter, label) for letter, label in zip(ascii_uppercase, self.labels, strict=False)
            ]
            letters = list(ascii_uppercase[: len(self.labels)])
            return "\n".join([*listed, f"{first} with one letter, {_either(letters)}."])
        return f"{first} with one word, {_either([label.answers[0] for label in self.labels])}."

    @property
    def _lettered(self) -> bool:
        return not self.labels[0].answers

    def rotations(self) -> list[Answers]:
        """Return all rotations of the labels: each label is once at every position."""
        return [Answers(self.labels[start:] + self.labels[:start]) for start in range(len(self.labels))]


def check_labels(labels: Sequence[Label]) -> None:
    """Raise `SpecError` for labels that cannot be distinguished, or have invalid scores or answers."""
    if not 2 <= len(labels) <= len(ascii_uppercase):
        raise SpecError(
            f"there must be 2 to {len(ascii_uppercase)} labels, got {len(labels)}", key=("labels",)
        )
    names = [label.name for label in labels]
    if len(set(names)) < len(names):
        raise SpecError(f"labels must differ, got {', '.join(names)}", key=("labels",))
    if len({bool(label.answers) for label in labels}) > 1:
        raise SpecError("either all labels or none must have answers", key=("labels",))
    for label in labels:
        if not 0 <= label.score <= 1:
            raise SpecError(f"a score must be in [0, 1], got {label.score}", key=("labels", label.name))
        if not all(word.strip() == word and word for word in label.answers):
            raise SpecError(
                "an answer must not be empty or have white space around it", key=("labels", label.name)
            )
    surfaces = [surface for label in labels for surface in label.surfaces]
    if len(set(surfaces)) < len(surfaces):
        raise SpecError("two answers are the same except for their case", key=("labels",))
    if len(labels) == 2 and labels[0].score == labels[1].score:
        raise SpecError("two labels need different scores", key=("labels",))


async def choose_label(
    engine: Engine,
    labels: Sequence[Label],
    prompt: Callable[[Answers], Prompt],
    *,
    permute: bool = False,
) -> LabelProbabilities:
    """Return each label's probability as the answer to `prompt`; with `permute`, averaged over rotations."""
    orders = Answers(tuple(labels)).rotations()[: None if permute else 1]
    choices = await gather_or_cancel(engine.choose(prompt(order), order.options) for order in orders)
    return _mean([label.name for label in labels], choices)


def _mean(names: Sequence[str], choices: Sequence[Choice]) -> LabelProbabilities:
    given = [choice.probabilities for choice in choices if choice.probabilities is not None]
    masses = [choice.mass for choice in choices if choice.mass is not None]
    if len(given) < len(choices):  # some only named an answer, so all count as votes
        said = Counter(choice.best for choice in choices).most_common(2)
        if len(said) > 1 and said[0][1] == said[1][1]:
            told = f"the model's answer depends on the order of answers: {said[0][0]} or {said[1][0]}"
            raise InvalidOutput(told)
        return LabelProbabilities(said[0][0], None, None, "label_only")
    shares = {name: sum(each[name] for each in given) / len(given) for name in names}
    return LabelProbabilities(
        max(names, key=shares.__getitem__), shares, min(masses, default=None), choices[0].method
    )


def without_prior(found: LabelProbabilities, prior: LabelProbabilities) -> LabelProbabilities:
    """Divide the probabilities by those of `prior` and renormalize.

    This is contextual calibration (Zhao et al. 2021, arXiv:2102.09690).
    """
    if found.probabilities is None or prior.probabilities is None:
        return found
    weights = {
        name: max(share, TINY) / max(prior.probabilities[name], TINY)
        for name, share in found.probabilities.items()
    }
    whole = sum(weights.values())
    shares = {name: weight / whole for name, weight in weights.items()}
    return replace(found, best=max(shares, key=shares.__getitem__), probabilities=shares)


def _described(letter: str, label: Label) -> str:
    return f"{letter}. {label.name}: {label.description}" if label.description else f"{letter}. {label.name}"


def _either(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
