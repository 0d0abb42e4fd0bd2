"""What a detector is trained on: portions of every source, and contexts that training never sees."""

from __future__ import annotations

from dataclasses import replace

from magistrate.train.detector.mixture import Mixture, Portion, context_of, mixed
from magistrate.train.synthetic import Lexicon
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

TOLD = "The old bridge over the river was opened by Anna Meier in 1844 and is 31 metres long."


def samples(n: int = 200) -> list[Sample]:
    """Two outputs of each context, one of them wrong."""
    made = []
    for number in range(n):
        context = f"Note {number // 2}. {TOLD} It is closed on Mondays. Entry costs {number // 2} euros."
        wrong = number % 2 == 1
        year = 1850 if wrong else 1844
        output = f"The bridge was opened in {year} by Anna Meier, and entry costs {number // 2} euros."
        label = HALLUCINATED if wrong else FAITHFUL
        made.append(Sample(f"s{number}", output, (context,), label=label))
    return made


def mixture(portion: Portion, seed: int = 0, **others: list[Sample]) -> Mixture:
    sources = {"notes": (samples(), portion)} | {name: (each, portion) for name, each in others.items()}
    return mixed(sources, Lexicon.read(), seed, held_out=0.2)


def test_no_context_is_trained_on_and_held_out() -> None:
    found = mixture(Portion(labelled=120, originals=40))
    original = {context_of(each) for each in samples()}
    trained = {context_of(each) for each in found.train} & original
    held = {context_of(each) for each in found.held_out}
    assert trained and held
    assert not trained & held


def test_portions_are_kept_and_counted() -> None:
    found = mixture(Portion(labelled=50, originals=10, variants=4))
    labelled = [each for each in found.train if "kind" not in each.metadata]
    changed = [each for each in found.train if "kind" in each.metadata]
    assert found.counts == {"notes": 50, "notes, changed": len(changed)}
    assert len(labelled) == 50
    assert 0 < len(changed) <= 40
    assert {each.label for each in changed} == {FAITHFUL, HALLUCINATED}


def test_labels_that_are_not_learnt_are_not_calibrated_on_either() -> None:
    found = mixture(Portion(labelled=0, originals=100))
    assert found.train and found.held_out
    assert all("kind" in each.metadata for each in (*found.train, *found.held_out))
    assert {each.label for each in found.held_out} == {FAITHFUL, HALLUCINATED}


def test_another_source_changes_nothing_of_the_first() -> None:
    portion = Portion(labelled=50, originals=10)
    others = [replace(each, context=(f"More. {each.context[0]}",)) for each in samples(40)]
    alone, beside = mixture(portion), mixture(portion, more=others)
    assert beside.train[: len(alone.train)] == alone.train
    assert alone == mixture(portion)
    assert alone.train != mixture(portion, seed=1).train


def test_a_context_that_is_held_out_of_one_source_is_held_out_of_all() -> None:
    found = mixture(Portion(labelled=200, originals=0), more=samples(40), again=samples(10))
    assert not {context_of(each) for each in found.train} & {context_of(each) for each in found.held_out}


def test_texts_without_labels_are_of_use_where_labels_are_not_learnt() -> None:
    bare = [replace(each, label=None) for each in samples() if each.label == FAITHFUL]
    assert mixture(Portion(labelled=0, originals=20), more=bare).counts["more, changed"] > 0
    with_labels = mixed({"bare": (bare, Portion(labelled=20, originals=20))}, Lexicon.read(), 0)
    assert not with_labels.train
