"""What visitors may have judged, by whom and with which model: their words become objects here.

Nothing of it may name a file, a folder or a model that was not brought here by people at this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magistrate.api import judge as judging
from magistrate.engines.models import WEIGHTS, default, entries, entry, pulled
from magistrate.engines.models.catalogue import names, unknown
from magistrate.errors import DatasetError, InputError, SpecError
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.judges.registry import DEFAULT_JUDGE
from magistrate.runs.limits import DEADLINE
from magistrate.types import Sample

LONGEST_WORDS = 300  # characters of a judge with its options
LONGEST_DEADLINE = 3600.0

# Some judges take the product of both lengths, and hold all of Python while they do.
LONGEST_OUTPUT = 200_000
LONGEST_EXPECTED = 20_000

NO_OUTPUT = "give the text on trial: output, or messages with it as the assistant's last one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A sample, who is to judge it, and within how many seconds.

    `name` is the judge's without options; `model` that of the catalogue, None for the usual one.
    """

    sample: Sample
    judge: Judge
    name: str
    model: str | None
    deadline: float


def question(
    *,
    output: str | None,
    context: str | Sequence[str] = (),
    input: str | None = None,
    expected: str | None = None,
    messages: Sequence[Mapping[str, Any]] = (),
    judge: str = DEFAULT_JUDGE,
    model: str | None = None,
    deadline: float = DEADLINE,
) -> Question:
    """What is asked in these words. May import a judge, which takes a while.

    Raises `SpecError` for a judge or a model that nobody knows, with the nearest names, and `InputError` for
    what cannot be judged or may not be asked from outside.
    """
    try:
        sample = judging.sample_of(
            output=output, context=context, input=input, expected=expected, messages=messages
        )
    except DatasetError:
        if output is None:
            raise InputError(NO_OUTPUT) from None
        raise
    _check(sample)
    asked = chosen_judge(judge)
    name = judge.partition(":")[0].partition("@")[0]
    return Question(sample=sample, judge=asked, name=name, model=chosen_model(model), deadline=deadline)


def chosen_judge(words: str) -> Judge:
    """The installed judge of that name, with the options that may be set from outside."""
    if len(words) > LONGEST_WORDS:
        raise InputError(f"a judge is named in at most {LONGEST_WORDS} characters")
    name = words.partition(":")[0].partition("@")[0]
    if name not in registry.judge_entries():
        raise SpecError(registry.unknown("judge", name, list(registry.judge_entries())))
    try:
        found = registry.judge(words, outside=True)
    except SpecError as error:  # the judge is known: it is the options that are not
        raise InputError(str(error)) from None
    if found.info.lacks:
        raise InputError(f"judge {found.info.name!r} {found.info.lacks}")
    return found


def chosen_model(name: str | None) -> str | None:
    """A model of the catalogue that is here; None for the usual one."""
    if not name or name in models_here():
        return name or None
    base, _, weights = name.partition(":")
    if base not in names() or weights not in ("", *WEIGHTS):
        raise SpecError(unknown(name))
    raise InputError(
        f"the model {name} is not here; on the machine of this server run: magistrate models pull {name}"
    )


def models_here() -> list[str]:
    """The models that may be asked, the usual one first: it is among them even where it is not here."""
    here = [
        entry(f"{model.name}:{weights}").spec
        for model in sorted(entries(), key=lambda model: not model.default)
        for weights in pulled(model)
    ]
    return list(dict.fromkeys([default().spec, *here]))


def _check(sample: Sample) -> None:
    """Refuse texts that are no texts, and those that would keep everybody waiting."""
    for what, text, most in (
        ("the output", sample.output, LONGEST_OUTPUT),
        ("what is expected", sample.expected, LONGEST_EXPECTED),
    ):
        if text is not None and len(text) > most:
            raise InputError(f"{what} has {len(text):,} characters; at most {most:,} are judged here")
    roles = (turn.role for turn in sample.messages)
    for text in (sample.output, sample.input, sample.expected, *sample.sources, *roles):
        try:
            (text or "").encode()
        except UnicodeEncodeError:
            raise InputError("a text holds half of a surrogate pair, which no text can") from None
