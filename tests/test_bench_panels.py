"""`benchmarks.panels`: self-consistency gets the tokens of the panel and no more, and a tie is not right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import panels
from magistrate import ScriptedEngine
from magistrate.judges import registry
from magistrate.judges.pairwise import BETTER, WORSE, Pairwise
from magistrate.types import Prompt, Sample

VOTES = ("hallucinated", "faithful", "faithful", "hallucinated")
LABELS = ("faithful", "hallucinated")


def script(prompt: Prompt) -> Any:
    text = {part.name: part.text for part in prompt.data()}
    if "first" in text:  # two answers: the first one is preferred unless the second is longer
        longer = len(text["second"]) > len(text["first"])
        return {"first": 0.2 if longer else 0.8, "second": 0.8 if longer else 0.2}
    asked.append(text["output"])
    return json.dumps({"reasoning": "so it is " * (1 + len(asked) % 20), "verdict": VOTES[len(asked) % 4]})


asked: list[str] = []


def samples(n: int = 8) -> list[Sample]:
    return [
        Sample(f"s{at}", f"It is {at}.", (f"It is number {at}.",), "Which?", label=LABELS[at % 2])
        for at in range(n)
    ]


def test_self_consistency_gets_as_many_votes_as_the_panel_had_tokens_for(tmp_path: Path) -> None:
    store, engine = tmp_path / "panels.db", ScriptedEngine(script, name="panel")
    poll = panels.judged("chainpoll:n=6", registry.judge("chainpoll:n=6"), samples(), engine, store)
    small = panels.judged("chainpoll:n=2", registry.judge("chainpoll:n=2"), samples(), engine, store)
    n = len(asked)
    again = panels.judged("chainpoll:n=6", registry.judge("chainpoll:n=6"), samples(), engine, store)
    assert len(asked) == n and again.outcomes.keys() == poll.outcomes.keys(), (
        "what is done is not asked again"
    )
    rival, short = panels.at_budget(poll, small)
    for sample_id, outcome in rival.outcomes.items():
        votes, theirs = panels.votes_of(poll.outcomes[sample_id]), small.outcomes[sample_id].usage
        taken, budget = outcome.usage.calls, theirs.prompt + theirs.generated
        assert outcome.usage.prompt == sum(tokens for _, tokens in votes[:taken])
        assert taken == 1 or outcome.usage.prompt <= budget
        assert taken == 6 or outcome.usage.prompt + votes[taken][1] > budget, "one more would be too many"
        assert outcome.score == sum(against for against, _ in votes[:taken]) / taken  # type: ignore[union-attr]
    assert short == 0 and panels.at_budget(small, poll)[1] == 8, "where votes run out, it is told"
    rows = list(panels.labelled_rows([small], poll, poll))
    assert all(len(row) == len(panels.LABELLED) for row, _ in rows) and rows[0][0][-1] == "8/8"
    single, figures = (known for _, known in rows)
    assert (figures["judge"], figures["n"], figures["n_ok"]) == (small.name, 8, 8)
    assert figures["calls"] == small.usage().calls / 8 and single["calls"] > figures["calls"]
    assert figures["difference"][0] == pytest.approx(
        figures["balanced_accuracy"][0] - figures["votes"][0], abs=2e-3
    )


def test_a_tie_of_two_answers_is_not_right_and_conflicting_orders_are_counted(tmp_path: Path) -> None:
    def pair(at: int, first: str, second: str, better: str) -> Sample:
        return Sample(f"p{at}", first, input="?", alternatives=(second,), metadata={"better": better})

    pairs = [
        pair(0, "short", "much longer", WORSE),
        pair(1, "much longer", "short", BETTER),
        pair(2, "much longer", "short", WORSE),
        pair(3, "equal", "alike", BETTER),  # as long: whoever stands first is preferred
    ]
    engine = ScriptedEngine(script, name="pairs")
    judge = Pairwise("By length.", ties=False)
    row, known = panels.pair_row(panels.judged("pairwise", judge, pairs, engine, tmp_path / "p.db"))
    assert known["right"][0] == 0.5 and known["ties"] == 1
    assert len(row) == len(panels.PAIRED)
    told = dict(zip(panels.PAIRED, row, strict=True))
    assert told["verdicts"] == "4/4" and told["right"].startswith(".50"), (
        "2 of 4, and the tie is none of them"
    )
    assert told["ties"] == "1" and told["same in both orders"].startswith(".75")
