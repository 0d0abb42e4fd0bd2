"""Which data sets are of one making: what is learnt from one of a family shows on the others too."""

from __future__ import annotations

import re
from collections.abc import Iterable

WITHIN: dict[str, tuple[str, ...]] = {"halubench": ("halueval", "ragtruth")}
"""Families that hold samples of others (Ravi and others 2024, section 4)."""

_ENDINGS = re.compile(r"(?:\.(?:csv|tsv|json|jsonl|ndjson|parquet|gz|zst))+$", re.IGNORECASE)
# The named sets and their files, begun by the name of the family.
_KNOWN = re.compile(
    r"(?P<family>summedits|begin|ragtruth|halubench|halueval)(?:(?<=halueval)[-_](?:qa|dialogue|summarization))?"
    r"(?:_(?:dev|train|test|article\d+))?"
)


def family_of(name: str) -> str:
    """The family of a data set by its name or file; a set of no known family is one of its own.

    >>> family_of("halueval-qa:dev"), family_of("data/summedits_dev.jsonl.gz"), family_of("my/begin.2024.csv")
    ('halueval', 'summedits', 'begin.2024')
    """
    file = re.split(r"[\\/]", name)[-1]
    base = _ENDINGS.sub("", file.partition(":")[0]) or file
    known = _KNOWN.fullmatch(base.lower())
    return known["family"] if known else base


def shared(family: str, trained_on: Iterable[str]) -> list[str]:
    """Those of the data sets (or families) learnt from that share samples with a family, in order."""
    related = {family, *WITHIN.get(family, ()), *(each for each in WITHIN if family in WITHIN[each])}
    return sorted(name for name in trained_on if family_of(name) in related)
