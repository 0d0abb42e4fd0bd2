"""Variants of faithful texts: what is wrong in them is marked, and nothing on their surface gives it away."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from magistrate.datasets import load
from magistrate.errors import InputError
from magistrate.features import words
from magistrate.training.synthetic import HARMLESS, KINDS, WRONG, Lexicon, perturb
from magistrate.training.synthetic.draft import Draft, Variant, edited
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Span, Turn

DATA_FOLDER = os.environ.get("MAGISTRATE_DATA_DIR")
LEXICON = Lexicon.read()
CONTEXT = (
    "On Saturday, Everton beat Burnley 2-1 at Goodison Park. Kevin Mirallas scored the only goal of the "
    "first half. Tom Heaton, their goalkeeper, saved a penalty. Burnley have not won in 5 games. The club "
    "said it would help fans who bought tickets for $3 million in 2014. Some supporters left early. Ross "
    "Barkley may leave for Chelsea."
)
SAMPLE = Sample("match", "Everton beat Burnley on Saturday. Burnley have not won in 5 games.", (CONTEXT,))


def made(kind: str, sample: Sample, seed: int = 0) -> Variant | None:
    """What a kind makes of a sample: the first that it makes with some seed."""
    tries = (KINDS[kind].make(Draft(sample, LEXICON), Random(seed + at)) for at in range(20))
    return next((each for each in tries if each is not None), None)


def of(output: str, context: str = CONTEXT) -> Sample:
    return Sample("one", output, (context,))


@pytest.mark.parametrize(
    ("kind", "before", "after", "wrong"),
    [
        ("roles_exchanged", "Everton beat Burnley.", "Burnley beat Everton.", ["Burnley", "Everton"]),
        ("negation_inserted", "The match was long.", "The match was not long.", ["was not"]),
        ("negation_removed", "They have not won.", "They have won.", ["have"]),
        ("negation_removed", "He did not win it.", "He won it.", ["won"]),
        ("antonym", "The team accepted it.", "The team rejected it.", ["rejected"]),
        ("quantifier", "It saw some supporters.", "It saw all supporters.", ["all"]),
        ("modality", "He may leave.", "He will leave.", ["will"]),
        ("preposition", "He left before noon.", "He left after noon.", ["after"]),
        ("qualifier_dropped", "He met the former king.", "He met the king.", ["king"]),
        ("unit", "It took 5 weeks.", None, None),
        ("date", "He left on Sunday.", None, None),
        ("number", "They won 12 games.", None, None),
        ("nationality", "He is an Italian actor.", None, None),
    ],
)
def test_what_is_wrong_is_marked(kind: str, before: str, after: str | None, wrong: list[str] | None) -> None:
    variant = made(kind, of(before))
    assert variant is not None and variant.output != before and variant.spans
    marked = [variant.output[span.start : span.end] for span in variant.spans]
    assert after is None or (variant.output, marked) == (after, wrong)
    assert all(text == text.strip() != "" for text in marked)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("contraction", "He did not win.", "He didn't win."),
        ("contraction", "He isn't here now.", "He is not here now."),
        ("number_format", "They won 12 games.", "They won twelve games."),
        ("number_format", "It cost $3 million.", "It cost 3 million dollars."),
        ("number_format", "It rose by 50%.", "It rose by 50 percent."),
        ("date_format", "He left on May 5, 2010.", "He left on 5 May 2010."),
        ("time_moved", "Everton won on Saturday.", "On Saturday, Everton won."),
        ("dropped", "Everton won on Saturday.", "Everton won."),
        ("voice_changed", "Yes, Everton defeated Burnley.", "Yes, Burnley was defeated by Everton."),
        ("same_name", "He lives in the UK.", None),
        ("synonyms", "It will help many fans.", "It will assist numerous fans."),
        ("lower_case", "Everton won.", "everton won."),
    ],
)
def test_harmless_changes_mark_nothing(kind: str, before: str, after: str | None) -> None:
    found = {
        variant.output
        for seed in range(40)
        if (variant := KINDS[kind].make(Draft(of(before), LEXICON), Random(seed))) and not variant.spans
    }
    assert found and before not in found and (after is None or after in found)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("roles_exchanged", "Everton and Burnley won."),  # says the same the other way round
        ("roles_exchanged", "Everton met Burnley."),
        ("roles_exchanged", "He was at Everton first, Burnley next."),
        ("dropped", "Everton did not win on Saturday."),  # they may have won on another day
        ("number_format", "The match was on May 7 in Bath."),
        ("reordered", "Everton won. They were happy."),  # the second leans on the first
        ("quantifier", "No, he left."),
        ("qualifier_dropped", "It is not possibly true."),
    ],
)
def test_what_might_get_the_wrong_label_is_left_alone(kind: str, text: str) -> None:
    assert made(kind, of(text)) is None


def test_a_changed_fact_of_the_context_makes_the_output_wrong() -> None:
    sample = of("They sold tickets in 2014.")
    variant = made("fact_changed", sample)
    assert variant is not None and variant.output == sample.output and variant.context is not None
    assert [sample.output[each.start : each.end] for each in variant.spans] == ["2014"]
    assert "2014" in CONTEXT and "2014" not in variant.context[0]
    both = made("both_changed", sample)
    assert both is not None and both.context is not None and not both.spans
    (year,) = re.findall(r"20\d\d", both.output)
    assert year != "2014" and year in both.context[0]
    said = replace(sample, messages=(Turn("user", "I know that it was in 2014."),))
    assert made("fact_changed", said) is None  # it is supported by what was said


def test_a_wrong_number_may_be_one_that_the_context_gives_for_something_else() -> None:
    sample = of("They won 12 games.", "They won 12 games, lost 48, and drew 0.5 points from each of 97.")
    found = {made("number", sample, seed).output for seed in range(40)}  # type: ignore[union-attr]
    assert {"They won 48 games.", "They won 97 games."} < found


def test_the_only_support_removed() -> None:
    variant = made("support_removed", of("Kevin Mirallas scored a goal in the first half."))
    assert variant is not None and variant.context is not None
    assert "Mirallas" not in variant.context[0] and variant.spans == (Span(0, 47),)


def test_labels_ids_and_metadata() -> None:
    others = [replace(SAMPLE, id=f"other-{at}", output=f"Arsenal bought {at} tickets.") for at in range(30)]
    wrong = replace(SAMPLE, id="wrong", label=HALLUCINATED)
    variants = list(perturb([SAMPLE, wrong, *others], seed=1, lexicon=LEXICON, per_sample=6))
    assert variants and len({each.id for each in variants}) == len(variants)
    for each in variants:
        kind, origin = each.metadata["kind"], each.metadata["of"]
        assert each.id.startswith(f"{origin}~{kind}") and origin != "wrong"
        assert each.label == KINDS[kind].label and bool(each.spans) == (each.label == HALLUCINATED)
        assert all(0 <= span.start < span.end <= len(each.output or "") for span in each.spans)
    by_origin = [
        [each.label for each in variants if each.metadata["of"] == one] for one in ("match", "other-3")
    ]
    assert all(labels.count(FAITHFUL) == labels.count(HALLUCINATED) for labels in by_origin)
    assert len(by_origin[0]) <= 6


def test_the_same_again_in_any_order_and_in_any_process() -> None:
    samples = [replace(SAMPLE, id=f"s{at}") for at in range(5)]
    first = list(perturb(samples, seed=3, lexicon=LEXICON))
    again = list(perturb(samples[::-1], seed=3, lexicon=Lexicon.read()))
    assert sorted(first, key=lambda each: each.id) == sorted(again, key=lambda each: each.id)
    assert [each.output for each in first] != [
        each.output for each in perturb(samples, seed=4, lexicon=LEXICON)
    ]
    program = (
        "from magistrate.training.synthetic import *; from magistrate.types import Sample;"
        f"samples = [Sample('s%d' % at, {SAMPLE.output!r}, ({CONTEXT!r},)) for at in range(5)];"
        "print([(x.id, x.output) for x in perturb(samples, seed=3, lexicon=Lexicon.read())])"
    )
    for hashing in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": hashing},
        )  # fmt: skip
        assert done.stdout.strip() == str([(each.id, each.output) for each in first])


@pytest.mark.parametrize("context", ["", CONTEXT, "🙂 " * 50, "東京は日本の首都です。" * 40])
def test_odd_texts_do_not_break_it(context: str) -> None:
    plain = ["", " ", "Yes", "?", "...", "A\n\nB", "X" * 5000]
    for output in (*plain, "🙂", "東京は日本の首都です。", "¿Quién ganó? Nadie."):
        for each in perturb([Sample("odd", output, (context,)), SAMPLE], seed=1, lexicon=LEXICON):
            assert each.output, output


def test_a_sample_without_context_or_output_gives_nothing() -> None:
    samples = [Sample("a", None, (CONTEXT,)), Sample("b", "Everton beat Burnley.")]
    assert list(perturb(samples, seed=1, lexicon=LEXICON)) == []


def test_overlapping_edits_make_no_variant() -> None:
    from magistrate.training.synthetic.draft import Edit

    assert edited("abc", [Edit(0, 2, "x"), Edit(1, 3, "y")]) is None
    assert edited("abc", [Edit(0, 1, "a")]) is None
    assert edited("a b c", [Edit.wrong(2, 3, " long "), Edit(0, 1, "")]) == Variant(
        "  long  c", (Span(2, 6),)
    )


def test_every_kind_has_a_name_and_a_label() -> None:
    assert {kind.label for kind in WRONG} == {HALLUCINATED} and {kind.label for kind in HARMLESS} == {
        FAITHFUL
    }
    assert len(KINDS) == len(WRONG) + len(HARMLESS)


# --- with WordNet ---------------------------------------------------------------------------------


def wordnet(folder: Path) -> Path:
    """A dictionary of four nouns and two verbs in WordNet's own format; offsets are those of the bytes."""
    senses = {
        "noun": [("05 n 01 animal 0", "", "a living being that moves"),
                 ("05 n 02 dog 0 hound 0", "@0", "it barks"), ("05 n 01 cat 0", "@0", "it purrs")],
        "verb": [("29 v 01 climb 0", "!1", "go up"), ("29 v 01 descend 0", "!0", "go down")],
        "adj": [], "adv": [],
    }  # fmt: skip
    counts: list[str] = []
    for at, (name, rows) in enumerate(senses.items(), 1):
        lines = [f"{0:08} {head} {{}} | {gloss}  \n" for head, _, gloss in rows]
        sizes = [
            len(line.format("001 X 00000000 n 0000" if rows[n][1] else "000")) for n, line in enumerate(lines)
        ]
        if name == "noun":  # the animal points down to both
            sizes[0] += len(" ~ 00000000 n 0000") * 2
        starts = [sum(sizes[:n]) for n in range(len(sizes))]
        data, index = "", []
        for n, (head, to, gloss) in enumerate(rows):
            letter = head.split()[1]
            pointers = (
                [f"{to[0]} {starts[int(to[1])]:08} {letter} {'0101' if to[0] == '!' else '0000'}"]
                if to
                else []
            )
            if name == "noun" and n == 0:
                pointers = [f"~ {starts[low]:08} n 0000" for low in (1, 2)]
            line = f"{starts[n]:08} {head} {' '.join([f'{len(pointers):03}', *pointers])} | {gloss}  \n"
            data += line
            for word in head.split()[3::2]:
                index.append(f"{word} {letter} 1 0 1 1 {starts[n]:08}  \n")
                counts.append(f"{word}%{at}:05:00:: 1 9")
        assert [match.start() for match in re.finditer(r"(?m)^\d{8}", data)] == starts
        (folder / f"data.{name}").write_text(data)
        (folder / f"index.{name}").write_text("  1 a licence\n" + "".join(index))
    (folder / "cntlist.rev").write_text("\n".join(counts) + "\n")
    return folder


