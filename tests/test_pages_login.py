"""Signing in and out through a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from browsing import NARROW, Visit, fits, is_whole, pages_of
from furnished import Furnished
from served import TOKEN

pytestmark = pytest.mark.full  # test_pages_smoke.py goes once round in every `make test`

Look = Callable[..., Visit]


@pytest.fixture(scope="module")
def locked(house: Furnished) -> Iterator[str]:
    """The address of pages that are shown to whoever has the token."""
    with pages_of(house.place, token=TOKEN) as address:
        yield address


def sign_in(page: Page, token: str = TOKEN) -> None:
    page.get_by_label("Token of this server").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_whoever_signs_in_comes_where_they_wanted_to_go(locked: str, house: Furnished, visit: Look) -> None:
    wanted = f"/runs/{house.bridges}?judge=second&said=hallucinated"
    looked = visit(locked, wanted, expected=[401])
    page = looked.page
    expect(page.locator("h1")).to_have_text("Sign in")
    expect(page.get_by_label("Token of this server")).to_be_focused()
    sign_in(page, "a-wrong-token-of-the-right-length")
    expect(page.get_by_role("alert")).to_contain_text("neither the token of this server")
    assert page.get_by_label("Token of this server").input_value() == ""
    looked.shot("login-wrong")
    sign_in(page)
    expect(page.locator("#judge-title")).to_have_text("second")
    assert looked.path == wanted
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    assert cookie["value"] != TOKEN and page.evaluate("document.cookie") == ""
    page.get_by_role("link", name="Judges", exact=True).click()
    expect(page.locator("h1")).to_have_text("Judges")


def test_whoever_signs_out_sees_nothing_any_more(locked: str, visit: Look) -> None:
    looked = visit(locked, expected=[401])
    page = looked.page
    sign_in(page)
    expect(page.locator("h1")).to_have_text("Runs")
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("h1")).to_have_text("Sign in")
    assert page.context.cookies() == []
    page.go_back()
    expect(page.locator("h1")).to_have_text("Sign in")
    looked.go("/compare")
    expect(page.locator("h1")).to_have_text("Sign in")


def test_a_page_that_is_still_open_leads_to_the_form(locked: str, visit: Look) -> None:
    looked = visit(locked, expected=[401])
    page = looked.page
    sign_in(page)
    expect(page.locator("#list .run").first).to_be_visible()
    page.context.clear_cookies()
    page.get_by_label("Search").fill("Bridges")
    expect(page.locator("h1")).to_have_text("Sign in")
    sign_in(page)
    expect(page.locator("h1")).to_have_text("Runs")


def test_it_can_be_done_without_javascript(locked: str, visit: Look) -> None:
    page = visit(locked, "/judges/novelty", java_script_enabled=False).page
    sign_in(page)
    expect(page.locator("h1")).to_have_text("novelty")
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("h1")).to_have_text("Sign in")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_form_fits_and_can_be_used_by_everybody(locked: str, visit: Look, scheme: str) -> None:
    size = {"width": NARROW, "height": 900}
    looked = visit(locked, expected=[401], color_scheme=scheme, viewport=size, bypass_csp=True)
    sign_in(looked.page, "a-wrong-token-of-the-right-length")
    assert fits(looked.page) and is_whole(looked.page)
    found = Axe().run(looked.page).response["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []
    looked.shot(f"login-{scheme}-{NARROW}")
