"""Who can judge: what each installed judge is, needs and may be set to, and how well it was measured."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any

from magistrate.engines.models import default
from magistrate.engines.none import NO_MODEL
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.judges.quality import Measured, Summary, summaries
from magistrate.report.judges import Asks, asks_of, listed
from magistrate.types import HALLUCINATED

WITHOUT_A_MODEL = "Without a model"
WITH_A_MODEL = "A model is asked"
AGAINST_A_REFERENCE = "Against a reference or a rule"
TO_BE_SET_UP = "To be given a file or other judges first"
BROKEN = "Cannot be loaded"
GROUPS = (WITHOUT_A_MODEL, WITH_A_MODEL, AGAINST_A_REFERENCE, TO_BE_SET_UP, BROKEN)

_working = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeLine:
    """A judge in the list; `error` says why it cannot be used, and all else is empty then.

    `reads` are the fields of a sample that it looks at, `requires` those it cannot do without. `options` are
    as they are unless they are set. `lacks` says what it must be given before it can judge; `asked_here`
    whether it can be asked over HTTP as it is. `headline` is how well it was measured on the usual model, or
    without any, None where it was not.
    """

    name: str
    group: str
    default: bool
    version: int = 0
    summary: str = ""
    kind: str = ""
    direction: str = ""
    labels: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any]
    lacks: str = ""
    asked_here: bool = False
    headline: Summary | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgesView:
    """All installed judges, group by group; `model` is the one that those who ask were measured on."""

    judges: tuple[JudgeLine, ...]
    model: str

    def groups(self) -> list[tuple[str, list[JudgeLine]]]:
        """The judges of every group that has some."""
        found = ((name, [each for each in self.judges if each.group == name]) for name in GROUPS)
        return [(name, judges) for name, judges in found if judges]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeView:
    """One judge with everything that is known of it.

    `long` says what it does with a sample that does not fit the model, `prompt` and `constraint` are digests
    of what it asks with, `trained_on` the sets whose labels it has learnt from, `card` what a trained one
    says of how it was made. `asks` is what it lets its model answer; `measured` has a row for each set and
    model. `scores` are the scores of its labels, where each has one.
    """

    line: JudgeLine
    long: str
    prompt: str
    constraint: str
    scores: Mapping[str, float]
    trained_on: tuple[str, ...]
    card: str | None
    asks: Asks
    measured: tuple[Measured, ...]


def judges_view() -> JudgesView:
    """All of them, the default first, then in the order of their figures. Imports them the first time."""
    lines = (each if isinstance(each, JudgeLine) else each.line for each in _found().values())
    return JudgesView(judges=tuple(sorted(lines, key=_rank)), model=default().name)


def judge_view(name: str) -> JudgeView | JudgeLine:
    """One of them; only its line where it cannot be loaded. Raises `SpecError` for an unknown name."""
    found = _found().get(name)
    if found is None:
        raise SpecError(registry.unknown("judge", name[:100], list(_found())))
    return found


def _found() -> Mapping[str, JudgeView | JudgeLine]:
    with _working:  # who asks while they are imported waits for that, and does not begin it again
        return _looked_at(tuple(registry.judge_entries().values()))


@cache
def _looked_at(entries: tuple[EntryPoint, ...]) -> Mapping[str, JudgeView | JudgeLine]:
    return {entry.name: _view(entry.name) for entry in entries}


def _view(name: str) -> JudgeView | JudgeLine:
    told = listed(name, registry.judge)
    if "error" in told:
        return JudgeLine(name=name, group=BROKEN, default=False, options={}, error=told["error"])
    measured = tuple(Measured(**each) for each in told["measured"])
    return JudgeView(
        line=_line(name, told, measured),
        long=told["long"],
        prompt=told["prompt"],
        constraint=told["constraint"],
        scores=told.get("scores", {}),
        trained_on=tuple(told["trained_on"]),
        card=told["card"],
        asks=asks_of(registry.judge(name)),
        measured=measured,
    )


def _line(name: str, told: Mapping[str, Any], measured: tuple[Measured, ...]) -> JudgeLine:
    usual = (NO_MODEL, default().name)
    return JudgeLine(
        name=name,
        group=_group(told),
        default=name == registry.DEFAULT_JUDGE,
        version=told["version"],
        summary=told["summary"],
        kind=told["kind"],
        direction=told["direction"],
        labels=tuple(told["labels"]),
        reads=tuple(told["reads"]),
        requires=tuple(told["requires"]),
        needs=tuple(told["needs"]),
        options=told["options"],
        lacks=told["lacks"],
        asked_here=not told["lacks"],
        headline=next((each for each in summaries(measured) if each.model in usual), None),
    )


def _group(told: Mapping[str, Any]) -> str:
    if told["lacks"]:
        return TO_BE_SET_UP
    if told["kind"] == "llm" or told["needs"]:
        return WITH_A_MODEL
    return WITHOUT_A_MODEL if HALLUCINATED in told["labels"] else AGAINST_A_REFERENCE


def _rank(line: JudgeLine) -> tuple[bool, float, str]:
    auroc = None if line.headline is None else line.headline.auroc
    return not line.default, 1.0 if auroc is None else -auroc, line.name
