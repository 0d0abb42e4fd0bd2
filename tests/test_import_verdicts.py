"""Verdicts of other tools become runs: nothing is guessed, what is missing is a failure, twice is once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import magistrate
from magistrate.api import import_verdicts as module
from magistrate.api.import_verdicts import import_verdicts
from magistrate.api.jury import jury
from magistrate.datasets.verdicts import VerdictColumns
from magistrate.errors import InputError, SpecError
from magistrate.store import Store
from magistrate.types import Abstention, Failure, Verdict
from terminal import Call

TEXTS = [
    {"id": "a", "input": "Where?", "output": "In Bern.", "context": "The house is in Bern."},
    {"id": "b", "input": "Where?", "output": "In Basel.", "context": "The house is in Bern."},
    {"id": "c", "input": "When?", "output": "At six.", "context": "It opens at nine."},
]
BETTER = ("--higher", "better", "--threshold", "0.5")


def phoenix(score: float | None, label: str) -> str | None:
    cell = {"name": "h", "score": score, "label": label, "explanation": "so", "direction": "minimize"}
    return None if score is None else json.dumps(cell)


def case(number: int, metrics: list[Mapping[str, Any]]) -> dict[str, Any]:
    given = TEXTS[number]
    return {
        "name": f"test_case_{number}",
        "input": given["input"],
        "actualOutput": given["output"],
        "retrievalContext": [given["context"]],
        "success": True,
        "metricsData": metrics,
    }


DEEPEVAL = {
    "testCases": [
        case(0, [{"name": "Faithfulness", "threshold": 0.5, "success": True, "score": 0.9, "reason": "so"}]),
        case(
            1, [{"name": "Faithfulness", "threshold": 0.5, "success": False, "score": 0.25, "reason": "so"}]
        ),
        case(2, [{"name": "Faithfulness", "success": False, "score": None, "error": "no JSON"}]),
    ]
}
RAGAS = """user_input,response,retrieved_contexts,faithfulness
Where?,In Bern.,['The house is in Bern.'],0.9
Where?,In Basel.,['The house is in Bern.'],0.25
When?,At six.,['It opens at nine.'],
"""
OPIK = """dataset.question,dataset.context,output,feedback_scores.h,feedback_scores.h_reason
Where?,The house is in Bern.,In Bern.,0.1,so
Where?,The house is in Bern.,In Basel.,0.75,so
When?,It opens at nine.,At six.,,
"""
INSPECT = [{**TEXTS[0], "scores": {"h": "C"}}, {**TEXTS[1], "scores": {"h": "I"}}, {**TEXTS[2], "scores": {}}]
TOOLS: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "ragas.csv": (RAGAS, ("--score", "faithfulness", *BETTER)),
    "deepeval.json": (DEEPEVAL, ("--score", "Faithfulness", "--higher", "better")),
    "phoenix.jsonl": (
        [
            {**TEXTS[0], "h_score": phoenix(0.1, "factual")},
            {**TEXTS[1], "h_score": phoenix(0.75, "hallucinated")},
            {**TEXTS[2], "h_score": None, "h_execution_details": {"exceptions": ["429"]}},
        ],
        ("--score", "h_score"),
    ),
    "opik.csv": (
        OPIK,
        (
            *("--score", "feedback_scores.h", "--higher", "worse", "--threshold", "0.5"),
            *("--reason", "feedback_scores.h_reason"),
            *("--map", "input=dataset.question", "--map", "context=dataset.context"),
        ),
    ),
    "inspect.jsonl": (INSPECT, ("--label", "scores.h", "--labels", "C=faithful,I=hallucinated")),
    "long.jsonl": (
        [
            {**TEXTS[at], "metric": metric, "points": points}
            for at, points in enumerate((4.6, 2.0, None))
            for metric in ("faithful", "other")
        ],
        (
            *("--score", "points", "--scale", "1,5", "--only", "metric=faithful"),
            *("--higher", "better", "--threshold", "3"),
        ),
    ),
}


def written(path: Path, content: Any) -> Path:
    if isinstance(content, list):
        content = "".join(json.dumps(each) + "\n" for each in content)
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    return path


def test_every_tools_file_says_the_same(call: Call, tmp_path: Path, home: Path) -> None:
    for name, (content, options) in TOOLS.items():
        file = written(tmp_path / name, content)
        done = call("import", "verdicts", file, "--judge", "other", "--max-failures", 1, *options, "--json")
        assert done.code == 0, (name, done.err)
        run = magistrate.Run(done.data["run"]["id"], home / "magistrate.db")
        good, bad, none = run.outcomes()
        assert isinstance(good, Verdict) and good.label == "faithful", name
        assert isinstance(bad, Verdict) and bad.label == "hallucinated", name
        assert isinstance(none, Failure) and none.code == "not_recorded", (name, none)
        scoring = run.record.scoring["other"]
        worse = {"phoenix.jsonl", "opik.csv", "inspect.jsonl"}
        assert scoring.direction == ("minimize" if name in worse else "maximize"), name
        if name != "inspect.jsonl":
            assert {round(good.score, 3), round(bad.score, 3)} == (
                {0.1, 0.75} if name in worse else {0.9, 0.25}
            ), name
        told = {"deepeval.json": "no JSON", "phoenix.jsonl": "429"}.get(name, "no ")
        assert told in none.message, name
        assert [sample.output for sample in run.samples()] == [each["output"] for each in TEXTS]
        figures = done.data["judges"]["other"]
        assert (figures["n_ok"], figures["failures"]) == (2, {"not_recorded": 1}), name
        assert call("show", run.id).code == 0


def test_what_is_not_said_is_not_guessed(call: Call, tmp_path: Path) -> None:
    rows = [{**each, "verdict": word} for each, word in zip(TEXTS, ("ok", "ok", "bad"), strict=True)]
    labels = written(tmp_path / "labels.jsonl", rows)
    scores = written(tmp_path / "scores.jsonl", [{**each, "s": 4, "t": "x"} for each in TEXTS])
    twice = written(tmp_path / "twice.jsonl", [{**TEXTS[0], "s": 0.1}, {**TEXTS[0], "s": 0.2}])
    both = [
        {**each, "s": s, "label": label}
        for each, s, label in zip(TEXTS, (0.9, 0.8, 0.2), ("pass", "pass", "fail"), strict=True)
    ]
    both_file = written(tmp_path / "both.jsonl", both)
    bare = written(tmp_path / "bare.jsonl", [{"id": "a", "s": 0.2}])
    empty = written(tmp_path / "empty.csv", "id,output,s\n")
    huge = written(tmp_path / "huge.jsonl", [{**TEXTS[0], "s": 10**400}])
    high = ("--score", "s", "--higher", "worse", "--threshold", "0.5")
    for file, options, message in (
        (labels, ("--label", "verdict"), "labels.jsonl:1: verdict 'ok' is not a known label"),
        (labels, ("--label", "verdict"), "--labels ok=MEANING,bad=MEANING"),
        (labels, ("--label", "verdikt"), "no column 'verdikt', given by --label; columns: id, input"),
        (labels, ("--label", "verdict", "--judge", "novelty"), "'novelty' is a judge of Magistrate"),
        (labels, ("--label", "verdict", "--judge", "a b"), "a judge's name consists of letters"),
        (labels, (), "--score COLUMN or --label COLUMN"),
        (scores, high, "scores.jsonl:1: s 4 is outside 0 to 1; give the scale: --scale LOW,HIGH"),
        (scores, ("--score", "t", *BETTER), "t 'x' is not a number"),
        (huge, high, "huge.jsonl:1: s 1000"),
        (scores, ("--score", "s", "--scale", "1,5"), "direction of scores is unknown; give --higher better"),
        (scores, ("--score", "s", "--scale", "1,5", "--higher", "better"), "--threshold 0.5"),
        (scores, (*high, "--scale", "1,5"), "--threshold must be in (1, 5]"),
        (scores, (*high, "--scale", "5,1"), "LOW below HIGH"),
        (twice, high, "twice.jsonl:2: sample 'a' already has a verdict (twice.jsonl:1)"),
        (both_file, (*high, "--label", "label"), "check --higher and --labels"),
        (both_file, ("--score", "s", "--label", "label", "--higher", "better", "--threshold", "0.85"), ":2:"),
        (bare, high, "--samples DATA"),
        (bare, (*high, "--samples", labels, "--map", "id=output"), "no column 'output'"),
        (bare, (*high, "--into", "nothing"), "there is no store"),
        (empty, high, "has no rows"),
        (tmp_path / "none.csv", high, "no file"),
        (tmp_path, high, "is a folder"),
    ):
        done = call("import", "verdicts", file, *(() if "--judge" in options else ("--judge", "x")), *options)
        assert done.code == 2 and message in done.err.replace(f"{tmp_path}/", ""), (message, done.err)
    assert not call("runs", "--json").data, "nothing was imported"


def test_the_same_file_is_the_same_run_and_joins_samples_that_are_elsewhere(tmp_path: Path) -> None:
    data = written(tmp_path / "data.jsonl", [{**each, "label": "PASS"} for each in TEXTS])
    ids = written(
        tmp_path / "ids.csv", "id,verdict,score\na,pass,0.2\nb,fail,0.8\nzz,fail,0.9\nc,unsure,0.5\n"
    )
    texts = written(
        tmp_path / "texts.jsonl",
        [{"id": f"case_{at}", "response": each["output"], "s": 0.25 * at} for at, each in enumerate(TEXTS)],
    )
    store = tmp_path / "store.db"
    columns = VerdictColumns(label="verdict", score="score", higher="worse")
    more: dict[str, Any] = {"labels": {"unsure": "unlabelled"}, "samples": data, "store": store}
    first = import_verdicts(ids, "them", columns, **more)
    again = import_verdicts(ids, "them", columns, **more, name="named", tags=["x"])
    assert (first.new, again.new, again.run.id) == (True, False, first.run.id)
    assert [each.label for each in first.run.samples()] == ["faithful"] * 3
    assert len(first.strangers) == 1 and "'zz'" in first.strangers[0]
    unsure = {each.sample_id: each for each in first.run.outcomes()}["c"]
    assert isinstance(unsure, Abstention) and unsure.reason == "uncertain"
    scores = VerdictColumns(score="s", higher="worse", threshold=0.5)
    added = import_verdicts(texts, "others", scores, into="named", store=store)
    same = import_verdicts(texts, "others", scores, into="named", store=store)
    assert (added.run.id, added.new, same.new) == (first.run.id, True, False)
    assert [str(each).partition(" ")[0] for each in added.run.outcomes() if each.judge == "others"] == [
        "faithful",
        "faithful",
        "hallucinated",
    ]
    assert jury("named", store=store).n_total == 3
    with pytest.raises(SpecError, match="already has a judge 'them'"):
        import_verdicts(texts, "them", scores, into="named", store=store)
    with pytest.raises(SpecError, match="its judges cannot be run here"):
        magistrate.retry("named", store=store)
    with pytest.raises(InputError, match="its output differs from that of sample 'a'"):
        wrong = written(tmp_path / "wrong.jsonl", [{"id": "a", "output": "In Basel.", "s": 0.1}])
        import_verdicts(wrong, "w", scores, into="named", store=store)
    other = import_verdicts(ids, "them", VerdictColumns(label="verdict"), **more)
    assert other.new and other.run.id != first.run.id, "read in another way it is another run"
    with Store.open(store) as opened:
        assert len(opened.runs()) == 2


def test_two_imports_into_a_run_at_once_are_both_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, columns = tmp_path / "s.db", VerdictColumns(score="s", higher="worse", threshold=0.5)
    run = magistrate.evaluate(TEXTS, "novelty", store=store, progress=False)
    file = written(tmp_path / "v.jsonl", [{"id": each["id"], "s": 0.2} for each in TEXTS])
    joined = module._Import.joined

    def late(self: Any, *given: Any) -> Any:
        if self.judge == "one":
            assert import_verdicts(file, "two", columns, into=run.id, store=store).new
        return joined(self, *given)

    monkeypatch.setattr(module._Import, "joined", late)
    for new in (True, False):
        assert [
            import_verdicts(file, judge, columns, into=run.id, store=store).new for judge in ("one", "two")
        ] == [new, False]


def test_a_run_with_an_imported_judge_is_retried_without_it(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    data = written(tmp_path / "data.jsonl", TEXTS)
    run = magistrate.evaluate(data, judges="novelty", store=store, progress=False)
    half = written(tmp_path / "half.csv", "id,s\na,0.1\n")
    columns = VerdictColumns(score="s", higher="worse", threshold=0.5)
    import_verdicts(half, "them", columns, into=run, store=store)
    before = run.outcomes()
    theirs = [type(each) for each in before if each.judge == "them"]
    assert theirs == [Verdict, Failure, Failure] and set(run.record.judges) == {"novelty", "them"}
    magistrate.retry(run.id, store=store, progress=False)
    assert run.outcomes() == before
