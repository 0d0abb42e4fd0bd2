"""Constraints on what a model may write, made from a type, schema, pattern, choices or grammar."""

from __future__ import annotations

from magistrate.constraints.check import check
from magistrate.constraints.constraint import Constraint, Lark, compile_check, constraint, repair
from magistrate.constraints.dialects import Expressed, express
from magistrate.constraints.quote import Quote, QuoteOf

__all__ = [
    "Constraint",
    "Expressed",
    "Lark",
    "Quote",
    "QuoteOf",
    "check",
    "compile_check",
    "constraint",
    "express",
    "repair",
]
