"""What a gate says of figures, and what a script sees of it."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML
from sklearn.metrics import brier_score_loss
from statsmodels.stats.proportion import proportion_confint

from magistrate import ScriptedEngine, cli
from magistrate.errors import EngineError, SpecError
from magistrate.metrics.classification import METRICS
from magistrate.report import Report, RunFacts, summarize
from magistrate.report.gates import FIGURES, Gate, results
from magistrate.types import Failure, Outcome, Prompt, Sample, Scoring, Verdict
from terminal import Call


def report(
    n: int = 40, *, wrong: int = 8, failed: int = 0, labelled: bool = True, status: str = "done"
) -> Report:
    """Half of n samples are hallucinated; the judge is wrong about the first few, and fails on the last."""
    labels = ["hallucinated" if at % 2 else "faithful" for at in range(n)]
    samples = {str(at): Sample(str(at), "x", label=labels[at] if labelled else None) for at in range(n)}
    outcomes: list[Outcome] = []
    for at, label in enumerate(labels):
        said = {"faithful": "hallucinated", "hallucinated": "faithful"}[label] if at < wrong else label
        outcomes.append(Verdict(str(at), "j", said, float(said == "hallucinated")))
    outcomes[n - failed :] = [Failure(str(at), "j", "timeout", "slow") for at in range(n - failed, n)]
    return summarize(RunFacts("r", "r", "d", status, n), samples, outcomes, {}, {"j": Scoring("minimize")})


def said(gate: str, found: Report) -> tuple[bool, str]:
    (result,) = results([gate], found)
    return result.passed, result.reason


LOW, HIGH = proportion_confint(32, 40, method="wilson")  # accuracy of 32 of 40


@pytest.mark.parametrize(
    ("gate", "passed"),
    [
        ("accuracy>=0.8", True),
        ("accuracy>=0.81", False),
        ("accuracy<=0.8", True),
        ("accuracy<=0.79", False),
        (f"lower(accuracy)>={LOW - 0.001:.4f}", True),
        (f"lower(accuracy)>={LOW + 0.001:.4f}", False),
        (f"upper(accuracy)<={HIGH + 0.001:.4f}", True),
        (f"upper(accuracy)<={HIGH - 0.001:.4f}", False),
        ("j.f1 >= 0.5", True),
        ("j.lower(f1)>=0.99", False),
        ("coverage>=1", True),
        ("failures<=0", True),
        ("abstentions<=0", True),
    ],
)
def test_a_gate_holds_a_figure_or_an_end_of_its_interval(gate: str, passed: bool) -> None:
    assert said(gate, report())[0] is passed


def test_the_reason_has_the_figure_its_interval_and_n() -> None:
    assert said("lower(accuracy)>=0.9", report()) == (
        False,
        f"lower(accuracy) is {LOW:.3f}, not at least 0.9 "
        f"(accuracy 0.800, 95 % interval [{LOW:.3f}, {HIGH:.3f}], n=40)",
    )
    assert said("coverage>=0.9", report(failed=2)) == (True, "coverage is 0.950, at least 0.9 (n=40)")
    assert said("failures<=0.02", report(failed=2)) == (False, "failures is 0.050, not at most 0.02 (n=40)")


@pytest.mark.parametrize("metric", METRICS)
def test_what_is_not_measured_passes_no_gate(metric: str) -> None:
    for gate in (f"{metric}>=0", f"{metric}<=1", f"lower({metric})>=0", f"upper({metric})<=1"):
        passed, reason = said(gate, report(labelled=False))
        assert not passed and reason == f"{metric} could not be measured: no judged sample has a gold label"
        thin = said(gate, report(failed=8))
        assert thin == (False, f"{metric} is based on 80.0% of the samples (32 of 40), less than 90%")


def part(n: int, labelled: int, silent: int, other: int = 0) -> Report:
    """Some of n samples are labelled; the judge fails on some of these and says another word of others."""
    words = ("faithful", "hallucinated")
    samples = {
        str(at): Sample(str(at), "x", label=words[at % 2] if at < labelled else None) for at in range(n)
    }
    outcomes: list[Outcome] = [Failure(str(at), "j", "timeout", "slow") for at in range(silent)]
    outcomes += [Verdict(str(at), "j", words[at % 2], float(at % 2)) for at in range(silent, n - other)]
    outcomes += [Verdict(str(at), "j", "unsure", 0.5) for at in range(n - other, n)]
    return summarize(RunFacts("r", "r", "d", "done", n), samples, outcomes, {})


@pytest.mark.parametrize("figure", [*METRICS, "ece", "brier", "log_loss"])
def test_a_figure_of_few_of_the_labelled_samples_passes_no_gate(figure: str) -> None:
    thin = part(400, 40, 34)
    for gate in (f"{figure}>=0", f"{figure}<=1"):
        reason = f"{figure} is based on 15.0% of the labelled samples (6 of 40), less than 90%"
        assert said(gate, thin) == (False, reason)
    assert said("coverage>=0.9", thin)[0]
    assert "is based on" not in said(f"{figure}>=0", part(400, 40, 4))[1]


def test_verdicts_of_other_names_cover_nothing() -> None:
    found = part(40, 30, 0, other=8)
    reason = "accuracy is based on 80.0% of the samples (32 of 40), less than 90%"
    assert said("accuracy>=0", found) == (False, reason)
    assert said("coverage>=1", found)[0]


def test_every_figure_can_be_a_gate_and_failures_count_where_coverage_is_thin() -> None:
    for figure in FIGURES:
        assert len(results([f"{figure}>=0", f"{figure}<=1"], report())) == 2
    assert said("failures<=0.3", report(failed=8)) == (True, "failures is 0.200, at most 0.3 (n=40)")
    assert said("coverage<=1", report(n=0)) == (False, "this run has no judgements")


def test_the_share_flagged_needs_no_labels_and_fails_where_there_is_none() -> None:
    for labelled in (True, False):
        found = report(wrong=8, labelled=labelled)
        assert said("flagged<=0.5", found) == (True, "flagged is 0.500, at most 0.5 (n=40)")
        assert said("flagged<=0.49", found)[0] is False
    assert said("flagged<=0.6", report(labelled=False, failed=2)) == (
        True,
        "flagged is 0.500, at most 0.6 (n=38)",
    )
    assert "is based on 80.0% of the samples" in said("flagged<=1", report(labelled=False, failed=8))[1]
    samples = {"a": Sample("a", "x")}
    other = summarize(RunFacts("r", "r", "d", "done", 1), samples, [Verdict("a", "j", "polite", 0.0)], {})
    assert said("flagged<=1", other)[0] is False  # a judge that could never flag anything passes nothing
    with pytest.raises(SpecError, match=r"flagged in the gate 'lower.flagged.<=0.5' has no interval"):
        Gate.parse("lower(flagged)<=0.5", ["j"])


def test_scores_are_held_as_probabilities() -> None:
    found = report()  # scores of 0 and 1, of which 8 in 40 are wrong
    brier = brier_score_loss([at % 2 for at in range(40)], [(at + (at < 8)) % 2 for at in range(40)])
    assert said("brier<=0.2", found) == (
        True,
        "brier is 0.200, at most 0.2 (n=40)",
    ) and brier == pytest.approx(0.2)
    assert said("ece<=0.19", found)[0] is False and said("ece<=0.21", found)[0]
    assert said("log_loss<=0.5", found)[0] is False and said("log_loss>=1.1", found)[0]
    assert said("ece<=1", report(labelled=False))[1].startswith("ece could not be measured")


def test_a_run_that_is_not_done_passes_nothing() -> None:
    passed, reason = said("coverage>=0", report(status="interrupted"))
    assert not passed and "the run is interrupted" in reason


def test_a_figure_without_an_interval_passes_no_gate_on_it() -> None:
    found = report()
    (judge,) = found.judges
    assert judge.result is not None
    bare = {
        **judge.result.metrics,
        "f1": replace(judge.result.metrics["f1"], low=None, high=None, undefined="too few"),
    }
    changed = replace(found, judges=(replace(judge, result=replace(judge.result, metrics=bare)),))
    assert said("lower(f1)>=0", changed) == (False, "f1 is 0.800 without an interval: too few")
    assert said("f1>=0", changed)[0]


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        ("f2>=0.5", "known: accuracy"),
        ("f1>0.5", "METRIC>=VALUE or METRIC<=VALUE"),
        ("f1>=50", "can never be passed"),
        ("lower(f1>=0.5", "such as f1>=0.7 or lower(f1)>=0.6"),
        ("lower(coverage)>=0.5", "coverage in the gate 'lower(coverage)>=0.5' has no interval"),
        ("upper(ece)<=0.1", "has no interval"),
        ("f1>=.", "'.' in the gate 'f1>=.' is not a number"),
        ("other.f1>=0.5", "matches no judge of this run; it has: j"),
        ("middle(f1)>=0.5", "known: accuracy"),
    ],
)
def test_what_cannot_be_read_says_what_can(gate: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        Gate.parse(gate, ["j"])
    assert told in str(caught.value)


def test_a_judge_may_have_dots_and_brackets_in_its_name() -> None:
    name = "windows:of=(rubric:most=2).x"
    gate = Gate.parse(f"{name}.lower(f1)<=0.5", [name])
    assert (gate.judge, gate.figure, gate.sign, str(gate)) == (name, "lower(f1)", "<=", "lower(f1)<=0.5")


# --- at the command line --------------------------------------------------------------------------


def by_word(prompt: Prompt) -> Any:
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    if "break" in output:
        return EngineError(output)
    return {"faithful": 0.9, "hallucinated": 0.1} if "true" in output else {"hallucinated": 1.0}


@pytest.fixture
def rows(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file that the engine judges rightly but for one sample in four."""
    engine = ScriptedEngine(by_word, name="script")
    monkeypatch.setattr("magistrate.engines.registry._opened", lambda *_: engine)
    lines = [
        {"id": f"s{at}", "output": "true" if at % 4 else "false", "context": f"c{at}", "label": label}
        for at, label in enumerate(["faithful", "faithful", "faithful", "hallucinated"] * 10)
    ]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return "rows.jsonl"


