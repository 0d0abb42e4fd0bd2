"""The pages in a real browser, once round. What each of them does is held by the other files about pages."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import expect

from browsing import PAYLOADS, Visit, fits, is_whole, settled
from furnished import Furnished

Look = Callable[..., Visit]


def test_every_page_is_whole_and_does_nothing_unasked(site: str, house: Furnished, visit: Look) -> None:
    looked = visit(site)
    broken = []
    for name, path in house.paths.items():
        page = settled(looked.go(path))
        if page.locator("h1").count() != 1 or not (fits(page) and is_whole(page)):
            broken.append(name)
    assert broken == []


def test_a_run_is_found_read_and_compared_and_a_hostile_text_judged(
    site: str, house: Furnished, visit: Look
) -> None:
    page = visit(site).page
    page.get_by_label("Search").fill("again")
    expect(page.locator(".run h2")).to_have_text(["Bridges again"])
    page.get_by_role("link", name="Bridges again").click()
    page.locator("li.outcome a.id").first.click()
    expect(page.locator("h1")).to_have_text(re.compile("^bridge-0"))
    header = page.get_by_role("navigation", name="Magistrate")
    header.get_by_role("link", name="Compare").click()
    for run in (house.bridges, house.again):
        page.locator(f'input[name=run][value="{run}:rubric"]').check()
    page.get_by_role("button", name="Compare selected").click()
    page.locator(".flip-row .call a").first.click()
    expect(page.locator("h1")).to_have_text(re.compile("^bridge-0"))
    hostile = " ".join(each for each in PAYLOADS if each.isprintable())
    header.get_by_role("link", name="Judges").click()
    page.get_by_role("link", name="novelty", exact=True).click()
    page.get_by_role("link", name="Try it").click()
    page.get_by_label("Output: the text to judge").fill(f"It closes at six. {hostile}")
    page.get_by_label("Context 1").fill(f"It closes at five. {hostile}")
    page.get_by_role("button", name="Judge it").click()
    expect(page.locator("h1")).to_have_text(re.compile("^(Hallucinated|Faithful)$"))
    expect(page.locator("#output")).to_contain_text("<script>alert(1)</script>")
