"""Judges: what decides whether an output is faithful. Names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magistrate.judges.auto import Auto
    from magistrate.judges.base import Call, Judge, JudgeInfo
    from magistrate.judges.bound import Bound
    from magistrate.judges.builtin_judges import instance
    from magistrate.judges.candidates import Candidates
    from magistrate.judges.chainpoll import ChainPoll
    from magistrate.judges.classify import Classify, Criterion, classifier
    from magistrate.judges.definitions import judge_from_file, judge_from_package
    from magistrate.judges.flagging import decided
    from magistrate.judges.grade import Form, Grade
    from magistrate.judges.hallucination import Hallucination
    from magistrate.judges.likelihood import Gain
    from magistrate.judges.passages import Passages
    from magistrate.judges.question import Label
    from magistrate.judges.recorded_logprob import RecordedLogprob
    from magistrate.judges.rubric import Rubric
    from magistrate.judges.selfcheck import SelfCheck
    from magistrate.judges.semantic_entropy import SemanticEntropy
    from magistrate.judges.sentences import Sentences
    from magistrate.judges.windows import Windows

_HOMES = {
    "auto": ("Auto",),
    "base": ("Call", "Judge", "JudgeInfo"),
    "bound": ("Bound",),
    "candidates": ("Candidates",),
    "chainpoll": ("ChainPoll",),
    "classify": ("Classify", "Criterion", "classifier"),
    "definitions": ("judge_from_file", "judge_from_package"),
    "semantic_entropy": ("SemanticEntropy",),
    "flagging": ("decided",),
    "likelihood": ("Gain",),
    "grade": ("Form", "Grade"),
    "hallucination": ("Hallucination",),
    "builtin_judges": ("instance",),
    "passages": ("Passages",),
    "question": ("Label",),
    "recorded_logprob": ("RecordedLogprob",),
    "rubric": ("Rubric",),
    "selfcheck": ("SelfCheck",),
    "sentences": ("Sentences",),
    "windows": ("Windows",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Auto",
    "Bound",
    "Call",
    "Candidates",
    "ChainPoll",
    "Classify",
    "Criterion",
    "Form",
    "Gain",
    "Grade",
    "Hallucination",
    "Judge",
    "JudgeInfo",
    "Label",
    "Passages",
    "RecordedLogprob",
    "Rubric",
    "SelfCheck",
    "SemanticEntropy",
    "Sentences",
    "Windows",
    "classifier",
    "decided",
    "instance",
    "judge_from_file",
    "judge_from_package",
]


if not TYPE_CHECKING:  # a type checker that sees it would take every misspelt name for a good one

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'magistrate.judges' has no attribute {name!r}")
        value = getattr(import_module(f"magistrate.judges.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
