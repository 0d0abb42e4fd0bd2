"""An arena ranks by battles, counts what is faithful, goes on where it stopped, and loses nothing."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from magistrate import Run, ScriptedEngine
from magistrate.analysis.arena import ArenaReport
from magistrate.analysis.pairing import rounds_for, swiss_pairs
from magistrate.api.arena import ArenaSpec, arena
from magistrate.errors import EngineError, InputError, SpecError
from magistrate.judges.committee import Committee, Member, members_of
from magistrate.judges.cross_examination import CrossExamination
from magistrate.report.terminal import print_outcome
from magistrate.runs.limits import Limits
from magistrate.store import Store
from magistrate.types import Prompt, Sample, Usage, Verdict
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
    return {"first": 0.8 if first else 0.1, "second": 0.1 if first else 0.8, "tie": 0.1}


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


@pytest.mark.full
def test_an_arena_stops_at_each_limit_says_what_is_left_and_goes_on(tmp_path: Path) -> None:
    path = answers(tmp_path / "a.csv")
    whole = held(path, tmp_path / "whole.db", engine())
    assert whole.unplayed == ()
    usages = [each.usage for each in outcomes(whole, tmp_path / "whole.db")]
    measures: dict[str, Callable[[Usage], int]] = {
        "max_tokens": lambda usage: usage.prompt + usage.generated,
        "max_calls": lambda usage: usage.calls,
        "max_cost": lambda usage: usage.prompt + 2 * usage.generated,
    }
    for name, spent in measures.items():
        most, dearest = spent(whole.spent) // 2, max(map(spent, usages))
        store, price = tmp_path / f"{name}.db", "1000000/2000000" if name == "max_cost" else None
        short = held(path, store, engine(), limits=Limits(concurrency=1, **{name: most}), price=price)
        assert short.stopped is not None and f"({name})" in short.stopped, name
        assert 0 < spent(short.spent) < most + dearest, "at most one battle is dearer than all before"
        first, *others = short.unplayed
        assert first.left and first.total and sum(first.pairs.values()) == first.left < first.total
        assert all(each.left is None for each in others), "what is not drawn is not counted"
        played = short.ranking.n if short.ranking else 0
        assert 0 < played < whole.ranking.n  # type: ignore[union-attr]
        done = held(path, store, engine(), price=price)
        assert done.stopped is None and done.spent == whole.spent
        assert done.ranking == whole.ranking and done.unplayed == ()
        with Store.open(store) as opened:
            assert len(opened.runs(tag="arena")) == 4, "runs go on, and are not begun anew"
    ticks = iter(range(0, 1000, 100))
    late = arena(
        path,
        ArenaSpec(name="a", columns={name: name for name in NAMES}, judge="novelty"),
        limits=Limits(max_seconds=150),
        model=engine(),
        store=tmp_path / "late.db",
        clock=lambda: float(next(ticks)),
    )
    assert late.stopped == "200 seconds have passed (max_seconds)" and set(late.runs) == {"faithful"}
    assert [each.phase for each in late.unplayed] == ["round-1", "round-2", "round-3"]
    with pytest.raises(SpecError, match="max_cost needs a price, but none is known for 'votes'"):
        held(path, tmp_path / "none.db", engine(), limits=Limits(max_cost=1))
    assert not (tmp_path / "none.db").exists(), "nothing is begun"


def speaks(prompt: Prompt) -> Any:
    """Attacks the other answer's first words, then asks about its last ones, then repeats itself."""
    last, text = prompt.messages[-1].text, {part.name: part.text for part in prompt.data()}
    if last.endswith('"reply".'):
        return json.dumps({"reply": f"so says the context of {text['mine']}"})
    if '"challenge", of which' not in last:
        return vote(prompt)
    theirs = text["theirs"]
    if last.count("You said: ") == 1:
        move, quote = "ask", theirs.split(" ", 1)[1]
    else:
        move, quote = "attack", theirs.rsplit(" ", 1)[0]
    return json.dumps({"challenge": {"move": move, "quote": quote, "text": "who says so"}})


