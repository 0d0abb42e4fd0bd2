"""One sample in a real browser: claims are chosen and shown, keys lead on, and long texts stay fluid."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browsing import NARROW, WIDE, Reader, Visit, contrast, fits, pages_of
from magistrate import Run
from magistrate.types import Claim, Sample, Span, Verdict
from reported import CLAIMS, CONTEXT, OUTPUT, outcomes_of, samples_of, stored

pytestmark = pytest.mark.full  # test_pages_smoke.py goes once round in every `make test`

LINES = [f"Line {n} of the survey: the bridge at Holm is {n} metres long.\n" for n in range(40_000)]
LONG = "".join(LINES)
PLACES = [0, 100, 20_000, 39_000, 39_999]
# Is the first line of a claim's mark within the part of its pane that is seen?
SEEN = """([side, number]) => {
    const pane = document.getElementById(side);
    const mark = pane.querySelector(`mark[data-claims~="${number}"]`).getClientRects()[0];
    const around = pane.getBoundingClientRect();
    return mark.top >= around.top && mark.bottom <= around.bottom;
}"""
CHOSEN = "marks => marks.map(mark => mark.textContent).join('')"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Twelve samples by two judges, then one with a context of 2 MB and an output of 10,000 words."""
    samples = samples_of(12)
    outcomes = [*outcomes_of(samples), *outcomes_of(samples, "second")]
    starts = [sum(map(len, LINES[:at])) for at in PLACES]
    output = "word " * 10_000
    claims = tuple(
        Claim(
            ("contradiction", "agreement", "unsupported")[n % 3],
            Span(9_900 * n, 9_900 * n + 4),
            Span(start, start + 20),
            0,
            output_text="word",
            context_text=LONG[start : start + 20],
        )
        for n, start in enumerate(starts)
    )
    samples.append(Sample("long", output, (LONG,)))
    outcomes.append(Verdict("long", "rubric", "faithful", 0.2, claims=claims))
    return stored(tmp_path_factory.mktemp("run"), samples, outcomes, judges=("rubric", "second"))


@pytest.fixture(scope="module")
def pages(run: Run) -> Iterator[str]:
    """The address of the pages over the run's store."""
    with pages_of(run.store) as found:
        yield found


Look = Callable[..., Reader]


@pytest.fixture
def look(visit: Callable[..., Visit], pages: str, run: Run) -> Look:
    """Open a page of a sample of the run."""
    return lambda path, **options: visit(pages, f"/runs/{run.id}/samples/{path}", **options)


def chosen(page: Page, side: str) -> str:
    return str(page.locator(f"#{side} mark.chosen").evaluate_all(CHOSEN))


def test_a_claim_that_is_clicked_is_marked_on_both_sides_and_in_the_address(look: Look) -> None:
    reader = look("bridge-002")
    page = reader.page
    for number, claim in enumerate(CLAIMS, 1):
        page.click(f"a[data-claim='{number}']")
        assert chosen(page, "output") == claim.output_text
        assert chosen(page, "context") == (claim.context_text or "")
        expect(page).to_have_url(re.compile(rf"\?claim={number}$"))
        expect(page.locator("a[aria-current][data-claim]")).to_have_attribute("data-claim", str(number))
    reader.shot("sample-claim")
    page.reload()
    assert chosen(page, "output") == CLAIMS[3].output_text, "the address is enough"
    page.click("a[data-claim='4']")
    assert chosen(page, "output") == ""
    expect(page).to_have_url(re.compile(r"/bridge-002$"))


def test_words_of_several_claims_lead_to_one_after_the_other(look: Look) -> None:
    page = look("bridge-002").page
    both = page.locator('#output mark[data-claims="1 4"]')
    for number in ("1", "4", "1"):
        both.click()
        expect(page.locator("#evidence")).to_have_attribute("data-chosen", number)


def test_claims_are_chosen_by_keys(look: Look) -> None:
    page = look("bridge-002").page
    page.keyboard.press("2")
    assert chosen(page, "context") == CLAIMS[1].context_text
    page.locator("a[data-claim='2']").focus()
    page.keyboard.press("ArrowDown")
    assert chosen(page, "output") == CLAIMS[2].output_text
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert chosen(page, "output") == CLAIMS[0].output_text
    page.keyboard.press("Escape")
    assert chosen(page, "output") == ""
    page.keyboard.press("Enter")
    assert chosen(page, "output") == CLAIMS[0].output_text
    page.keyboard.press("9")
    assert chosen(page, "output") == CLAIMS[0].output_text, "there is no ninth"


def test_keys_lead_to_the_next_sample_the_previous_and_the_run(look: Look) -> None:
    page = look("bridge-002?judge=second&right=right").page
    shown = page.locator("h1")
    expect(page.locator(".keys")).to_be_visible()
    order = [page.get_attribute("a[rel=next]", "href"), page.get_attribute("a[rel=prev]", "href")]
    assert all(link is not None and link.endswith("?judge=second&right=right") for link in order)
    names = [str(page.get_attribute(f"a[rel={rel}]", "title")) for rel in ("next", "prev")]
    for key, name in (
        ("j", names[0]),
        ("k", "bridge-002"),
        ("ArrowLeft", names[1]),
        ("ArrowRight", "bridge-002"),
    ):
        page.keyboard.press(key)
        expect(shown).to_have_text(name)
    page.keyboard.press("Control+j")
    page.keyboard.press("Shift+ArrowRight")
    expect(shown).to_have_text("bridge-002")
    assert str(page.get_attribute("#up", "href")).endswith("?judge=second&right=right")
    page.route("**/runs/*", lambda route: route.fulfill(body="<h1>the run</h1>", content_type="text/html"))
    page.route("**/runs/*?*", lambda route: route.fulfill(body="<h1>the run</h1>", content_type="text/html"))
    page.keyboard.press("u")
    expect(shown).to_have_text("the run")