def test_gates_decide_the_exit_code_of_run_and_show(call: Call, rows: str) -> None:
    good = call(
        "run", rows, "--gate", "coverage>=1", "--gate", "accuracy<=0.5", "--json", "--judge", "faithfulness"
    )
    assert good.code == 0 and "gate passed: faithfulness: coverage is 1.000" in good.err
    assert [gate["passed"] for gate in good.data["gates"]] == [True, True]
    bad = call("run", rows, "--gate", "lower(f1)>=0.6", "--gate", "coverage>=1", "--judge", "faithfulness")
    assert bad.code == 1 and "gate failed: faithfulness: lower(f1)" in bad.err and "n=40" in bad.err
    assert call("show", "last", "--gate", "accuracy>=0.9").code == 1
    kept = call("show", "last", "--gate", "accuracy>=0.5", "--json")
    assert kept.code == 0 and kept.data["gates"][0]["value"] == 0.5
    assert call("show", "last", "--gate", "f2>=1").code == 2
    assert call("show", "last", "--gate", "f1>=0", "--sample", "s1").code == 2
    assert "gates" not in call("show", "last", "--json").data


# --- the example for GitHub Actions ---------------------------------------------------------------

WORKFLOW = Path(__file__).resolve().parent.parent / "examples" / "github-actions.yml"


