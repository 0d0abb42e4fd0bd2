"""Every page's main path without JavaScript: by links, forms and what pages say of themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browsing import Visit, pages_of
from furnished import Furnished, N, run_of
from magistrate.store import Store
from reported import outcomes_of, samples_of

pytestmark = pytest.mark.full  # test_pages_smoke.py goes once round in every `make test`

Look = Callable[[str, str], Page]


@pytest.fixture
def plain(visit: Callable[..., Visit]) -> Look:
    """Open a page in a browser that runs no scripts."""
    return lambda site, path: visit(site, path, java_script_enabled=False).page


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A server over a store that a test may change, and the id of its one run."""
    samples = samples_of(6)
    with Store.open(tmp_path / "runs.db") as store:
        run = run_of(store, samples, outcomes_of(samples), name="before", tags=["ci"])
    with pages_of(tmp_path / "runs.db") as address:
        yield address, run


def test_runs_are_searched_and_gone_through(site: str, plain: Look) -> None:
    page = plain(site, "/")
    page.get_by_role("link", name="Older").click()
    expect(page.locator(".run h2").last).to_have_text("night 0")
    page.get_by_label("Search").fill("again")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".run h2")).to_have_text(["Bridges again"])
    page.get_by_role("link", name="Bridges again").click()
    expect(page.locator("h1")).to_have_text("Bridges again")


def test_a_run_is_renamed_tagged_and_deleted(own: tuple[str, str], plain: Look) -> None:
    page = plain(own[0], f"/runs/{own[1]}")
    for label, words, button in (("Name", "after", "Rename"), ("Tag", "good", "Add")):
        page.get_by_text("Rename, tag, export, delete").click()
        page.locator(".manage").get_by_label(label).first.fill(words)
        page.get_by_role("button", name=button).click()
    expect(page.locator("h1")).to_have_text("after")
    expect(page.locator("dl.facts")).to_contain_text("good")
    page.get_by_text("Rename, tag, export, delete").click()
    page.get_by_role("link", name="Delete…").click()
    page.get_by_role("button", name="Delete the run").click()
    expect(page.locator("#list")).to_contain_text("There are no runs yet")


def test_a_run_is_looked_into(site: str, house: Furnished, plain: Look) -> None:
    page = plain(site, f"/runs/{house.bridges}")
    page.locator("table.judges").get_by_role("link", name="second").click()
    page.locator("#judge table.matrix td a").first.click()
    expect(page.locator("#samples .count")).to_contain_text(f"7 of {N} outcomes")
    page.locator("#slide").fill("0.25")
    page.locator("form.slide button").click()
    expect(page.locator("#judge .headline")).to_contain_text("At 0.25:")
    page.locator("#exact").fill("0.6")
    page.locator("form.exact button").click()
    expect(page.locator("#judge .headline")).to_contain_text("At 0.6:")
    page.locator("[name=by]").select_option("built of")
    page.locator("#slices button").click()
    expect(page.locator("#slices tbody tr")).to_have_count(2)
    page.get_by_role("link", name="As judged").first.click()
    page.locator("table.judges").get_by_role("link", name="rubric").click()
    page.locator("form.flags").get_by_label("agreement").check()
    page.get_by_role("button", name="Decide again").click()
    expect(page.locator("form.flags")).to_contain_text("Recomputed with")
    page.locator("[name=said]").select_option("-failed")
    page.locator("form.filter button").click()
    expect(page.locator("li.outcome")).to_have_count(4)
    page.locator("li.outcome a.id").first.click()
    expect(page.locator("h1")).to_have_text("bridge-007")


def test_a_sample_is_read(site: str, house: Furnished, plain: Look) -> None:
    page = plain(site, f"/runs/{house.bridges}/samples/bridge-010")
    page.locator("#claim-2 a[data-claim]").click()
    assert "".join(page.locator("#output mark.chosen").all_text_contents()) == "four lanes of traffic"
    assert "".join(page.locator("#context mark.chosen").all_text_contents()) == "two lanes"
    page.locator(".steps summary").first.click()
    expect(page.locator(".steps .message").first).to_be_visible()
    page.get_by_role("link", name="Next →").click()
    expect(page.locator("h1")).to_have_text("bridge-011")
    page.get_by_role("link", name="← Previous").click()
    page.get_by_role("link", name="Bridges again").click()
    expect(page.locator(".eyebrow")).to_have_text("Bridges again")


def test_two_are_compared(site: str, house: Furnished, plain: Look) -> None:
    page = plain(site, "/compare")
    page.get_by_label("Search").fill("bridges")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".pick h2")).to_have_text(["Bridges", "Bridges again", "broken"])
    for run, judge in ((house.bridges, "rubric"), (house.again, "rubric")):
        page.locator(f'input[name=run][value="{run}:{judge}"]').check()
    page.get_by_role("button", name="Compare selected").click()
    expect(page.locator("#flips .flip-row").first).to_be_visible()  # it looks again by itself until then
    page.locator(".flip-row .call a").first.click()
    expect(page.locator("h1")).to_have_text(re.compile("bridge-0"))


def test_a_judge_is_tried(site: str, plain: Look) -> None:
    page = plain(site, "/judges")
    page.get_by_role("link", name="novelty", exact=True).click()
    page.get_by_role("link", name="Try it").click()
    page.get_by_label("Output: the text to judge").fill("It closes at six.")
    page.get_by_label("Context 1").fill("It closes at five.")
    page.get_by_role("button", name="Add another context").click()
    page.get_by_label("Context 2").fill("It opens at nine.")
    page.get_by_role("button", name="Judge it").click()
    expect(page.locator("h1")).to_have_text(re.compile("^(Hallucinated|Faithful)$"))
    expect(page.locator("#context")).to_contain_text("It opens at nine.")
    page.get_by_role("navigation", name="Magistrate").get_by_role("link", name="Models").click()
    expect(page.locator("h1")).to_have_text("Models")
