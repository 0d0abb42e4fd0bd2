"""Text signals: what of an output its sources lack, where it stands, and why."""

from __future__ import annotations

import random
import time
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import LCSseq
from sacrebleu.metrics.chrf import CHRF

from magistrate.errors import InputError, SpecError
from magistrate.features.facts import Amounts, dates, quantities
from magistrate.features.prepared import (
    BLOCK,
    HUMP,
    LONGEST,
    PassageIndex,
    Reading,
    WordSequence,
    covers,
    listed,
    prepared,
)
from magistrate.features.signals import SIGNALS, ngram_novelty, readings
from magistrate.features.words import STRETCH, form, stem, worded, words
from magistrate.types import Sample, Turn

TEXTS = st.text(
    alphabet=st.sampled_from("abcde ABC 0123456789 .,!?\"'\n\t-%$€ éßİ 東京は नी ثلاث 🙂 \u200d \u0301 ½"),
    max_size=120,
)


def sample(output: str, *context: str, input: str | None = None) -> Sample:
    return Sample("s", output, context, input=input)


def read(name: str, output: str, *context: str, input: str | None = None) -> Reading:
    return readings(sample(output, *context, input=input), [name])[name]


def flagged(name: str, output: str, *context: str, input: str | None = None) -> list[str]:
    return [output[span.start : span.end] for span in read(name, output, *context, input=input).spans]


# --- what holds for every signal -----------------------------------------------------------------


@pytest.mark.parametrize("name", SIGNALS)
def test_a_copy_has_nothing_new(name: str) -> None:
    text = 'On 2 June 2017 Ann Miller said "we won twice" and paid $1,000 for 12 km of road. It was cold.'
    found = read(name, text, f"Before. {text} After.")
    assert found.value is not None and found.value < 0.01
    assert found.spans == ()


@pytest.mark.parametrize("name", [name for name in SIGNALS if name != "negations"])
def test_what_has_nothing_to_do_with_the_context_is_new(name: str) -> None:
    output = 'In May 1999 our friend Bob Hill shouted "never give up" at 77 miles from Rome.'
    found = read(name, output, "Photosynthesis turns light into chemical energy within chloroplasts.")
    assert found.value is not None and found.value > 0.5
    assert found.reason
    assert found.spans
    assert all(0 <= span.start < span.end <= len(output) for span in found.spans)


@settings(deadline=None)
@given(TEXTS, TEXTS, st.one_of(st.none(), TEXTS))
def test_values_are_shares_or_said_to_be_undefined_and_spans_stand_in_the_output(
    output: str, context: str, asked: str | None
) -> None:
    for name, found in readings(sample(output, context, input=asked)).items():
        if found.value is None:
            assert found.reason and not found.spans, name
        else:
            assert 0 <= found.value <= 1, name
        for span in found.spans:
            assert 0 <= span.start < span.end <= len(output), name
            assert output[span.start : span.end].strip(), name


@pytest.mark.parametrize("output", ["", "  \n"])
def test_an_empty_output_has_no_values(output: str) -> None:
    found = readings(sample(output, "A context."))
    assert set(found) == set(SIGNALS)
    assert {each.value for each in found.values()} == {None}
    assert {each.reason for each in found.values()} == {"the output is empty"}


def test_without_a_context_there_are_no_values_but_what_was_said_before_counts_as_one() -> None:
    alone = readings(sample("Bern has ten bridges."))
    assert {(each.value, each.reason) for each in alone.values()} == {(None, "there is no context")}
    said = replace(
        sample("Bern has ten bridges."), messages=(Turn("user", "Bern has ten bridges, I think."),)
    )
    assert readings(said, ["content_words"])["content_words"].value == 0


def test_unknown_names_and_missing_outputs_are_told() -> None:
    with pytest.raises(SpecError, match="unknown text signal 'nouns'; known: content_words, bigrams"):
        readings(sample("a", "b"), ["nouns"])
    with pytest.raises(InputError, match="no output yet"):
        readings(Sample("s", None, ("b",)))


