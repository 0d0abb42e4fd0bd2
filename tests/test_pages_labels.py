"""Labelling in a real browser: two keys an item, words marked by the mouse, hostile texts that do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browsing import NARROW, PAYLOADS, Visit, fits, is_whole, pages_of
from furnished import run_of
from magistrate.labels.queues import QueueOptions, queue_of_run
from magistrate.store import Store
from magistrate.types import FAITHFUL, Sample, Verdict

pytestmark = pytest.mark.full  # test_pages_smoke.py goes once round in every `make test`

Look = Callable[..., Visit]
TEXT = "Der 𝔾reis sagt: 東京は晴れです。 It closes at six o'clock."
HOSTILE = " ".join(PAYLOADS)
CONTEXT = "\n".join(f"Line {at}. The museum opens at {at} and closes at five." for at in range(80))
# Selects what stands between two places of the output, counted in UTF-16 units, with the mouse.
PLACE = """([start, end]) => {
    const root = document.getElementById("output-text");
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    let at = 0;
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const length = node.data.length;
        if (start >= at && start < at + length) range.setStart(node, start - at);
        if (end > at && end <= at + length) range.setEnd(node, end - at);
        at += length;
    }
    const box = range.getClientRects()[0];
    return [box.left + 1, box.top + box.height / 2, box.right - 1];
}"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = tmp_path / "runs.db"
    samples = [Sample(f"s{at}", TEXT, (f"{CONTEXT} {at}", HOSTILE)) for at in range(5)]
    samples.append(Sample("hostile", HOSTILE, (HOSTILE,), input=HOSTILE))
    with Store.open(found) as store:
        run = run_of(store, samples, [Verdict(each.id, "j", FAITHFUL, 0.2) for each in samples], name="run")
        options = QueueOptions(policy="uniform", double=0.0, instructions=HOSTILE)
        queue_of_run(store, store.find_run(run), "q", options, datetime.now(UTC))
    return found


@pytest.fixture
def pages(place: Path) -> Iterator[str]:
    with pages_of(place) as found:
        yield found


def saved(page: Page, label: str) -> None:
    expect(page.locator("#told")).to_contain_text(f"Saved: {label}")


def select(page: Page, start: int, end: int) -> None:
    left, top, right = page.evaluate(PLACE, [start, end])
    page.mouse.move(left, top)
    page.mouse.down()
    page.mouse.move(right, top)
    page.mouse.up()


def number_of(place: Path, sample_id: str) -> int:
    with Store.open(place) as store:
        return 1 + next(each.position for each in store.labels.items("q") if each.sample_id == sample_id)


def test_keys_and_mouse_label_what_is_then_in_the_store(pages: str, place: Path, visit: Look) -> None:
    first = number_of(place, "s0")
    looked = visit(pages, f"/label/q/{first}")
    page = looked.page
    start = TEXT.encode("utf-16-le").find("東".encode("utf-16-le")) // 2
    select(page, start, start + 2)
    expect(page.locator("#output-text mark")).to_have_text("東京")
    expect(page.get_by_label("Hallucinated")).to_be_checked()
    page.keyboard.press("3")
    six = TEXT.encode("utf-16-le").find("closes".encode("utf-16-le")) // 2
    select(page, six + 2, six + 8)  # from within one word to within the next
    expect(page.locator("#output-text mark")).to_have_text(["東京", "closes at"])
    page.keyboard.press("]")
    expect(page.locator("#output-text mark").last).to_have_text("closes at six")
    page.keyboard.press("/")
    page.keyboard.type("closes at FIVE")
    expect(page.locator("#found")).to_have_text("80 places")
    page.keyboard.press("Escape")
    expect(page.locator(".best li")).to_have_count(3)
    page.keyboard.press("h")
    saved(page, "hallucinated")
    page.keyboard.press("f")
    saved(page, "faithful")
    with page.expect_navigation():
        page.keyboard.press("z")
    expect(page.locator("#help")).to_be_visible()  # the script is there
    expect(page.locator(".said")).to_have_count(0)
    page.keyboard.press("u")
    saved(page, "unsure")
    page.keyboard.press("?")
    expect(page.locator("#help dl")).to_be_visible()
    with Store.open(place) as store:
        found = store.labels.labels("q", history=True)
        assert [each.label for each in found if each.position == first - 1] == ["hallucinated"]
        assert sorted(each.label for each in found) == ["faithful", "hallucinated", "undone", "unsure"]
        (marked,) = [each for each in found if each.spans]
        words = [(TEXT[span.start : span.end], span.kind) for span in marked.spans]
        assert words == [("東京", "evident_baseless"), ("closes at six", "evident_baseless")]
        assert marked.seconds is not None and not any(each.shown for each in found)
    assert looked.strange == []


def test_without_scripts_the_page_is_a_form(pages: str, place: Path, visit: Look) -> None:
    looked = visit(pages, "/label/q/next", java_script_enabled=False)
    page = looked.page
    page.get_by_label("Faithful").check()
    page.get_by_role("button", name="Save").click()
    expect(page.locator("h1")).to_contain_text("Item 2")
    with Store.open(place) as store:
        assert [each.label for each in store.labels.labels("q")] == ["faithful"]


def test_hostile_texts_stay_texts_and_the_page_fits(pages: str, place: Path, visit: Look) -> None:
    looked = visit(pages, f"/label/q/{number_of(place, 'hostile')}")
    page = looked.page
    for width in (NARROW, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert fits(page) and is_whole(page), width
    page.locator("#output-text").evaluate("each => getSelection().selectAllChildren(each)")
    page.keyboard.press("m")
    expect(page.locator("#spans li")).to_have_count(1)
    page.keyboard.press("h")
    saved(page, "hallucinated")
    with Store.open(place) as store:
        (label,) = store.labels.labels("q")
        assert (label.spans[0].start, label.spans[0].end) == (0, len(HOSTILE.rstrip()))
    looked.go(f"/label/q/{number_of(place, 'hostile')}?verdict=1")
    expect(page.locator(".verdict-line")).to_contain_text("faithful")
    assert page.locator("main script, main iframe, main img").count() == 0
    assert looked.strange == []


def test_what_the_server_refuses_is_said_and_nothing_goes_on(pages: str, place: Path, visit: Look) -> None:
    looked = visit(pages, "/label/q/1", expected=[409])
    page = looked.page
    with Store.open(place) as store:
        from magistrate.server.labels import Annotators
        from magistrate.server.settings import Settings
        from magistrate.store.labels import Answer

        who = Annotators(Settings(store="x")).usual or ""
        store.labels.add("q", 0, who, Answer(label="skip"), revision=0, now=datetime.now(UTC))
    page.keyboard.press("f")
    expect(page.locator("#refused")).to_contain_text("another window")
    expect(page.locator("h1")).to_contain_text("Item 1")
    assert looked.strange == []
