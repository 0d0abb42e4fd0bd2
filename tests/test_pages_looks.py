"""How every page looks: narrow and wide, light and dark, by keys alone, and to a checker of access."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from browsing import NARROW, WIDE, Visit, contrast, fits, is_whole, luminance, settled
from furnished import Furnished

pytestmark = pytest.mark.full  # test_pages_smoke.py goes once round in every `make test`

Look = Callable[..., Visit]
# What of a page can be used and is covered by something else in its middle, in words.
COVERED = """() => {
    const found = [];
    for (const each of document.querySelectorAll("a[href], button, input, select, textarea, summary")) {
        if (!each.checkVisibility({ visibilityProperty: true }) || each.matches(".skip")) continue;
        each.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
        const box = each.getClientRects()[0];
        if (!box || !box.width || !box.height) continue;
        const over = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
        const own = over && (each.contains(over) || (over.closest("label") || over).contains(each));
        if (!own) found.push(`${each.outerHTML.slice(0, 200)} under ${over?.outerHTML.slice(0, 200)}`);
    }
    document.querySelectorAll("*").forEach((each) => { each.scrollLeft = each.scrollTop = 0; });
    return found;
}"""
# What can be reached by Tab, in the order in which it stands in the page.
REACHABLE = """() => {
    const kinds = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']";
    window.reachable = [...document.querySelectorAll(kinds)].filter(
        (each) => !each.disabled && each.checkVisibility({ visibilityProperty: true }));
    return window.reachable.length;
}"""
# Which of them has the focus, -1 for none, and whether that is seen: its outline, and itself.
FOCUSED = """() => {
    const at = document.activeElement, look = getComputedStyle(at), box = at.getClientRects()[0];
    const outlined = look.outlineStyle !== "none" && parseFloat(look.outlineWidth) >= 2;
    const over = document.elementFromPoint(box.x + box.width / 2, box.y + Math.min(box.height / 2, 20));
    const free = over && (at.contains(over) || (over.closest("label") || over).contains(at));
    return [window.reachable.indexOf(at), outlined && free, at.outerHTML.slice(0, 200)];
}"""


@pytest.fixture(scope="module")
def paths(site: str, house: Furnished) -> Iterator[dict[str, str]]:
    """All pages by name, one that tells a verdict that was tried and one that tells an error among them."""
    sent = {"output": "It closes at six.", "context": ["It closes at five."], "judge": "novelty"}
    tried = httpx.post(f"{site}/try", data=sent, timeout=60)
    assert tried.status_code == 303
    yield {**house.paths, "tried": tried.headers["location"], "not-found": "/runs/nothing"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_every_page_fits_and_nothing_is_covered(
    site: str, paths: dict[str, str], visit: Look, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 900}
    looked = visit(site, expected=[404], color_scheme=scheme, viewport=size)
    wrong: dict[str, object] = {}
    for name, path in paths.items():
        page = settled(looked.go(path))
        if not (fits(page) and is_whole(page)):
            wrong[name] = "sticks out of the window"
        elif covered := page.evaluate(COVERED):
            wrong[name] = covered
        assert page.locator("h1").count() == 1, name
        looked.shot(f"{name}-{scheme}-{width}")
    assert wrong == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_is_light_or_dark_and_ink_can_be_read_on_it(
    site: str, paths: dict[str, str], visit: Look, scheme: str
) -> None:
    page = visit(site, color_scheme=scheme).page
    colours = (
        "() => { const s = getComputedStyle(document.documentElement); return [s.backgroundColor, s.color] }"
    )
    paper, ink = page.evaluate(colours)
    assert (luminance(paper) > 0.8) == (scheme == "light")
    assert contrast(paper, ink) > 12


@pytest.mark.parametrize(("scheme", "width"), [("light", WIDE), ("dark", NARROW)])
def test_a_checker_of_access_finds_nothing_serious(
    site: str, paths: dict[str, str], browser: Browser, scheme: str, width: int
) -> None:
    """Its script is put into the page, which the policy of the pages forbids to everybody else."""
    size = {"width": width, "height": 900}
    context = browser.new_context(bypass_csp=True, color_scheme=scheme, viewport=size)  # type: ignore[arg-type]
    page, axe, found = context.new_page(), Axe(), list[str]()
    for name, path in paths.items():
        page.goto(site + path)
        settled(page)
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        for each in axe.run(page).response["violations"]:
            if each["impact"] in ("serious", "critical"):
                nodes = [node["html"][:300] for node in each["nodes"]]
                found.append(f"{name}: {each['id']}, {each['help']}: {nodes[:3]} ({len(nodes)})")
    context.close()
    assert found == []


# --- by keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["runs-older", "run-threshold", "sample-claim", "choose", "compare", "try", "judge", "models"]
)
def test_tab_comes_to_everything_in_its_order_and_is_seen(
    site: str, paths: dict[str, str], visit: Look, name: str
) -> None:
    page = settled(visit(site, paths[name]).page)
    n = page.evaluate(REACHABLE)
    orders = {"Tab": list(range(n)), "Shift+Tab": list(range(n - 2, -1, -1))}
    for key, order in orders.items():
        found, unseen = list[int](), list[str]()
        for _ in order:
            page.keyboard.press(key)
            at, seen, words = page.evaluate(FOCUSED)
            found.append(at)
            if not seen:
                unseen.append(words)
        assert unseen == [], key
        assert found == order, "nothing is left out, comes twice or out of its order"


def test_the_first_key_leads_past_the_navigation(site: str, visit: Look) -> None:
    page = visit(site, "/judges").page
    page.keyboard.press("Tab")
    expect(page.locator("a.skip")).to_be_focused()
    assert page.locator("a.skip").bounding_box()["y"] >= 0, "it is seen while it has the focus"  # type: ignore[index]
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def test_runs_are_found_and_opened_by_keys(site: str, visit: Look) -> None:
    page = visit(site).page
    expect_focus(page, "[name=q]", 16)
    page.keyboard.type("bridges again")
    expect(page.locator("#list .run h2")).to_have_text(["Bridges again"])
    expect_focus(page, "#list .run h2 a", 8)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Bridges again")
    expect_focus(page, "summary", 14)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Rename")).to_be_visible()
    expect_focus(page, "#slide", 12)
    page.keyboard.press("ArrowRight")
    expect(page.locator("#threshold-told")).to_contain_text("verdicts say hallucinated")
    expect(page.locator("#slide")).to_be_focused()


def expect_focus(page: Page, selector: str, most: int) -> None:
    """Press Tab until the first of these has the focus, at most so many times."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.locator(selector).first.evaluate("each => each === document.activeElement"):
            return
    raise AssertionError(f"{selector} is not reached by {most} times Tab")


def test_a_sample_is_read_by_keys(site: str, house: Furnished, visit: Look) -> None:
    page = visit(site, f"/runs/{house.bridges}/samples/bridge-010").page
    page.keyboard.press("2")
    expect(page.locator("#claim-2 a[data-claim]")).to_have_attribute("aria-current", "true")
    assert page.locator("#output mark.chosen").all_inner_texts()
    assert page.locator("#context mark.chosen").all_inner_texts()
    page.keyboard.press("Escape")
    expect(page.locator("mark.chosen")).to_have_count(0)
    for key, title in (("j", "bridge-011"), ("j", "bridge-012"), ("k", "bridge-011"), ("u", "Bridges")):
        page.keyboard.press(key)
        expect(page.locator("h1")).to_have_text(title)