def test_wordnet_gives_synonyms_opposites_and_siblings(tmp_path: Path) -> None:
    lexicon = Lexicon.read(wordnet(tmp_path))
    assert lexicon.name == "built-in + WordNet" and LEXICON.name == "built-in"
    dogs, climbed = lexicon.reading("dogs"), lexicon.reading("climbed")
    assert dogs is not None and climbed is not None and lexicon.reading("unheard") is None
    assert lexicon.synonyms(dogs) == ("hounds",) and lexicon.siblings(dogs) == ("cats",)
    assert lexicon.antonyms(climbed) == ("descended",)
    assert lexicon.akin("dog", "hound") and not lexicon.knows("unheard")


def test_a_folder_that_is_no_wordnet(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no file data\.noun; a WordNet folder holds"):
        Lexicon.read(tmp_path)


@pytest.mark.parametrize(
    ("word", "opposite"),
    [
        ("increased", "decreased"),
        ("stopped", None),
        ("accepts", "rejects"),
        ("bigger", "smaller"),
        ("women", "men"),
        ("buying", "selling"),
    ],
)
def test_inflections_are_kept(word: str, opposite: str | None) -> None:
    reading = LEXICON.reading(word)
    found = () if reading is None else LEXICON.antonyms(reading)
    assert (found[:1] == (opposite,)) if opposite else not found


# --- what the surface gives away ------------------------------------------------------------------


def auroc(positive: Sequence[float], negative: Sequence[float]) -> float:
    low = sorted(negative)
    return sum(bisect_left(low, x) + bisect_right(low, x) for x in positive) / (
        2 * len(positive) * len(negative)
    )


def surface(variant: Sample, original: Sample) -> dict[str, float]:
    """What needs no understanding: lengths, and what of the output is not in its sources."""
    source = words(" ".join(variant.sources))
    known, runs = set(source), set(pairwise(source))
    said = words(variant.output or "")
    new = [word for word in said if word not in known and len(word) > 2]
    pairs = list(pairwise(said))
    names = [
        word for word in re.findall(r"(?<=\s)[A-Z]\w+", variant.output or "") if word.lower() not in known
    ]
    return {
        "length": len(said),
        "change": len(said) - len(words(original.output or "")),
        "novel words": len(new),
        "share of novel words": len(new) / max(1, len(said)),
        "novel pairs": sum(pair not in runs for pair in pairs),
        "novel numbers": sum(word.isdigit() and word not in known for word in said),
        "novel names": len(names),
    }


@pytest.mark.full
def test_the_surface_does_not_tell_wrong_from_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """On public sets where they are at hand; the few shipped ones, time and again, allow a rougher look."""
    names: tuple[str, ...] = ("quickstart",)
    seeds, most = 20, 0.65
    if DATA_FOLDER:
        monkeypatch.setenv("MAGISTRATE_DATA_DIR", DATA_FOLDER)
        names = ("halueval-summarization", "summedits", "begin", "halueval-dialogue")
        seeds, most = 1, 0.60
    originals = [
        sample for name in names for sample in [each for each in load(name) if each.label == FAITHFUL][:180]
    ]
    of_id = {sample.id: sample for sample in originals}
    variants = [each for seed in range(seeds) for each in perturb(originals, seed=seed, lexicon=LEXICON)]
    assert len(variants) >= 2000
    measured = [(each.label, surface(each, of_id[each.metadata["of"]])) for each in variants]
    for name in measured[0][1]:
        wrong, right = (
            [row[name] for label, row in measured if label == which] for which in (HALLUCINATED, FAITHFUL)
        )
        assert 1 - most <= auroc(wrong, right) <= most, name