def test_what_was_played_counts_also_where_a_limit_lets_nothing_go_on(tmp_path: Path) -> None:
    path, store, ticks = answers(tmp_path / "a.csv"), tmp_path / "s.db", iter(range(0, 1000, 100))
    first = held(path, store, engine(), limits=Limits(max_calls=20, concurrency=1))
    assert first.ranking is not None
    again = arena(
        path,
        ArenaSpec(name="a", columns={name: name for name in NAMES}, judge="novelty"),
        limits=Limits(max_seconds=50),
        model=engine(),
        store=store,
        clock=lambda: float(next(ticks)),
    )
    assert again.stopped == "100 seconds have passed (max_seconds)"
    assert (again.runs, again.spent, again.ranking) == (first.runs, first.spent, first.ranking)
    assert again.unplayed == first.unplayed


def test_both_sides_examine_each_other_until_nothing_new_is_quoted(tmp_path: Path) -> None:
    path, store, model = answers(tmp_path / "a.csv", n=3), tmp_path / "s.db", engine(speaks)
    report = held(path, store, model, cross_examine=5)
    assert report.examined == {"nothing new": 3} and report.stopped is None
    samples = {each.id: each for each in battles(report, store)}
    for outcome in outcomes(report, store):
        sample, found = samples[outcome.sample_id], outcome.details["cross_examination"]
        texts = {"A": sample.alternatives[0], "B": sample.output or ""}
        assert [len(each) for each in found["rounds"]] == [2, 2], "the third only repeated"
        for each in (one for said in found["rounds"] for one in said):
            start, end = each["at"]
            assert texts[each["side"]][start:end] == each["quote"] and each["reply"]
        assert [each["move"] for each in found["rounds"][1]] == ["ask", "ask"]
    heard = [
        each for each in model.prompts if "Side A attacked these words of answer B" in each.messages[-1].text
    ]
    assert heard and len(heard) == sum(
        step.verb == "choose" or "of one mind" in str(step.prompt)
        for each in outcomes(report, store)
        for step in each.steps
    ), "whoever votes or argues has read it"
    said = {part.text for each in heard for part in each.data() if part.name == "exchange"}
    assert "who says so" in said, "it is data, and no part of the template"
    asked = len(model.prompts)
    assert held(path, store, model, cross_examine=5) == report and len(model.prompts) == asked
    terminal = Console(record=True, width=200)
    shown = outcomes(report, store)[0]
    print_outcome(shown, samples[shown.sample_id], terminal)
    text = terminal.export_text()
    assert "cross-examination" in text and "attacks, and quotes" in text and "who says so" in text
    plain = held(path, tmp_path / "t.db", engine())
    assert plain.examined == {} and "cross_examination" not in outcomes(plain, tmp_path / "t.db")[0].details


def test_who_speaks_and_what_ends_an_examination() -> None:
    sample = Sample(
        "s",
        f"{WORDS['best']} 1",
        (CONTEXT,),
        "Number 1?",
        alternatives=(f"{WORDS['poor']} 1",),
        metadata={"model_a": "best", "model_b": "poor"},
    )

    def judged(script: Any, **more: Any) -> Any:
        committee = Committee(members_of(()), examination=CrossExamination(2, **more))
        return asyncio.run(committee.judge(sample, engine(script)))

    def rests(prompt: Prompt) -> Any:
        last = prompt.messages[-1].text
        if last.endswith('"reply".'):
            return json.dumps({"reply": "so it is"})
        return '{"challenge": {"move": "rest"}}' if '"challenge", of which' in last else vote(prompt)

    own, rest = engine(speaks, "own"), engine(rests, "rest")
    verdict = judged(vote, speakers={"best": own, "poor": rest})
    (first, second), rested = verdict.details["cross_examination"]["rounds"], rest.prompts
    assert [each["side"] for each in (*first, *second)] == ["A", "A"] and len(own.prompts) == 2
    assert len(rested) == 4, "it is asked to challenge, and to reply"
    silent = judged(rests)
    assert silent.details["cross_examination"] == {"rounds": [], "ended": "nothing new", "steered": []}
    with pytest.raises(EngineError, match="gone"):
        judged(vote, speakers={"best": own, "poor": engine([EngineError("gone")])})
    with pytest.raises(SpecError, match="1 to 5 rounds"):
        CrossExamination(6)