@pytest.mark.parametrize(
    "name", ["content_words", "bigrams", "rouge_l", "sentence_support", "names", "numbers"]
)
def test_length_says_nothing(name: str) -> None:
    output = "Ann paid 12 dollars to Zed. Bob slept."
    once, twice = read(name, output, "Ann paid."), read(name, f"{output} {output}", "Ann paid.")
    assert once.value is not None and twice.value is not None
    assert twice.value == pytest.approx(once.value, abs=0.06)


# --- words ---------------------------------------------------------------------------------------


@given(st.text(alphabet=st.characters(codec="ascii")))
def test_words_are_those_of_the_baselines_with_their_places(text: str) -> None:
    wording = worded(text)
    assert list(wording.forms) == words(text)
    assert [text[start:end].lower() for start, end in zip(wording.starts, wording.ends, strict=True)] == list(
        wording.forms
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [("jumps", "jumping"), ("stopped", "stop"), ("cities", "city"), ("buses", "bus"), ("quickly", "quick")],
)
def test_endings_do_not_matter(one: str, other: str) -> None:
    assert stem(one) == stem(other)


@pytest.mark.parametrize(("one", "other"), [("glass", "gla"), ("b12", "b1"), ("as", "a"), ("east", "eas")])
def test_words_stay_apart(one: str, other: str) -> None:
    assert stem(one) != stem(other)


def test_common_words_carry_no_content_in_several_languages() -> None:
    assert flagged("content_words", "The Hund was there.", "the dog was not there and so on") == ["Hund"]
    assert flagged("content_words", "Der Hund und die Katze.", "Die Katze ist nicht auf dem Dach.") == [
        "Hund"
    ]


def test_scripts_without_spaces_are_compared_by_pairs_of_characters() -> None:
    assert read("content_words", "京都大学", "東京大学は東京にある。").value == pytest.approx(2 / 3)
    assert flagged("content_words", "京都大学", "東京大学は東京にある。") == ["京都"]
    assert read("numbers", "他生于2017年3月,重3公斤", "他生于2018年3月,重3公斤").value == 0
    assert flagged("dates", "他在2017年出生", "他在2018年出生") == ["2017"]


def test_words_that_are_glued_together_are_known_too() -> None:
    assert read("content_words", "Hunt Lowry", "It was made by Hunt LowryHunt knows.").value == 0


def test_what_repeats_the_question_is_neither_made_up_nor_supported() -> None:
    asked = "How long is the notice of Acme in 2019?"
    assert flagged("content_words", "The notice of Acme is long.", "Two weeks.", input=asked) == []
    assert read("content_words", "Acme gives weeks", "Two weeks.", input=asked).value == pytest.approx(1 / 2)
    assert read("names", "It is Acme.", "Two weeks.", input=asked).value is None
    assert read("dates", "It was 2019.", "Two weeks.", input=asked).value is None


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_runs_of_words_are_those_of_the_baseline(output: str, context: str) -> None:
    if not worded(output).forms or not context.strip() or list(worded(output).forms) != words(output):
        return
    if list(worded(context).forms) != words(context):
        return
    assert read("bigrams", output, context).value == pytest.approx(ngram_novelty(sample(output, context), 2))


def test_pairs_of_known_words_that_are_nowhere_together_are_new() -> None:
    context = (
        "Ann Miller wrote the opera in Vienna. "
        + "Nothing happened for many years there. " * 3
        + "Bob Hill sold a car."
    )
    assert flagged("word_pairs", "Ann Hill wrote an opera.", context) == ["Ann Hill wrote"]


def test_rouge_l_is_the_longest_common_subsequence_of_each_sentence() -> None:
    # Lin 2004, section 3.1: three words of four in common with the first, two with the other.
    assert read("rouge_l", "police kill the gunman", "police killed the gunman").value == pytest.approx(0.25)
    assert read("rouge_l", "the gunman kill police", "police killed the gunman").value == pytest.approx(0.5)
    output, context = "one two three four five six", "six five one x two four y"
    common = LCSseq.similarity(output.split(), context.split())
    assert read("rouge_l", output, context).value == pytest.approx(1 - common / 6)
    assert flagged("rouge_l", output, context) == ["three", "five six"]
    assert read("rouge_l", "police kill it", "police kill me").reason.startswith("1 of 3 words is not in")


