"""A report says when the threshold is the problem, and when a calibration was made for other data."""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import magistrate
from magistrate import Run, ScriptedEngine
from magistrate.judges.calibration_file import read_calibration
from magistrate.metrics.calibration import MOST_KEPT, reference, score_shift
from magistrate.metrics.thresholds import threshold_gain
from magistrate.report.values import JudgeReport
from magistrate.types import Prompt
from terminal import Call

PROBLEM = "The threshold is the problem, not the ranking"
FOREIGN = "Its calibration was fitted to other data"


def by_number(prompt: Prompt) -> dict[str, float]:
    """The model thinks of an output what the output says it thinks."""
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    score = float(output.split()[0])
    return {"faithful": 1 - score, "hallucinated": score}


def rows(
    n: int, middle: float, apart: float = 0.2, seed: int = 0, spread: float = 0.07
) -> list[dict[str, Any]]:
    """Every other output is hallucinated and scores higher; a threshold in the `middle` tells them apart."""
    source, found = random.Random(seed), []
    for at in range(n):
        bad = at % 2 == 1
        score = min(max(source.gauss(middle + (apart / 2 if bad else -apart / 2), spread), 0.001), 0.999)
        label = "hallucinated" if bad else "faithful"
        found.append({"id": f"s{at}", "output": f"{score:.5f} {at}", "context": f"c{at}", "label": label})
    return found


def judged(data: list[dict[str, Any]], name: str, judges: str | Sequence[str] = "faithfulness") -> Run:
    engine = ScriptedEngine(by_number, name="told")
    return magistrate.evaluate(data, judges, model=engine, name=name, progress=False)


def only(run: Run) -> JudgeReport:
    (judge,) = run.summary().judges
    return judge


def told(judge: JudgeReport, beginning: str) -> str | None:
    return next((each for each in judge.remarks if each.startswith(beginning)), None)


# --- the threshold is the problem ------------------------------------------------------------------


def test_a_threshold_that_is_the_problem_is_told_with_a_command_that_works(home: Path, call: Call) -> None:
    """Scores that rank well and all lie below .5: AUROC .97, balanced accuracy about a half."""
    run = judged(rows(200, 0.25), "lab")
    judge = only(run)
    assert judge.result is not None
    assert judge.result.metrics["auroc"].value > 0.95  # type: ignore[operator]
    assert judge.result.metrics["balanced_accuracy"].value < 0.6  # type: ignore[operator]
    remark = told(judge, PROBLEM)
    assert remark is not None and "at its threshold .50" in remark
    run.export(home.parent / "page.html")
    places = {
        "show": " ".join(call("show", "lab", "--full").out.split()),
        "page": (home.parent / "page.html").read_text(),
        "data": json.dumps(run.summary().to_dict()),
    }
    assert [name for name, text in places.items() if PROBLEM not in text] == []
    gain = judge.to_dict()["threshold_gain"]
    assert gain["shown"] and gain["held_out"] == pytest.approx(0.92, abs=0.06)
    (command,) = re.findall(r"magistrate calibrate \S+ .*?\.json", remark)
    assert command in judge.to_dict()["remarks"][judge.remarks.index(remark)]
    done = call(*shlex.split(command)[1:])
    assert done.code == 0, done.err
    file = shlex.split(command)[-1]
    assert read_calibration(Path(file)).aim == "maximize balanced_accuracy"
    after = only(judged(rows(200, 0.25, seed=1), "after", f"calibrated:of=faithfulness,file={file}"))
    assert after.result is not None and told(after, PROBLEM) is None and told(after, FOREIGN) is None
    assert after.result.metrics["balanced_accuracy"].value > 0.85  # type: ignore[operator]


@pytest.mark.full
def test_it_is_not_told_where_it_is_not_the_problem(home: Path) -> None:
    cases = {
        "a good threshold": rows(200, 0.5),
        "a bad ranking": rows(200, 0.25, apart=0.0),
        "too few samples to choose one": rows(40, 0.25),
        "no labels": [{k: v for k, v in row.items() if k != "label"} for row in rows(200, 0.25)],
        "one context for all": [{**row, "context": "c"} for row in rows(200, 0.25)],
    }
    assert [name for name, data in cases.items() if told(only(judged(data, name)), PROBLEM)] == []


def test_a_threshold_that_was_chosen_for_an_aim_is_left_alone(home: Path, call: Call) -> None:
    """Who asked for a recall of .99 has given balanced accuracy away; who asked for nothing has not."""
    judged(rows(200, 0.5, apart=0.16), "lab")
    assert call("calibrate", "lab", "--costs", "60/1", "--to", "careful.json").code == 0
    run = judged(
        rows(200, 0.5, apart=0.16, seed=2), "careful", "calibrated:of=faithfulness,file=careful.json"
    )
    judge = only(run)
    assert judge.threshold_gain is not None and judge.threshold_gain.shown
    assert told(judge, PROBLEM) is None


def test_several_judges_and_odd_names_have_a_command_of_their_own(home: Path, call: Call) -> None:
    run = judged(rows(120, 0.25), "two", ["faithfulness", "faithfulness:name=strict,threshold=.6"])
    for judge in run.summary().judges:
        remark = told(judge, PROBLEM)
        assert remark is not None and f"--judge {judge.judge} " in remark
        (command,) = re.findall(r"magistrate calibrate \S+ .*?\.json", remark)
        assert call(*shlex.split(command)[1:]).code == 0


