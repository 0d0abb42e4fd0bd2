"""Judges: they decide whether an output is faithful. Names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magistrate._lazy import attributes

if TYPE_CHECKING:
    from magistrate.judges.auto import Auto
    from magistrate.judges.base import Call, Judge, JudgeInfo
    from magistrate.judges.bound import Bound
    from magistrate.judges.builtin import instance
    from magistrate.judges.candidates import Candidates
    from magistrate.judges.chainpoll import ChainPoll
    from magistrate.judges.classify import Classify, Criterion, classifier
    from magistrate.judges.correctness import Correctness
    from magistrate.judges.definitions import judge_from_file, judge_from_package
    from magistrate.judges.geval import GEval
    from magistrate.judges.grade import Form, Grade
    from magistrate.judges.hallucination import Hallucination
    from magistrate.judges.jury import Jury
    from magistrate.judges.likelihood import Likelihood
    from magistrate.judges.pairwise import Pairwise
    from magistrate.judges.passages import Passages
    from magistrate.judges.question import Label
    from magistrate.judges.recorded_logprob import RecordedLogprob
    from magistrate.judges.rubric import Rubric, decided
    from magistrate.judges.selfcheck import SelfCheck
    from magistrate.judges.semantic_entropy import SemanticEntropy
    from magistrate.judges.sentences import Sentences
    from magistrate.judges.windows import Windows

_MODULE_OF = {
    "Auto": "auto",
    "Call": "base",
    "Judge": "base",
    "JudgeInfo": "base",
    "Bound": "bound",
    "instance": "builtin",
    "Candidates": "candidates",
    "ChainPoll": "chainpoll",
    "Classify": "classify",
    "Criterion": "classify",
    "classifier": "classify",
    "Correctness": "correctness",
    "decided": "rubric",
    "judge_from_file": "definitions",
    "judge_from_package": "definitions",
    "Form": "grade",
    "Grade": "grade",
    "GEval": "geval",
    "Hallucination": "hallucination",
    "Jury": "jury",
    "Likelihood": "likelihood",
    "Pairwise": "pairwise",
    "Passages": "passages",
    "Label": "question",
    "RecordedLogprob": "recorded_logprob",
    "Rubric": "rubric",
    "SelfCheck": "selfcheck",
    "SemanticEntropy": "semantic_entropy",
    "Sentences": "sentences",
    "Windows": "windows",
}

__all__ = [
    "Auto",
    "Bound",
    "Call",
    "Candidates",
    "ChainPoll",
    "Classify",
    "Correctness",
    "Criterion",
    "Form",
    "GEval",
    "Grade",
    "Hallucination",
    "Judge",
    "JudgeInfo",
    "Jury",
    "Label",
    "Likelihood",
    "Pairwise",
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


if not TYPE_CHECKING:  # hidden from type checkers, which would accept every misspelt name
    __getattr__ = attributes(__name__, _MODULE_OF)