@given(st.lists(st.sampled_from("abcdef")), st.lists(st.sampled_from("abcde")))
def test_the_words_that_are_aligned_are_a_longest_common_subsequence(
    some: list[str], said: list[str]
) -> None:
    kept = sorted(WordSequence(said).shared(some))
    assert len(kept) == LCSseq.similarity(some, said)
    rest = iter(said)
    assert all(some[at] in rest for at in kept)


def test_a_long_sequence_is_aligned_word_by_word() -> None:
    said = [f"w{at}" for at in range(3 * BLOCK)]
    some = [said[at] if at % 10 else "new" for at in range(0, 3 * BLOCK, 31)]
    assert len(some) > LONGEST
    assert sorted(WordSequence(said).shared(some)) == [at for at, word in enumerate(some) if word != "new"]


def test_chrf_is_the_librarys_precision() -> None:
    output, context = "The notice period is long.", "A period of notice is short here."
    expected = CHRF(beta=0).sentence_score(output, [context]).score / 100
    assert read("chrf", output, context).value == pytest.approx(1 - expected, abs=0.02)


def test_a_camel_case_word_is_seen_in_every_script() -> None:
    characters = list(map(chr, range(0x110000)))
    assert all(HUMP.search(f"{each}A") for each in characters if each.islower())
    assert all(HUMP.search(f"a{each}") for each in characters if each.isupper())
    assert HUMP.search("it\u2019s ALL Right, L\u2019\u00c9t\u00e9") is None
    assert read("content_words", "das ende", "Die Variable \u00fcberEnde ist gesetzt.").value == 0


# --- sentences -----------------------------------------------------------------------------------


def test_many_passages_and_sentences_do_not_multiply_in_memory() -> None:
    output = worded(" ".join(f"word{n}" for n in range(1_000)))
    passages = PassageIndex([(worded(f"word{n}"), (0, 1)) for n in range(8_000)])
    tracemalloc.start()
    found = covers(output, [(at, at + 10) for at in range(0, 1_000, 10)], passages)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 100 and peak < len(passages) * 1_000 / 4


def test_a_sentence_needs_one_passage_that_holds_it() -> None:
    context = (
        "Ann was born in Bern in a snowy winter. The tower of Pisa leans a little. Bob plays chess badly."
    )
    one, mixed = "Ann was born in Bern.", "Ann plays the tower."
    assert read("sentence_support", one, context).value == pytest.approx(0)
    assert (read("sentence_support", mixed, context).value or 0) > 0.5
    assert flagged("sentence_support", f"{one} {mixed}", context) == ["Ann plays the tower"]
    assert (
        read("weakest_sentence", f"{one} {mixed}", context).value
        == read("weakest_sentence", mixed, context).value
    )
    assert "1 of 2 sentences has no passage" in read("sentence_support", f"{one} {mixed}", context).reason


# --- negations -----------------------------------------------------------------------------------

SHOP = "The shop in the old town is open on all days of the week, and it has a garden with a view of the sea."


@pytest.mark.parametrize(
    ("output", "context"),
    [
        ("Sale items are refundable.", "Sale items are not refundable."),
        ("Sale items aren't refundable.", "Sale items are refundable."),
        ("Employees may work from abroad.", "Employees may not work from abroad."),
        ("There is no lift to the tower.", "There is a lift to the tower."),
    ],
)
def test_what_is_negated_on_one_side_only_is_flagged(output: str, context: str) -> None:
    found = read("negations", output, f"{context} {SHOP}")
    assert found.value == 1 and len(found.spans) == 1


@pytest.mark.parametrize(
    ("output", "context"),
    [
        ("Sale items are not refundable.", "Sale items can not be refunded and are not refundable."),
        ("No, sale items are refundable.", "Sale items are refundable."),
        (
            "Sale items are refundable.",
            "Sale items are not refundable without a receipt. With it they are refundable.",
        ),
        ("Dogs may run on the beach.", "Dogs may not bark. Dogs may run on the beach."),
    ],
)
def test_what_is_negated_on_both_sides_or_now_and_then_is_not(output: str, context: str) -> None:
    assert read("negations", output, f"{context} {SHOP}").value == 0


