"""A heat map over an output: in the terminal with colours and without, in a notebook and on the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from magistrate._text import LEVELS, Heat, seen
from magistrate.errors import InputError
from magistrate.report.formatting import as_text
from magistrate.report.terminal import LONGEST, heat_text, print_outcome
from magistrate.types import HALLUCINATED, Claim, Failure, Sample, Span, Verdict
from reported import outcomes_of, samples_of, stored

OUTPUT = "Bern is in Japan & it rains."
PIECES = [[0, 4, 0.0], [11, 16, 2.4], [19, 21, 0.5], [22, 28, 9.0]]
HOSTILE = "\x1b[2J</mark></p><script>alert(1)</script><img src=x onerror=alert(1)> \u202e{{ 7*7 }}"


def noted(pieces: Any = PIECES, **other: Any) -> dict[str, Any]:
    """A heat map as a judge notes it."""
    return {"name": "doubt", "unit": "nats", "low": 0.0, "high": 3.0, "pieces": pieces, **other}


def verdict(heat: Any, sample: str = "a") -> Verdict:
    return Verdict(sample, "likelihood", HALLUCINATED, 0.7, details={"heat": heat, "asked": 2})


def told(output: str, heat: Any, *, steps: bool = False) -> str:
    """What a terminal without colours of 80 columns shows of a verdict with this heat map."""
    sample = Sample("a", output)
    return as_text(lambda console: print_outcome(verdict(heat), sample, console, steps=steps))


# --- what it is -----------------------------------------------------------------------------------


@given(
    st.text(max_size=40),
    st.lists(st.tuples(st.integers(-5, 50), st.integers(-5, 50), st.floats(-1, 4)), max_size=12),
)
def test_its_runs_are_the_whole_text_in_order_and_the_highest_value_stands(
    text: str, pieces: list[tuple[int, int, float]]
) -> None:
    heat = Heat.read(noted(pieces))
    runs = heat.runs(text)
    assert "".join(text[start:end] for start, end, _ in runs) == text
    for start, end, value in runs:
        for at in range(start, end):
            over = [v for first, last, v in pieces if first <= at < last]
            assert value == max(over, default=None)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"name": "x"},
        [1, 2],
        "hot",
        noted([[0, 1]]),
        noted([[0, "a", 1]]),
        noted(None),
        noted(low=3),
        noted(high=float("inf")),
        noted([[0, 1, float("nan")]]),
        noted([[0, 1, None]]),
    ],
)
def test_what_is_no_heat_map_is_said_and_spoils_nothing(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="heat map"):
        Heat.read(wrong)
    assert "likelihood  hallucinated" in told(OUTPUT, wrong)
    assert "heat map" in told(OUTPUT, wrong)
    assert "hallucinated" in verdict(wrong)._repr_html_()
    assert "Bern" in page_of(tmp_path, OUTPUT, wrong)


# --- in the terminal ------------------------------------------------------------------------------


def test_without_colour_the_worst_stand_in_brackets_with_their_values() -> None:
    shown = told(OUTPUT, noted())
    assert "Bern is in ⟦Japan 2.40⟧ & ⟦it 0.50⟧ ⟦rains. ≥3.00⟧" in shown
    assert "(doubt, from 0 to 3 nats; highest in brackets)" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_with_colour_the_ground_says_how_hot_a_word_is_and_words_say_it_again() -> None:
    text = heat_text(OUTPUT, Heat.read(noted()), colour=True)
    styles = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert "Bern" not in styles
    assert styles["Japan"] != styles["it"]
    assert all(" on #" in styles[word] for word in ("Japan", "it", "rains."))  # ink and ground are both set
    assert text.plain.startswith(OUTPUT)  # no brackets beside the colours
    assert "highest: “rains.” ≥3.00, “Japan” 2.40, “it” 0.50" in text.plain


def test_of_a_long_output_what_is_near_the_hot_places_is_shown() -> None:
    words = "calm " * 5000 + "storm " + "calm " * 5000
    at = words.index("storm")
    shown = " ".join(told(words, noted([[at, at + 5, 2.0]])).split())
    assert "calm ⟦storm 2.00⟧ calm" in shown
    assert "… calm" in shown and "calm …" in shown
    assert len(shown) < 1000
    cold = told(words, noted([[0, 4, 0.0]]))
    assert "no value is above the lowest" in cold and len(cold) < 2 * LONGEST


@pytest.mark.parametrize("places", [[], [[7_000, 7_001, 2.0]], [[0, 14_000, 2.0]]])
def test_of_a_long_output_without_spaces_a_part_is_shown(places: Any) -> None:
    text = "東京都庁舎前駅" * 2_000
    shown = heat_text(text, Heat.read(noted(places)), colour=False).plain
    assert len(shown) < 2 * LONGEST and "東京" in shown and " …" in shown


def test_details_do_not_repeat_it() -> None:
    shown = told(OUTPUT, noted(), steps=True)
    assert '"asked": 2' in shown and "pieces" not in shown


def test_an_output_in_another_script_with_an_emoji_is_marked_where_it_is() -> None:
    assert "東⟦京 1.00⟧🙂 ⟦है 2.00⟧" in told("東京🙂 है", noted([[1, 2, 1.0], [4, 6, 2.0]]))


def test_hostile_text_can_do_nothing_in_a_terminal() -> None:
    shown = told(HOSTILE, noted([[0, len(HOSTILE), 2.0]], name="\x1b[31m", unit="\x9b31m"))
    assert not {"\x1b", "\x9b", "\u202e"} & set(shown)


def test_a_terminal_that_refuses_colour_gets_none() -> None:
    console = Console(width=80, no_color=True, force_terminal=True, color_system="truecolor", record=True)
    with console.capture() as shown:
        print_outcome(verdict(noted()), Sample("a", OUTPUT), console)
    assert "⟦Japan 2.40⟧" in shown.get()


# --- in a notebook --------------------------------------------------------------------------------


class Reading(HTMLParser):
    """The text of a page and the elements in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_a_notebook_shows_it_where_the_heat_map_brings_its_text() -> None:
    read = Reading(verdict(noted(text=OUTPUT))._repr_html_())
    assert OUTPUT in read.words
    assert "doubt, from 0 to 3 nats; highest: “rains.” ≥3.00" in read.words
    assert "Japan" not in verdict(noted())._repr_html_()


