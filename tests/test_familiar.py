"""What the detector that ships has not learnt to read, and that it says so."""

from __future__ import annotations

import pytest

import magistrate
from magistrate import Sample
from magistrate.features.words import another_language, is_code, strange
from magistrate.types import Abstention, Verdict

WARRANTY = (
    "The warranty covers the motor for 24 months and the battery for one year; it excludes water damage."
)
GERMAN = "Die Garantie gilt zwei Jahre und nicht für den Akku, wenn er in Gebrauch war."
CODE = "```python\ndef total(rows):\n    return sum(rows)\n```"


@pytest.mark.parametrize(
    ("output", "context", "what"),
    [
        ("The battery is covered for two years.", GERMAN, "the context is in German"),
        (GERMAN, WARRANTY, "the output is in German"),
        (
            "保証は電池には二年間適用されません。水による損傷は除外。",
            WARRANTY,
            "the output is in another script",
        ),
        (
            "Gwarancja nie obejmuje szkód, które powstały później, ani części zużytych.",
            WARRANTY,
            "not in English",
        ),
        (CODE, WARRANTY, "the output is program code"),
    ],
)
def test_it_abstains_on_what_it_has_not_learnt_to_read(output: str, context: str, what: str) -> None:
    found = magistrate.judge(output=output, context=context, judge="detector")
    assert isinstance(found, Abstention) and found.reason == "uncertain"
    assert what in found.message and "novelty" in found.message
    assert isinstance(magistrate.judge(output=output, context=context), Verdict), "the default counts words"


@pytest.mark.parametrize(
    "text",
    [
        "Primera División",
        "Name | Team\nJosé Núñez | Atlético\nIker Muñoz | Málaga",
        "He said: “C'est la vie”, and left for the Champs-Élysées in the evening.",
        '{"id": 7, "name": "José", "price": 12.5}',
        "The café's résumé of the day: crème brûlée and a glass of wine for nine euros.",
        "def. 1: a rule; see below.",
    ],
)
def test_names_tables_and_quotations_are_read(text: str) -> None:
    assert not another_language(text) and not is_code(text)
    assert not strange(Sample("s", text, (WARRANTY,)))


@pytest.mark.parametrize("output", ["😀", "…", "-", " \n"])
def test_what_says_nothing_has_no_verdict(output: str) -> None:
    assert isinstance(magistrate.judge(output=output, context=WARRANTY, judge="detector"), Abstention)