# --- numbers -------------------------------------------------------------------------------------


def is_said(mine: str, theirs: str) -> bool:
    assert quantities(mine), mine
    said = Amounts(quantities(theirs))
    return all(said.say(each) for each in quantities(mine))


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("1,000 people", "1000 people"),
        ("1.000.000", "1,000,000"),
        ("10 000", "10,000"),
        ("twelve", "12"),
        ("two hundred and five", "205"),
        ("twenty-five", "25"),
        ("a million people", "1,000,000 people"),
        ("12 km", "12 kilometres"),
        ("12 km", "12,000 m"),
        ("14 days", "two weeks"),
        ("half an hour", "30 minutes"),
        ("30 minutes", "half-hour"),
        ("three quarters of an hour", "45 minutes"),
        ("an hour and a half", "90 minutes"),
        ("two hours and a half.", "150 min"),
        ("two and a half hours", "150 minutes"),
        ("2½ hours", "two and a half hours"),
        ("two and three quarters million", "2,750,000"),
        ("half a dozen", "6"),
        ("a third of a day", "8 hours"),
        ("two fortnights", "4 weeks"),
        ("a fortnight", "14 days"),
        ("9:00", "nine in the morning"),
        ("9 am", "9:00"),
        ("17:30", "half past five in the afternoon"),
        ("5 p.m.", "open until five"),
        ("eight", "20:00"),
        ("12:00", "noon"),
        ("a quarter to six", "5:45"),
        ("10.30 pm", "22:30"),
        ("9:00-17:00", "from nine to five"),
        ("half a ſecond", "0.5 seconds"),
        ("ﬁve o'clock", "5:00"),
        ("forty square metres", "40 m²"),
        ("90 km/h", "25 m/s"),
        ("100 cl", "one litre"),
        ("$1.2 million", "1,200,000 dollars"),
        ("USD 3bn", "$3 billion"),
        ("25%", "25 percent"),
        ("1,5 Liter", "1.5 litres"),
        ("about 2,000 people", "1,998 people"),
        ("$1.2 million", "$1,234,567"),
        ("12", "12 km"),
        ("−5 °C", "-5 celsius"),
        ("10:30", "at 10:30 sharp"),
        ("3.5.2", "version 3.5.2"),
        ("٣", "3"),
        ("５個", "5"),
        ("1990", "the year 1990"),
        ("1" * 400, "1" * 400),
        ("two and three", "2 and 3"),
        ("between two hundred and three hundred", "200 to 300"),
        ("two hundred thousand and three hundred thousand", "200,000 to 300,000"),
        ("two thousand million", "2,000,000,000"),
        ("two thousand five hundred million", "2.5 billion"),
        ("one million two hundred thousand and five", "1,200,005"),
        ("9" * 300 + " trillion", "9" * 300 + " trillion"),
    ],
)
def test_numbers_that_are_the_same(mine: str, theirs: str) -> None:
    assert is_said(mine, theirs)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("12 km", "12 miles"),
        ("half an hour", "half a day"),
        ("an hour and a half", "one hour"),
        ("two and a quarter hours", "two and a half hours"),
        ("40 square feet", "40 square metres"),
        ("50 km", "50 km/h"),
        ("two pints", "2 litres"),
        ("9 am", "9 pm"),
        ("17:00", "five in the morning"),
        ("half past nine", "nine"),
        ("noon", "midnight"),
        ("1:30:45", "1:30"),
        ("96 francs", "96 euros"),
        ("1,998", "1,989"),
        ("2,000 people", "1,998 people"),
        ("thirteen", "30"),
        ("$5", "€5"),
        ("25%", "25 km"),
        ("about 2,000", "2,500"),
        ("3.5.2", "3.5.3"),
        ("10:30", "10:45"),
        ("5 °C", "-5 °C"),
        ("1.5 million", "1.5 billion"),
        ("1" * 400, "1" * 401),
        ("two and three", "5"),
        ("five thousand and ten thousand", "15,000"),
        ("nineteen eighty-four", "103"),
        ("9" * 300 + " trillion", "3 trillion and 4"),
        ("two " + "thousand " * 200, "3"),
    ],
)
def test_numbers_that_differ(mine: str, theirs: str) -> None:
    assert not is_said(mine, theirs)