def test_hostile_text_can_do_nothing_in_a_notebook() -> None:
    heat = noted([[0, len(HOSTILE), 2.0]], text=HOSTILE, name="<script>alert(1)</script>", unit='"><script>')
    read = Reading(verdict(heat)._repr_html_())
    assert not {"script", "img"} & set(read.tags)
    assert {"onerror", "src"}.isdisjoint(read.attributes)
    assert seen(HOSTILE) in read.words
    assert not {"\x1b", "\u202e"} & set(read.words)


def test_a_notebook_shows_what_the_page_shows_character_by_character() -> None:
    text = "a\u202eb\ud800c\x9b\u2066d"
    read = Reading(verdict(noted([[2, 3, 2.0]], text=text))._repr_html_())
    assert "a�b�c��d" in read.words and "“b” 2.00" in read.words
    claim = Claim("unsupported", Span(0, 3), output_text=text)
    found = Verdict(text, text, text, 0.5, explanation=text, claims=(claim,))
    for html in (found._repr_html_(), Failure(text, text, "timeout", text)._repr_html_()):
        assert not set(text) & set(html.encode().decode()) - set("abcd")


# --- on the page ----------------------------------------------------------------------------------


def page_of(folder: Path, output: str, heat: Any) -> str:
    sample = replace(samples_of(1)[0], output=output, spans=())
    made = stored(folder, [sample], [verdict(heat, sample.id)], judges=("likelihood",))
    made.export(folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    yield page_of(tmp_path, OUTPUT, noted())


def test_the_page_has_the_map_with_its_scale_and_says_it_in_words(page: str) -> None:
    assert '<mark class="heat h4" title="2.40 nats">Japan</mark> &amp; ' in page
    assert '<mark class="heat h1" title="0.50 nats">it</mark>' in page
    assert f'<mark class="heat h{LEVELS}" title="≥3.00 nats">rains.</mark>' in page
    assert "3 nats: doubt" in page
    assert "highest: “rains.” ≥3.00, “Japan” 2.40, “it” 0.50" in page
    assert "&#34;pieces&#34;" not in page and "&#34;asked&#34;: 2" in page


def test_the_page_needs_no_style_but_its_own_sheet(page: str) -> None:
    read = Reading(page)
    assert "style" not in read.attributes
    for level in range(1, LEVELS + 1):
        assert f".h{level} {{ background:" in page


def test_hostile_text_can_do_nothing_on_the_page(tmp_path: Path) -> None:
    heat = noted(
        [[0, len(HOSTILE), 2.0]], name="<script>alert(1)</script>", unit='"><script>alert(1)</script>'
    )
    read = Reading(page_of(tmp_path, HOSTILE, heat))
    assert read.tags.count("script") == 1  # its own
    assert not {"img", "onerror"} & {*read.tags, *read.attributes}
    assert "\x1b" not in read.words and "\u202e" not in read.words


def test_a_run_without_heat_maps_has_none(tmp_path: Path) -> None:
    samples = samples_of(3)
    stored(tmp_path, samples, outcomes_of(samples)).export(tmp_path / "report.html")
    assert "Heat map" not in (tmp_path / "report.html").read_text(encoding="utf-8")