FIT = {"judge": True, "answers": False}  # jobs by whether what they judge has gold labels


def steps(job: str) -> list[dict[str, Any]]:
    workflow = YAML(typ="safe").load(WORKFLOW.read_text(encoding="utf-8"))
    assert {"name", "on", "jobs", "permissions"} <= set(workflow) and set(workflow["jobs"]) == set(FIT)
    found: list[dict[str, Any]] = workflow["jobs"][job]["steps"]
    return found


@pytest.mark.parametrize("job", FIT)
def test_the_workflow_runs_commands_with_options_that_are_there_and_gates_that_can_be_passed(
    job: str,
) -> None:
    lines = [
        line
        for step in steps(job)
        for line in step.get("run", "").splitlines()
        if line.startswith("magistrate ")
    ]
    ran, gates = [], list[str]()
    for line in lines:
        words, inner = shlex.split(line.partition(" > ")[0])[1:], cli.command
        context = click.Context(inner, info_name="magistrate")
        while isinstance(inner, click.Group):
            name, found, words = inner.resolve_command(context, words)
            assert found is not None
            inner = found  # type: ignore[assignment]
            ran.append(name)
        gates += inner.make_context(ran[-1], words).params.get("gates", ())
    assert ran == ["models", "pull", "run", "show"] and gates
    # A judge that is never wrong and flags little passes them on data such as that job has.
    good = report(400, wrong=0, labelled=True)
    if not FIT[job]:
        samples = {str(at): Sample(str(at), "x") for at in range(40)}
        faithful = [Verdict(str(at), "j", "faithful", 0.0) for at in range(40)]
        good = summarize(
            RunFacts("r", "r", "d", "done", 40), samples, faithful, {}, {"j": Scoring("minimize")}
        )
    assert [each.reason for each in results(gates, good) if not each.passed] == []


@pytest.mark.parametrize("job", FIT)
def test_the_workflow_keeps_what_the_run_writes_also_where_a_gate_fails(job: str) -> None:
    (judged,) = [step["run"] for step in steps(job) if "magistrate run" in step.get("run", "")]
    (kept,) = [step for step in steps(job) if "upload-artifact" in step.get("uses", "")]
    (shown,) = [step["run"] for step in steps(job) if "magistrate show" in step.get("run", "")]
    written = re.findall(r"--junit (\S+)", judged) + re.findall(r"> (\S+)", shown)
    assert kept["if"] == "always()" and set(kept["with"]["path"].split()) == set(written)
    assert all("@" in step["uses"] for step in steps(job) if "uses" in step)
    assert tomllib.loads((WORKFLOW.parent.parent / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]["local"]
