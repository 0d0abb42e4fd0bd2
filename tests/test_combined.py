"""The judge `combined`: the detector and `novelty` added up, what it shows for it, when it abstains."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magistrate.detectors import large
from magistrate.engines.none import NONE
from magistrate.judges import combined
from magistrate.judges.combined import Combined, Weights, log_odds
from magistrate.judges.novelty import Novelty
from magistrate.types import Abstention, Outcome, Sample, Verdict
from tiny_detector import change, write_detector

BRIDGE = "The bridge in Bern was built in 1844. It is blue. The town is old and large."
TEXTS = (BRIDGE, "painted red new", "Anna paid 900 euros for it")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A large detector that is tiny, and weights that are easy to add up."""
    made = write_detector(tmp_path / "tiny", TEXTS)
    monkeypatch.setattr(large, "folder_of_large", lambda: made)
    monkeypatch.setattr(combined, "weights", lambda: Weights(-0.5, 1.0, 0.5, "test"))
    return made


def judged(output: str, *context: str, **options: float) -> Outcome:
    return asyncio.run(Combined(**options).judge(Sample("s", output, context or (BRIDGE,)), NONE))


def verdict(output: str, **options: float) -> Verdict:
    found = judged(output, **options)
    assert isinstance(found, Verdict), found
    return found


def test_the_score_adds_the_log_odds_of_both() -> None:
    for output in ("The bridge is blue.", "It is painted red.", "Anna paid 900 euros.", "The town is new."):
        found = verdict(output)
        counted = asyncio.run(Novelty().judge(Sample("s", output, (BRIDGE,)), NONE))
        assert isinstance(counted, Verdict)
        compared = Combined().detector.verdict(Sample("s", output, (BRIDGE,)))
        assert isinstance(compared, Verdict)
        odds = -0.5 + log_odds(compared.score) + 0.5 * log_odds(counted.score)
        assert log_odds(found.score) == pytest.approx(odds, abs=1e-6)
        assert (found.label == "hallucinated") == (found.score >= 0.5)
        assert bool(found.claims) == (found.label == "hallucinated"), "what is flagged is shown"
        rare = verdict(output, base_rate=0.1)
        assert log_odds(rare.score) == pytest.approx(odds + log_odds(0.1), abs=1e-6)


def test_claims_are_sentences_and_besides_them_what_is_nowhere_in_the_context() -> None:
    told = "The bridge in Bern was built in 1844 and in 1901. Painted red. Anna paid."
    found = verdict(told)
    kinds = {claim.output_text: claim.kind for claim in found.claims}
    assert kinds == {"1901": "unsupported", "Painted red": "contradiction", "Anna paid": "unsupported"}
    for claim in found.claims:
        assert told[claim.output_quote.start : claim.output_quote.end] == claim.output_text
    assert found.explanation == (
        "the context contradicts 1 place of the output; the context does not hold 2 places of the output"
    )
    assert verdict("It is blue.").explanation == "the context supports what each sentence says"


def test_what_novelty_alone_finds_has_a_claim_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(folder, offset=-3.0)  # the detector is content with everything
    monkeypatch.setattr(combined, "weights", lambda: Weights(0.0, 0.1, 2.0, "test"))
    found = verdict("Anna paid 900 euros for it in Geneva, and Bertha Miller 800 dollars in Zug.")
    assert found.label == "hallucinated" and found.claims


def test_it_abstains_where_the_detector_does_and_says_why() -> None:
    for output in ("Die Brücke wurde im Jahr 1844 gebaut und ist nicht rot, sondern blau.", " \n"):
        found = judged(output, "Die Brücke in Bern wurde im Jahr 1844 gebaut. Sie ist blau und nicht rot.")
        assert isinstance(found, Abstention) and found.judge == "combined" and found.message
