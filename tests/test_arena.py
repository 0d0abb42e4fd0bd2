"""An arena ranks by battles, counts what is faithful, goes on where it stopped, and loses nothing."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from magistrate import Run, ScriptedEngine
from magistrate.analysis.arena import ArenaReport
from magistrate.analysis.pairing import rounds_for, swiss_pairs
from magistrate.api.arena import ArenaSpec, arena
from magistrate.errors import EngineError, InputError
from magistrate.judges.committee import Committee, Member, members_of
from magistrate.runs.limits import Limits
from magistrate.store import Store
from magistrate.types import Prompt, Sample, Verdict
from terminal import Call

CONTEXT = "The house is in Bern. It opens at nine and closes at six."
NAMES = ("best", "good", "poor")
QUALITY = {"best": 3, "good": 2, "poor": 1}
WORDS = {
    "best": "The house is in Bern.",
    "good": "It opens at nine, the house in Bern.",
    "poor": "A castle stands proudly near Geneva airport.",
}


def vote(prompt: Prompt) -> Any:
    """The better answer wins, but in every fourth question, where the members differ and are talked round."""
    text = {part.name: part.text for part in prompt.data()}
    ranks = [
        next(QUALITY[name] for name, words in WORDS.items() if text[side].startswith(words))
        for side in ("first", "second")
    ]
    upset = int(text["input"].split()[1].strip("?")) % 4 == 0
    words = prompt.messages[0].text
    if "Reply in JSON" in prompt.messages[-1].text:
        return json.dumps({"argument": "the other one is shorter"})
    heard = "have said" in prompt.messages[-1].text
    first = ranks[0] > ranks[1]
    if upset and (heard or "figure" not in words):
        first = not first
    return {"better": 0.8 if first else 0.1, "worse": 0.1 if first else 0.8, "tie": 0.1}


def engine(script: Any = vote, name: str = "votes") -> ScriptedEngine:
    return ScriptedEngine(script, name=name)


def answers(path: Path, n: int = 16, missing: Mapping[int, str] = {}) -> Path:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["id", "question", "context", *NAMES])
        for at in range(n):
            said = ["" if missing.get(at) == name else f"{WORDS[name]} {at}" for name in NAMES]
            out.writerow([f"q{at}", f"Number {at}?", CONTEXT, *said])
    return path


def held(path: Path, store: Path, model: ScriptedEngine, **more: Any) -> ArenaReport:
    limits = more.pop("limits", Limits())
    spec = ArenaSpec(name="a", columns={name: name for name in NAMES}, judge="novelty", **more)
    return arena(path, spec, limits=limits, model=model, store=store)


def test_candidates_are_ranked_and_their_answers_judged(tmp_path: Path) -> None:
    path, store, model = answers(tmp_path / "a.csv", missing={1: "poor"}), tmp_path / "s.db", engine()
    report = held(path, store, model)
    assert report.stopped is None and report.ranking is not None
    assert [each.name for each in report.ranking.candidates] == list(NAMES)
    assert set(report.runs) == {"faithful", "round-1", "round-2", "round-3"}
    assert sum(each.wins + each.ties for each in report.ranking.candidates) >= report.ranking.n
    best, _, poor = report.standings
    assert (best.n_answers, poor.n_answers) == (16, 15), "a missing answer is no answer, and is counted"
    assert best.faithful.value == 1 and poor.faithful.value == 0
    met = {frozenset((s.metadata["model_a"], s.metadata["model_b"])) for s in battles(report, store)}
    assert len(met) == 3, "three candidates all meet"
    discussed = [o for o in outcomes(report, store) if o.details["discussed"]]
    assert discussed and all(o.steps for o in outcomes(report, store)), "every call is a step"
    one = discussed[0].details["members"]
    assert {each["first"] for each in one} == {"better", "worse"} and len({each["last"] for each in one}) == 1
    asked = len(model.prompts)
    again = held(path, store, model)
    assert len(model.prompts) == asked and again == report, "what is done is not asked again"


def battles(report: ArenaReport, store: Path) -> list[Sample]:
    rounds = [run for phase, run in report.runs.items() if phase.startswith("round")]
    return [sample for run in rounds for sample in Run(run, store).samples()]


def outcomes(report: ArenaReport, store: Path) -> list[Verdict]:
    rounds = [run for phase, run in report.runs.items() if phase.startswith("round")]
    found = [each for run in rounds for each in Run(run, store).outcomes(with_steps=True)]
    assert all(isinstance(each, Verdict) for each in found)
    return [each for each in found if isinstance(each, Verdict)]


def test_an_arena_stops_at_its_budget_and_goes_on(tmp_path: Path) -> None:
    path, store = answers(tmp_path / "a.csv"), tmp_path / "s.db"
    whole = held(path, tmp_path / "whole.db", engine())
    spent = whole.spent.prompt + whole.spent.generated
    short = held(path, store, engine(), limits=Limits(concurrency=1, max_tokens=spent // 2))
    assert short.stopped is not None and "max_tokens" in short.stopped
    assert 0 < short.spent.prompt + short.spent.generated <= spent // 2
    rest = engine()
    done = held(path, store, rest)
    assert done.stopped is None and done.ranking == whole.ranking and done.spent == whole.spent
    with Store.open(store) as opened:
        assert len(opened.runs(tag="arena")) == 4, "runs go on, and are not begun anew"


def test_a_committee_counts_its_members_and_fails_without_them(tmp_path: Path) -> None:
    def broken(prompt: Prompt) -> Any:
        return EngineError("gone for now") if "figure" in prompt.messages[0].text else vote(prompt)

    sample = Sample("s", f"{WORDS['best']} 1", (CONTEXT,), "Number 1?", alternatives=(f"{WORDS['poor']} 1",))
    committee = Committee(members_of(()))
    verdict = asyncio.run(committee.judge(sample, engine(broken)))
    assert isinstance(verdict, Verdict) and verdict.label == "better"
    assert verdict.details["left_out"] == 1 and "1 of 3 members failed" in str(verdict.explanation)
    assert "gone for now" in str(verdict.details["members"]), "why it failed stands beside its name"
    with pytest.raises(EngineError, match="only 1 of 2 members voted, 2 are needed; failed"):
        few = Committee((Member("a", "You check each figure."), Member("b", "You read.")))
        asyncio.run(few.judge(sample, engine(broken)))
    same = Sample("s", "x", (CONTEXT,), alternatives=("x ",))
    tie = asyncio.run(committee.judge(same, engine(broken)))
    assert isinstance(tie, Verdict) and tie.label == "tie"


def test_models_answer_what_an_examiner_asks(tmp_path: Path) -> None:
    def examine(prompt: Prompt) -> Any:
        if "examination" in prompt.messages[0].text:
            number = prompt.messages[-1].text.count("again")
            if number == 2:
                return json.dumps({"support": "It is in Rome.", "question": "Where?"})  # no words of it
            return json.dumps({"support": "The house is in Bern.", "question": f"Number {number}?"})
        return vote(prompt)

    documents = tmp_path / "documents.jsonl"
    rows = [{"id": f"d{at}", "context": CONTEXT + " Once again." * at} for at in range(6)]
    documents.write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = {name: ScriptedEngine([WORDS[name]] * 6, name=name) for name in ("best", "poor")}
    spec = ArenaSpec(name="e", models=models, examiner=True, judge="novelty")
    store = tmp_path / "s.db"
    report = arena(documents, spec, model=engine(examine), store=store)
    assert report.n_questions == 5, "a quote that is nowhere is a failure, and no question"
    (failed,) = [
        each for each in Run(report.runs["questions"], store).outcomes() if not isinstance(each, Verdict)
    ]
    assert failed.sample_id == "d2"
    for sample in Run(report.runs["faithful"], store).samples():
        words, (index, start, end) = sample.metadata["support"]["words"], sample.metadata["support"]["at"]
        assert sample.context[index][start:end] == words == "The house is in Bern."
    assert report.ranking is not None and report.ranking.n == 5
    best, poor = report.standings
    assert best.faithful.value == 1 and poor.faithful.value == 0


def test_pairs_are_swiss() -> None:
    names, points, met, byes = list("abcdefg"), dict[str, float](), set[frozenset[str]](), set[str]()
    for _ in range(rounds_for(len(names))):
        pairs = swiss_pairs(names, points, met, byes)
        assert len(pairs) == 3 and not {frozenset(pair) for pair in pairs} & met
        met |= {frozenset(pair) for pair in pairs}
        (out,) = set(names) - {name for pair in pairs for name in pair}
        assert out not in byes
        byes.add(out)
        for pair in pairs:
            points[min(pair)] = points.get(min(pair), 0.0) + 1
    everybody = {frozenset(pair) for pair in combinations("ab", 2)}
    assert swiss_pairs(["a", "b"], {}, everybody, ()) == [("a", "b")], "who has met all meets again"


def test_the_command_prints_one_table_or_says_what_is_wrong(call: Call, tmp_path: Path) -> None:
    path = answers(tmp_path / "a.csv")
    for words, message in (
        ((path, "--app", "best"), "2 to 24 candidates"),
        ((path, "--app", "best", "--app", "worst"), "no column 'worst' for --app; columns: id"),
        ((path, "--app", "best", "--app", "best"), "two candidates have the same name"),
        ((path, "--app", "best", "--app", "good", "--examiner"), "an examiner writes new ones"),
        ((tmp_path / "none.csv", "--app", "a", "--app", "b"), "no file"),
    ):
        wrong = call("arena", *words)
        assert wrong.code == 2 and message in wrong.err, words
    with pytest.raises(InputError):
        held(answers(tmp_path / "b.csv", n=1, missing={0: "best"}), tmp_path / "s.db", engine(), rounds=0)
