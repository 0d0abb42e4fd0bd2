"""A thousand hostile texts in every field of a store: every page in a real browser stays what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest
from playwright.sync_api import Page, expect

from browsing import NARROW, WIDE, Visit, fits, pages_of, settled
from hostile_store import HARMLESS, IN_DETAIL, SAMPLES, TRACES, Attacked, N, attacks, filled

pytestmark = pytest.mark.full  # test_pages_smoke.py goes once round in every `make test`

Look = Callable[..., Visit]
TEXTS = attacks()
# Elements of ours, which nobody else may add to, and those that there are never.
OURS = (
    "script",
    "meta",
    "link",
    "title",
    "form",
    "input",
    "button",
    "textarea",
    "select",
    "nav",
    "main",
    "h1",
)
NEVER = "iframe, frame, img, object, embed, base, style, marquee, b[onclick], a[href^=javascript]"
# What an element may not have, in words.
ATTRIBUTES = """() => [...document.querySelectorAll("*")].flatMap((each) => [...each.attributes]
    .filter((a) => /^(on.*|style|srcdoc|autofocus|formaction)$/i.test(a.name)
        || (/^(href|src|action)$/i.test(a.name) && !/^([/#?]|$)/.test(a.value)))
    .map((a) => `${each.tagName} ${a.name}=${a.value.slice(0, 100)}`))"""
# Letters that turn, hide or steer what stands around them; in a field they are alone.
UNSEEN = """() => {
    const body = document.body.cloneNode(true);
    body.querySelectorAll("textarea").forEach((each) => each.remove());
    const odd = /[\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069]/g;
    return [...new Set((document.title + body.textContent).match(odd) || [])].map(escape);
}"""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    return filled(tmp_path_factory.mktemp("attacked"), TEXTS)


@pytest.fixture(scope="module")
def pages(attacked: Attacked) -> Iterator[str]:
    """The address of the pages over the hostile store."""
    with pages_of(attacked.place) as found:
        yield found


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Attacked]]:
    """The address of the pages over a store of the same shape with harmless words in it."""
    made = filled(tmp_path_factory.mktemp("harmless"), HARMLESS)
    with pages_of(made.place) as found:
        yield found, made


def check(page: Page, heading: str | None = None) -> None:
    """Nothing of what the texts want has come about, and the page is laid out as it should be."""
    settled(page)
    where = page.url
    assert page.locator(NEVER).count() == 0, where
    assert page.evaluate(ATTRIBUTES) == [], where
    assert page.evaluate(UNSEEN) == [], where
    scripts = page.locator("script").evaluate_all("all => all.map(each => each.getAttribute('src'))")
    assert scripts and all(each.startswith("/static/") for each in scripts), where
    expect(page.locator("h1")).to_have_count(1)
    assert page.locator("h1").is_visible() and page.locator("footer").is_visible(), where
    assert page.get_by_role("navigation", name="Magistrate").is_visible(), where
    if heading is not None:
        expect(page.locator("h1")).to_have_text(heading)
    for width in (NARROW, WIDE):
        page.set_viewport_size({"width": width, "height": 900})
        assert fits(page), f"{where} sticks out at {width}"


def addresses(links: Any) -> list[str]:
    """Where links lead."""
    return list(links.evaluate_all("all => all.map(each => each.href)"))


def test_there_are_a_thousand_and_no_two_are_alike() -> None:
    assert len(set(TEXTS)) == N == len(HARMLESS)


def test_lists_of_runs(pages: str, visit: Look) -> None:
    looked = visit(pages)
    for path, heading, further in (("/", "Runs", "nav.pages a"), ("/compare", "Compare", ".pages button")):
        page = looked.go(path)
        check(page, heading)
        names = page.locator(".run h2, .pick h2").count()
        while page.locator(further).get_by_text("Older").count():
            page.locator(further).get_by_text("Older").click()
            expect(page.locator(further).get_by_text("Newer")).to_be_visible()
            check(page, heading)
            names += page.locator(".run h2, .pick h2").count()
        assert names == 64
    looked.shot("hostile-runs")


def test_a_run_and_all_of_its_list(pages: str, attacked: Attacked, visit: Look) -> None:
    looked = visit(pages, f"/runs/{attacked.run}")
    page, n = looked.page, 0
    while True:
        check(page)
        n += page.locator("li.outcome").count()
        further = page.locator("nav.pages a[rel=next]")
        if not further.count():
            break
        page.goto(addresses(further)[0])
    assert n == SAMPLES
    looked.shot("hostile-run")


def test_choices_on_the_page_of_a_run(pages: str, attacked: Attacked, visit: Look) -> None:
    """Every value in a form comes back as what it is."""
    looked = visit(pages, f"/runs/{attacked.run}")
    page = looked.page
    page.locator("table.judges a").nth(1).click()
    check(page)
    odd = page.locator("select[name=said] option").nth(3).get_attribute("value")
    for choose, chosen in (
        ("select[name=truth]", "hallucinated"),
        ("select[name=said]", odd),
        ("select[name=said]", "-failed"),
        ("select[name=by]", attacked.field),
    ):
        page.locator(choose).select_option(chosen)
        expect(page.locator("#samples .count")).to_contain_text(f"of {SAMPLES} outcomes")
        expect(page.locator(choose)).to_have_value(str(chosen))
        check(page)
    expect(page.locator("#slices tbody tr")).to_have_count(3)
    page.locator("#exact").fill("0.4")
    page.locator("#exact").press("Enter")
    expect(page.locator("#threshold-told")).to_contain_text("as judged")
    check(page)


def test_samples_with_their_claims_and_steps(pages: str, attacked: Attacked, visit: Look) -> None:
    looked = visit(pages, f"/runs/{attacked.run}")
    found = addresses(looked.page.locator("li.outcome a.id"))[: IN_DETAIL + 4]
    for number, address in enumerate(found):
        page = looked.page
        page.goto(address)
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        check(page)
        if number < 3:
            page.locator("a[data-claim]").nth(number).click()
            expect(page.locator("mark.chosen").first).to_be_visible()
            check(page)
    page.keyboard.press("j")
    page.wait_for_url(lambda url: url != found[-1])
    check(page)
    looked.shot("hostile-sample")


def test_a_comparison(pages: str, attacked: Attacked, visit: Look) -> None:
    looked = visit(pages, f"/compare?run={attacked.run}&run={attacked.other}")
    page = settled(looked.page)
    check(page, "Comparison")
    assert page.locator("section[aria-labelledby=pairs] tbody tr").count() == 3
    page.locator("section[aria-labelledby=pairs] tbody a").nth(1).click()
    expect(page.locator(".flip-row").first).to_be_visible()
    check(page, "Comparison")
    page.get_by_role("link", name="Choose others").click()
    expect(page.locator("input[name=run]:checked")).to_have_count(3)
    check(page, "Compare")
    looked.shot("hostile-compare")


def test_what_is_watched(pages: str, attacked: Attacked, visit: Look) -> None:
    looked = visit(pages, "/watch", expected=[422])
    check(looked.page, "Watch")
    assert looked.page.locator("section.watched").count() == 2
    looked.shot("hostile-watch")
    for path, n in (("/watch/traces", 2 * TRACES), ("/watch/traces?state=unread", 1)):
        page = looked.go(path)
        check(page, "Traces")
        assert page.locator("li.answer").count() == n
    odd = looked.go("/watch/traces").locator("select[name=rule] option").nth(1).get_attribute("value")
    page.locator("select[name=rule]").select_option(odd)
    page.get_by_role("button", name="Search").click()
    expect(page.locator("li.answer")).to_have_count(TRACES)
    expect(page.locator("select[name=rule]")).to_have_value(str(odd))
    check(page, "Traces")
    for address in addresses(page.locator("li.answer a.id")):
        page.goto(address)
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        check(page)
    page = looked.go(f"/watch/trace?{urlencode({'id': attacked.trace}, errors='surrogatepass')}")
    page.locator("a[data-claim]").nth(1).click()
    expect(page.locator("mark.chosen").first).to_be_visible()
    check(page)
    page.get_by_role("button", name="Add the sample to it").click()
    expect(page.locator("#kept .notice")).to_contain_text("flagged@1")
    check(page)
    page.get_by_label("Data set").fill("<script>alert(1)</script>:")
    page.get_by_role("button", name="Add the sample to it").click()
    check(page, "Invalid request")
    looked.shot("hostile-trace")


def test_what_is_tried(pages: str, visit: Look) -> None:
    looked = visit(pages, "/try", expected=[422])
    page = looked.page
    every = "".join(TEXTS).encode("utf-8", "ignore").decode()
    for judge, heading in (("novelty", None), ("no such <judge>", "Try a judge")):
        sent = {
            "output": every[:60_000],
            "context": [every[:50_000], "b"],
            "input": every[:9000],
            "judge": judge,
        }
        answer = httpx.post(f"{pages}/try", data=sent, timeout=120)
        if answer.status_code == 303:
            page = looked.go(answer.headers["location"])
            check(page, heading)
            page.get_by_role("link", name="Try again with changes").click()
            typed = page.get_by_label("Output: the text to judge").input_value()
            assert typed == every[:60_000].replace("\0", "\ufffd").replace("\r\n", "\n").replace("\r", "\n")
            check(page)
        else:
            assert answer.status_code == 422 and "<script>alert" not in answer.text


@pytest.mark.parametrize(
    "start",
    ["/", "/runs/", "/judges/", "/try/", "/try?judge=", "/?q=", "/?tag=", "/compare?run=", "/static/"],
)
def test_addresses(pages: str, attacked: Attacked, visit: Look, start: str) -> None:
    looked = visit(pages, expected=[404, 422])
    several = "".join(each for each in TEXTS[:8])
    for text in (several, TEXTS[26], "../../etc/passwd", "%00<b>", TEXTS[1]):
        page = looked.go(start + quote(text[:180], safe="" if "=" in start else "/"))
        if start != "/static/":
            check(page)
    if start == "/?tag=":
        check(
            looked.go("/?" + "&".join(f"{name}={quote(several)}" for name in ("dataset", "judge", "model")))
        )


def test_there_are_no_more_elements_than_with_harmless_words(
    pages: str, attacked: Attacked, twin: tuple[str, Attacked], visit: Look
) -> None:
    counts = []
    for site, made in ((pages, attacked), twin):
        looked = visit(site)
        told = []
        for path in ("/", f"/runs/{made.run}", f"/runs/{made.run}?threshold=0.4", f"/runs/{made.run}/delete"):
            told.append(counted(looked.go(path)))
        looked.go(f"/runs/{made.run}")
        looked.page.goto(addresses(looked.page.locator("li.outcome a.id"))[0])
        told.append(counted(looked.page))
        trace = urlencode({"id": made.trace, "claim": 1}, errors="surrogatepass")
        for path in ("/watch", "/watch/traces", "/watch/traces?state=unread", f"/watch/trace?{trace}"):
            told.append(counted(looked.go(path)))
        for path in ("/compare", f"/compare?run={made.run}&run={made.other}", "/try", "/judges"):
            told.append(counted(settled(looked.go(path))))
        counts.append(told)
    assert counts[0] == counts[1]


def counted(page: Page) -> dict[str, int]:
    """How many elements of each kind there are."""
    return {name: page.locator(name).count() for name in OURS}


def test_a_choice_of_odd_data_finds_its_runs(pages: str, visit: Look) -> None:
    page = visit(pages).page
    values = page.locator("select[name=dataset] option").evaluate_all("all => all.map((each) => each.value)")
    odd = [each for each in values if len(each) < 900 and any(sign in each for sign in "\u202e\u2028\x1b\t")][
        :3
    ]
    assert odd
    for value in odd:
        page.locator("select[name=dataset]").select_option(value)
        expect(page.locator("#list .count")).to_have_text("1 run")
        check(page, "Runs")


def test_the_store_is_read_by_nothing_else(tmp_path: Path, pages: str, attacked: Attacked) -> None:
    """What the API tells of the same store is data, whatever it holds."""
    for path in ("/api/runs?limit=100", f"/api/runs/{attacked.run}"):
        answer = httpx.get(f"{pages}{path}", timeout=60)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        answer.json()
