"""Comparing, trying, and what there is to judge with, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, expect

from browsing import Visit
from furnished import Furnished

pytestmark = pytest.mark.full  # test_pages_smoke.py goes once round in every `make test`

Look = Callable[..., Visit]
WATER = "On Thursday water will be shut off in Mill Lane, and on Friday in Station Road."


def box(page: Page, run: str, judge: str) -> str:
    """What chooses a judge of a run in the list."""
    return f'input[name=run][value="{run}:{judge}"]'


def test_two_judges_are_chosen_and_compared_and_a_flip_is_opened(
    site: str, house: Furnished, visit: Look
) -> None:
    page = visit(site, "/compare").page
    page.get_by_label("Search").fill("bridges")
    expect(page.locator(".pick h2")).to_have_text(["Bridges", "Bridges again", "broken"])
    page.locator(box(page, house.bridges, "second")).check()
    page.locator(box(page, house.again, "rubric")).check()
    page.get_by_role("button", name="Compare selected").click()
    expect(page.locator("#flips")).to_be_visible()
    told = httpx.get(f"{site}/api/compare", params=page_params(page), timeout=60)
    view = told.json()
    assert told.status_code == 200
    (pair,) = view["pairs"]
    expect(page.locator(".flip-row")).to_have_count(pair["n_flips"])
    expect(page.locator("ul.words li")).to_have_text(pair["sentences"])
    right = pair["only_first_right"]
    page.locator("nav.who a").nth(1).click()
    expect(page.locator(".flip-row")).to_have_count(right)
    assert 0 < right < pair["n_flips"]
    sample = page.locator(".flip-row .id").first.inner_text()
    page.locator(".flip-row .call a").first.click()
    expect(page.locator("h1")).to_have_text(sample)
    page.go_back()
    expect(page.locator(".flip-row")).to_have_count(right)


def page_params(page: Page) -> list[tuple[str, str]]:
    """The query of the page that is shown, and that its answer may be waited for."""
    return [*httpx.URL(page.url).params.multi_items(), ("wait", "30")]


def test_three_are_compared_pair_by_pair(site: str, house: Furnished, visit: Look) -> None:
    page = visit(site, f"/compare?run={house.bridges}&run={house.again}").page
    pairs = page.locator("section[aria-labelledby=pairs] tbody tr")
    expect(pairs).to_have_count(3)
    pairs.nth(2).get_by_role("link").click()
    expect(page.locator("#pair-name")).to_have_text("Bridges:second against Bridges again:rubric")
    expect(page).to_have_url(re.compile("pair=2"))


def test_one_alone_is_asked_for_another(site: str, house: Furnished, visit: Look) -> None:
    page = visit(site, "/compare", expected=[422]).page
    page.locator(box(page, house.again, "rubric")).check()
    page.get_by_role("button", name="Compare selected").click()
    expect(page.get_by_role("alert").or_(page.locator("#choice"))).to_be_visible()
    assert page.locator(box(page, house.again, "rubric")).is_checked(), "what was chosen stays so"
    expect(page.locator("#choice .count")).to_contain_text("over bridges")


def test_what_is_in_the_address_and_is_not_there_is_said(site: str, visit: Look) -> None:
    page = visit(site, "/compare?run=nothing", expected=[404]).page
    expect(page.get_by_role("alert")).to_contain_text("nothing")
    assert page.locator(".pick").count() > 1, "another can be chosen at once"


# --- try --------------------------------------------------------------------------------------------


def test_a_judge_is_tried_and_its_verdict_comes(site: str, visit: Look) -> None:
    page = visit(site, "/judges/novelty").page
    page.get_by_role("link", name="Try it").click()
    assert page.locator("[name=judge]").input_value() == "novelty"
    page.get_by_label("Output: the text to judge").fill(WATER)
    page.get_by_label("Context 1").fill("On Thursday water will be shut off in Mill Lane.")
    page.get_by_role("button", name="Add another context").click()
    page.get_by_label("Context 2").fill("Nothing is planned for Friday.")
    page.get_by_role("button", name="Judge it").click()
    expect(page.locator("h1")).to_have_text(re.compile("^(Hallucinated|Faithful)$"))
    expect(page).to_have_url(re.compile(r"/try/[\w-]+$"))
    expect(page.locator("#output")).to_contain_text(WATER)
    expect(page.locator("#context")).to_contain_text("Nothing is planned for Friday.")
    page.get_by_role("link", name="Try again with changes").click()
    expect(page.get_by_label("Output: the text to judge")).to_have_value(WATER)


def test_what_cannot_be_judged_is_said_and_nothing_typed_is_lost(site: str, visit: Look) -> None:
    page = visit(site, "/try", expected=[422]).page
    page.get_by_label("Output: the text to judge").fill(WATER)
    page.locator("[name=judge]").select_option("novelty")
    page.get_by_label("Its options, if any").fill("nonsense=1")
    page.get_by_role("button", name="Judge it").click()
    expect(page.get_by_role("alert")).to_contain_text("nonsense")
    expect(page.get_by_label("Output: the text to judge")).to_have_value(WATER)
    expect(page.locator("[name=judge]")).to_have_value("novelty")


# --- judges and models ------------------------------------------------------------------------------


def test_every_judge_is_listed_with_its_quality_and_has_a_page(site: str, visit: Look) -> None:
    page = visit(site, "/judges").page
    told = httpx.get(f"{site}/api/judges").json()["judges"]
    names = {each["name"] for each in told}
    shown = page.locator(".judge-list h3 a").all_inner_texts()
    assert set(shown) == names and len(shown) == len(names)
    page.get_by_role("link", name="faithfulness", exact=True).click()
    expect(page.locator("h1")).to_contain_text("faithfulness")
    assert page.locator("section:has(#measured-title) tbody tr").count() > 1
    page.get_by_role("navigation", name="Magistrate").get_by_role("link", name="Judges").click()
    expect(page.locator("h1")).to_have_text("Judges")


def test_models_say_whether_they_are_here_and_what_brings_them(site: str, visit: Look) -> None:
    page = visit(site, "/models").page
    told = httpx.get(f"{site}/api/models").json()["models"]
    rows = page.locator("ul.models > li")
    expect(rows).to_have_count(len(told))
    for row, model in zip(rows.all(), told, strict=True):
        expect(row.locator("h2")).to_have_text(model["name"])
        state = "installed as" if model["weights"] else f"magistrate models pull {model['name']}"
        expect(row.locator(".state")).to_contain_text(state)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/runs/nothing", "unknown run"),
        ("/judges/nothing", "unknown judge"),
        ("/try/nothing", "this attempt does not exist"),
        ("/nowhere", "there is nothing at this address"),
    ],
)
def test_what_is_not_there_is_said_on_a_page(site: str, visit: Look, path: str, told: str) -> None:
    page = visit(site, path, expected=[404]).page
    expect(page.locator("h1")).to_have_text("Not found")
    expect(page.locator("main")).to_contain_text(told)
    page.get_by_role("link", name="All runs").click()
    expect(page.locator("h1")).to_have_text("Runs")
