"""What a jury is worth beside its members: known figures, honest fallbacks, and what the command prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import magistrate
from magistrate.analysis.jury import Pool, jury_report, votes_of_judges
from magistrate.engines.base import Engine
from magistrate.errors import EngineTimeout, InputError
from magistrate.judges.base import JudgeInfo
from magistrate.judges.jury import Jury
from magistrate.metrics.jury import NO_VOTE, dawid_skene, error_correlation
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Outcome, Sample, Verdict
from terminal import Call
from two_judges import samples_of, verdicts

N = 120
TRUTH = [at % 3 == 0 for at in range(N)]


def scores_of(member: int, wrong: float, shared: float = 0.0) -> list[float]:
    """Scores of a member that errs by chance, in a share of cases together with the others."""
    own, common = np.random.default_rng(member), np.random.default_rng(99)
    errs = np.where(common.random(N) < shared, common.random(N) < wrong, own.random(N) < wrong)
    return [0.8 if bad != err else 0.2 for bad, err in zip(TRUTH, errs.tolist(), strict=True)]


@dataclass(frozen=True)
class Listed:
    """Says the score that is listed for the sample's number; fails or abstains where it is told to."""

    name: str
    scores: Sequence[float]
    fails: frozenset[int] = frozenset()
    abstains: frozenset[int] = frozenset()

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo(self.name, labels=(FAITHFUL, HALLUCINATED), kind="code", threshold=0.5)

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        at = int(sample.id.removeprefix("s"))
        if at in self.fails:
            raise EngineTimeout("too slow")
        if at in self.abstains:
            return Abstention(sample.id, self.name, "uncertain", "not sure")
        score = self.scores[at]
        return Verdict(sample.id, self.name, HALLUCINATED if score >= 0.5 else FAITHFUL, score)


def rows() -> list[dict[str, object]]:
    return [
        {
            "id": f"s{at}",
            "output": f"output {at} \x1b[2J<b>{{{{ 7*7 }}}}",
            "context": [f"context {at}"],
            "label": HALLUCINATED if bad else FAITHFUL,
        }
        for at, bad in enumerate(TRUTH)
    ]


# --- the numbers ----------------------------------------------------------------------------------


def test_errors_that_are_the_same_are_one_vote_and_independent_ones_are_as_many_as_members() -> None:
    wrong = np.random.default_rng(0).random(4000) < 0.3
    same = error_correlation(np.stack([wrong] * 3, axis=1), np.arange(4000), draws=50)
    assert same.mean.value == pytest.approx(1) and same.effective.value == pytest.approx(1)
    apart = np.random.default_rng(1).random((4000, 3)) < 0.3
    found = error_correlation(apart, np.arange(4000), draws=50)
    assert found.effective.value == pytest.approx(3, abs=0.2)
    assert found.pairs[0][1] == pytest.approx(float(np.corrcoef(apart[:, 0], apart[:, 1])[0, 1]))
    assert found.pairs[0][0] is None and found.pairs[1][0] == found.pairs[0][1]
    never = np.zeros((4000, 2), dtype=bool)
    assert error_correlation(never, np.arange(4000), draws=50).effective.undefined is not None


def test_dawid_skene_finds_who_is_reliable_without_labels() -> None:
    source = np.random.default_rng(3)
    truth = source.random(4000) < 0.3
    rates = (0.05, 0.2, 0.25, 0.4)
    votes = np.stack([truth ^ (source.random(4000) < rate) for rate in rates], axis=1).astype(np.int64)
    votes[source.random(votes.shape) < 0.2] = NO_VOTE
    votes[:, 0] = np.where((votes == NO_VOTE).all(1), truth, votes[:, 0])
    found = dawid_skene(votes)
    assert found.fallback is None and found.converged
    assert found.shares is not None and found.confusion is not None
    assert found.shares[1] == pytest.approx(0.3, abs=0.03)
    for at, rate in enumerate(rates):
        assert found.confusion[at].diagonal().mean() == pytest.approx(1 - rate, abs=0.04), rate
    by_votes = np.array([np.mean(row[row != NO_VOTE]) > 0.5 for row in votes])
    assert ((found.posterior[:, 1] > 0.5) == truth).mean() > (by_votes == truth).mean() + 0.02
    assert found.posterior.sum(1) == pytest.approx(np.ones(4000))


def test_dawid_skene_says_where_it_cannot_tell_and_gives_the_share_of_the_votes() -> None:
    two = dawid_skene(np.array([[0, 1]] * 60))
    assert two.fallback is not None and "at least 3 raters are needed; there are 2" in two.fallback
    few = dawid_skene(np.array([[0, 1, 1]] * 49 + [[1, NO_VOTE, NO_VOTE]] * 30))
    assert (
        few.fallback is not None
        and "50 items with at least two votes are needed; there are 49" in few.fallback
    )
    assert few.posterior[0].tolist() == pytest.approx([1 / 3, 2 / 3]) and few.confusion is None
    source = np.random.default_rng(0)
    first = source.random((400, 1)) < 0.5
    others = first ^ (source.random((400, 7)) < 0.6)
    split = dawid_skene(np.concatenate([first, first, others], axis=1).astype(np.int64))
    assert split.fallback is not None and "the labels may be swapped" in split.fallback
    for bad in (np.array([[0, 2, 0]] * 60), np.array([[NO_VOTE] * 3] * 60), np.zeros(5, dtype=np.int64)):
        with pytest.raises(InputError):
            dawid_skene(bad)


