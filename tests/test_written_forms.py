"""Dates, times, money and numbers: which ways to write them are the same, and where each character was."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magistrate.detectors.windows import Change, Rewritten, changes, forms, rewritten, writings

DIGITS = ("2026-03-14", "2026/03/14", "14.03.2026", "14/3/2026", "03/14/2026", "14-03-2026")
WORDS = ("March 14, 2026", "March 14th, 2026", "14th of March 2026", "14 Mar 2026", "Mar. 14, 2026")


def read_beside(text: str, *others: str) -> Rewritten:
    return rewritten(text, changes(text, writings(others)))


@pytest.mark.parametrize(
    ("form", "same"),
    [
        ("14 March 2026", (*DIGITS, *WORDS)),
        ("14 March", ("March 14", "March 14th", "14th March", "14th of March")),
        ("5:30 pm", ("17:30", "5:30pm", "5.30 p.m.", "05:30 PM")),
        ("9 am", ("09:00", "9:00 a.m.", "9AM")),
        ("noon", ("12 pm", "12:00 p.m.")),
        ("50 euros", ("€50", "EUR 50", "50 EUR", "50 €", "50€")),
        ("4.2 billion dollars", ("$4.2bn", "$4.2 billion", "US$4.2bn", "USD 4.2 billion", "4.2 billion USD")),
        ("20%", ("20 %", "20 percent", "20 per cent")),
        ("12,500", ("12500",)),
    ],
)
def test_ways_to_write_the_same_have_one_form(form: str, same: tuple[str, ...]) -> None:
    for each in (*same, form):
        if each == "noon":
            continue  # it has no digits, so it is the same in every text
        text = f"({each}), on {each}, or so"
        assert [(text[start:end], found) for start, end, found in forms(text)] == [(each, form)] * 2
    for one, other in pairwise(same):
        assert read_beside(f"Then {other}, you see", f"It was {one}, it is said.").text == (
            f"Then {one}, you see"
        )


@pytest.mark.parametrize(
    "text",
    [
        "03/04/2026 and 5:30 could be two things each.",
        "They may 3 times march 4 miles in 2026, for 1500 days.",
        "Version 3.12.1, IPv4 10.0.0.12, no. 0123456, A12345, 12345-678, 10:12:01.",
        "Call +41 44 123 45 67; 12:00 is not said to be noon.",
        "45.13.2026 and 2026-13-45 are no dates.",
    ],
)
def test_what_could_be_two_things_or_is_neither_has_no_form(text: str) -> None:
    assert list(forms(text)) == []


def test_only_what_the_other_text_has_in_another_form_alone_is_rewritten() -> None:
    known = ("Open from 2026-03-14, 09:00-17:00.", "It costs €50 or 60 euros, 12500 in all.")
    text = "On March 14 at 9 am, not 15 March at 6 pm: 50 euros or 60 euros, not $50; 12,500."
    assert read_beside(text, *known).text == (
        "On 2026-03-14 at 09:00, not 15 March at 6 pm: €50 or 60 euros, not $50; 12500."
    )
    assert read_beside("From 14 March 2027", *known).text == "From 14 March 2027"
    assert read_beside(text).text == text
    assert read_beside("From March 14", "March 14, 2026").text == "From March 14"
    with_and_without = read_beside("March 14 and March 14, 2026", "14 March, 2026-03-14")
    assert with_and_without.text == "14 March and 2026-03-14"


def test_other_changes_come_first() -> None:
    text, instead = (
        "Two years, from €50 on March 14.",
        [Change(0, 9, "24 months"), Change(16, 19, "fifty euros")],
    )
    assert rewritten(text, changes(text, writings(["50 euros", "14 March"]), instead)).text == (
        "24 months, from fifty euros on 14 March."
    )


def test_very_long_numbers_have_no_form() -> None:
    for text in ("1" + ",000" * 5_000, "9" * 20_000, "$" + "9" * 9_000 + "%", "1 " * 20_000):
        assert read_beside(f"It is {text}.", text, "12500").text == f"It is {text}."


PIECES = st.sampled_from(
    ["2026-03-14", "17:30", "€5", "12500", "May 3, ", "5 pm", "2%", " ", ".", "a", "-", "7"]
)
OTHERS = "2026/03/14, 5:30 pm, 5 euros, 12,500, 3 May, 17:00, 2 percent"


@given(st.lists(PIECES, max_size=12).map("".join))
def test_every_character_is_found_again(text: str) -> None:
    read = read_beside(text, OTHERS)
    parts = list(zip(read.begins, read.parts, strict=True))
    for begin, (length, start, end) in parts:
        assert read.original(begin, begin + length) == read.original(begin, begin + 1) == (start, end)
        assert read.text[begin : begin + length] in OTHERS
    for at, each in enumerate(read.text):
        if not any(begin <= at < begin + length for begin, (length, *_) in parts):
            start, end = read.original(at, at + 1)
            assert text[start:end] == each
    assert read.original(0, len(read.text)) == (0, len(text)) or not text
