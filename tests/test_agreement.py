"""Agreement is what the literature says it is, its intervals know of contexts, and nothing is lost."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import krippendorff
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import cohen_kappa_score

from magistrate.analysis.agreement import (
    agreement,
    disagreements,
    majority,
    order_of,
    pairs_of_judges,
    pairs_with,
    remarks_of,
    slices_of,
)
from magistrate.api.agree import agree
from magistrate.errors import DatasetError, InputError, SpecError
from magistrate.metrics.agreement import concordance, many_raters, two_raters
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Failure
from terminal import Call
from two_judges import a_run, rows, samples_of, verdicts


def spread(table: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A confusion table as two columns of labels."""
    cells = [(i, j) for i, row in enumerate(table) for j, n in enumerate(row) for _ in range(n)]
    first, second = np.array(cells).T
    return first, second


def counted(raters: list[str], labels: str) -> NDArray[np.int64]:
    """One text a rater, a letter a sample and a dot where there is none: how many gave each label."""
    return np.array([[sum(r[at] == each for r in raters) for each in labels] for at in range(len(raters[0]))])


# --- figures against references ------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3, 6])
def test_kappa_is_that_of_scikit_learn(k: int) -> None:
    source = np.random.default_rng(k)
    first = source.integers(k, size=200)
    second = np.where(source.random(200) < 0.6, first, source.integers(k, size=200))
    found = two_raters(first, second, k, np.arange(200), places=range(k), draws=50)
    assert found["kappa"].value == pytest.approx(cohen_kappa_score(first, second))
    for weights in ("linear", "quadratic"):
        expected = cohen_kappa_score(first, second, weights=weights)
        if k > 2:
            assert found[weights].value == pytest.approx(expected)
        else:
            assert weights not in found  # of two labels they are all the same
            assert found["kappa"].value == pytest.approx(expected)


@pytest.mark.parametrize("order", [None, ["1", "2", "3", "4", "5"]])
def test_numbers_that_nobody_gave_are_not_skipped(order: list[str] | None) -> None:
    """Of marks from 1 to 5 only 1, 2 and 5 occur: 2 and 5 are three apart, not one."""
    source = np.random.default_rng(0)
    first = source.choice([1, 2, 5], 200)
    second = np.where(source.random(200) < 0.6, first, source.choice([1, 2, 5], 200))
    labels, places = order_of(map(str, [*first, *second]), order)
    one, two = ([labels.index(str(each)) for each in side] for side in (first, second))
    found = two_raters(one, two, len(labels), np.arange(200), places=places, draws=50)
    for weights in ("linear", "quadratic"):
        expected = cohen_kappa_score(first, second, weights=weights, labels=[1, 2, 3, 4, 5])
        assert found[weights].value == pytest.approx(expected)


def test_figures_of_gwet_2014_three_abstractors() -> None:
    """Gwet (2014), ectopic pregnancies by two abstractors; as in the package irrCAC, `cont3x3abstractors`."""
    first, second = spread([[13, 0, 0], [0, 20, 7], [0, 4, 56]])
    found = two_raters(first, second, 3, np.arange(100), draws=200)
    assert found["observed"].value == pytest.approx(0.89)
    assert found["kappa"].value == pytest.approx(0.7964094, abs=1e-7)
    assert found["alpha"].value == pytest.approx(0.7972585, abs=1e-7)
    assert found["ac1"].value == pytest.approx(0.8493305, abs=1e-7)


def test_figures_of_the_prevalence_paradox() -> None:
    """Gwet (2008): 118, 5, 2 and 0 of 125 make kappa -.0234 and AC1 .9408, at an agreement of .944."""
    found = two_raters(*spread([[118, 5], [2, 0]]), 2, np.arange(125), draws=50)
    assert found["observed"].value == pytest.approx(0.944)
    assert found["kappa"].value == pytest.approx(-0.0234, abs=5e-5)
    assert found["ac1"].value == pytest.approx(0.9408, abs=5e-5)


