"""A judge whose low scores mean hallucinated is measured, calibrated and corrected like any other."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import magistrate
from magistrate import Run, ScriptedEngine
from magistrate.errors import InputError, SpecError
from magistrate.judges.base import JudgeInfo
from magistrate.report.gates import results
from magistrate.store import Store
from magistrate.types import Sample, Scoring, Verdict
from terminal import Call

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


def rows(n: int = 120, unlabelled: int = 0) -> list[dict[str, Any]]:
    """Outputs that say how likely they are hallucinated, too sure of it."""
    source, found = random.Random(4), []
    for at in range(n + unlabelled):
        truth = source.random() < 0.4
        bad = min(max(source.gauss(0.75 if truth else 0.25, 0.3), 0.02), 0.98)
        label = ("hallucinated" if truth else "faithful") if at < n else None
        found.append({"output": f"{bad:.3f} {at}", "context": f"page {at}", "label": label})
    return found


def judge_file(home: Path, *, turned: bool) -> Path:
    path = home.parent / f"{'maximize' if turned else 'minimize'}.yaml"
    words = DEFINED.replace("NAME", "groundedness").replace("DIRECTION", path.stem)
    good, bad = ("1", "0") if turned else ("0", "1")
    path.write_text(words.replace("GOOD", good).replace("BAD", bad))
    return path


def judged(home: Path, *, turned: bool, data: list[dict[str, Any]], judge: str | None = None) -> Run:
    """A run of one judge of two that are each other turned round."""
    path = judge_file(home, turned=turned)
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
    assert "A low score of this judge means hallucinated" in one.remarks[0]
    assert one.to_dict()["direction"] == "maximize"
    assert not any("A low score" in each for each in other.remarks)
    (gate,) = results(["auroc>=0.8"], low)
    assert gate.passed


@pytest.mark.full
def test_a_calibration_is_the_same_either_way_and_is_applied_to_the_same_side(home: Path) -> None:
    data = rows()
    found = {each: magistrate.calibrate(judged(home, turned=each, data=data)) for each in (True, False)}
    assert found[True].file.turned and not found[False].file.turned
    assert '"turned"' not in found[False].file.text()
    slopes = [found[each].fit.calibrator.parameters["slope"][0] for each in (True, False)]
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-4) and slopes[0] > 0
    assert "A low score of this judge means hallucinated" in found[True].fit.remarks[0]
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


@pytest.mark.full
def test_a_corrected_share_is_the_same_either_way(home: Path) -> None:
    data = rows(120, 200)
    low, high = (
        magistrate.prevalence(judged(home, turned=each, data=data), using="score").estimates
        for each in (True, False)
    )
    assert low.corrected.value == pytest.approx(high.corrected.value)
    assert low.naive.value == pytest.approx(high.naive.value)


def of_three(said: list[tuple[str, float]], direction: str, store: Path, judge: str = "mine") -> Run:
    """A stored run of a judge of one's own, whose direction is declared and whose verdicts are these."""

    told = JudgeInfo(judge, labels=("faithful", "hallucinated"), direction=direction, kind="code")  # type: ignore[arg-type]

    class Mine:
        info = told

        async def judge(self, sample: Sample, engine: object) -> Verdict:
            label, score = said[int(sample.id[1:])]
            return Verdict(sample.id, judge, label, score)

    gold = ["faithful", "hallucinated", "faithful", "hallucinated"]
    rows = [
        {"id": f"s{at}", "output": f"o{at}", "context": f"c{at}", "label": gold[at % 4]}
        for at in range(len(said))
    ]
    return magistrate.evaluate(rows, Mine(), store=store, progress=False)


TRAPS = (
    # What was said, and the AUROC by the declared direction: guessing by labels turned the first of them.
    ([("faithful", 0.55), ("faithful", 0.69), ("faithful", 0.6)], "minimize", 1.0),
    ([("faithful", 0.55), ("faithful", 0.69), ("faithful", 0.6)], "maximize", 0.0),
    ([("faithful", 0.1), ("faithful", 0.2)], "maximize", 0.0),
    ([("hallucinated", 0.3), ("hallucinated", 0.4)], "minimize", 1.0),
    ([("faithful", 0.9), ("hallucinated", 0.2)], "maximize", 1.0),
    ([("faithful", 0.9), ("hallucinated", 0.2)], "minimize", 0.0),
    ([("hallucinated", 0.2), ("faithful", 0.3)], "minimize", 1.0),
)