def test_one_of_them_is_no_number_and_neither_is_part_of_a_word() -> None:
    assert quantities("One of them, B12, 3D, x2 and 1e5.") == []
    assert quantities("Half of them, the third day, half past, a quarter of these, and a half.") == []


def test_numbers_are_flagged_with_their_units_and_counted_in_words() -> None:
    output = "It has 3 wheels, 1,998 parts and runs 12 km."
    found = read("numbers", output, "Its 3 wheels and 1,989 parts run 12 miles.")
    assert found.value == pytest.approx(2 / 3)
    assert found.reason == "2 of 3 numbers are not in the context: 1,998 and 12 km"
    assert [output[span.start : span.end] for span in found.spans] == ["1,998", "12 km"]


def test_no_numbers_are_no_zero() -> None:
    assert read("numbers", "It has wheels.", "It has 3 wheels.") == Reading(
        None, (), "the output has no numbers that are not in the question"
    )


@given(
    st.lists(
        st.sampled_from(
            ["12 km", "12 miles", "-3", "about 12", "$1.2 million", "1.25 million", "3 days", "0"]
        )
    )
)
def test_an_index_of_numbers_finds_what_comparing_all_finds(texts: list[str]) -> None:
    theirs = quantities("; ".join(texts))
    for mine in quantities("12; 12 km; 12,000 m; about 12.3; -3; 3; $1,200,000; about 1.2 million; 72 h; 0"):
        # Without a unit it counts only where nothing has the unit that was asked for.
        alike = mine.measure in {each.measure for each in theirs} - {None}
        among = [each for each in theirs if not alike or each.measure == mine.measure]
        assert Amounts(theirs).say(mine) == any(mine.said_by(other) for other in among)


# --- dates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "context", "value"),
    [
        ("on 2 June 2017", "on June 2nd, 2017", 0),
        ("on 2017-06-02", "the 2nd of June 2017", 0),
        ("in June 2017", "on 2 June 2017", 0),
        ("in 2017", "2017-06-02", 0),
        ("on 2 June 2017", "on 2 June; it was 2017", 0),
        ("on 3 June 2017", "on 2 June 2017", 1),
        ("on 2 June 2017", "in June 2017", 1),
        ("on 2 June 2017", "on 2 June 2016", 1),
        ("in 1998", "in 1989", 1),
        ("on Monday", "on Mondays", 0),
        ("on Monday", "on Tuesday", 1),
        ("in the 1990s", "in 1995", 0),
        ("in the 1990s", "in 1985", 1),
        ("in 1500", "1,500 people", 0),
        ("02/06/2017", "in 2017", 0),
    ],
)
def test_dates(output: str, context: str, value: float) -> None:
    assert read("dates", output, context).value == value


def test_may_is_a_month_only_where_it_is_one() -> None:
    assert [each.month for each in dates("It may be so. In May they march, on May 5. 30 may leave.")] == [
        5,
        5,
    ]


# --- names and quotations ------------------------------------------------------------------------


def test_names_are_known_by_all_of_their_words_or_by_their_initials() -> None:
    context = "Ann Miller met the United Nations in Bern."
    assert flagged("names", "There Ann Hill met the UN in Bern with NATO.", context) == ["Ann Hill", "NATO"]
    assert read("names", "There Ann Hill met the UN in Bern with NATO.", context).value == pytest.approx(
        1 / 2
    )


def test_a_word_that_begins_a_sentence_is_no_name_and_neither_are_days() -> None:
    assert read("names", "Yesterday it rained. On Monday I slept.", "Nothing.").value is None


def test_headlines_and_texts_without_capitals_have_no_names() -> None:
    assert read("names", "NEW ROCKET LAUNCHES TODAY", "A context.").value is None
    assert read("names", "he met ann miller", "A context.").value is None


