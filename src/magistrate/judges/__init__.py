"""Judges: what decides whether an output is faithful."""

from magistrate.judges.base import Judge, JudgeInfo
from magistrate.judges.faithfulness import Faithfulness
from magistrate.judges.hallucination import Hallucination

__all__ = ["Faithfulness", "Hallucination", "Judge", "JudgeInfo"]
