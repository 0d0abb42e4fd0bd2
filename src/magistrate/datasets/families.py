"""Which data sets are of one making: what is learnt from one of a family shows on the others too."""

from __future__ import annotations

import re
from collections.abc import Iterable

FAMILIES = ("summedits", "begin", "halueval", "ragtruth", "halubench")
WITHIN: dict[str, tuple[str, ...]] = {"halubench": ("halueval", "ragtruth")}
"""Families that hold samples of others (Ravi and others 2024, section 4)."""


def family_of(name: str) -> str:
    """The family of a data set by its name or file; a set of no known family is one of its own.

    >>> family_of("halueval-qa:dev"), family_of("data/summedits_dev.jsonl.gz"), family_of("my/answers.csv")
    ('halueval', 'summedits', 'answers')
    """
    base = re.split(r"[\\/]", name)[-1].partition(":")[0].partition(".")[0]
    known = (family for family in FAMILIES if re.match(rf"{family}(?![a-z])", base.lower()))
    return next(known, base)


def shared(family: str, trained_on: Iterable[str]) -> list[str]:
    """Those of the data sets (or families) learnt from that share samples with a family, in order."""
    related = {family, *WITHIN.get(family, ()), *(each for each in WITHIN if family in WITHIN[each])}
    return sorted(name for name in trained_on if family_of(name) in related)
