"""Judges of kind *code* that hold the output against an expected text or a format. They ask no model."""

from magistrate.judges.references.formats import JsonValid
from magistrate.judges.references.overlaps import Bleu, Chrf, Rouge
from magistrate.judges.references.texts import Contains, Exact, Levenshtein, Regex

__all__ = ["Bleu", "Chrf", "Contains", "Exact", "JsonValid", "Levenshtein", "Regex", "Rouge"]
