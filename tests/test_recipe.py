"""What a detector learns from: sources with shares, drawn by a seed, and what is made of their rows."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from magistrate.errors import InputError, SpecError
from magistrate.training.detector.derived import (
    CONTRADICTED,
    DENIED,
    ENTAILED,
    NEUTRAL,
    SAID,
    SILENT,
    asked,
    framed,
    without_a_sentence,
)
from magistrate.training.detector.recipe import (
    ROUND,
    Recipe,
    Source,
    draw,
    read_recipe,
    rows,
    samples,
    shares,
)
from magistrate.training.synthetic import Lexicon
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

KINDS = {"entailment": FAITHFUL, "neutral": HALLUCINATED, "contradiction": HALLUCINATED}


def write(folder: Path, name: str, told: list[dict[str, object]]) -> None:
    with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
        for number, each in enumerate(told):
            row = {"id": f"{name}-{number}", "input": None, "context": ["It rained."], "spans": [], **each}
            file.write(json.dumps(row) + "\n")


def test_every_example_is_drawn_once_before_any_is_drawn_again() -> None:
    sizes = {("a", FAITHFUL): 700, ("a", HALLUCINATED): 90_000, ("b", FAITHFUL): 5}
    share = {("a", FAITHFUL): 0.3, ("a", HALLUCINATED): 0.69, ("b", FAITHFUL): 0.01}
    drawn = [pair for number in range(5) for pair in draw(sizes, share, 1, number)]
    assert len(drawn) == pytest.approx(5 * ROUND, abs=15)
    assert draw(sizes, share, 1, 3) == draw(sizes, share, 1, 3) != draw(sizes, share, 2, 3)
    for key, size in sizes.items():
        times = Counter(place for found, place in drawn if found == key)
        counts = [times.get(place, 0) for place in range(size)]
        assert max(counts) - min(counts) <= 1, key


def test_labels_of_a_source_are_drawn_alike_and_caps_give_what_is_too_much_to_others() -> None:
    recipe = Recipe(
        examples=10_000,
        sources=(
            Source(name="few", share=1, cap=2),
            Source(name="many", share=1),
            Source(name="one", share=2),
        ),
    )
    sizes = {("few", FAITHFUL): 50, ("few", HALLUCINATED): 50, ("one", FAITHFUL): 9000}
    sizes |= {("many", FAITHFUL): 9000, ("many", HALLUCINATED): 90_000}
    found = shares(recipe, sizes)
    assert sum(found.values()) == pytest.approx(1)
    assert found["few", FAITHFUL] == found["few", HALLUCINATED] == pytest.approx(50 * 2 / 10_000)
    assert found["many", FAITHFUL] == pytest.approx(found["many", HALLUCINATED])
    assert found["one", FAITHFUL] == pytest.approx(4 * found["many", FAITHFUL])


def test_rows_that_may_not_be_shipped_or_are_tested_on_are_left_out(tmp_path: Path) -> None:
    told = {"output": "Wet.", "label": FAITHFUL}
    write(tmp_path, "set", [
        {**told, "metadata": {"ship": True}},
        {**told, "metadata": {"ship": False}},
        {**told, "metadata": {}},
        {**told, "metadata": {"ship": True, "overlap_dev": ["begin"]}},
        {**told, "metadata": {"ship": True, "kind": "archaic"}},
    ])  # fmt: skip
    source = Source(name="set", share=1, without=("archaic",))
    assert [each.id for each in rows(tmp_path, source, shipped_only=True)] == ["set-0"]
    assert [each.id for each in rows(tmp_path, source, shipped_only=False)] == ["set-0", "set-1", "set-2"]
    with pytest.raises(InputError, match=r"no .*missing\.jsonl\.gz, which the recipe refers to"):
        list(rows(tmp_path, Source(name="missing", share=1), shipped_only=True))


def test_a_frame_has_the_label_that_follows_from_the_statement_in_it() -> None:
    every = [
        Sample(f"{kind}{n}", "The shop is open.", ("…",), label=label, metadata={"kind": kind})
        for kind, label in KINDS.items()
        for n in range(60)
    ]
    found = list(framed(every, 1, 1.0))
    assert len(found) == len(every) and found == list(framed(every, 1, 1.0))
    true_of = {SILENT: NEUTRAL, SAID: ENTAILED, DENIED: CONTRADICTED}
    seen = Counter[tuple[str, str]]()
    for each in found:
        kind = str(each.metadata["of"]).rstrip("0123456789")
        (frames,) = (
            some for some in true_of if each.output in {frame.format("The shop is open") for frame in some}
        )
        assert (each.label == FAITHFUL) == (kind in true_of[frames]), each
        seen[str(each.label), str(each.metadata["kind"])] += 1
    assert set(seen) == {(FAITHFUL, "entailment"), (HALLUCINATED, "contradiction"), (HALLUCINATED, "neutral")}
    assert not list(framed([Sample("q", "Is it?", ("…",), metadata={"kind": "neutral"})], 1, 1.0))
    assert not list(framed(every, 1, 0.0))


def test_what_a_removed_sentence_said_is_not_in_the_context_any_more() -> None:
    context = "Anna owns the mill. The mill stands in Bern. It was built in 1844."
    whole = [
        Sample(f"s{n}", "Anna owns a mill of 1844 in Bern.", (context,), label=FAITHFUL) for n in range(40)
    ]
    found = list(without_a_sentence(whole, 1))
    assert len(found) == 40 and all(each.label == HALLUCINATED for each in found)
    assert all(context not in each.context[0] for each in found)
    assert len({each.context for each in found}) >= 3


def test_an_answer_and_a_wrong_one_are_both_in_the_context_and_the_question_tells_them_apart() -> None:
    context = "Anna Berg sold the mill in Bern to Olga Stone in 1844. It burnt in 1901."
    said = ["Anna Berg sold a mill.", "The mill was sold to Olga Stone.", "The sale was in 1844."]
    every = [Sample(f"s{n}", said[n % 3], (context,), label=FAITHFUL) for n in range(60)]
    found = list(asked(every, 1, 1.0, Lexicon.read(None)))
    assert found == list(asked(every, 1, 1.0, Lexicon.read(None))) and len(found) >= 60
    for right, wrong in zip(found[::2], found[1::2], strict=True):
        assert (right.label, wrong.label) == (FAITHFUL, HALLUCINATED) and right.input == wrong.input
        assert right.output != wrong.output and right.metadata["of"] == wrong.metadata["of"]
        whole = right.output in said
        assert whole or (right.output in context and wrong.output in context)
    questions = {each.input for each in found}
    assert "Who or what sold a mill?" in questions and "The sale was in … what or whom?" in questions
    assert not list(asked([Sample("w", said[0], (context,), label=HALLUCINATED)], 1, 1.0, Lexicon.read(None)))


def test_a_recipe_says_what_is_wrong_with_it_and_makes_the_same_samples_again(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("examples: 10\nsources:\n  - {name: set, shares: 1}\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"sources\.0"):
        read_recipe(path)
    path.write_text(
        "examples: 10\nsources:\n  - {name: set, share: 1, edits: 2, framed: 0.5}\n", encoding="utf-8"
    )
    recipe = read_recipe(path)
    told = {"label": FAITHFUL, "metadata": {"ship": True, "kind": "entailment"}}
    outputs = [f"In 18{n}, Anna Berg sold {n} horses to the town." for n in range(10, 30)]
    write(tmp_path, "set", [{"output": output, **told} for output in outputs])
    lexicon = Lexicon.read()
    made = samples(tmp_path, recipe.sources[0], recipe, lexicon)
    assert made == samples(tmp_path, recipe.sources[0], recipe, lexicon)
    labels = Counter(each.label for each in made)
    assert labels[FAITHFUL] > 20 and labels[HALLUCINATED] > 20
