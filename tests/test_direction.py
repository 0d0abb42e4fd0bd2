"""A judge whose low scores mean hallucinated is measured, calibrated and corrected like any other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import magistrate
from magistrate import Run, ScriptedEngine
from magistrate.analysis.direction import of_outcomes
from magistrate.report.gates import results
from magistrate.types import Verdict

DEFINED = """\
name: NAME
direction: DIRECTION
inputs: [context, output]
prompt: "Context: {{ context }} Output: {{ output }} Faithful? {{ reply }}"
labels:
  faithful: GOOD
  hallucinated: BAD
"""


def answer(prompt: Any) -> dict[str, float]:
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    bad = float(output.split()[0])
    return {"hallucinated": bad, "faithful": 1 - bad}


def rows(n: int = 240, unlabelled: int = 0) -> list[dict[str, Any]]:
    """Outputs that say how likely they are hallucinated, too sure of it."""
    source, found = random.Random(4), []
    for at in range(n + unlabelled):
        truth = source.random() < 0.4
        bad = min(max(source.gauss(0.75 if truth else 0.25, 0.3), 0.02), 0.98)
        label = ("hallucinated" if truth else "faithful") if at < n else None
        found.append({"output": f"{bad:.3f} {at}", "context": f"page {at}", "label": label})
    return found


def judged(home: Path, *, turned: bool, data: list[dict[str, Any]], judge: str | None = None) -> Run:
    """A run of one judge of two that are each other turned round."""
    path = home.parent / f"{'maximize' if turned else 'minimize'}.yaml"
    words = DEFINED.replace("NAME", "groundedness").replace("DIRECTION", path.stem)
    good, bad = ("1", "0") if turned else ("0", "1")
    path.write_text(words.replace("GOOD", good).replace("BAD", bad))
    return magistrate.evaluate(
        data, judge or str(path), model=ScriptedEngine(answer, name="told"), progress=False
    )


def test_a_report_is_the_same_either_way_and_says_so(home: Path) -> None:
    low, high = (judged(home, turned=each, data=rows()).summary() for each in (True, False))
    (one,), (other,) = low.judges, high.judges
    assert one.turned and not other.turned
    assert one.result is not None and other.result is not None
    assert one.result.metrics["auroc"].value == pytest.approx(other.result.metrics["auroc"].value)
    assert one.result.metrics["auroc"].value > 0.8  # type: ignore[operator]
    assert one.calibration is not None and other.calibration is not None
    for name in ("ece", "brier", "log_loss"):
        assert getattr(one.calibration, name) == pytest.approx(getattr(other.calibration, name))
    assert "a low score means hallucinated" in one.remarks[0] and one.to_dict()["scores_turned"]
    assert not any("low score" in each for each in other.remarks)
    (gate,) = results(["auroc>=0.8"], low)
    assert gate.passed


def test_a_calibration_is_the_same_either_way_and_is_applied_to_the_same_side(home: Path) -> None:
    data = rows()
    found = {each: magistrate.calibrate(judged(home, turned=each, data=data)) for each in (True, False)}
    assert found[True].file.turned and not found[False].file.turned
    assert '"turned"' not in found[False].file.text()
    slopes = [found[each].fit.calibrator.parameters["slope"][0] for each in (True, False)]
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-4) and slopes[0] > 0
    assert "a low score of this judge means hallucinated" in found[True].fit.remarks[0]
    saved = found[True].save(home.parent / "low.json")
    words = f"calibrated:of=({home.parent / 'maximize.yaml'}),file={saved}"
    run = judged(home, turned=True, data=data, judge=words)
    for outcome in run.outcomes():
        assert isinstance(outcome, Verdict)
        raw = 1 - outcome.details["raw_score"]
        assert outcome.score == pytest.approx(found[True].fit.calibrator(raw))
    (after,) = run.summary().judges
    assert after.result is not None and not after.turned
    assert after.result.metrics["auroc"].value > 0.8  # type: ignore[operator]


def test_a_corrected_share_is_the_same_either_way(home: Path) -> None:
    data = rows(120, 200)
    low, high = (
        magistrate.prevalence(judged(home, turned=each, data=data), using="score").estimates
        for each in (True, False)
    )
    assert low.corrected.value == pytest.approx(high.corrected.value)
    assert low.naive.value == pytest.approx(high.naive.value)


def verdict(label: str, score: float, probability: float | None = None, at: int = 0) -> Verdict:
    return Verdict(f"s{at}", "j", label, score, probability=probability)


@pytest.mark.parametrize(
    ("verdicts", "turned"),
    [
        ([("faithful", 0.9), ("hallucinated", 0.2)], True),
        ([("faithful", 0.3), ("hallucinated", 0.2), ("hallucinated", 0.31)], False),
        ([("faithful", 0.2), ("hallucinated", 0.2)], False),
        ([("faithful", 0.9, 0.9), ("faithful", 0.6, 0.6)], True),
        ([("faithful", 1.0)], True),
        # A threshold of .2: all are flagged, at scores that are their probabilities.
        ([("hallucinated", 0.3, 0.3), ("hallucinated", 0.4, 0.4)], False),
        ([("hallucinated", 0.9, 0.9)], False),
        ([("curt", 0.9), ("rude", 0.1)], False),
        ([], False),
    ],
)
def test_the_direction_is_what_all_verdicts_together_say(verdicts: list[Any], turned: bool) -> None:
    assert of_outcomes([verdict(*each, at=at) for at, each in enumerate(verdicts)]) is turned  # type: ignore


def test_a_page_draws_turned_scores(home: Path) -> None:
    run = judged(home, turned=True, data=rows(40))
    run.export(home.parent / "page.html")
    (judge,) = run.summary().judges
    assert judge.calibration is not None
    told = f"Expected calibration error {judge.calibration.ece:.2f}".replace("0.", ".")
    assert told in (home.parent / "page.html").read_text()
