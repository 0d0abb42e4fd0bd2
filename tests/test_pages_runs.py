"""The list of runs and the page of one run in a real browser: what is found, changed and recomputed there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from browsing import Visit, pages_of
from furnished import LONG, NIGHTS, Furnished, N, run_of
from magistrate.store import Store
from reported import outcomes_of, samples_of

pytestmark = pytest.mark.full  # test_pages_smoke.py goes once round in every `make test`

Look = Callable[..., Visit]
NAMES = "#list .run h2"
LINES = "#samples li.outcome"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[str, Store, str]]:
    """A server over a store that a test may change: its address, the store and the id of its one run."""
    samples = samples_of(6)
    with Store.open(tmp_path / "runs.db") as store:
        run = run_of(store, samples, outcomes_of(samples), name="before", tags=["ci"])
        with pages_of(tmp_path / "runs.db") as address:
            yield address, store, run


def count(page: Page) -> int:
    """How many outcomes the list says that there are."""
    return int(page.locator("#samples .count").inner_text().split(" ")[0])


# --- the list of runs -------------------------------------------------------------------------------


def test_runs_are_found_by_words_as_they_are_typed(site: str, visit: Look) -> None:
    looked = visit(site)
    page = looked.page
    expect(page.locator(NAMES).first).to_have_text("Bridges")
    expect(page.locator("#list .count")).to_have_text(f"{NIGHTS + 5} runs")
    page.get_by_label("Search").press_sequentially("ridges aga")
    expect(page.locator(NAMES)).to_have_text(["Bridges again"])
    assert page.get_by_label("Search").input_value() == "ridges aga", "what was typed stays"
    expect(page).to_have_url(re.compile(r"/\?q=ridges\+aga"))
    page.get_by_label("Search").fill("nothing is called this")
    expect(page.locator("#list")).to_contain_text("No run matches all filters")
    page.get_by_role("link", name="Show all").click()
    expect(page.locator(NAMES).first).to_have_text("Bridges")
    assert looked.asked.count(f"{site}/") == 2, "the page itself is loaded at first and for all runs"


def test_runs_are_chosen_by_their_data_their_tags_and_their_age(site: str, visit: Look) -> None:
    page = visit(site).page
    page.get_by_label("Data").select_option("unlabelled")
    expect(page.locator(NAMES)).to_have_text(["no truth"])
    page.go_back()
    expect(page.locator(NAMES).first).to_have_text("Bridges")
    page.get_by_role("link", name="of steel & stone").click()
    expect(page.locator(NAMES)).to_have_text(["Bridges"])
    page.get_by_label("Tag").select_option("")
    page.get_by_role("link", name="Older").click()
    expect(page.locator(NAMES).last).to_have_text("night 0")
    page.get_by_role("link", name="Newer").click()
    expect(page.locator(NAMES).first).to_have_text("Bridges")


def test_a_line_tells_what_the_api_tells(site: str, house: Furnished, visit: Look) -> None:
    page = visit(site).page
    told = {row["id"]: row for row in httpx.get(f"{site}/api/runs").json()["rows"]}
    row = page.locator(f"#run-{house.bridges}")
    head = told[house.bridges]["judges"][0]
    shown = f"{head['value']:.2f}".lstrip("0")
    expect(row.locator(".figure b").first).to_have_text(shown)
    expect(row.locator(".coverage").first).to_have_text(f"{head['n_ok']}/{head['n_total']} judged, 4 failed")
    assert row.locator("svg.trend").count() == 1, "an earlier run over the same data has the same judge"
    expect(page.locator(f"#run-{house.failed}")).to_contain_text("failed: the model is gone")
    expect(page.locator(f"#run-{house.empty} h2")).to_have_text(LONG)


def test_an_empty_store_says_what_to_do(tmp_path: Path, visit: Look) -> None:
    Store.open(tmp_path / "runs.db").close()
    with pages_of(tmp_path / "runs.db") as address:
        looked = visit(address)
        expect(looked.page.locator("#list")).to_contain_text("There are no runs yet")
        looked.shot("runs-empty")
        looked.page.context.close()


# --- what is changed --------------------------------------------------------------------------------


def test_a_run_is_renamed_and_tagged_on_its_page(own: tuple[str, Store, str], visit: Look) -> None:
    address, store, run = own
    page = visit(address, f"/runs/{run}").page
    page.get_by_text("Rename, tag, export, delete").click()
    page.get_by_label("Name").fill("after <b>")
    page.get_by_role("button", name="Rename").click()
    expect(page.locator("h1")).to_have_text("after <b>")
    page.get_by_text("Rename, tag, export, delete").click()
    page.get_by_label("Tag", exact=True).fill("good & new")
    page.get_by_role("button", name="Add").click()
    expect(page.locator("dl.facts")).to_contain_text("good & new")
    page.get_by_text("Rename, tag, export, delete").click()
    page.get_by_role("button", name="Remove the tag ci").click()
    expect(page.locator("dl.facts")).not_to_contain_text("ci")
    found = store.find_run(run)
    assert (found.name, found.tags) == ("after <b>", ("good & new",))
    page.context.close()


def test_a_run_is_deleted_after_a_question(own: tuple[str, Store, str], visit: Look) -> None:
    address, store, run = own
    page = visit(address, f"/runs/{run}").page
    page.get_by_text("Rename, tag, export, delete").click()
    page.get_by_role("link", name="Delete…").click()
    expect(page.locator("h1")).to_have_text("Delete before?")
    page.get_by_role("link", name="Keep it").click()
    expect(page.locator("h1")).to_have_text("before")
    assert store.runs()
    page.go_back()
    page.get_by_role("button", name="Delete the run").click()
    expect(page.locator("h1")).to_have_text("Runs")
    expect(page.locator("#list")).to_contain_text("There are no runs yet")
    assert not store.runs()
    page.context.close()


def test_a_name_that_no_run_can_have_is_refused_in_words(own: tuple[str, Store, str], visit: Look) -> None:
    address, store, run = own
    page = visit(address, f"/runs/{run}", expected=[422]).page
    page.get_by_text("Rename, tag, export, delete").click()
    page.get_by_label("Name").fill("last")
    page.get_by_role("button", name="Rename").click()
    expect(page.locator("main")).to_contain_text("cannot be named")
    assert store.find_run(run).name == "before"
    page.context.close()


# --- a run ------------------------------------------------------------------------------------------


def test_another_judge_is_looked_at(site: str, house: Furnished, visit: Look) -> None:
    page = visit(site, f"/runs/{house.bridges}").page
    expect(page.locator("#judge-title")).to_have_text("rubric")
    assert page.locator("form.flags").count() == 1
    page.locator("table.judges").get_by_role("link", name="second").click()
    expect(page.locator("#judge-title")).to_have_text("second")
    assert page.locator("form.flags").count() == 0, "its verdicts are not decided by claims"


def test_a_cell_of_the_matrix_filters_the_list(site: str, house: Furnished, visit: Look) -> None:
    page = visit(site, f"/runs/{house.bridges}").page
    assert count(page) == N
    matrix = page.locator("#judge table.matrix").first
    cells = [int(cell.inner_text()) for cell in matrix.locator("td b").all()]
    assert sum(cells) == 32 and all(cells)
    for at, (truth, said) in enumerate(
        (truth, said) for truth in ("hallucinated", "faithful") for said in ("hallucinated", "faithful")
    ):
        page.locator("#judge table.matrix").first.locator("td a").nth(at).click()
        expect(page.locator("#samples .count")).to_contain_text(f"{cells[at]} of {N} outcomes")
        expect(page.locator(LINES)).to_have_count(cells[at])
        assert {each.inner_text() for each in page.locator(f"{LINES} .judged").all()} == {said}
        golds = page.locator(f"{LINES} .gold").all_inner_texts()
        assert all(re.search(rf"^truth:\s*{truth}", each.strip()) for each in golds), golds
    page.get_by_role("link", name="Show all").click()
    expect(page.locator("#samples .count")).to_contain_text(f"{N} of {N} outcomes")


def test_the_list_is_chosen_ordered_and_gone_through(site: str, house: Furnished, visit: Look) -> None:
    page = visit(site, f"/runs/{house.bridges}").page
    page.get_by_label("Result").select_option("wrong")
    expect(page.locator("#samples .count")).to_contain_text(f"16 of {N}")
    page.get_by_label("Order").select_option("score")
    expect(page).to_have_url(re.compile("order=score"))
    expect(page.locator(f"{LINES} .score").first).to_contain_text("0.950")
    scores = [float(each.split()[-1]) for each in page.locator(f"{LINES} .score").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)
    page.get_by_role("link", name="Show all").click()
    page.get_by_label("Order").select_option("sample")
    expect(page.locator(f"{LINES} .id").first).to_have_text("bridge-000")
    page.get_by_role("link", name="Later").click()
    expect(page.locator(f"{LINES} .id").last).to_have_text(f"bridge-{N - 1:03d}")
    page.get_by_role("link", name="Earlier").click()
    expect(page.locator(f"{LINES} .id").first).to_have_text("bridge-000")
    page.get_by_label("Go to a sample").fill("bridge-021")
    page.get_by_role("button", name="Go", exact=True).click()
    expect(page.locator("h1")).to_have_text("bridge-021")


CELLS = (("true", "positive"), ("false", "negative"), ("false", "positive"), ("true", "negative"))


def check_threshold(page: Page, figures: str, threshold: float) -> None:
    """The page shows what the API tells of this threshold, and its slider has the focus still."""
    told = httpx.get(figures, params={"threshold": threshold}).json()
    expect(page).to_have_url(re.compile(f"threshold={threshold:g}(&|$)"))
    expect(page.locator("#exact")).to_have_value(f"{threshold:g}")
    expect(page.locator("#threshold-told")).to_contain_text(
        f"{told['threshold']['n_now']} of {told['threshold']['n']} verdicts say hallucinated"
    )
    expect(page.locator("#judge .headline")).to_contain_text(f"At {threshold:g}:")
    confusion = told["report"]["result"]["confusion"]
    cells = [str(confusion[f"{right}_{sign}"]) for right, sign in CELLS]
    expect(page.locator("#judge table.matrix").first.locator("td b")).to_have_text(cells)
    expect(page.locator("#slide")).to_be_focused()


def test_figures_follow_the_threshold_as_it_moves(site: str, house: Furnished, visit: Look) -> None:
    page = visit(site, f"/runs/{house.bridges}?judge=second").page
    figures = f"{site}/api/runs/{house.bridges}/judges/second/figures"
    slide = page.locator("#slide")
    slide.focus()
    for key, threshold in (("End", 1), ("Home", 0)):
        page.keyboard.press(key)
        check_threshold(page, figures, threshold)
    for threshold in (0.25, 0.6, 0.93):
        slide.fill(str(threshold))
        check_threshold(page, figures, threshold)
    box = slide.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.93, middle)
    page.mouse.down()
    for share in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.35):
        page.mouse.move(box["x"] + box["width"] * share, middle, steps=4)
    dragged = float(slide.input_value())
    check_threshold(page, figures, dragged)
    page.mouse.up()
    assert 0.3 < dragged < 0.4
    check_threshold(page, figures, dragged)
    page.locator("#threshold-told").get_by_role("link", name="As judged").click()
    expect(page.locator("#threshold-told")).to_contain_text("as judged")
    assert page.url.count("threshold=") == 0


def test_a_run_is_sliced_by_a_field_of_its_metadata(site: str, house: Furnished, visit: Look) -> None:
    page = visit(site, f"/runs/{house.bridges}").page
    page.get_by_label("Slices by metadata").select_option("built of")
    rows = page.locator("#slices tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.locator("th")).to_have_text(["stone", "steel"])
    assert sum(int(row.locator("td").first.inner_text()) for row in rows.all()) == 32


def test_a_rubric_is_decided_anew_by_other_kinds_of_claims(site: str, house: Furnished, visit: Look) -> None:
    page = visit(site, f"/runs/{house.bridges}").page
    flags = page.locator("form.flags")
    expect(flags).to_contain_text("As judged: contradiction and unsupported")
    page.locator("form.flags").get_by_label("agreement").check()
    expect(page.locator("form.flags")).to_contain_text("Recomputed with")
    asked = {"flag": ["agreement", "contradiction", "unsupported"]}
    told = httpx.get(f"{site}/api/runs/{house.bridges}/judges/rubric/figures", params=asked).json()
    assert told["report"]["verdicts"] == {"hallucinated": 32}, "every one of them has such a claim"
    expect(page.locator("#judge table.matrix").first.locator("td b")).to_have_text(["16", "0", "16", "0"])
    page.locator("form.flags").get_by_role("link", name="As judged").click()
    expect(page.locator("form.flags")).to_contain_text("As judged: contradiction and unsupported")


def test_runs_without_truth_outcomes_or_an_end_say_so(site: str, house: Furnished, visit: Look) -> None:
    looked = visit(site, f"/runs/{house.unlabelled}")
    expect(looked.page.locator("#judge")).to_contain_text("not labelled")
    looked.go(f"/runs/{house.failed}")
    expect(looked.page.locator("#run")).to_contain_text("This run has failed")
    expect(looked.page.locator("#run")).to_contain_text("the model is gone")
    looked.go(f"/runs/{house.empty}")
    expect(looked.page.locator("h1")).to_have_text(LONG)
    expect(looked.page.locator("#samples")).to_contain_text("no outcome yet")
