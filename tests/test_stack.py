"""A stack weighs its parts on labels, is measured on what it had not seen, and says why it decides so."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

import magistrate
from magistrate import ScriptedEngine
from magistrate.api.train import Asking, Stacked, train_stack
from magistrate.datasets.named import family_of, shared
from magistrate.errors import InputError, SpecError
from magistrate.judges import registry
from magistrate.judges.stack import Stack
from magistrate.judges.stack_folder import read_stack, standardized
from magistrate.judges.stack_folder import scaled as on_scales
from magistrate.runs.execute import judge_one
from magistrate.training.stack import Table, evenly, families_of, fit, fitted, folds_of
from magistrate.types import Abstention, Failure, Outcome, Prompt, Sample, Verdict
from terminal import Call

# --- the fit --------------------------------------------------------------------------------------


def table(
    n: int = 600, *, families: int = 3, informative: float = 1.5, level: float = 0.0, seed: int = 0
) -> Table:
    """A judge that knows something, and a signal that knows nothing; families differ in level."""
    random = np.random.default_rng(seed)
    truth = random.random(n) < 0.4
    family = np.arange(n) % families
    odds = informative * (truth - 0.5) + random.normal(0, 1, n) + level * family
    return Table(
        ("judge", "signal"),
        ("log_odds", "share"),
        np.column_stack([1 / (1 + np.exp(-odds)), random.random(n)]),
        truth,
        np.arange(n) // (2 * families) * families + family,
        np.array([f"f{each}" for each in family]),
        np.array([f"f{each}-set" for each in family]),
    )


def test_the_weights_are_those_of_scikit_learn() -> None:
    one = table(families=1)
    found = fitted(one)
    z = standardized(on_scales(one.values, one.scales), found.means, found.spreads)
    # L2 of its own leaves the intercept alone, and weights of mean 1 make C the same.
    theirs = LogisticRegression(C=found.strength, tol=1e-10, max_iter=5000)
    theirs.fit(z, one.truth, sample_weight=evenly(one))
    assert found.weights == pytest.approx(theirs.coef_[0], abs=1e-4)
    assert found.intercept == pytest.approx(theirs.intercept_[0], abs=1e-4)


def test_every_family_and_label_counts_the_same() -> None:
    some = table(n=500)
    uneven = some.take(np.flatnonzero((some.families != "f0") | (np.arange(500) < 60)))
    weights = evenly(uneven)
    assert weights.mean() == pytest.approx(1)
    for label in (True, False):
        of = [
            weights[(uneven.families == f) & (uneven.truth == label)].sum()
            for f in np.unique(uneven.families)
        ]
        assert of == pytest.approx([uneven.n / 6] * 3)


def test_what_tells_sets_apart_is_not_learnt() -> None:
    """A part that only knows from which set a sample is, where sets differ in their base rates."""
    random = np.random.default_rng(1)
    sets = random.integers(0, 2, 800)
    truth = random.random(800) < np.where(sets == 1, 0.8, 0.2)
    values = np.column_stack([0.2 + 0.6 * sets + random.random(800) * 0.1, random.random(800)])
    names = np.array([f"s{each}" for each in sets])
    fooled = Table(
        ("level", "noise"), ("share", "share"), values, truth, np.arange(800), np.full(800, "f"), names
    )
    assert abs(fitted(fooled).weights[0]) < 0.5
    together = Table(
        ("level", "noise"), ("share", "share"), values, truth, np.arange(800), names, np.full(800, "f")
    )
    assert fitted(replace(together, families=np.full(800, "f"))).weights[0] > 1


def test_a_weight_below_zero_can_be_forbidden() -> None:
    some = table()
    wrong = replace(some, values=np.column_stack([some.values[:, 0], 1 - some.truth * 0.5]))
    assert fitted(wrong).weights[1] < 0
    assert fitted(wrong, positive=True).weights[1] == 0


def test_a_value_that_is_not_there_adds_nothing() -> None:
    some = table()
    values = some.values.copy()
    values[::3, 1] = np.nan
    found = fitted(replace(some, values=values))
    assert found.contributions(np.array([[0.5, np.nan]]))[0, 1] == 0
    assert np.isfinite(found.log_odds(values)).all()


def test_parts_of_a_fold_or_a_family_share_nothing_with_what_they_are_judged_by() -> None:
    some = table()
    for train, test in folds_of(some, 5, 0):
        assert set(some.groups[train]).isdisjoint(some.groups[test])
    assert [name for name, *_ in families_of(some)] == ["f0", "f1", "f2"]
    for name, train, test in families_of(some):
        assert set(some.families[test]) == {name} and name not in some.families[train]


def test_a_left_out_family_shares_no_context_with_what_it_is_judged_by() -> None:
    some = table()
    shared = replace(some, groups=np.where(some.families == "f1", some.groups, np.arange(600) // 6 * 3))
    parts = {name: (train, test) for name, train, test in families_of(shared)}
    assert set(parts) == {"f0", "f1", "f2"}
    for train, test in parts.values():
        assert set(shared.groups[train]).isdisjoint(shared.groups[test])
    assert set(shared.families[parts["f0"][0]]) == {"f1"}
    twice = replace(some, groups=np.arange(600) // 3)
    found = fit(twice)
    assert not found.left_out
    assert "It is unknown how the stack works on f0, f1, f2" in "\n".join(found.remarks)


def test_figures_of_a_left_out_family_are_those_of_a_stack_of_the_others() -> None:
    some = table(level=0.5)
    held = fit(some).left_out["f2"]
    train, test = some.take(some.families != "f2"), some.take(some.families == "f2")
    own = fitted(train)
    near = own.distances(test.values) <= own.limit
    odds = own.log_odds(test.values)[near]
    assert (held.n, held.judged) == (test.n, int(near.sum()))
    assert held.figures["auroc"].value == pytest.approx(roc_auc_score(test.truth[near], odds))
    expected = balanced_accuracy_score(test.truth[near], odds >= 0)
    assert held.figures["balanced_accuracy"].value == pytest.approx(expected)


@pytest.mark.full
def test_labels_of_a_family_do_not_move_its_own_figures_but_by_being_compared() -> None:
    some = table()
    own = fitted(some.take(some.families != "f1"))
    flipped = replace(some, truth=np.where(some.families == "f1", ~some.truth, some.truth))
    assert fitted(flipped.take(flipped.families != "f1")).weights.tolist() == own.weights.tolist()
    before, after = (fit(each).left_out["f1"].figures["auroc"].value for each in (some, flipped))
    assert before is not None and after == pytest.approx(1 - before)


@pytest.mark.full
def test_remarks_say_what_a_reader_must_not_miss() -> None:
    told = "\n".join(fit(table(families=1)).remarks)
    assert "All data are from one family" in told and "not shown to rank better" not in told
    chance = "\n".join(fit(table(n=300, informative=0.0)).remarks)
    assert "the stack is not shown to rank better than chance, even on folds of its own data" in chance
    random = table(informative=1.5, seed=3)
    misleading = replace(
        random,
        values=np.column_stack(
            [
                random.values[:, 0],
                np.where(random.families == "f0", 1 - random.truth, random.truth) * 0.8 + 0.1,
            ]
        ),
    )
    assert "On f0, judge alone ranks better than the stack trained without it" in "\n".join(
        fit(misleading).remarks
    )


def test_too_few_labels_and_parts_that_say_nothing_are_refused() -> None:
    some = table(n=60)
    with pytest.raises(InputError, match=r"at least 60 labelled samples .*, 30 of each label; there are 60"):
        fit(some)
    still = table()
    constant = replace(still, values=np.column_stack([still.values[:, 0], np.full(still.n, 0.5)]))
    with pytest.raises(InputError, match="signal has the same value for every sample"):
        fit(constant)
    wrong = replace(
        still, truth=~still.truth, values=np.column_stack([still.values[:, 0], still.truth * 0.5])
    )
    with pytest.raises(InputError, match="none of judge, signal is higher for hallucinated outputs"):
        fit(wrong, positive=True)
    with pytest.raises(InputError, match="folds must be 2 to 20 here"):
        fit(table(), folds=50)


# --- the folder and the judge ---------------------------------------------------------------------


def by_number(prompt: Prompt) -> Any:
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    if "broken" in output:
        return ValueError("broken")
    score = int(output.split()[0]) / 100
    return {"faithful": 1 - score, "hallucinated": score}


def engine(name: str = "told") -> ScriptedEngine:
    return ScriptedEngine(by_number, name=name)


def rows(name: str, n: int = 150, seed: int = 0) -> Path:
    """A labelled file: the first number of an output is what the judge will say, some words are novel."""
    random = np.random.default_rng(seed)
    lines = []
    for at in range(n):
        wrong = random.random() < 0.5
        said = int(np.clip(random.normal(65 if wrong else 35, 20), 1, 99))
        new = random.random() < (0.7 if wrong else 0.3)
        text = f"{said} metres is the tower{' of purple marble' if new else ' high'}."
        lines.append(
            {
                "id": f"{name}{at}",
                "output": text,
                "context": f"Tower {at} is {said} metres high, the tower of the town.",
                "label": "hallucinated" if wrong else "faithful",
            }
        )
    path = Path(f"{name}.jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def stacked(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stacked:
    monkeypatch.chdir(tmp_path)
    return train_stack(
        [rows("one"), rows("two", seed=1)],
        ["faithfulness", "signal:content_words", "signal:quotations"][:2],
        how=Asking(model=engine()),
    )


def judged(judge: Any, output: str, context: str = "The tower is 50 metres high.") -> Outcome:
    return asyncio.run(judge_one(Sample("s", output, (context,)), judge, engine()))


def test_a_verdict_is_the_sum_of_its_contributions(stacked: Stacked) -> None:
    stack = registry.judge(f"stack:{stacked.save('made')}")
    found = judged(stack, "70 metres is the tower of purple marble.")
    assert isinstance(found, Verdict)
    told = found.details["base"] + sum(found.details["contributions"].values())
    assert found.score == pytest.approx(1 / (1 + math.exp(-told)))
    assert found.label == "hallucinated" and found.probability == found.score
    assert found.details["parts"]["faithfulness"] == pytest.approx(0.7)
    assert set(found.details["signals"]) == {"content_words"}
    assert found.explanation is not None
    assert "faithfulness (0.70) speaks against the output (+" in found.explanation
    texts = {claim.output_text for claim in found.claims}
    assert any("purple" in text for text in texts)
    assert found.usage.calls == 1
    good = judged(stack, "20 metres is the tower high.")
    assert isinstance(good, Verdict) and good.label == "faithful" and good.claims == ()


@pytest.mark.full
def test_its_card_is_what_its_folder_says_for_people(stacked: Stacked) -> None:
    folder = stacked.save("made")
    card = registry.judge(f"stack:{folder}").card  # type: ignore[attr-defined]
    assert card == (folder / "README.md").read_text() and "content_words" in card
    (folder / "README.md").unlink()
    assert registry.judge(f"stack:{folder}").card is None  # type: ignore[attr-defined]


def test_the_base_rate_moves_the_score_and_nothing_else(stacked: Stacked) -> None:
    folder = stacked.save("made")
    usual, rare = (
        judged(registry.judge(words), "60 metres is the tower high.")
        for words in (f"stack:{folder}", f"stack:{folder},base_rate=.1")
    )
    assert isinstance(usual, Verdict) and isinstance(rare, Verdict)
    assert rare.details["contributions"] == usual.details["contributions"]
    assert math.log(rare.score / (1 - rare.score)) == pytest.approx(
        math.log(usual.score / (1 - usual.score)) + math.log(1 / 9)
    )
    with pytest.raises(SpecError, match=r"base rate must be in \(0, 1\), got 1.0"):
        registry.judge(f"stack:{folder},base_rate=1")


@pytest.mark.full
def test_the_same_data_make_the_same_bytes_and_another_file_is_another_judge(stacked: Stacked) -> None:
    folder = stacked.save("made")
    again = train_stack(
        ["one.jsonl", "two.jsonl"], ["faithfulness", "signal:content_words"], how=Asking(model=engine())
    )
    assert again.file.text() == (folder / "stack.json").read_text()
    info = registry.judge(f"stack:{folder}").info
    assert info.prompt == stacked.file.digest
    assert (info.kind, info.lacks, info.trained_on) == ("llm", "", frozenset({"one", "two"}))
    card = (folder / "README.md").read_text()
    assert "| signal:content_words |" in card and "two, left out" in card


def test_a_judge_that_fails_or_abstains_makes_the_stack_do_so(stacked: Stacked) -> None:
    stack = registry.judge(f"stack:{stacked.save('made')}")
    failed = judged(stack, "50 broken")
    assert isinstance(failed, Failure)
    empty = judged(stack, "50 metres", context=" ")
    assert isinstance(empty, Abstention) and empty.reason == "no_context"
    none = judged(stack, " ")
    assert isinstance(none, Abstention) and none.reason == "no_output"


@pytest.mark.full
def test_what_is_far_from_the_training_samples_is_not_judged(stacked: Stacked) -> None:
    folder = stacked.save("made")
    data = json.loads((folder / "stack.json").read_text())
    data["limit"] = 0.5
    (folder / "stack.json").write_text(json.dumps(data))
    found = judged(registry.judge(f"stack:{folder}"), "99 purple marble of the emperor.")
    assert isinstance(found, Abstention) and found.reason == "uncertain"
    assert "too different from the training data of the stack: distance" in found.message
    assert isinstance(judged(registry.judge(f"stack:{folder},outside=judge"), "99 purple marble."), Verdict)


@pytest.mark.full
def test_it_is_pinned_to_its_model_and_its_parts(stacked: Stacked) -> None:
    folder = stacked.save("made")
    stack = registry.judge(f"stack:{folder}")
    assert stack.info.fitted_to == ("told", engine().info.fingerprint)
    with pytest.raises(SpecError):
        magistrate.evaluate(
            [{"id": "a", "output": "5 m", "context": "c"}], stack, model=engine("other"), progress=False
        )
    data = json.loads((folder / "stack.json").read_text())
    data["parts"][0]["prompt"] = "another"
    (folder / "stack.json").write_text(json.dumps(data))
    with pytest.raises(SpecError, match="was trained with another 'faithfulness': prompt 'another' there"):
        registry.judge(f"stack:{folder}")


@pytest.mark.full
def test_a_stack_of_signals_asks_no_model(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = train_stack([rows("one"), rows("two", seed=1)], ["signal:content_words", "signal:chrf"])
    info = registry.judge(f"stack:{found.save('made')}").info
    assert (info.kind, info.asks, info.fitted_to) == ("code", False, None)
    assert isinstance(Stack(Path("made")).info.prompt, str)
    run = magistrate.evaluate("one.jsonl", "stack:made", progress=False)
    assert run.record.model == "none" and run.record.n_verdicts + 3 >= 150


@pytest.mark.full
def test_stored_runs_are_learnt_from_as_well(stacked: Stacked, home: Path) -> None:
    runs = [
        magistrate.evaluate(path, "faithfulness", model=engine(), progress=False, name=path)
        for path in ("one.jsonl", "two.jsonl")
    ]
    found = train_stack(runs=runs, of=["faithfulness", "signal:content_words"], how=Asking(model=engine()))
    assert [part.weight for part in found.file.parts] == [part.weight for part in stacked.file.parts]
    with pytest.raises(SpecError, match="has no judge 'hallucination'; it has: faithfulness"):
        train_stack(runs=["one.jsonl"], of=["hallucination"])


@pytest.mark.full
def test_a_part_is_not_weighed_on_labels_that_it_has_seen(stacked: Stacked) -> None:
    stacked.save("made")
    of = ["stack:made", "signal:chrf"]
    with pytest.raises(
        SpecError, match=r"stack:made was trained on one, so it has seen the labels of one\.jsonl"
    ):
        train_stack(["one.jsonl"], of, how=Asking(model=engine()))
    rows("three", seed=4)
    twice = train_stack(
        ["one.jsonl", "three.jsonl"],
        of,
        instead={"stack:made": "faithfulness"},
        how=Asking(model=engine()),
    )
    assert twice.file.parts[0].name == "stack:made"
    folder = twice.save("above")
    (folder.parent / "made" / "stack.json").unlink()  # it has taken along what lies in a folder
    found = judged(registry.judge(f"stack:{folder}"), "70 metres is the tower of purple marble.")
    assert isinstance(found, Verdict)
    assert registry.judge(f"stack:{folder}").info.trained_on >= {"one", "two", "three"}


def test_families_are_known_by_their_names() -> None:
    assert family_of("halueval_dialogue_train.jsonl.gz") == family_of("halueval-qa:dev") == "halueval"
    assert family_of("beginners.csv") == "beginners"
    assert family_of("halueval_qa_article200.jsonl.gz") == "halueval"
    assert family_of("begin_2024.csv") == "begin_2024"
    assert [family_of(f"support.{year}.csv") for year in (2023, 2024)] == ["support.2023", "support.2024"]
    assert shared("halueval", ["halubench:test", "begin:dev"]) == ["halubench:test"]
    assert shared("begin", ["halubench", "summedits"]) == []


# --- folders that are none ------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "x"}, "is not a stack"),
        ({"format": 9}, "has format 9, but magistrate"),
        ({"metric": [[1.0]]}, "metric must have 2 rows of 2 numbers"),
        ({"limit": "far"}, "limit"),
        ({"parts": []}, "parts"),
    ],
)
def test_a_damaged_folder_is_named_with_the_key(
    stacked: Stacked, change: dict[str, Any], message: str
) -> None:
    folder = stacked.save("made")
    data = json.loads((folder / "stack.json").read_text()) | change
    (folder / "stack.json").write_text(json.dumps(data))
    with pytest.raises(SpecError, match=message):
        read_stack(folder)


@pytest.mark.full
def test_only_a_stack_is_ever_replaced(stacked: Stacked) -> None:
    stacked.save("made")
    with pytest.raises(SpecError, match="made already exists; to replace it: --force"):
        stacked.save("made")
    stacked.save("made", replace=True)
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("x")
    with pytest.raises(SpecError, match="mine already exists and contains no stack"):
        stacked.save("mine", replace=True)
    assert Path("mine/thesis.txt").read_text() == "x"
    Path("begun/.training").mkdir(parents=True)
    Path("begun/.training/training.pt").write_text("x")
    with pytest.raises(SpecError, match=r"begun contains an unfinished training.*training\.pt"):
        stacked.save("begun", replace=True)
    assert Path("begun/.training/training.pt").read_text() == "x"
    for here in (".", "..", "mine/..", Path.cwd()):
        with pytest.raises(SpecError, match="choose a separate folder"):
            stacked.save(here, replace=True)


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.full
def test_the_command_shows_what_it_made_and_writes_it(call: Call, home: Path) -> None:
    rows("one"), rows("two", seed=1)
    words = ("train", "stack", "--data", "one.jsonl", "--data", "two.jsonl", "--of", "signal:content_words")
    done = call(*words, "--of", "signal:chrf", "--to", "made")
    assert done.code == 0, done.err
    assert "2 parts on 300 labelled samples" in done.out and "two, left out" in done.out
    assert "written to made; use it with: magistrate run DATA --judge stack:made" in done.out
    data = call(*words, "--json").data
    assert data["n"] == 300 and set(data["left_out"]) == {"one", "two"} and data["folder"] is None
    assert call("run", "one.jsonl", "--judge", "stack:made").code == 0
    again = call(*words, "--to", "made")
    assert again.code == 2 and "made already exists; to replace it: --force" in again.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Missing option '--of'"),
        (("--of", "signal:content_words"), "give labelled data, --data FILE"),
        (("--of", "signal:nmbers", "--data", "one.jsonl"), "unknown text signal 'nmbers'"),
        (("--of", "relevance", "--data", "one.jsonl"), "a stack needs a judge with the labels"),
        (("--of", "stack", "--data", "one.jsonl"), "needs a trained stack"),
        (("--of", "signal:chrf", "--of", "signal:chrf", "--data", "one.jsonl"), "is given twice"),
        (
            ("--of", "signal:chrf", "--data", "one.jsonl", "--instead", "a=b"),
            "unknown judge 'a' of this stack",
        ),
        (
            ("--of", "signal:chrf", "--data", "nolabels.jsonl"),
            "no sample can be used for training: 3 no label",
        ),
        (("--of", "signal:chrf", "--data", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_the_command_says_what_is_wrong(call: Call, home: Path, words: tuple[str, ...], message: str) -> None:
    rows("one")
    Path("nolabels.jsonl").write_text(
        "".join(json.dumps({"id": f"{at}", "output": "x 🙂", "context": "c"}) + "\n" for at in range(3))
    )
    done = call("train", "stack", *words)
    assert done.code == 2
    assert message in " ".join(done.err.split())
