"""The judge `combined`: how the detector and `novelty` add up, what it shows, and what it cannot read."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest

from magistrate.detectors import large
from magistrate.engines.none import NONE
from magistrate.judges import combined
from magistrate.judges.combined import Combined, Weights
from magistrate.judges.novelty import Novelty
from magistrate.metrics.calibration import log_odds, sigmoid
from magistrate.types import Abstention, Outcome, Sample, Verdict
from tiny_detector import write_detector

BRIDGE = "The bridge in Bern was built in 1844. It is blue. The town is old and large."
TEXTS = (BRIDGE, "painted red new", "Anna paid 900 euros for it")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A large detector that is tiny, and weights that are easy to add up."""
    made = write_detector(tmp_path / "tiny", TEXTS)
    monkeypatch.setattr(large, "folder_of_large", lambda: made)
    monkeypatch.setattr(
        combined, "weights", lambda size, without="": Weights(-0.5, 1.0, 0.5, 1.5, frozenset(), "test")
    )
    return made


def judged(output: str, *context: str, **options: float) -> Outcome:
    return asyncio.run(Combined("large", **options).judge(Sample("s", output, context or (BRIDGE,)), NONE))


def verdict(output: str, **options: float) -> Verdict:
    found = judged(output, **options)
    assert isinstance(found, Verdict), found
    return found


def test_the_score_adds_what_both_say() -> None:
    for output in ("The bridge is blue.", "It is painted red.", "Anna paid 900 euros.", "The town is new."):
        sample = Sample("s", output, (BRIDGE,))
        found = verdict(output)
        counted = asyncio.run(Novelty().judge(sample, NONE))
        assert isinstance(counted, Verdict)
        compared = Combined("large").detector.model.detect(sample)
        assert compared is not None
        odds = -0.5 + compared.logit + 0.5 * log_odds(counted.score)
        assert log_odds(found.score) == pytest.approx(odds, abs=1e-6)
        assert (found.label == "hallucinated") == (found.score >= 0.5)
        assert bool(found.claims) == (found.label == "hallucinated"), "what is flagged is shown"
        rare = verdict(output, base_rate=0.1)
        assert log_odds(rare.score) == pytest.approx(odds + log_odds(0.1), abs=1e-6)
        assert verdict(output, base_rate=1e-300).score < 0.01, "any share that is accepted can be assumed"


def test_an_output_is_judged_by_its_sentences() -> None:
    output = "The bridge is blue. It is painted red. Anna paid 900 euros."
    found, sample = verdict(output), Sample("s", output, (BRIDGE,))
    shares = [each["unsupported"] for each in found.details["sentences"]]
    assert len(shares) == 3
    assert found.score == pytest.approx(
        1 - math.prod(1 - each for each in shares) ** (1 / math.sqrt(3)), abs=1e-3
    )
    compared = Combined("large").detector.model.read(sample)
    for sentence, share in zip(compared.sentences, shares, strict=True):
        alone = replace(sample, output=output[sentence.start : sentence.end])
        counted = asyncio.run(Novelty().judge(alone, NONE))
        assert isinstance(counted, Verdict)
        odds = -0.5 + sentence.logit + 0.5 * log_odds(counted.score)
        assert share == pytest.approx(sigmoid(odds), abs=1e-4), "from its meaning and its own wording"
    flagged = [claim.probability for claim in found.claims if claim.probability is not None]
    assert flagged and all(min(abs(each - share) for share in shares) < 1e-4 for each in flagged)


def test_a_sentence_that_stands_in_the_context_word_for_word_is_more_likely_supported() -> None:
    output = "The bridge is blue. It is blue!"
    found = verdict(output)
    assert found.details["copied"] == [False, True]
    shares = [each["unsupported"] for each in found.details["sentences"]]
    compared = Combined("large").detector.model.read(Sample("s", output, (BRIDGE,)))
    for sentence, share, credit in zip(compared.sentences, shares, (0, 1.5), strict=True):
        alone = Sample("s", output[sentence.start : sentence.end], (BRIDGE,))
        counted = asyncio.run(Novelty().judge(alone, NONE))
        assert isinstance(counted, Verdict)
        odds = -0.5 + sentence.logit + 0.5 * log_odds(counted.score) - credit
        assert share == pytest.approx(sigmoid(odds), abs=1e-4)


def test_claims_are_sentences_and_facts_outside_of_them_that_the_context_lacks() -> None:
    output = "The bridge in Bern was built in 1844 and in 1901. Painted red. Anna paid."
    found = verdict(output)
    assert {claim.output_text for claim in found.claims} == {"1901", "Painted red", "Anna paid"}
    for claim in found.claims:
        assert output[claim.output_quote.start : claim.output_quote.end] == claim.output_text
    assert found.explanation == (
        "the context contradicts 1 and does not support 1 of 3 sentences; not in the context: 1901"
    )


def test_other_languages_are_judged_by_their_wording_and_it_is_said() -> None:
    context = "Die Brücke in Bern wurde im Jahr 1844 gebaut. Sie ist blau und nicht rot."
    found = judged("Die Brücke wurde im Jahr 1844 gebaut und ist nicht rot, sondern blau.", context)
    assert isinstance(found, Verdict) and found.judge == "combined"
    assert found.explanation is not None and "by its wording alone" in found.explanation
    nothing = judged(" \n", context)
    assert isinstance(nothing, Abstention) and nothing.judge == "combined" and nothing.message