def test_a_jury_is_measured_beside_its_members_on_the_samples_of_all() -> None:
    samples = samples_of([*TRUTH, None])
    said = {name: verdicts([*scores_of(at, 0.25), 0.9], name) for at, name in enumerate("abc")}
    del said["c"]["s0"], said["c"]["s1"]
    votes = votes_of_judges(samples, said, dict.fromkeys("abc", False))
    report = jury_report(votes, Pool("majority"), run="r", source="abc", n_total=N + 1)
    assert report.n_common == N - 2
    assert report.left_out == {"a member has no verdict": 2, "no gold label": 1}
    assert [row.verdicts for row in report.members] == [N + 1, N + 1, N - 1]
    values = {row.name: row.metrics["balanced_accuracy"].value or 0 for row in report.members}
    assert report.best == max(values, key=values.__getitem__)
    jury = report.jury.metrics["balanced_accuracy"].value
    assert jury is not None and report.gain.value == pytest.approx(jury - values[report.best])
    assert jury > max(values.values()), "three judges with errors of their own are better than one"
    assert report.gain.low is not None and report.gain.high is not None
    assert report.gain.low <= report.gain.value <= report.gain.high
    assert [row.name for row in report.without] == ["without a", "without b", "without c"]
    assert {row.name for row in report.pools} == {"mean", "median", "logit", "geometric_median"}
    assert report.errors.effective.value is not None and report.errors.effective.value > 2
    assert report.unlabelled.fallback is None
    assert report.unlabelled.share == pytest.approx(1 / 3, abs=0.1)
    assert report.disputed and all(each.spread == pytest.approx(0.6) for each in report.disputed)


def test_members_that_err_together_are_said_to() -> None:
    samples = samples_of(TRUTH)
    said = {name: verdicts(scores_of(at, 0.3, shared=1.0), name) for at, name in enumerate("abc")}
    votes = votes_of_judges(samples, said, dict.fromkeys("abc", False))
    report = jury_report(votes, Pool(), run="r", source="abc", n_total=N)
    assert report.errors.effective.value == pytest.approx(1)
    assert any("worth 1.00 independent votes" in each for each in report.remarks)
    assert any("do not show that the jury is better" in each for each in report.remarks)
    assert report.disputed == ()


# --- stored runs ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a jury whose third member fails and abstains at times, and one of two of its members."""
    place = tmp_path_factory.mktemp("jury") / "runs.db"
    three = tuple(
        Listed(name, scores_of(at, 0.2), frozenset({5, 6} if at == 2 else ()), frozenset({7} if at else ()))
        for at, name in enumerate(("first", "second", "third"))
    )
    for name, judges in (("panel", [Jury(three)]), ("apart", list(three[:2]))):
        magistrate.evaluate(rows(), judges, name=name, store=place, progress=False)
    return place


def test_the_command_prints_a_jury_and_its_members(call: Call, store: Path) -> None:
    done = call("jury", "panel", "--store", str(store))
    assert done.code == 0, done.err
    for words in ("jury (mean)", "without second", "best single member", "independent votes", "disputed"):
        assert words in done.out, words
    assert "\x1b" not in done.out
    data = call("jury", "panel", "--store", str(store), "--json").data
    assert data["n_judged"] == N - 1, "where two of three are silent the jury is, too"
    assert data["left_out"] == {"a member has no verdict": 2, "abstained": 1}
    assert [row["name"] for row in data["members"]] == ["first", "second", "third"]
    assert data["members"][2]["verdicts"] == N - 3
    assert data["error_correlation"]["effective_votes"]["value"] > 2
    assert len(data["dawid_skene"]["probabilities"]) == N - 1
    assert data["pool"] == {"aggregate": "mean", "weights": None, "least": 2, "threshold": 0.5}
    other = call("jury", "panel", "--store", str(store), "--aggregate", "majority", "--json").data
    assert other["jury"]["name"] == "jury (majority)"


def test_judges_of_a_run_are_taken_as_a_jury(call: Call, store: Path) -> None:
    data = call("jury", "apart", "--store", str(store), "--json").data
    assert data["source"] == "2 judges of the run, as a jury" and data["without"] == []
    assert "at least 3 raters" in data["dawid_skene"]["fallback"]
    alone = call("jury", "apart", "--judge", "first", "--store", str(store))
    assert alone.code == 2 and "'first' is not a jury" in alone.err
    unknown = call("jury", "apart", "--judge", "nobody", "--store", str(store))
    assert unknown.code == 2 and "has no judge 'nobody'" in unknown.err
    json.dumps(data, allow_nan=False)
