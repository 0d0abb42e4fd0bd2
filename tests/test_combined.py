"""`combined`, the detector and `novelty` together: what it adds up, what it shows, what it does not read."""

from __future__ import annotations

import itertools
import math

import pytest

import magistrate
from magistrate import Sample, resolve
from magistrate.datasets.families import family_of
from magistrate.errors import SpecError
from magistrate.judges.combined import Combined, weights
from magistrate.judges.detector import Detector
from magistrate.judges.novelty import Novelty
from magistrate.signals.familiar import another_language, is_code, strange
from magistrate.stats.calibration import log_odds
from magistrate.types import Abstention, Verdict

WARRANTY = (
    "The warranty covers the motor for 24 months and the battery for one year; it excludes water damage."
)
GERMAN = "Die Garantie gilt zwei Jahre und nicht für den Akku, wenn er in Gebrauch war."
CODE = "```python\ndef total(rows):\n    return sum(rows)\n```"


def judged(output: str, context: str = WARRANTY, **options: object) -> Verdict:
    found = Combined(**options).verdict(Sample("s", output, (context,)))  # type: ignore[arg-type]
    assert isinstance(found, Verdict), found
    return found


def test_it_adds_up_what_both_say() -> None:
    output = "The motor is covered for 36 months. Water damage is not covered."
    sample = Sample("s", output, (WARRANTY,))
    compared, counted = Detector().verdict(sample), Novelty().verdict(sample)
    assert isinstance(compared, Verdict) and isinstance(counted, Verdict)
    told = weights()
    parts = told.detector * log_odds(compared.score), told.novelty * log_odds(counted.score)
    found = judged(output)
    assert list(found.details["contributions"].values()) == pytest.approx(parts)
    assert log_odds(found.score) == pytest.approx(told.intercept + sum(parts))
    assert found.details["signals"] == counted.details["signals"]
    assert found.details["sentences"] == compared.details["sentences"]


def test_another_base_rate_moves_every_score_by_the_same_odds() -> None:
    even, rare = judged(WARRANTY), judged(WARRANTY, base_rate=0.1)
    assert log_odds(rare.score) - log_odds(even.score) == pytest.approx(math.log(0.1 / 0.9))
    with pytest.raises(SpecError, match="base rate"):
        Combined(base_rate=1)


def test_it_points_at_what_is_nowhere_in_the_context_once() -> None:
    output = "The motor is covered for 36 months. A fee of 85 dollars is due to Mr Hollis on 3 May 2019."
    found = judged(output)
    assert found.label == "hallucinated"
    places = [(claim.output_quote.start, claim.output_quote.end) for claim in found.claims]
    assert places == sorted(places) and len(places) == len(set(places))
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(places))
    for claim in found.claims:
        assert output[claim.output_quote.start : claim.output_quote.end] == claim.output_text
        if claim.context_quote is not None:
            quoted = WARRANTY[claim.context_quote.start : claim.context_quote.end]
            assert quoted == claim.context_text and claim.kind == "contradiction"
    assert not judged("The motor is covered for 24 months.").claims


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
        (CODE, WARRANTY, "the output is program code"),
    ],
)
def test_it_abstains_on_what_it_has_not_learnt_to_read(output: str, context: str, what: str) -> None:
    found = magistrate.judge(output=output, context=context)
    assert isinstance(found, Abstention) and found.reason == "uncertain"
    assert what in found.message and "novelty" in found.message


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
    assert isinstance(magistrate.judge(output=output, context=WARRANTY), Abstention)


def test_it_knows_what_it_has_learnt_from() -> None:
    info = resolve.judge("combined").info
    assert info.trained_on >= Detector().info.trained_on | Novelty().info.trained_on
    for family in ("summedits", "begin", "halueval"):
        left_out = Combined(without=family).info.trained_on
        assert left_out and not [name for name in left_out if family_of(name) == family]
    with pytest.raises(SpecError, match="not without 'nothing'"):
        Combined(without="nothing")
