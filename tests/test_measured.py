"""The table of measured quality: from rows of `benchmarks.quality` to what `magistrate judges` shows."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from benchmarks.quality.publish import published
from benchmarks.quality.rows import BASELINE, QualityRow, newest
from benchmarks.quality.rows import read as rows_of
from magistrate.errors import SpecError
from magistrate.judges import quality, registry
from magistrate.judges.quality import Measured, measured, read, summaries, table
from magistrate.judges.registry import spelled
from magistrate.report.judges import cost, worth
from magistrate.types import Recipe
from terminal import Call

ROWS = Path(__file__).parent.parent / "benchmarks" / "quality.jsonl"
FIGURE = (0.51239, 0.4, 0.6)
CLEARLY = 0.05  # of mean AUROC, by which a slower judge must rank better to become the default


def row(judge: str = "faithfulness", **facts: Any) -> QualityRow:
    info = registry.judge("faithfulness").info
    recipe = Recipe(f"{judge}@{info.version}", "m", "f" * 64, info.prompt, "", 0, 100, "0.1.0").line()
    values: dict[str, Any] = {
        "protocol": 1,
        "set": "summedits",
        "n_dev": 0,
        "n": 100,
        "hallucinated": 0.5,
        "model": "m",
        "judge": judge,
        "recipe": recipe,
        "run": "r",
        "commit": None,
        "date": "2026-01-01",
        "cpu": "c",
        "cores": 2,
        "load": None,
        "n_ok": 99,
        "n_dev_ok": 0,
        "failures": {},
        "abstentions": {},
        "threshold": None,
        "tuned": {},
        "own": {"balanced_accuracy": FIGURE},
        "auroc": FIGURE,
        "ece": None,
        "brier": None,
        "ms": 1234.5,
        "in_flight": 1,
        "read": 1.0,
        "written": 1.0,
    }
    return QualityRow(**{**values, **facts})


def back(*rows: QualityRow, **folds: str) -> tuple[Measured, ...]:
    return read(tomllib.loads(published(rows, folds)))


def test_what_was_published_is_read_again() -> None:
    (found,) = back(row())
    assert (found.judge, found.set, found.model, found.n, found.ms) == (
        "faithfulness@2",
        "summedits",
        "m",
        99,
        1234.5 // 10 * 10,
    )
    assert found.auroc == found.balanced_accuracy == (0.512, 0.4, 0.6)


def test_rules_and_sets_that_were_learnt_from_are_left_out_and_undefined_is_no_figure() -> None:
    assert back(row(model=BASELINE), row(seen=("summedits",))) == ()
    (found,) = back(row(auroc=(None, None, None), ms=None))
    assert (found.auroc, found.ms) == (None, None)
    (larger,) = back(row(n=200), row(n=100, n_ok=7))
    assert larger.n == 99


def test_judges_trained_without_a_family_stand_for_the_one_that_ships() -> None:
    of = "faithfulness:folder={family}"
    (found,) = back(row(of), faithfulness=of)
    assert (found.judge, found.folds) == ("faithfulness@2", of)
    with pytest.raises(SpecError, match="no row is of 'other'; measured are: faithfulness"):
        back(row(), faithfulness="other")


def test_only_a_judge_as_it_was_measured_has_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    known = back(row())
    monkeypatch.setattr(quality, "table", lambda: known)
    assert measured(registry.judge("faithfulness")) == known
    assert measured(registry.judge("faithfulness:permute=true")) == ()
    assert measured(registry.judge("hallucination")) == ()
    of_another_prompt = [Measured(**{**_values(known[0]), "prompt": "0" * 12})]
    monkeypatch.setattr(quality, "table", lambda: tuple(of_another_prompt))
    assert measured(registry.judge("faithfulness")) == ()


def test_sets_count_alike_and_undefined_ones_not_at_all() -> None:
    found = back(row(), row(set="begin", auroc=(0.7, 0.6, 0.8), ms=10.0), row(set="x", auroc=(None,) * 3))
    (one,) = summaries(found)
    assert (one.sets, one.n, one.ms) == (3, 297, 1230)
    assert one.auroc == pytest.approx((0.512 + 0.7) / 2)


def test_the_shipped_table_is_of_judges_that_there_are() -> None:
    words = {each.judge for each in table()}
    assert words and all(0 <= end <= 1 for each in table() if each.auroc for end in each.auroc)
    for each in words:
        name, _, version = each.rpartition("@")
        judge = registry.judge(name)
        assert (spelled(judge), version.isdigit()) == (name, True)


def test_the_list_and_one_judge_show_their_figures(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    known = back(row(model="smollm2-135m-judge"), row(model="smollm2-135m-judge", set="begin"))
    monkeypatch.setattr(quality, "table", lambda: known)
    listed = call("judges").out.splitlines()
    assert listed[0].split()[:4] == ["judge", "AUROC", "n", "ms"]
    lines = {words[0]: words[1:4] for line in listed if (words := line.split())}
    assert lines["faithfulness@2"] == [".51", "198", "1,230"]
    assert lines["hallucination@2"] == ["–", "–", "–"]
    shown = call("judges", "faithfulness")
    assert "smollm2-135m-judge, if you name none" in shown.out
    assert ".51 [.40, .60]" in shown.out and max(map(len, shown.out.splitlines())) <= 80
    assert "Not measured: the package" in call("judges", "faithfulness:permute=true").out
    (first, second) = call("judges", "faithfulness", "--json").data["measured"]
    assert (first["set"], second["set"], first["n"]) == ("summedits", "begin", 99)
    told = {each["name"]: each["measured"] for each in call("judges", "--json").data}
    assert (len(told["faithfulness"]), told["hallucination"]) == (2, [])


def _values(found: Measured) -> dict[str, Any]:
    return {name: getattr(found, name) for name in Measured.__slots__}


def test_nothing_ranks_clearly_better_than_the_default_without_a_download_where_neither_had_learnt() -> None:
    aurocs: dict[str, dict[str, float]] = {}
    for each in newest(rows_of(ROWS)):
        if each.model == "none" and not each.seen and each.auroc[0] is not None:
            aurocs.setdefault(each.judge, {})[each.set] = each.auroc[0]
    sets = set().union(*aurocs.values())
    whole = {judge: fmean(found.values()) for judge, found in aurocs.items() if set(found) == sets}
    assert len(whole) >= 3, "nothing to choose from"
    (default,) = {each.folds for each in measured(registry.judge("auto"))}
    assert max(whole.values()) - whole[default] < CLEARLY


def panel(**facts: Any) -> dict[str, Any]:
    values = {
        "judge": "courtroom:least=1",
        "model": "m",
        "set": "begin",
        "n": 60,
        "calls": 7.3,
        "tokens": 6022,
    }
    return {**values, "balanced_accuracy": [0.5, 0.37, 0.64], "difference": [0.0, -0.13, 0.14], **facts}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """What `worth` says of the courtroom, where these are all panels that were measured."""

    def worth_of(*rows: dict[str, Any], judge: str = "courtroom") -> str:
        parsed = tomllib.loads(published([], {}, rows))
        monkeypatch.setattr(quality, "_parsed", lambda: parsed)
        quality.comparisons.cache_clear()
        return worth(registry.judge(judge))

    monkeypatch.setattr(quality, "table", tuple)
    yield worth_of
    quality.comparisons.cache_clear()


def test_a_panel_that_does_not_beat_as_many_votes_says_so(told: Callable[..., str]) -> None:
    plain = "does not beat as many votes of one question on begin with m"
    assert told(panel()) == plain
    assert told(panel(difference=[0.0, None, None], balanced_accuracy=[0.5, None, None])) == plain
    better = panel(set="summedits", difference=[0.2, 0.05, 0.35])
    assert told(panel(), better) == (
        "beats as many votes of one question on summedits with m; "
        "does not beat as many votes of one question on begin with m"
    )
    assert told(better, panel(set="summedits")) == plain.replace("begin", "summedits"), "the last one counts"
    assert told(panel(), judge="geval") == "", "of another judge"


def test_pairs_are_told_as_the_share_that_is_right(told: Callable[..., str]) -> None:
    pairs = {"set": "llmbar", "right": [0.35, 0.24, 0.48], "ties": 3, "difference": [None, None, None]}
    rows = [
        panel(judge="pairwise", **pairs),
        panel(judge="pairwise:ties=false", **{**pairs, "right": [0.5, 0.4, 0.6]}),
    ]
    assert told(*rows, judge="pairwise") == "right on .35 to .50 of 60 pairs, 3 ties, on llmbar with m"
    assert cost(registry.judge("pairwise")) == "7.3 calls, 6,022 tokens"


def test_a_judge_shows_its_comparisons(call: Call) -> None:
    shown = call("judges", "courtroom").out
    assert "as many votes of one question" in " ".join(shown.split())
    compared = call("judges", "courtroom", "--json").data["compared"]
    assert "courtroom:least=1" in {each["judge"] for each in compared}
    assert all(f"{each['calls']:g}" in shown and each["set"] in shown for each in compared)
