"""Judges: what decides whether an output is faithful."""

from magistrate.judges.base import Call, Judge, JudgeInfo
from magistrate.judges.bound import Bound
from magistrate.judges.candidates import Candidates
from magistrate.judges.classify import Classify, Criterion, classifier
from magistrate.judges.definitions import judge_from_file, judge_from_package
from magistrate.judges.flagging import decided
from magistrate.judges.grade import Form, Grade
from magistrate.judges.hallucination import Hallucination
from magistrate.judges.instances import instance
from magistrate.judges.passages import Passages
from magistrate.judges.question import Label
from magistrate.judges.rubric import Rubric
from magistrate.judges.sentences import Sentences
from magistrate.judges.windows import Windows

__all__ = [
    "Bound",
    "Call",
    "Candidates",
    "Classify",
    "Criterion",
    "Form",
    "Grade",
    "Hallucination",
    "Judge",
    "JudgeInfo",
    "Label",
    "Passages",
    "Rubric",
    "Sentences",
    "Windows",
    "classifier",
    "decided",
    "instance",
    "judge_from_file",
    "judge_from_package",
]
