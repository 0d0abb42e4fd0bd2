"""A calibrated judge is the judge with another score, and refuses whatever it was not calibrated for."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

import magistrate
from magistrate import Limits, ScriptedEngine
from magistrate.analysis.calibration import file_of, fit
from magistrate.analysis.columns import Columns
from magistrate.api.audit import audit_judge
from magistrate.api.calibrate import calibrate
from magistrate.errors import SpecError
from magistrate.judges import Windows, registry
from magistrate.judges.calibrated import Calibrated, calibrated, words_of
from magistrate.judges.calibration_file import read_calibration, write_calibration
from magistrate.metrics.thresholds import Aim
from magistrate.runs.execute import check_stream, judge_one
from magistrate.runs.prepare import recipe
from magistrate.store import Store
from magistrate.types import Abstention, Claim, Failure, Prompt, Sample, Span, Verdict
from terminal import Call
from two_judges import LOW_IS_GOOD


def by_number(prompt: Prompt) -> Any:
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    if output.startswith("break"):
        return ValueError("broken")
    score = float(output.split()[0])
    return {"faithful": 1 - score, "hallucinated": score}


def engine(name: str = "told") -> ScriptedEngine:
    return ScriptedEngine(by_number, name=name)


def fitted(path: Path, words: str = "faithfulness", *, model: str = "told", aim: Aim | None = None) -> Path:
    """A calibration of a judge that is too sure, written to `path`."""
    random = np.random.default_rng(0)
    truth = random.random(200) < 0.3
    scores = np.clip(random.normal(0.4 + 0.4 * truth, 0.25), 0.001, 0.999)
    told = Columns(
        words, tuple(map(str, range(200))), truth, scores >= 0.5, scores, np.arange(200) // 2, {}, LOW_IS_GOOD
    )
    judge = registry.judge(words)
    made = file_of(
        fit(told, aim=aim, draws=50), recipe(judge, engine(model), 0), judge.info.name, "rows", "d" * 64
    )
    write_calibration(made, path, replace=True)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return fitted(tmp_path / "cal.json")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    """The model of every command."""
    made = engine()
    monkeypatch.setattr("magistrate.engines.registry._opened", lambda *_: made)
    return made


def written(n: int = 10) -> Path:
    path = Path("answers.jsonl")
    rows = [{"id": f"s{at}", "output": f"{at / n:.2f} x", "context": "c"} for at in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# --- the verdict --------------------------------------------------------------------------------


def one(judge: Any, output: str, model: ScriptedEngine | None = None) -> Any:
    return asyncio.run(judge_one(Sample("s", output, ("c",)), judge, model or engine()))


@pytest.mark.parametrize("score", ["0.01", "0.30", "0.55", "0.99"])
def test_score_label_and_probability_are_the_calibrations(score: str, file: Path) -> None:
    told = read_calibration(file)
    raw, now = one(registry.judge("faithfulness"), score), one(Calibrated(file=file), score)
    assert now.score == pytest.approx(told.calibrator(float(score)))
    assert now.label == ("hallucinated" if now.score >= told.threshold else "faithful")
    assert now.probability == pytest.approx(max(now.score, 1 - now.score))
    assert (now.details["raw_score"], now.details["raw_label"]) == (raw.score, raw.label)
    assert now.details["calibration"] == told.digest
    assert (now.mass, now.steps[0].prompt, now.usage) == (raw.mass, raw.steps[0].prompt, raw.usage)


def test_the_threshold_is_that_of_the_file(tmp_path: Path) -> None:
    low = Calibrated(file=fitted(tmp_path / "low.json", aim=Aim("recall", least=1.0)))
    assert low.calibration.threshold < 0.3
    found = one(low, "0.50")
    assert found.label == "hallucinated" and found.probability == found.score < 0.5


def test_claims_stay_and_an_explanation_agrees_with_the_label_that_it_leads_to(file: Path) -> None:
    claim = Claim("unsupported", Span(0, 1))
    verdict = Verdict(
        "s",
        "j",
        "hallucinated",
        0.51,
        0.51,
        "because",
        True,
        claims=(claim,),
        details={"flag": ["x"], "n": 1},
    )
    by = read_calibration(file)
    found = calibrated(verdict, by)
    assert found.label == "faithful"
    assert (found.claims, found.explanation, found.explanation_agrees) == ((claim,), "because", False)
    assert "flag" not in found.details and found.details["n"] == 1
    kept = Verdict("s", "j", "hallucinated", 0.99, explanation_agrees=True)
    assert calibrated(kept, by).explanation_agrees is True
    assert calibrated(Verdict("s", "j", "faithful", 0.5), by).explanation_agrees is None


def test_failures_and_abstentions_pass_as_they_are(file: Path) -> None:
    judge = Calibrated(file=file)
    assert isinstance(one(judge, "break"), Failure)
    alone = asyncio.run(judge_one(Sample("s", "0.5", ()), judge, engine()))
    assert isinstance(alone, Abstention) and alone.reason == "no_context" and alone.judge == "calibrated"
    small = ScriptedEngine(by_number, name="told", context_window=10)
    long = one(judge, "0.5 " + "word " * 50, small)
    assert isinstance(long, Abstention) and long.reason == "over_length"


# --- what it refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("faithfulness:permute=true", "judge 'faithfulness@2' there, 'faithfulness:permute=true@2' here"),
        ("faithfulness:threshold=0.4", "threshold=0.4@2"),
        ("hallucination", "prompt"),
        ("windows", "windows:of=faithfulness@2@2"),
        ("relevance", "needs a judge with the labels 'faithful' and 'hallucinated'"),
    ],
)
def test_another_judge_is_refused_when_it_is_made(words: str, says: str, file: Path) -> None:
    with pytest.raises(SpecError, match=says.replace("(", r"\(")):
        registry.judge(f"calibrated:of=({words}),file={file}")


def test_another_model_is_refused_before_anything_is_asked(file: Path) -> None:
    judge, other = Calibrated(file=file), engine("other")
    for asked in (judge, Windows(judge)):
        with pytest.raises(SpecError, match=r"fitted to answers of told \(.*this model is other"):
            check_stream([asked], other.info)
    found = one(judge, "0.5", other)
    assert isinstance(found, Failure) and "calibrated for told" in found.message
    assert other.prompts == []


def test_without_a_file_it_is_listed_and_judges_nothing(call: Call, scripted: ScriptedEngine) -> None:
    bare = registry.judge("calibrated")
    with pytest.raises(SpecError, match="magistrate calibrate"):
        check_stream([bare], engine().info)
    assert isinstance(one(bare, "0.5"), Failure)
    assert "calibrated" in {each["name"] for each in call("judges", "--json").data}
    assert call("judge", "--output", "x", "--context", "c", "--judge", "calibrated").code == 2


def test_it_is_spelled_by_the_name_of_its_file(file: Path, tmp_path: Path) -> None:
    judge = registry.judge(f"calibrated:of=faithfulness,file={file}")
    assert judge.info.name == "calibrated:of=faithfulness,file=cal.json"
    assert words_of(judge) == "calibrated:file=cal.json@2"
    moved = shutil.copy(file, tmp_path / "sub.json")
    assert registry.judge(f"calibrated:file={moved}").info.prompt == judge.info.prompt
    other = fitted(tmp_path / "cal.json", aim=Aim("recall", least=0.9))
    assert registry.judge(f"calibrated:file={other}").info.prompt != judge.info.prompt


# --- runs ---------------------------------------------------------------------------------------


def test_a_run_with_a_calibration_wraps_its_judge(call: Call, scripted: ScriptedEngine, file: Path) -> None:
    done = call("run", written(), "--calibration", file, "--judge", "faithfulness", "--json")
    assert done.code == 0, done.err
    assert list(done.data["judges"]) == ["calibrated:of=faithfulness,file=cal.json"]
    recipe_line = done.data["judges"]["calibrated:of=faithfulness,file=cal.json"]["recipe"]
    assert read_calibration(file).digest in recipe_line and str(file.parent) not in recipe_line
    one_sample = call(
        "judge",
        "--context",
        "c",
        "--output",
        "0.3 x",
        "--calibration",
        file,
        "--json",
        "--judge",
        "faithfulness",
    )
    assert one_sample.data["details"]["raw_score"] == pytest.approx(0.3)


def test_a_calibration_of_no_judge_that_is_asked_is_refused(
    call: Call, scripted: ScriptedEngine, file: Path
) -> None:
    done = call("run", written(), "--calibration", file, "--judge", "hallucination")
    assert done.code == 2 and "was made for the judge faithfulness@2" in done.err
    twice = call("run", written(), "--calibration", file, "--calibration", file, "--judge", "faithfulness")
    assert twice.code == 2 and "two calibrations" in twice.err
    gone = call("run", written(), "--calibration", "gone.json", "--judge", "faithfulness")
    assert gone.code == 2 and "cannot read gone.json" in gone.err


def test_another_model_ends_the_command_before_there_is_a_run(
    call: Call, monkeypatch: pytest.MonkeyPatch, file: Path, home: Path
) -> None:
    monkeypatch.setattr("magistrate.engines.registry._opened", lambda *_: engine("other"))
    done = call("run", written(), "--calibration", file, "--judge", "faithfulness")
    assert done.code == 2 and "calibrate or train it with this model" in done.err
    assert not (home / "magistrate.db").exists()


def test_a_run_is_resumed_from_elsewhere_by_the_file_that_it_had(
    call: Call, scripted: ScriptedEngine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert file.parent == Path.cwd()
    assert (
        call(
            "run", written(), "--calibration", "cal.json", "--max-tokens", 1000, "--judge", "faithfulness"
        ).code
        == 3
    )
    (elsewhere := Path("elsewhere")).mkdir()
    monkeypatch.chdir(elsewhere)
    done = call("resume", "last", "--max-tokens", 1_000_000, "--json")
    assert done.code == 0, done.err
    (judge,) = done.data["judges"].values()
    assert judge["n_ok"] == 10


def test_a_changed_file_is_refused_and_the_same_one_is_not(
    call: Call, scripted: ScriptedEngine, file: Path
) -> None:
    assert (
        call(
            "run", written(), "--calibration", "cal.json", "--max-tokens", 1000, "--judge", "faithfulness"
        ).code
        == 3
    )
    kept = file.read_bytes()
    fitted(file, aim=Aim("recall", least=0.9))
    done = call("resume", "last", "--max-tokens", 1_000_000)
    assert done.code == 2 and "prompt was" in done.err
    file.unlink()
    assert "cannot read" in call("resume", "last").err
    file.write_bytes(kept)
    assert call("resume", "last", "--max-tokens", 1_000_000).code == 0


def test_a_run_file_names_it_beside_itself(call: Call, scripted: ScriptedEngine, file: Path) -> None:
    written()
    folder = Path("specs")
    folder.mkdir()
    shutil.copy(file, folder / "c.json")
    (folder / "run.yaml").write_text(
        "dataset: ../answers.jsonl\njudges:\n- calibrated: {of: faithfulness, file: c.json}\n- faithfulness\n"
    )
    done = call("run", "--spec", folder / "run.yaml", "--json")
    assert done.code == 0, done.err
    assert list(done.data["judges"]) == ["calibrated:of=faithfulness,file=c.json", "faithfulness"]
    with Store.open(Path("home") / "magistrate.db") as store:
        kept = store.find_run("last").settings["spec"]
    yaml = YAML(typ="safe")
    yaml.dump(kept, Path("again.yaml"))
    again = call("run", "--spec", "again.yaml", "--new", "--json")
    assert again.code == 0, again.err
    assert again.data["judges"].keys() == done.data["judges"].keys()


def test_in_python_it_is_an_object_or_its_words(home: Path, file: Path) -> None:
    rows = [{"output": f"{at / 10} x", "context": "c"} for at in range(8)]
    for judge in (Calibrated(file=file), f"calibrated:file={file}"):
        run = magistrate.evaluate(rows, judge, model=engine(), limits=Limits(max_tokens=900), progress=False)
        assert run.record.status == "interrupted"
        magistrate.resume(
            run,
            dataset=rows,
            model=engine(),
            limits=Limits(),
            progress=False,
            judges=None if (isinstance(judge, str)) else judge,
        )
        assert (run.record.status, run.record.n_verdicts) == ("done", 8)


@pytest.mark.full
def test_what_was_calibrated_is_calibrated_when_it_is_used(home: Path) -> None:
    """From labels to a file to a run on other samples: the shares are what the scores say."""

    def rows(n: int, seed: int) -> list[Any]:
        random = np.random.default_rng(seed)
        truth = random.random(n) < 0.35
        scores = np.clip(1 / (1 + np.exp(-3 * (random.normal(size=n) + 1.5 * truth - 0.3))), 1e-6, 1 - 1e-6)
        return [
            {
                "context": f"c{seed} {at}",
                "output": f"{score:.6f} {at}",
                "label": ("faithful", "hallucinated")[int(label)],
            }
            for at, (score, label) in enumerate(zip(scores, truth, strict=True))
        ]

    calibrate(magistrate.evaluate(rows(500, 1), "faithfulness", model=engine(), progress=False)).save(
        "c.json"
    )
    words = ["faithfulness", "calibrated:file=c.json"]
    report = magistrate.evaluate(rows(500, 2), words, model=engine(), progress=False).summary()
    raw, now = (each.calibration for each in report.judges)
    assert raw is not None and now is not None
    assert now.ece < 0.08 < 0.12 < raw.ece
    assert now.brier < raw.brier and now.log_loss < raw.log_loss


@pytest.mark.parametrize("words", ["faithfulness", "rubric"])
def test_an_audit_goes_on_without_the_checks_that_would_change_the_prompt(tmp_path: Path, words: str) -> None:
    judge = Calibrated(registry.judge(words), fitted(tmp_path / "cal.json", words))
    rows = [{"output": f"{at / 10:.2f} x", "context": "c"} for at in range(3)]
    checks = ["repeated", "options_swapped", "reasons"]
    found = {each.name: each for each in audit_judge(judge, rows, model=engine(), checks=checks).findings}
    assert found["repeated"].effect is not None
    pinned = ["reasons"] + (["options_swapped"] if words == "faithfulness" else [])
    for name in pinned:
        assert found[name].effect is None
        assert "only valid for one prompt" in str(found[name].not_applicable)