@pytest.mark.parametrize("marks", ["“{}”", '"{}"', "«{}»", "‘{}’", "„{}“"])
def test_quotations_must_stand_so(marks: str) -> None:
    context = "She said that they will come home soon."
    assert read("quotations", f"She said {marks.format('they will come')}.", context).value == 0
    output = f"She said {marks.format('they will go')}."
    assert flagged("quotations", output, context) == ["they will go"]
    assert read("quotations", "It isn't 'so'.", context).value is None


def test_long_lists_are_cut() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "a"]) == "a and b"
    assert listed(list("abcdef")) == "a, b, c, d and 2 more"


# --- speed ---------------------------------------------------------------------------------------


def test_numbers_and_dates_are_found_at_every_place_where_a_word_can_begin() -> None:
    text = "x\u0301five and \u017fix, \ufb01ve5 km, June² MONDAYS, in May, ٣ kg, x\u03012 m"
    assert [text[each.span.start : each.span.end] for each in quantities(text)] == [
        *("five", "\u017fix", "\ufb01ve", "٣ kg", "2 m")
    ]
    assert [text[each.span.start : each.span.end] for each in dates(text)] == ["June", "MONDAYS", "May"]


def test_words_are_the_same_whatever_else_the_text_has() -> None:
    """A character of another script changes how a text is split, not where."""
    characters = map(chr, (*range(0x560), *range(0x1E00, 0x2C00), *range(0x1F200, 0x1FB00)))
    text = " ".join(f"a{each}b" for each in characters)
    alone, together = worded(text), worded(f"{text} 東")
    assert (alone.starts, alone.ends) == (together.starts[:-1], together.ends[:-1])
    assert alone.forms == together.forms[:-1]


def text_of(n: int, draw: random.Random) -> str:
    vocabulary = [
        f"{a}{b}{c}"
        for a in ("bar", "mon", "Tel", "sor")
        for b in "aeiou"
        for c in ("ks", "nd", "ting", "42")
    ]
    written = [
        draw.choice([*vocabulary, "the", "of", "and", "12", "in 1998", "$3 million"]) for _ in range(n)
    ]
    return " ".join(word + ("." if at % 15 == 14 else "") for at, word in enumerate(written))


def seconds(judged: Sample) -> float:
    best = float("inf")
    for _ in range(15):
        start = time.thread_time()
        readings(judged)
        best = min(best, time.thread_time() - start)
    return best


@pytest.mark.full
def test_all_signals_take_milliseconds_and_time_grows_with_length() -> None:
    draw = random.Random(0)
    usual = sample(text_of(100, draw), text_of(400, draw))
    long = sample(text_of(100, draw), text_of(4_000, draw))
    assert seconds(usual) < 0.05, "5 ms on an idle machine"
    assert seconds(long) < 25 * seconds(usual)


@pytest.mark.parametrize(
    ("output", "copied"),
    [
        ("the BRIDGE, in Bern!", True),
        ("The bridge in Bern is old.", False),
        ("ridge in Bern", False),  # words are whole
        ("in Bern Anna", False),  # in no single text
        ("When was it?", False),  # the question is no context
        ("It is", False),  # says nothing
        ("", False),
    ],
)
def test_an_output_is_copied_if_one_text_has_its_words_in_a_row(output: str, copied: bool) -> None:
    sample = Sample("s", output, ("The bridge in Bern.", "Anna said: it is."), input="When was it?")
    assert prepared(sample).is_copied == copied


@pytest.mark.parametrize("piece", ["Word1 two-three. ", "Éa 5 o'clock\n", "東京 é-1 ", "longword", "é"])
def test_long_texts_are_split_into_the_same_words_as_short_ones(piece: str) -> None:
    text = piece * (3 * STRETCH // len(piece))
    found = worded(text)
    short = worded(piece * 3)
    assert all(
        form(text[start:end]) == word
        for word, start, end in zip(found.forms, found.starts, found.ends, strict=True)
    )
    if piece[-1].isspace():
        assert found.forms == worded(piece).forms * (3 * STRETCH // len(piece))
        assert found.starts[: len(short.starts)] == short.starts
        assert found.ends[: len(short.ends)] == short.ends
    else:
        assert (found.starts, found.ends) == ((0,), (len(text),))
