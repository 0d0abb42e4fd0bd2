"""The comparison in a real browser: chosen by hand, there by itself, fit to be read, and without scripts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browsing import NARROW, WIDE, Visit, contrast, fits
from furnished import LONG, Furnished, run_of, turned
from magistrate.server.app import create_app
from magistrate.server.compare import word_of
from magistrate.server.settings import Settings
from magistrate.store import Store
from reported import outcomes_of, samples_of
from served import served

pytestmark = pytest.mark.full  # test_pages_smoke.py goes once round in every `make test`

Look = Callable[..., Visit]


def words(house: Furnished) -> str:
    """The address of the comparison of the two runs over the bridges."""
    return f"/compare?run={word_of(house.bridges, 'rubric')}&run={house.again}"


def test_two_runs_are_chosen_and_compared(visit: Look, site: str, house: Furnished) -> None:
    seen = visit(site, "/compare")
    page = seen.page
    page.get_by_role("group", name="Judges of Bridges again").get_by_label("rubric").check()
    page.get_by_label("Search").fill("no truth")
    expect(page.locator(".pick")).to_have_count(0)
    expect(page.locator(".aside")).to_contain_text("Bridges again")
    page.get_by_label("Search").fill("bridges")
    expect(page.locator(".pick").first).to_contain_text("Bridges")
    page.get_by_role("group", name="Judges of Bridges", exact=True).get_by_label("rubric").check()
    expect(page.get_by_label("rubric").and_(page.locator(":checked"))).to_have_count(2)
    page.get_by_role("button", name="Compare selected").click()
    expect(page.get_by_role("heading", name="In words")).to_be_visible()
    expect(page.locator(".words li").first).to_contain_text("Bridges and Bridges again")
    assert seen.path == f"/compare?run={house.bridges}%3Arubric&run={house.again}%3Arubric"
    seen.shot("compare")


def test_flips_are_filtered_in_place_and_opened(visit: Look, site: str, house: Furnished) -> None:
    seen = visit(site, words(house))
    page = seen.page
    everything = int(page.locator(".who a").first.inner_text().removeprefix("all "))
    page.evaluate("document.querySelector('h1').dataset.mine = 'kept'")
    page.locator(".who a").nth(1).click()
    expect(page.locator(".flip-row")).not_to_have_count(everything)
    expect(page.locator(".flip-row small.right").first).to_be_visible()
    assert page.locator("h1").get_attribute("data-mine") == "kept", "nothing else was loaded"
    assert "right=first" in seen.path
    rows = page.locator(".flip-row").count()
    assert page.locator(".flip-row .call:nth-of-type(3) small.right").count() == rows
    sample = page.locator(".flip-row .id").first.inner_text()
    page.locator(".flip-row .call a").first.click()
    page.wait_for_url("**/samples/**")
    expect(page.locator("h1")).to_contain_text(sample)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[str, str, threading.Event]]:
    """A server that has something else to work out until the event, and a run of two judges over there."""
    place = tmp_path / "runs.db"
    asked = samples_of(30)
    with Store.open(place) as store:
        run = run_of(store, asked, [*outcomes_of(asked), *turned(outcomes_of(asked, LONG))])
    app, gate = create_app(Settings(store=str(place))), threading.Event()
    app.state.jobs.submit("busy", lambda: gate.wait(60))
    with served(app) as address:
        yield address, f"/compare?run={run}", gate
        gate.set()


def test_what_is_worked_out_appears_by_itself(visit: Look, slow: tuple[str, str, threading.Event]) -> None:
    address, path, gate = slow
    page = visit(address, path).page
    expect(page.get_by_role("status")).to_contain_text("Being computed")
    page.wait_for_timeout(1200)
    expect(page.get_by_role("status")).to_contain_text("Being computed")
    gate.set()
    expect(page.get_by_role("heading", name="Side by side")).to_be_visible()
    expect(page.locator("[data-again]")).to_have_count(0)
    asked = page.evaluate("performance.getEntriesByType('resource').length")
    page.wait_for_timeout(1200)
    assert page.evaluate("performance.getEntriesByType('resource').length") == asked, "it asks no more"


def test_it_appears_without_scripts_too(visit: Look, slow: tuple[str, str, threading.Event]) -> None:
    address, path, gate = slow
    page = visit(address, path, java_script_enabled=False).page
    expect(page.get_by_role("status")).to_contain_text("Being computed")
    gate.set()
    expect(page.get_by_role("heading", name="Side by side")).to_be_visible()
    page.get_by_role("link", name="Choose others").click()
    page.get_by_label("rubric").uncheck()
    page.get_by_role("button", name="Compare selected").click()
    expect(page.locator(".pick input:checked")).to_have_count(1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_it_fits_and_can_be_read(
    visit: Look, slow: tuple[str, str, threading.Event], scheme: str, width: int
) -> None:
    address, path, gate = slow
    gate.set()
    seen = visit(address, path, color_scheme=scheme, viewport={"width": width, "height": 900})
    page = seen.page
    expect(page.get_by_role("heading", name="Side by side")).to_be_visible()
    assert fits(page)
    seen.shot(f"compare-{scheme}-{width}")
    back = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    for spot in (".dim", ".flip-row small.wrong", ".flip-row .call a", ".words li"):
        colour = page.locator(spot).first.evaluate("e => getComputedStyle(e).color")
        assert contrast(back, colour) > 4.5, spot
    seen.go("/compare")
    assert fits(page)
    seen.shot(f"choose-{scheme}-{width}")