@pytest.mark.full
def test_the_direction_is_the_declared_one_whatever_the_verdicts_are(tmp_path: Path) -> None:
    """In the report, a file of it, a comparison and an export, and as JSON."""
    wrong = []
    for number, (said, direction, area) in enumerate(TRAPS):
        store = tmp_path / f"{number}.db"
        run = of_three(said, direction, store)
        (judge,) = run.summary().judges
        assert judge.result is not None and judge.calibration is not None
        scores = [1 - each if direction == "maximize" else each for _, each in said]
        brier = sum((score - at % 2) ** 2 for at, score in enumerate(scores)) / len(scores)
        data = judge.to_dict()
        of_three([("faithful", 0.5)] * len(said), "minimize", store, "other")
        beside = magistrate.compare(run, Run(last(store), store)).sides[0].figures
        run.export(tmp_path / f"{number}.jsonl")
        rows = [json.loads(line) for line in (tmp_path / f"{number}.jsonl").read_text().splitlines()]
        found = {
            "auroc": judge.result.metrics["auroc"].value,
            "brier": pytest.approx(judge.calibration.brier),
            "compared auroc": beside["auroc"].value,
            "compared brier": pytest.approx(beside["brier"].value),
            "json": (data["direction"], data["threshold"], data["labels"]),
            "record": run.record.scoring["mine"],
            "rows": {each["direction"] for each in rows},
        }
        meant = {
            "auroc": area,
            "brier": brier,
            "compared auroc": area,
            "compared brier": brier,
            "json": (direction, None, ["faithful", "hallucinated"]),
            "record": Scoring(direction, ("faithful", "hallucinated"), None),  # type: ignore[arg-type]
            "rows": {direction},
        }
        wrong += [(number, name, found[name], meant[name]) for name in meant if found[name] != meant[name]]
    assert not wrong


def last(store: Path) -> str:
    with Store.open(store) as opened:
        return opened.find_run("last").id


def test_every_judge_stores_the_threshold_that_decides(tmp_path: Path) -> None:
    """The labels of a run follow from the scores, the direction and the threshold that it stores."""
    sample = {"id": "s", "context": "The pump ran.", "output": "The pump ran.", "expected": "The pump ran."}
    rows = [
        {**sample, "id": f"s{n}", "output": text}
        for n, text in enumerate(("The pump ran.", "It broke on 3 May."))
    ]
    engine = ScriptedEngine(lambda prompt: {"faithful": 0.6, "hallucinated": 0.4}, name="even")
    words = [
        "faithfulness", "faithfulness:threshold=.3,name=strict", "novelty", "exact", "rouge",
        "levenshtein", "sentences:of=novelty", "sentences:of=novelty,threshold=.9,name=sure",
    ]  # fmt: skip
    run = magistrate.evaluate(rows, words, model=engine, store=tmp_path / "r.db", progress=False)
    scoring = run.record.scoring
    assert len(scoring) == len(words)
    for each in run.outcomes():
        assert isinstance(each, Verdict), each
        told = scoring[each.judge]
        assert told.threshold is not None and each.label in told.labels, each.judge
        high = (each.score >= told.threshold) != told.turned
        assert high == (each.label in ("hallucinated",)) or each.label in ("match", "mismatch"), each


def test_a_judge_of_sentences_reads_the_direction_of_the_one_it_asks(home: Path) -> None:
    """A sentence that a judge of the other direction scores 0 is hallucinated, and so is the output."""
    data = [{"output": "0.9 is so. 0.9 is it.", "context": "c"}, {"output": "0.1 a. 0.1 b.", "context": "d"}]
    path = judge_file(home, turned=True)
    for words in (f"sentences:of=({path})", f"sentences:of=({path}),aggregate=mean"):
        run = magistrate.evaluate(data, words, model=ScriptedEngine(answer, name="told"), progress=False)
        said = {each.sample_id: (each.label, round(each.score, 6)) for each in run.outcomes()}  # type: ignore[union-attr]
        assert sorted(said.values()) == [("faithful", 0.1), ("hallucinated", 0.9)], words
        assert next(iter(run.record.scoring.values())).direction == "minimize"


