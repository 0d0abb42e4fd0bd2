"""The pages of what is watched, in a real browser: with scripts and without, narrow and wide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from browsing import NARROW, WIDE, Visit, fits, is_whole, pages_of, settled
from watched import MANY, rules, watched_store

pytestmark = pytest.mark.full

Look = Callable[..., Visit]
PATHS = {
    "watch": "/watch",
    "watch-days": "/watch?period=7d",
    "rules": "/watch/rules",
    "rule": "/watch/rule?name=all+%3Cb%3E",
    "traces": "/watch/traces",
    "traces-none": "/watch/traces?words=nowhere",
    "traces-unread": "/watch/traces?state=unread",
    "trace": f"/watch/trace?id={0:032x}&claim=1",
    "trace-nothing": f"/watch/trace?id={3:032x}",
    "trace-unread": f"/watch/trace?id={900:032x}",
}


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the pages over a store in which something was watched in the last hours."""
    place = tmp_path_factory.mktemp("watched") / "runs.db"
    watched_store(place, datetime.now(UTC) - timedelta(hours=3, minutes=5))
    with pages_of(place, rules=tuple(rules(MANY))) as found:
        yield found


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", WIDE), ("dark", WIDE), ("light", NARROW), ("dark", NARROW)]
)
def test_every_page_fits_and_a_checker_of_access_finds_nothing_serious(
    watching: str, browser: Browser, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 900}
    context = browser.new_context(bypass_csp=True, color_scheme=scheme, viewport=size)  # type: ignore[arg-type]
    page, axe, found = context.new_page(), Axe(), list[str]()
    for name, path in PATHS.items():
        page.goto(watching + path)
        settled(page)
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        assert page.locator("h1").count() == 1 and fits(page) and is_whole(page), name
        for each in axe.run(page).response["violations"]:
            if each["impact"] in ("serious", "critical"):
                found.append(f"{name}: {each['id']}: {[node['html'][:300] for node in each['nodes']][:3]}")
    context.close()
    assert found == []


@pytest.mark.parametrize("scripts", [True, False])
def test_a_flagged_answer_is_found_read_and_kept(watching: str, visit: Look, scripts: bool) -> None:
    page = visit(watching, "/watch", java_script_enabled=scripts).page
    page.locator(".funnel tr", has_text="obedient says hallucinated").get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("Traces")
    page.get_by_label("Input or output contains").fill("999,999")
    page.get_by_role("button", name="Search").click()
    page.locator("li.answer a.id").last.click()
    page.locator("a[data-claim]").first.click()
    expect(page.locator("#output mark.chosen")).to_have_text("999,999")
    expect(page.locator("#context mark.chosen")).to_have_text("134,000")
    name = f"found {'with' if scripts else 'without'} scripts"
    page.get_by_label("Data set").fill(name)
    page.get_by_role("button", name="Add the sample to it").click()
    expect(page.locator("#kept .notice")).to_contain_text(f"{name}@1")
    page.locator(".spans summary").first.click()
    expect(page.locator(".spans pre").first).to_be_visible()