def test_a_committee_counts_its_members_and_fails_without_them(tmp_path: Path) -> None:
    def broken(prompt: Prompt) -> Any:
        return EngineError("gone for now") if "figure" in prompt.messages[0].text else vote(prompt)

    sample = Sample("s", f"{WORDS['best']} 1", (CONTEXT,), "Number 1?", alternatives=(f"{WORDS['poor']} 1",))
    committee = Committee(members_of(()))
    verdict = asyncio.run(committee.judge(sample, engine(broken)))
    assert isinstance(verdict, Verdict) and verdict.label == "better"
    assert verdict.details["left_out"] == 1 and "1 of 3 members failed" in str(verdict.explanation)
    assert "gone for now" in str(verdict.details["members"]), "why it failed stands beside its name"
    with pytest.raises(EngineError, match="1 of 2 members voted, 2 are needed; failed"):
        few = Committee((Member("a", "You check each figure."), Member("b", "You read.")))
        asyncio.run(few.judge(sample, engine(broken)))
    same = Sample("s", "x", (CONTEXT,), alternatives=("x ",))
    tie = asyncio.run(committee.judge(same, engine(broken)))
    assert isinstance(tie, Verdict) and tie.label == "tie"


def test_who_always_prefers_the_first_answer_votes_for_a_tie() -> None:
    def first(prompt: Prompt) -> Any:
        texts[-1].append(prompt)
        if "Reply in JSON" in prompt.messages[-1].text:
            return json.dumps({"argument": f"A, as {dict(order(prompt))['first']} has it"})
        return {"first": 0.9, "second": 0.05, "tie": 0.05}

    def order(prompt: Prompt) -> list[tuple[str, str]]:
        return [(part.name, part.text) for part in prompt.data()]

    texts: list[list[Prompt]] = [[]]
    sample = Sample("s", "the one", (CONTEXT,), alternatives=("the other",))
    verdict = asyncio.run(Committee(members_of(())).judge(sample, engine(first)))
    assert isinstance(verdict, Verdict) and verdict.label == "tie" and verdict.score == pytest.approx(0.5)
    assert verdict.details["consistent"] is False and not verdict.details["discussed"]
    assert {dict(order(each))["first"] for each in texts[-1]} == {"the one", "the other"}

    def differ(prompt: Prompt) -> Any:
        found = first(prompt)
        fair = "figure" in prompt.messages[0].text and isinstance(found, dict)
        return {"first": 0.1, "second": 0.8, "tie": 0.1} if fair and in_second(prompt) else found

    def in_second(prompt: Prompt) -> bool:
        return dict(order(prompt))["second"] == "the one"

    texts.append([])
    verdict = asyncio.run(Committee(members_of(())).judge(sample, engine(differ)))
    assert isinstance(verdict, Verdict) and verdict.details["discussed"]
    assert {each["last"] for each in verdict.details["members"]} == {"better", "tie"}
    for each in verdict.details["members"]:
        assert list(each["arguments"]) == ["A, as the one has it", "A, as the other has it"]
    heard = [order(each) for each in texts[-1] if "have said" in each.messages[-1].text]
    assert len(heard) == 6, "three members, two orders"
    for parts in heard:
        said = [text for name, text in parts if name == "said"]
        assert said == [f"A, as {dict(parts)['first']} has it"] * 3, "A is one answer for all in an order"


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
    path, typed = answers(tmp_path / "a.csv"), tmp_path / "typed.jsonl"
    typed.write_text(json.dumps({"input": "How many?", "context": "6", "best": 6, "good": "six"}) + "\n")
    for words, message in (
        ((typed, "--app", "best", "--app", "good"), "the answer of best must be text, got a number"),
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
