"""Ends that a language model made up: how outputs are cut for it, and what becomes of what it writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from magistrate.train.detector.mixture import Portion, mixed
from magistrate.train.synthetic import Lexicon
from magistrate.train.synthetic.drafts import Guess
from magistrate.train.synthetic.written import FEWEST, MOST, begun, continued
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

CONTEXT = "The old bridge over the river was opened by Anna Meier in 1844. It is closed on Mondays."
BRIDGE = Sample("b", "The bridge was opened by Anna Meier in 1844.", (CONTEXT,), label=FAITHFUL)


def test_a_beginning_is_part_of_the_output_and_leaves_something_to_say() -> None:
    for seed in range(40):
        found = begun(BRIDGE, Random(seed))
        assert found is not None
        sample, beginning = found
        assert sample.output == BRIDGE.output and sample.output.startswith(beginning + " ")
        assert 2 <= len(beginning.split()) < len(sample.output.split())


def test_of_a_long_output_one_sentence_is_taken_and_of_a_short_one_none() -> None:
    long = replace(BRIDGE, output=" ".join(f"Hall number {n} was opened in 1844." for n in range(20)))
    assert len((long.output or "").split()) > MOST
    found = begun(long, Random(0))
    assert found is not None and found[0].output in (long.output or "")
    assert FEWEST <= len((found[0].output or "").split()) <= MOST
    assert begun(replace(BRIDGE, output="It is closed."), Random(0)) is None
    assert begun(replace(BRIDGE, output=" "), Random(0)) is None


def test_what_was_made_up_is_marked_and_stands_beside_what_was_said() -> None:
    told, made = continued(BRIDGE, "The bridge was", " painted green by soldiers. They sang. And went\nhome")
    assert (told.label, told.output, told.spans) == (FAITHFUL, BRIDGE.output, ())
    assert (
        made.label == HALLUCINATED and made.output == "The bridge was painted green by soldiers. They sang."
    )
    (span,) = made.spans
    assert (made.output or "")[span.start : span.end] == "painted green by soldiers. They sang."
    assert told.context == made.context and told.metadata["of"] == made.metadata["of"] == "b"
    assert made.id != told.id != BRIDGE.id


def test_an_end_that_says_nothing_new_is_not_taken() -> None:
    assert not list(continued(BRIDGE, "The bridge was", " opened by Anna Meier on Mondays."))
    assert not list(continued(BRIDGE, "The bridge was", "\nsoldiers painted it green"))
    assert not list(continued(BRIDGE, "The bridge was", ""))


class Scripted:
    """A language model whose every end is the same."""

    def continued(self, samples: Sequence[Sample], seed: int) -> Iterator[Sample]:
        for each in samples:
            yield from continued(each, "The bridge", " sank with all sailors.")

    def guesses(self, samples: Sequence[Sample]) -> dict[str, tuple[Guess, ...]]:
        return {each.id: () for each in samples}


def test_a_mixture_has_as_many_as_its_portion_says() -> None:
    clean = [replace(BRIDGE, id=f"s{n}", context=(f"Note {n}. {CONTEXT}",)) for n in range(60)]
    portion = Portion(labelled=0, originals=10, continued=20)
    found = mixed({"notes": (clean, portion)}, Lexicon.read(), 0, writer=Scripted())
    ends = [each for each in found.train if each.metadata.get("kind") in ("told", "continued")]
    assert found.counts["notes, gone on with"] == len(ends) == 40
    assert [each.label for each in ends].count(HALLUCINATED) == 20
    without = mixed({"notes": (clean, portion)}, Lexicon.read(), 0)
    assert "notes, gone on with" not in without.counts
    assert len(without.train) == len(found.train) - 40