def test_alpha_of_krippendorff_2011_two_observers() -> None:
    """Krippendorff (2011), part A: ten articles, Meg and Owen, .095."""
    meg, owen = [0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    assert two_raters(meg, owen, 2, np.arange(10), draws=50)["alpha"].value == pytest.approx(0.095, abs=5e-4)


def test_alpha_of_krippendorff_2011_four_observers_with_gaps() -> None:
    """Krippendorff (2011), part C: .743 for nominal data; AC1 of the same is .77544 (irrCAC, Gwet 2014)."""
    observers = ["123321412...", "1233224125.3", ".3332342251.", "12332441251."]
    counts = counted(observers, "12345")
    found = many_raters(counts, np.arange(12), draws=200)
    assert found["alpha"].value == pytest.approx(0.743, abs=5e-4)
    assert found["ac1"].value == pytest.approx(0.77544, abs=5e-6)


def test_alpha_is_that_of_the_reference_package() -> None:
    source = np.random.default_rng(7)
    ratings = source.integers(4, size=(5, 80)).astype(float)
    ratings[:, :40] = ratings[0, :40]
    ratings[source.random((5, 80)) < 0.3] = np.nan
    counts = np.stack([(ratings == each).sum(0) for each in range(4)], axis=1)
    expected = krippendorff.alpha(reliability_data=ratings, level_of_measurement="nominal")
    assert many_raters(counts, np.arange(80), draws=50)["alpha"].value == pytest.approx(expected)


def test_two_raters_are_many_raters_who_are_two() -> None:
    first, second = spread([[20, 5, 1], [3, 15, 2], [0, 4, 9]])
    counts = np.eye(3)[first] + np.eye(3)[second]
    two = two_raters(first, second, 3, np.arange(first.size))
    many = many_raters(counts, np.arange(first.size))
    for name in ("alpha", "ac1"):
        assert many[name].to_dict() == pytest.approx(two[name].to_dict())


def test_concordance_is_kappa_weighted_by_squared_distance() -> None:
    source = np.random.default_rng(3)
    first = source.integers(11, size=300)
    second = np.clip(first + source.integers(-3, 4, size=300), 0, 10)
    found = concordance(first / 10, second / 10, np.arange(300), draws=50)
    expected = cohen_kappa_score(first, second, weights="quadratic", labels=list(range(11)))
    assert found.value == pytest.approx(expected)
    assert found.low is not None and found.high is not None


# --- intervals -----------------------------------------------------------------------------------


def test_samples_said_twice_make_nothing_more_certain() -> None:
    """Copies that share their context give the interval of the originals; as independent ones a narrower."""
    source = np.random.default_rng(1)
    first = source.integers(2, size=60)
    second = np.where(source.random(60) < 0.7, first, 1 - first)
    one = two_raters(first, second, 2, np.arange(60))["kappa"]
    four = np.repeat(np.arange(60), 4)
    assert two_raters(first[four], second[four], 2, four)["kappa"].to_dict() == pytest.approx(one.to_dict())
    naive = two_raters(first[four], second[four], 2, np.arange(240))["kappa"]
    assert naive.high is not None and naive.low is not None
    assert one.high is not None and one.low is not None
    assert naive.high - naive.low < 0.7 * (one.high - one.low)


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Of 200 data sets of 150 samples with a kappa of .5, the interval holds it in 90 to 99 of 100."""
    source, held = np.random.default_rng(5), 0
    for _ in range(200):
        first = source.integers(2, size=150)
        second = np.where(source.random(150) < 0.75, first, 1 - first)
        found = two_raters(first, second, 2, np.arange(150), draws=300)["kappa"]
        assert found.low is not None and found.high is not None
        held += found.low <= 0.5 <= found.high
    assert 180 <= held <= 198


def test_what_is_not_defined_says_why() -> None:
    nothing = two_raters([], [], 2, [], draws=10)
    assert {each.undefined for each in nothing.values()} == {"there are no samples"}
    same = two_raters([0] * 9, [0] * 9, 2, np.arange(9), draws=10)
    assert (same["observed"].value, same["ac1"].value) == (1, 1)
    assert same["kappa"].undefined == same["alpha"].undefined == "both gave the same label to every sample"
    few = two_raters([0, 1, 1], [0, 1, 0], 2, [0, 1, 2], draws=10)
    assert few["kappa"].value is not None and few["kappa"].low is None
    assert "3 independent contexts" in str(few["kappa"].undefined)
    alone = many_raters([[1, 0], [0, 1]], [0, 1])
    assert alone["alpha"].undefined == "no sample has two labels"
    with pytest.raises(InputError, match="from 0 to 1"):
        two_raters([0, 2], [0, 1], 2, [0, 1])
    with pytest.raises(InputError, match="the same samples"):
        two_raters([0, 1], [0], 2, [0, 1])


# --- a judge beside a reference ------------------------------------------------------------------


def test_every_sample_is_compared_or_left_out_for_a_reason() -> None:
    samples = samples_of([True, False, None, True, False, True])
    outcomes = verdicts([0.9, 0.7, 0.8])
    outcomes["s3"] = Failure("s3", "judge", "timeout", "late")
    outcomes["s4"] = Abstention("s4", "judge", "over_length", "long")
    pairs, left_out = pairs_with(samples, outcomes, lambda s: s.label, lambda s: "no gold label")
    assert left_out == {"no gold label": 1, "failed": 1, "abstained": 1, "not judged": 1}
    labels, places = order_of([FAITHFUL])
    found = agreement(pairs, labels, places)
    assert (labels, places, found.n) == ((HALLUCINATED, FAITHFUL), None, 2)
    assert found.table == ((1, 0), (1, 0))


def test_judges_are_compared_on_the_same_text_only() -> None:
    samples = samples_of([True, False, True, True])
    other = {**samples, "s1": replace(samples["s1"], output="another"), "s9": samples["s0"]}
    other["s2"] = replace(samples["s2"], context=("another",))
    del other["s3"]
    pairs, left_out = pairs_of_judges(samples, verdicts([0.9] * 4), other, verdicts([0.2] * 4, "other"))
    assert [(pair.sample.id, pair.reference, pair.reference_score) for pair in pairs] == [
        ("s0", FAITHFUL, 0.2)
    ]
    assert left_out == {
        "another output in the other run": 1,
        "another context in the other run": 1,
        "not in the other run": 1,
        "only in the other run": 1,
    }


def test_the_surest_disagreements_come_first() -> None:
    samples = samples_of([False, False, False, True])
    pairs, _ = pairs_with(samples, verdicts([0.6, 0.97, 0.2, 0.1]), lambda s: s.label, lambda s: "")
    assert [(each.sample_id, each.said) for each in disagreements(pairs)] == [
        ("s1", HALLUCINATED),
        ("s3", FAITHFUL),
        ("s0", HALLUCINATED),
    ]


def test_labels_of_any_names_in_any_order() -> None:
    assert order_of(["3", "10", "1"]) == (("1", "3", "10"), (1, 3, 10))
    assert order_of(["1", "nan"]) == (("1", "nan"), None)
    assert order_of(["rude", "curt"]) == (("curt", "rude"), None)
    named = ["friendly", "curt", "rude"]
    assert order_of(["rude", "curt"], named) == (("friendly", "curt", "rude"), (0, 1, 2))
    with pytest.raises(SpecError, match="must include the label 'rude'"):
        order_of(["rude", "curt"], ["friendly", "curt"])
    with pytest.raises(SpecError, match="two or more different labels"):
        order_of(["rude"], ["rude", "rude"])


def test_slices_hold_all_that_have_a_value() -> None:
    samples = {
        key: replace(each, metadata={"domain": "law"} if at < 3 else {"domain": "news"} if at < 8 else {})
        for at, (key, each) in enumerate(samples_of([True, False] * 5).items())
    }
    pairs, _ = pairs_with(samples, verdicts([0.9] * 10), lambda s: s.label, lambda s: "")
    labels, places = order_of([FAITHFUL])
    found = slices_of(pairs, lambda s: s.metadata.get("domain"), "metadata.domain", labels, places)
    assert {name: each.n for name, each in found.items()} == {"news": 5, "law": 3}
    with pytest.raises(InputError, match=r"no sample has metadata\.x"):
        slices_of(pairs, lambda s: None, "metadata.x", labels, places)


def test_the_paradox_is_told_where_it_is() -> None:
    first, second = spread([[118, 5], [2, 0]])
    samples = samples_of([bool(each) for each in first])
    scores = np.where(second, 0.9, 0.1).tolist()
    pairs, _ = pairs_with(samples, verdicts(scores), lambda s: s.label, lambda s: "")
    labels, places = order_of([FAITHFUL])
    (told,) = remarks_of(agreement(pairs, labels, places), labels)
    assert "Agreement is high (94%) and kappa low (-.02)" in told and "AC1 (.94)" in told
    assert remarks_of(agreement(pairs[:118], labels, places), labels) == ()


def test_a_majority_is_more_than_any_other() -> None:
    assert majority(["a", "b", "a"]) == "a"
    assert majority(["a", "b"]) is None
    assert majority(["a", "b", "b", "a", "c"]) is None
    assert majority([]) is None


# --- stored runs ---------------------------------------------------------------------------------


def labels_file(folder: Path, text: str) -> Path:
    (folder / "labels.csv").write_text(text)
    return folder / "labels.csv"


def test_a_run_against_its_gold_labels(home: Path, call: Call) -> None:
    run = a_run(None, "small", 0.2)
    found = agree(run, by="metadata.domain")
    assert found.overall.n + sum(found.left_out.values()) == found.n_total == 60
    assert found.left_out == {"no gold label": 5, "failed": 1}
    assert found.overall.n_contexts == 30
    assert sum(each.n for each in found.slices.values()) == found.overall.n
    assert len(found.disagreements) == found.overall.n - sum(found.overall.table[at][at] for at in (0, 1))
    assert "<table" in found._repr_html_()
    shown = call("agree", "small", "--by", "metadata.domain", "--list", 2)
    assert shown.code == 0
    assert max(map(len, shown.out.splitlines())) <= 80
    for words in (
        "against the gold labels",
        "54 of 60",
        "5 no gold label, 1 failed",
        "Cohen's kappa",
        "news",
    ):
        assert words in shown.out
    data = json.loads(call("agree", "small", "--json").out)
    assert data["overall"]["kappa"]["value"] == found.overall.figures["kappa"].value
    assert len(data["disagreements"]) == len(found.disagreements)


def test_a_run_against_people_who_differ(home: Path, call: Call) -> None:
    run = a_run(None, "small", 0.0)
    file = labels_file(
        home.parent,
        "id,label,annotator\n"
        + "".join(
            f"s{at},{'PASS' if at % 3 else 'fail'},{who}\n"
            for at in range(20)
            for who in ("ann", "bob", "cy")
        )
        + "s30,pass,ann\ns30,fail,bob\ns31,pass,ann\nnobody,pass,ann\ns32,,ann\ns33,perhaps,ann\n",
    )
    found = agree(run, file)
    assert found.overall.n == 21
    assert found.overall.figures["observed"].value == 1
    assert found.raters is not None
    assert (found.raters.n, found.raters.n_raters, found.raters.ties) == (22, 3, 1)
    people = found.raters.people["alpha"].value
    assert people is not None and 0.9 < people < 1
    assert found.left_out["tied among people"] == 1
    assert found.left_out["without a label in labels.csv"] == 1
    assert found.left_out["with an unknown label in labels.csv"] == 1
    assert found.overall.n + sum(found.left_out.values()) == found.n_total
    assert any("not in this run: 1." in each for each in found.remarks)
    assert any("'perhaps' 1" in each and "were ignored" in each for each in found.remarks)
    shown = call("agree", "small", "--with", file.name)
    assert shown.code == 0 and "'perhaps' is not a known label" in shown.err
    assert "people among themselves" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_a_run_against_another_run_and_another_judge(home: Path, call: Call) -> None:
    changed = rows()
    changed[0] = {**changed[0], "output": "claim 0 again"}
    a_run(None, "small", 0.4)
    a_run(None, "large", 0.1, changed)
    shown = call("agree", "small", "--with", "large")
    assert shown.code == 0
    for words in ("against faithfulness of large", "1 another output in the other run", "concordance"):
        assert words in shown.out
    alone = call("agree", "small", "--with-judge", "faithfulness")
    assert alone.code == 2 and "cannot be compared with itself" in alone.err


def test_labels_that_only_say_yes_need_a_column_that_says_to_what(home: Path) -> None:
    run = a_run(None, "small", 0.1)
    file = labels_file(home.parent, "sample,bad\n" + "".join(f"s{at},{at % 3 == 0}\n" for at in range(20)))
    with pytest.raises(DatasetError, match="--map id=COLUMN"):
        agree(run, file)
    found = agree(run, file, mapping={"id": "sample", "hallucination": "bad"})
    assert found.overall.n == 20 and found.raters is None


def test_what_cannot_be_is_refused_with_what_is_known(home: Path, call: Call) -> None:
    a_run(None, "small", 0.2)
    (home.parent / "twice.csv").write_text("id,label,annotator\ns1,pass,ann\ns1,fail,ann\n")
    (home.parent / "strangers.csv").write_text("id,label\nx,pass\n")
    (home.parent / "empty.csv").write_text("id,label\n")
    for words, told in [
        (["nothing"], "unknown run"),
        (["small", "--by", "domain"], "did you mean 'metadata.domain'?"),
        (["small", "--by", "metadata.nothing"], "no sample has metadata.nothing"),
        (["small", "--judge", "x"], "has no judge 'x'"),
        (["small", "--with", "missing.csv"], "missing.csv"),
        (["small", "--map", "id=a"], "--with FILE"),
        (["small", "--order", "faithful,rude"], "must include the label 'hallucinated'"),
        (["small", "--with", "twice.csv"], "annotator 'ann' labels 's1'"),
        (["small", "--with", "strangers.csv"], "no id in strangers.csv is in run small"),
        (["small", "--with", "empty.csv"], "empty.csv"),
        (["small", "--with", "-"], "cannot be read from standard input"),
    ]:
        done = call("agree", *words)
        assert done.code == 2 and told in done.err and done.out == "", words


def test_a_run_of_which_nothing_can_be_compared(home: Path, call: Call) -> None:
    a_run(None, "small", 0.2, [{"id": "a", "output": "claim 1", "context": ["c\x1b[2J"]}])
    shown = call("agree", "last")
    assert shown.code == 2 and shown.out == ""
    assert "nothing can be compared" in shown.err and "its 1 samples: 1 no gold label" in shown.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sample_id,verdict\ns1,pass\n", "no column gives the label; its columns are 'sample_id', 'verdict'"),
        ("s1,pass\ns2,fail\n", "its first line looks like data; a header is needed, such as id,label"),
        ("id|label\ns1|pass\n", "the separator must be a comma, semicolon or tab"),
        ("id,label\ns1,unsure\n", "'unsure' is not a known label"),
    ],
)
def test_a_file_that_labels_nothing_says_which_columns_it_has(home: Path, text: str, told: str) -> None:
    run = a_run(None, "small", 0.1)
    with pytest.raises(DatasetError) as caught:
        agree(run, labels_file(home.parent, text))
    assert told in str(caught.value)


@pytest.mark.parametrize("mark", [";", "\t"])
def test_labels_may_be_parted_by_semicolons_and_tabs(home: Path, mark: str) -> None:
    run = a_run(None, "small", 0.1)
    text = "\n" + "".join(f"s{at}{mark}pass{mark}so, so\n" for at in range(20))
    found = agree(run, labels_file(home.parent, mark.join(("id", "label", "note")) + text))
    assert (found.overall.n, found.problems) == (20, ())


@pytest.mark.parametrize("width", [48, 60, 80])
def test_where_room_is_short_texts_give_way_and_numbers_never(
    home: Path, call: Call, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    a_run(None, "small", 0.4)
    shown = call("agree", "small", "--list", 5)
    listed = shown.out[shown.out.index("disagreements") :]
    assert shown.code == 0 and max(map(len, shown.out.splitlines())) <= width
    assert listed.count("…") <= 5 * (width > 60)  # of the outputs' beginnings alone
    assert len(re.findall(r"^s\d+ .* [01]?\.\d\d +[01]?\.\d\d ", listed, re.MULTILINE)) == 5
