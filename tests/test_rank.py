"""A ranking fits what was compared, says what it does not know, and refuses what does not connect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magistrate
from magistrate import ScriptedEngine
from magistrate.analysis.ranking import Match, Winner, ranking
from magistrate.errors import InputError
from magistrate.metrics.bradley_terry import LOSS, TIE, WIN, PairCounts, strengths
from magistrate.types import Prompt
from terminal import Call

NAMES = ("strong", "good", "fair", "weak")
TRUE = np.array([1.0, 0.3, 0.0, -1.3])
TIES = 0.6


def matches(n: int, seed: int = 0) -> list[Match]:
    source = np.random.default_rng(seed)
    found = []
    for at in range(n):
        i, j = source.choice(4, 2, replace=False)
        odds = np.array([np.exp(TRUE[i]), np.exp(TRUE[j]), TIES * np.exp((TRUE[i] + TRUE[j]) / 2)])
        winner: Winner = ("first", "second", "tie")[source.choice(3, p=odds / odds.sum())]
        found.append(Match(NAMES[i], NAMES[j], winner, f"question {at // 2}"))
    return found


def test_strengths_are_those_that_the_comparisons_were_drawn_by() -> None:
    drawn = matches(20_000)
    place = {name: at for at, name in enumerate(NAMES)}
    counts = PairCounts(
        np.array([place[each.first] for each in drawn]),
        np.array([place[each.second] for each in drawn]),
        np.array([{"first": WIN, "second": LOSS, "tie": TIE}[each.winner] for each in drawn]),
        4,
    )
    found = strengths(counts.whole[None], counts.low, counts.high, 4, ties=True)[0]
    assert found[:4] == pytest.approx(TRUE - TRUE.mean(), abs=0.06)
    assert np.exp(found[4]) == pytest.approx(TIES, abs=0.05)
    # At the maximum every candidate wins as often as the model expects, a tie counting half.
    won = counts.wins().sum(1) + counts.tied().sum(1) / 2
    expected = np.zeros(4)
    for (i, j), n in zip(zip(counts.low, counts.high, strict=True), counts.whole.sum(1), strict=True):
        odds = np.exp([found[i], found[j], found[4] + (found[i] + found[j]) / 2])
        shares = n * odds / odds.sum()
        expected[i] += shares[0] + shares[2] / 2
        expected[j] += shares[1] + shares[2] / 2
    assert won == pytest.approx(expected, abs=0.01)


def test_a_ranking_has_intervals_ranks_and_a_matrix() -> None:
    report = ranking(matches(400), source="x", left_out={}, draws=200)
    assert [each.name for each in report.candidates] == list(NAMES)
    assert [each.rank for each in report.candidates] == [1, 2, 3, 4]
    for at, each in enumerate(report.candidates):
        rating = each.rating
        assert rating.low is not None and rating.high is not None and rating.value is not None
        assert rating.low < rating.value < rating.high
        assert each.best_rank is not None and each.worst_rank is not None
        assert each.best_rank <= at + 1 <= each.worst_rank
        assert each.wins == sum(report.wins[at]) and each.ties == sum(report.tied[at])
    assert sum(map(sum, report.wins)) + sum(map(sum, report.tied)) // 2 == 400
    assert report.n_questions == 200
    two = [Match("a", "b", winner, f"q{at}") for at, winner in enumerate(["first"] * 3 + ["second"] * 1)]
    apart = ranking(
        [Match(each.first, each.second, each.winner, each.question) for each in two * 10],
        source="x",
        left_out={},
        draws=50,
    )
    ratings = [each.rating.value or 0 for each in apart.candidates]
    assert ratings[0] - ratings[1] == pytest.approx(400 * np.log10(3), rel=0.01), (
        "three wins for a loss, no ties"
    )


def test_what_does_not_connect_is_not_ranked_and_says_why() -> None:
    def said(*rows: tuple[str, str, Winner]) -> str:
        report = ranking([Match(*row, f"q{at}") for at, row in enumerate(rows)], source="x", left_out={})
        assert all(each.rating.value is None and each.rank is None for each in report.candidates)
        json.dumps(report.to_dict(), allow_nan=False)
        return report.undefined or ""

    assert "'a' has never lost to or tied with any of the others" in said(
        ("a", "b", "first"), ("b", "c", "first"), ("c", "b", "first"), ("a", "c", "first")
    )
    assert "'c' has never won against or tied" in said(
        ("a", "b", "first"), ("b", "a", "first"), ("b", "c", "first")
    )
    assert "never been compared with any of the others" in said(("a", "b", "tie"), ("c", "d", "tie"))
    tied = ranking([Match("a", "b", "tie", "q")], source="x", left_out={})
    assert tied.undefined is None and tied.candidates[0].rating.value == pytest.approx(1000)
    for bad in ([], [Match("a", "a", "tie", "q")]):
        with pytest.raises(InputError):
            ranking(bad, source="x", left_out={})


def test_a_file_is_ranked_by_known_or_named_columns(call: Call, tmp_path: Path) -> None:
    rows = [(each.first, each.second, each.winner, each.question) for each in matches(120)]
    words = {"first": "model_a", "second": "model_b", "tie": "tie (bothbad)"}
    known = tmp_path / "battles.csv"
    lines = ["model_a,model_b,winner,question_id", *(f"{a},{b},{words[w]},{q}" for a, b, w, q in rows)]
    lines += ["x,x,tie,1", "good,weak,nobody,2", "good,,tie,3"]
    known.write_text("\n".join(lines), encoding="utf-8")
    data = call("rank", str(known), "--json").data
    assert [each["name"] for each in data["candidates"]][-1] == "weak" and data["n"] == 120
    assert data["left_out"] == {
        "of a candidate with itself": 1,
        "with a winner that is neither of the two nor a tie": 1,
        "without second": 1,
    }
    own = tmp_path / "own.jsonl"
    named = [{"l": a, "r": b, "w": {"first": a, "second": b, "tie": "tie"}[w]} for a, b, w, _ in rows]
    own.write_text("\n".join(map(json.dumps, named)), encoding="utf-8")
    done = call("rank", str(own), "--first", "l", "--second", "r", "--winner", "w")
    assert done.code == 0 and "120 comparisons of 4 candidates, 120 questions" in done.out
    assert "won = tied" in done.out
    unknown = call("rank", str(own))
    assert unknown.code == 2 and "120 rows without first" in unknown.err
    lone = tmp_path / "lone.csv"
    lone.write_text("first,second,winner\na,b,a\n\x1b[2Ja,b,first\n", encoding="utf-8")
    apart = call("rank", str(lone))
    assert apart.code == 3 and "no ranking:" in apart.out and "\x1b" not in apart.out


def test_a_run_of_pairwise_is_ranked(call: Call, tmp_path: Path) -> None:
    def script(prompt: Prompt) -> Any:
        texts = {data.name: data.text for data in prompt.data()}
        if "whatever" in texts["first"] + texts["second"]:
            return {"first": 0.9, "second": 0.1}  # the place decides
        better = "first" if texts["first"] > texts["second"] else "second"
        return {better: 0.8, "tie": 0.2}

    rows = [
        {
            "input": f"question {at}",
            "context": "It closes at five.",
            "output": "five" if at % 4 else "four",
            "alternatives": ["whatever" if at % 3 == 0 else "f"],
            "metadata": {"model_a": "mine", **({"model_b": "theirs"} if at else {})},
        }
        for at in range(20)
    ]
    rows.append({**rows[1], "alternatives": ["six"], "input": "another"})
    store = tmp_path / "runs.db"
    engine = ScriptedEngine(script, name="pairs")
    magistrate.evaluate(rows, "pairwise", model=engine, name="pairs", store=store, progress=False)
    data = call("rank", "pairs", "--store", str(store), "--json").data
    assert data["left_out"] == {"without metadata.model_b": 1} and data["n"] == 20
    assert data["candidates"][0]["name"] == "mine"
    assert data["consistent"] == pytest.approx(14 / 20)
    assert any("the order of the answers decided" in each for each in data["remarks"])
    rows.append({"input": "cut off", "output": 5, "alternatives": ["six"]})
    magistrate.evaluate(rows, "pairwise", model=engine, name="unread", store=store, progress=False)
    data = call("rank", "unread", "--store", str(store), "--json").data
    assert data["left_out"] == {"without metadata.model_b": 1, "not readable": 1} and data["n"] == 20
    wrong = call("rank", "pairs", "--store", str(store), "--winner", "x")
    assert wrong.code == 2 and "--winner needs a file" in wrong.err