def test_a_good_threshold_is_seldom_called_a_problem() -> None:
    """A judge that cuts where its population is best cut: at most 1 in 40 reports says otherwise.

    Many contexts and few, samples that share them, rare hallucinations; of n reports at most the 99.9 % point
    of a binomial may. A threshold that costs .15 of balanced accuracy is told of nearly always.
    """
    cases = [(60, 1, 0.5), (200, 1, 0.1), (300, 1, 0.3), (240, 12, 0.5), (120, 6, 0.4)]
    wrong = []
    for case in cases:
        shown = sum(gained(*case, seed=seed) for seed in range(120))
        if shown > binom.ppf(0.999, 120, 0.025):
            wrong.append((case, shown))
    assert wrong == []
    assert sum(gained(200, 1, 0.5, off=1.2, seed=seed) for seed in range(60)) >= 55


def gained(n: int, shared_by: int, rate: float, *, off: float = 0.0, seed: int) -> bool:
    """Whether a gain is shown for normal scores two spreads apart that are cut `off` the best place."""
    source = np.random.default_rng(seed)
    groups = np.arange(n) // shared_by
    truth = source.random(n) < rate
    spread = source.normal(0, 0.7, n)[groups] if shared_by > 1 else 0.0
    scores = 1 / (1 + np.exp(-(2 * truth - 1 + source.normal(0, 1, n) + spread - off)))
    found = threshold_gain(truth, scores >= 0.5, scores, groups)
    return found is not None and found.shown


# --- a calibration and other data ------------------------------------------------------------------


@pytest.mark.full
def test_a_calibration_on_data_unlike_its_own_says_so(home: Path, call: Call) -> None:
    """Labels are not needed to see it, and the same kind of data is not called another."""
    judged(rows(200, 0.4), "lab")
    assert call("calibrate", "lab", "--to", "f.json").code == 0
    words = "calibrated:of=faithfulness,file=f.json"
    assert told(only(judged(rows(200, 0.4, seed=5), "alike", words)), FOREIGN) is None
    bare = [{k: v for k, v in row.items() if k != "label"} for row in rows(120, 0.7, seed=6)]
    run = judged(bare, "unlike", words)
    judge = only(run)
    remark = told(judge, FOREIGN)
    assert remark is not None and "120 contexts here, 200 there" in remark and "rows" in remark
    assert "magistrate calibrate" in remark
    shift = judge.to_dict()["score_shift"]
    assert shift["shown"] and shift["p"] < 0.001 and shift["distance"] > 0.5
    assert FOREIGN in " ".join(call("show", "unlike", "--full").out.split())
    Path("f.json").unlink()  # the run itself holds what it is held against
    assert told(only(run), FOREIGN) == remark


def test_a_file_of_an_older_magistrate_is_read_and_cannot_tell(home: Path, call: Call) -> None:
    judged(rows(200, 0.4), "lab")
    assert call("calibrate", "lab", "--to", "f.json").code == 0
    new = json.loads(Path("f.json").read_text())
    assert new["format"] == 2 and len(new["scores"]) == 200
    old = {name: value for name, value in new.items() if name != "scores"} | {"format": 1}
    Path("f.json").write_text(json.dumps(old, indent=2) + "\n")
    assert read_calibration(Path("f.json")).text() == Path("f.json").read_text()
    judge = only(judged(rows(60, 0.9), "old", "calibrated:of=faithfulness,file=f.json"))
    assert judge.shift is None
    assert told(judge, "It is unknown whether its calibration on rows is valid here") is not None


def test_the_base_rate_of_a_calibration_is_that_of_what_it_is_held_against() -> None:
    source = np.random.default_rng(0)
    truth = source.random(4000) < 0.5
    scores = np.where(truth, 0.9, 0.1)
    kept = reference(scores, truth, np.arange(4000), 0.2)
    assert len(kept) == MOST_KEPT and np.mean(kept) == pytest.approx(0.2 * 0.9 + 0.8 * 0.1, abs=0.04)
    assert list(kept) == sorted(kept)


def test_a_shift_is_seldom_seen_where_there_is_none_and_seen_where_there_is() -> None:
    """At a level of .01, many contexts and few, shared or not, few different scores or many.

    Of n runs at most the 99.9 % point of a binomial may have one.
    """
    cases = [(50, 50, 1, 0), (200, 500, 1, 0), (200, 200, 1, 4), (240, 240, 6, 0), (300, 120, 1, 1)]
    wrong = []
    for case in cases:
        seen = sum(shifted(*case, 0.0, seed=seed) for seed in range(200))
        if seen > binom.ppf(0.999, 200, 0.01):
            wrong.append((case, seen))
    assert wrong == []
    assert sum(shifted(200, 200, 1, 0, 0.15, seed=seed) for seed in range(40)) >= 38


def shifted(n: int, before: int, shared_by: int, steps: int, by: float, *, seed: int) -> bool:
    """Whether `n` scores are seen to come from elsewhere than as many `before`, moved `by` so much."""
    source = np.random.default_rng(seed)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        groups = np.arange(count) // shared_by
        scores = 1 / (1 + np.exp(-source.normal(0, 0.7, count) - source.normal(0, 0.7, count)[groups]))
        return (np.round(scores * steps) / steps if steps else scores), groups

    scores, groups = drawn(before)
    kept = reference(scores, source.random(before) < 0.4, groups)
    scores, groups = drawn(n)
    found = score_shift(np.clip(scores + by, 0, 1), groups, kept)
    return found is not None and found.shown
