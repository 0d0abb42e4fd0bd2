"""Pages that change while they are looked at: a run that another process is at, seen without a reload."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browsing import Visit
from magistrate.store import Store
from paced import NAME, paced

pytestmark = pytest.mark.full  # test_pages_smoke.py goes once round in every `make test`

Look = Callable[..., Visit]
N = 60
MARK = "document.body.dataset.mark = 'the page that was loaded'"


@pytest.fixture
def place(home: Path) -> Path:
    """A store without runs."""
    Store.open(home.parent / "runs.db").close()
    return home.parent / "runs.db"


@pytest.fixture
def served_apart(place: Path) -> Iterator[str]:
    """The address of `magistrate serve` in a process of its own."""
    words = [sys.executable, "-m", "magistrate", "serve", "--store", str(place), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip().rstrip("/")
        process.terminate()
        assert process.wait(30) == 0


def is_the_same(page: Page) -> bool:
    """Whether the page was not loaded anew since it was marked."""
    return bool(page.evaluate("document.body.dataset.mark === 'the page that was loaded'"))


def test_a_run_of_another_process_is_seen_as_it_goes(place: Path, served_apart: str, visit: Look) -> None:
    page = visit(served_apart).page
    expect(page.locator("#list")).to_contain_text("There are no runs yet")
    page.evaluate(MARK)
    with paced(place, N) as run:
        row = page.locator("#list .run")
        expect(row.locator("h2")).to_have_text(NAME)
        expect(row.locator(".status")).to_have_text("running")
        expect(row.locator(".progress")).to_contain_text(f"0 of {N} outcomes")
        run.judge(7)
        expect(row.locator(".progress")).to_contain_text(f"7 of {N} outcomes")
        other = visit(served_apart, str(row.locator("h2 a").get_attribute("href"))).page
        other.evaluate(MARK)
        expect(other.locator("#run .progress")).to_contain_text(f"7 of {N} outcomes")
        expect(other.locator("#samples .count")).to_contain_text("7 of 7 outcomes")
        other.get_by_label("Go to a sample").fill("s5")
        other.get_by_text("Rename, tag, export, delete").click()
        run.judge(20)
        for each in (row, other.locator("#run")):
            expect(each.locator(".progress")).to_contain_text(f"27 of {N} outcomes")
            assert each.locator("progress").get_attribute("value") == "27"
        expect(other.get_by_label("Go to a sample")).to_have_value("s5")
        assert other.get_by_role("button", name="Rename").is_visible(), "what was opened stays open"
        run.judge(N - 27)
        assert run.ends() == 0
        expect(row.locator(".status")).to_have_text("done")
        expect(row.locator(".coverage")).to_have_text(f"{N}/{N} judged")
        expect(row.locator("progress")).to_have_count(0)
        expect(other.locator("#run .status")).to_have_text("done")
        expect(other.locator("#judge .headline")).to_contain_text(f"of {N} labelled samples")
        expect(other.locator("#run progress")).to_have_count(0)
        assert is_the_same(page) and is_the_same(other)


def test_a_run_whose_process_was_killed_is_said_to_be(place: Path, served_apart: str, visit: Look) -> None:
    with paced(place, N) as run:
        run.judge(5)
        page = visit(served_apart).page
        page.evaluate(MARK)
        expect(page.locator("#list .progress")).to_contain_text(f"5 of {N} outcomes")
    expect(page.locator("#list .status")).to_have_text("killed")
    assert is_the_same(page)
    page.locator("#list h2 a").click()
    expect(page.locator("#run")).to_contain_text("magistrate resume")


def test_words_that_are_typed_stay_while_the_list_changes(
    place: Path, served_apart: str, visit: Look
) -> None:
    page = visit(served_apart).page
    page.evaluate(MARK)
    with paced(place, N) as run:
        run.judge(3)
        expect(page.locator("#list .progress")).to_contain_text(f"3 of {N} outcomes")
        page.get_by_label("Search").fill("elsewhere")
        run.judge(4)
        expect(page.locator("#list .progress")).to_contain_text(f"7 of {N} outcomes")
        expect(page.get_by_label("Search")).to_have_value("elsewhere")
        expect(page.get_by_label("Search")).to_be_focused()
        run.judge(N)
        assert run.ends() == 0
        expect(page.locator("#list .status")).to_have_text("done")
        assert is_the_same(page)