def test_a_direction_that_contradicts_the_labels_is_refused_and_none_is_derived(home: Path) -> None:
    scores = {"faithful": 1, "hallucinated": 0}
    prompt = "{{ context }} {{ output }} {{ reply }}"
    asked = {"inputs": ("context", "output")}
    made = magistrate.classifier("own", prompt, scores, **asked)  # type: ignore[arg-type]
    assert made.info.direction == "maximize"
    with pytest.raises(SpecError, match="set direction to 'maximize', or swap the scores"):
        magistrate.classifier("own", prompt, scores, direction="minimize", **asked)  # type: ignore[arg-type]
    path = home.parent / "wrong.yaml"
    words = DEFINED.replace("NAME", "own").replace("DIRECTION", "minimize")
    path.write_text(words.replace("GOOD", "1").replace("BAD", "0"))
    with pytest.raises(SpecError, match=r"wrong.yaml.*set direction to 'maximize'"):
        magistrate.evaluate([], str(path), progress=False)
    path.write_text(path.read_text().replace("direction: minimize\n", ""))
    run = magistrate.evaluate(rows(20), str(path), model=ScriptedEngine(answer, name="t"), progress=False)
    assert run.record.scoring["own"] == Scoring("maximize", ("faithful", "hallucinated"), 0.5)


def test_an_older_run_is_read_and_says_what_is_not_known(home: Path, call: Call) -> None:
    """No figure of scores is guessed; everything that labels decide is as it was."""
    run = judged(home, turned=True, data=rows(80, 40))
    (known,) = run.summary().judges
    forget(run)
    (judge,) = run.summary().judges
    assert judge.result is not None and known.result is not None and judge.scoring is None
    area = judge.result.metrics["auroc"]
    assert area.value is None and "does not record whether a high or a low score" in str(area.undefined)
    for name in ("accuracy", "balanced_accuracy", "f1", "precision", "recall"):
        assert judge.result.metrics[name] == known.result.metrics[name]
    assert judge.calibration is None and judge.to_dict()["direction"] is None
    assert any(
        "There are no figures of its scores" in each and "run it again" in each for each in judge.remarks
    )
    shown = call("show", run.id, "--full")
    assert shown.code == 0 and "There are no figures of its scores" in " ".join(shown.out.split())
    (gate,) = results(["auroc>=0.1"], run.summary())
    assert not gate.passed
    run.export(home.parent / "old.html")
    assert "There are no figures of its scores" in (home.parent / "old.html").read_text()
    with pytest.raises(InputError, match="does not record whether a high or a low score means hallucinated"):
        magistrate.calibrate(run)
    with pytest.raises(InputError, match="run it again"):
        magistrate.prevalence(run, using="score")
    assert magistrate.prevalence(run).estimates.corrected.value is not None
    other = judged(home, turned=False, data=rows(80, 40))
    compared = magistrate.compare(run, other)
    assert compared.sides[0].figures["auroc"].value is None
    assert compared.pairs[0].differences["brier"].p is None
    assert compared.pairs[0].differences["balanced_accuracy"].value.value is not None
    assert any("AUROC and Brier score of" in each for each in compared.remarks)
    agreed = magistrate.agree(run, other.id)
    assert "scores" not in agreed.overall.figures


def test_a_run_does_not_go_on_with_a_judge_whose_scores_run_the_other_way(tmp_path: Path) -> None:
    run = of_three([("faithful", 0.2), ("hallucinated", 0.9)], "minimize", tmp_path / "r.db")
    with Store.open(run.store) as store:
        store.finish_run(run.id, "interrupted")

    class Other:
        info = JudgeInfo("mine", labels=("faithful", "hallucinated"), direction="maximize", kind="code")

        async def judge(self, sample: Sample, engine: object) -> Verdict:
            raise AssertionError("it is not asked")

    with pytest.raises(SpecError, match="mine's direction was 'minimize', is 'maximize'"):
        magistrate.resume(run, judges=Other(), progress=False)  # type: ignore[arg-type]


def test_two_judges_of_opposed_directions_agree_on_scores(home: Path) -> None:
    low, high = (judged(home, turned=each, data=rows(60)) for each in (True, False))
    assert magistrate.agree(low, high.id).overall.figures["scores"].value == pytest.approx(1)


def forget(run: Run) -> None:
    """Make a run one of a store that did not know how scores are read."""
    with sqlite3.connect(run.store) as store:
        store.execute("UPDATE runs SET scoring = '{}', revision = revision + 1 WHERE id = ?", [run.id])
    store.close()


def test_a_page_draws_turned_scores(home: Path) -> None:
    run = judged(home, turned=True, data=rows(40))
    run.export(home.parent / "page.html")
    (judge,) = run.summary().judges
    assert judge.calibration is not None
    told = f"Expected calibration error {judge.calibration.ece:.2f}".replace("0.", ".")
    assert told in (home.parent / "page.html").read_text()
