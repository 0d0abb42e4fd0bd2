"""`benchmarks.jury`: what is fitted or chosen knows nothing of the family of the tested set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import jury
from benchmarks.panels import Judged
from magistrate.judges.novelty import Novelty
from magistrate.types import Failure, Outcome, Sample, Verdict


def made(family: str, good: int, n: int = 60) -> jury.Votes:
    """Votes of three members, of which one is right three times in four, and the others by chance."""
    draws = np.random.default_rng(len(family))
    truth = np.arange(n) % 2 == 0
    odds = draws.normal(size=(n, 3))
    odds[:, good] += np.where(truth, 1.0, -1.0)
    return jury.Votes(family, family, odds, odds >= 0, truth, np.arange(n), n)


def test_weights_and_the_best_member_come_from_other_families() -> None:
    dev = [made("one", 0), made("three", 0), made("fourth", 0), made("of its own", 2)]
    row = jury.row_of(made("of its own", 2), dev)
    assert row.best == 0, "on the tested family another one is best"
    without = jury.row_of(made("of its own", 2), dev[:-1])
    assert without.points == pytest.approx(row.points), "the dev part of the family changes nothing"
    same = jury.row_of(made("one", 0), dev[:3])
    assert same.points[0, 0] > 0.75 > same.points[1, 0]
    assert same.points[4, 1] == pytest.approx(same.points[0, 1], abs=0.06), "the weighted jury is that member"
    assert same.gains[1].low is not None and same.gains[1].low <= 0 <= (same.gains[1].high or 0)
    names = ["`a`", "`b`", "`c`"]
    told = jury.cells(same, names)
    assert (
        told[:2] == ["one", "60/60"] and told[7] == "`a`" and len(told) == len(jury.means([row, same])) == 11
    )


def test_a_sample_counts_if_every_member_has_a_verdict_of_it() -> None:
    samples = [Sample(f"s{at}", "It is.", ("It is.",), label="faithful") for at in range(3)]
    scores = {"s0": 0.9, "s1": 0.2, "s2": 0.4}
    verdicts: dict[str, Outcome] = {
        name: Verdict(name, "novelty", "hallucinated" if score > 0.5 else "faithful", score)
        for name, score in scores.items()
    }
    one = Judged("a", Novelty(), {}, verdicts, None)
    other = Judged("b", Novelty(), {}, {**verdicts, "s1": Failure("s1", "novelty", "timeout", "late")}, None)
    found = jury.votes("set", "family", samples, [one, other])
    assert found.n == 3 and len(found.truth) == 2
    assert found.said.tolist() == [[True, True], [False, False]]
    assert found.odds[0, 0] == pytest.approx(np.log(9))


def test_the_command_reads_its_words(tmp_path: Path) -> None:
    asked = jury.parser().parse_args(["--judge", "novelty", "--store", str(tmp_path / "a.db")])
    assert asked.judges == ["novelty"] and asked.samples == 120