def test_keys_in_a_field_are_letters(look: Look) -> None:
    page = look("bridge-002").page
    page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    page.locator("main input").focus()
    page.keyboard.type("jku1")
    expect(page.locator("h1")).to_have_text("bridge-002")
    assert page.locator("main input").input_value() == "jku1" and chosen(page, "output") == ""


def test_both_sides_scroll_to_the_words_of_a_long_text(look: Look) -> None:
    reader = look("long")
    page = reader.page
    for number in (4, 1, 3, 5, 2):
        page.keyboard.press(str(number))
        for side in ("output", "context"):
            page.wait_for_function(SEEN, arg=[side, number], timeout=3_000)
        assert chosen(page, "context") == LONG[:0] + LINES[PLACES[number - 1]][:20]
    page.goto(f"{page.url.split('?')[0]}?claim=4")
    page.wait_for_function(SEEN, arg=["context", 4], timeout=3_000)
    reader.shot("sample-long")


def test_a_context_of_two_million_letters_stays_fluid(look: Look) -> None:
    page = look("long").page
    whole = "text => document.querySelector('#context .text').textContent === text"
    assert page.evaluate(whole, LONG), "all of it is there"
    taken = page.evaluate(
        """async () => {
            const pane = document.getElementById("context"), frames = [];
            for (let at = 0; at < 30; at++) {
                const begin = performance.now();
                pane.scrollTop = (pane.scrollHeight * (at * 7 % 30)) / 30;
                await new Promise((next) => requestAnimationFrame(() => setTimeout(next)));
                frames.push(performance.now() - begin);
            }
            return frames.sort((a, b) => a - b)[15];
        }"""
    )
    assert taken < 200, f"{taken:.0f} ms from one place to another"


def test_what_is_copied_is_what_is_there(look: Look) -> None:
    page = look("long").page
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#context .text'))")
    copied = page.evaluate("String(getSelection())")
    assert copied.rstrip("\n") == LONG.rstrip("\n")


def test_all_of_it_can_be_done_without_javascript(look: Look) -> None:
    page = look("bridge-002", java_script_enabled=False).page
    assert not page.locator(".keys").is_visible(), "what does nothing is not shown"
    page.click("a[data-claim='2']")
    expect(page).to_have_url(re.compile(r"\?claim=2#output-2$"))
    assert page.locator("#output mark.chosen").all_text_contents() == ["four", " lanes of traffic"]
    assert page.locator("#context mark.chosen").all_text_contents() == [CLAIMS[1].context_text]
    page.click("a[rel=next]")
    expect(page.locator("h1")).to_have_text("bridge-003")
    page.click("nav[aria-label=Judges] a:has-text('second')")
    expect(page).to_have_url(re.compile(r"judge=second$"))
    page.goto(f"{page.url.rpartition('/')[0]}/long?claim=4")
    page.click("#claim-4 >> text=in the context")
    assert page.evaluate(SEEN, ["context", 4])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_it_fits_and_marks_can_be_read_and_told_apart(look: Look, scheme: str, width: int) -> None:
    reader = look("bridge-002", color_scheme=scheme, viewport={"width": width, "height": 900})
    page = reader.page
    looks = {}
    for number in ("", "1", "2", "3"):
        if number:
            page.click(f"a[data-claim='{number}']")
        found = page.locator(f"#output mark{'.chosen' if number else '[data-claims]'}").evaluate_all(
            """marks => marks.map(m => { const s = getComputedStyle(m);
                return [s.backgroundColor, s.color, s.borderBottomStyle, s.textDecorationStyle] })"""
        )
        looks[number] = tuple(found[0][2:])
        assert fits(page)
    assert len({looks["1"], looks["2"], looks["3"]}) == 3, "told apart without colour"
    # What a colour mixed by the browser comes to is asked of a picture element, which knows no other form.
    painted = page.evaluate(
        """() => [...document.querySelectorAll("#output mark, .legend mark")].map(mark => {
            const canvas = document.createElement("canvas"), style = getComputedStyle(mark);
            const pen = canvas.getContext("2d", { willReadFrequently: true });
            return [getComputedStyle(mark.closest(".pane") || document.documentElement).backgroundColor,
                style.backgroundColor, style.color].map((colour, at) => {
                    if (at < 2) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
                    const seen = pen.getImageData(0, 0, 1, 1).data;
                    return at < 2 ? `rgb(${seen[0]}, ${seen[1]}, ${seen[2]})` : colour;
                });
        })"""
    )
    assert len(painted) > 6
    assert min(contrast(ground, ink) for _, ground, ink in painted) >= 7
    reader.shot(f"sample-{scheme}-{width}")


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_the_longest_words_break(visit: Callable[..., Visit], tmp_path: Path, width: int) -> None:
    long = "a" * 3000
    sample = Sample(long, long + OUTPUT, (long, *CONTEXT), input=long, label=long)
    claim = replace(CLAIMS[0], output_quote=Span(0, 3000), context_quote=Span(0, 3000), output_text=long)
    verdict = Verdict(long, long, long, 0.5, explanation=long, claims=(claim,))
    run = stored(tmp_path, [sample], [verdict], name=long, dataset=long, judges=(long, "other"))
    stored(tmp_path, [sample], [verdict], name=long, judges=(long,))
    with pages_of(run.store) as site:
        reader = visit(
            site, f"/runs/{run.id}/samples/{long}?claim=1", viewport={"width": width, "height": 900}
        )
        assert fits(reader.page)
        box = reader.page.locator("h1").bounding_box()
        assert box is not None and box["height"] < 200
        reader.shot(f"sample-long-words-{width}")
