"""A whole round of labelling by keyboard: two people, conflicts, a third who decides, and what follows."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browsing import NARROW, Visit, fits, pages_of
from furnished import run_of
from magistrate.labels.queues import QueueOptions, queue_of_run
from magistrate.store import Store
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Verdict
from terminal import Call

pytestmark = pytest.mark.full

N = 60
KEYS = {FAITHFUL: ["f"], HALLUCINATED: ["h", "Enter"]}
MOST_TABS = 60


def truth(sample_id: str) -> str:
    return HALLUCINATED if int(sample_id[1:]) % 2 else FAITHFUL


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A run whose judge ranks well and flags nearly everything, with a queue of all samples."""
    source, samples, verdicts = random.Random(1), [], []
    for at in range(N):
        name = f"s{at}"
        samples.append(Sample(name, f"{name}: it closes at {5 + at % 2}.", (f"Museum {at} closes at five.",)))
        score = min(max(source.gauss(0.85 if truth(name) == HALLUCINATED else 0.65, 0.05), 0.51), 0.99)
        verdicts.append(Verdict(name, "j", HALLUCINATED, score))
    found = tmp_path / "runs.db"
    with Store.open(found) as store:
        run = run_of(store, samples, verdicts, name="run")
        options = QueueOptions(policy="uniform", size=N, double=0.3)
        queue_of_run(store, store.find_run(run), "q", options, datetime.now(UTC))
    return found


def tab_to(page: Page, wanted: str) -> None:
    """Press Tab until an element that matches `wanted` has the focus."""
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if page.evaluate("wanted => document.activeElement.matches(wanted)", wanted):
            return
    raise AssertionError(f"no Tab leads to {wanted}")


def begin(looked: Visit, who: str) -> Page:
    """Give a name and open the first item, by keyboard."""
    page = looked.page
    tab_to(page, "input[name=annotator]")
    page.keyboard.press("Control+a")
    page.keyboard.type(who)
    page.keyboard.press("Enter")
    expect(page.locator("input[name=annotator]")).to_have_value(who)
    return page


def label(page: Page, wrong: set[str]) -> bool:
    """Label the item that is shown, by two keys at most; return whether there was one."""
    page.wait_for_function("document.querySelector('#help:not([hidden])') || location.search === '?end=1'")
    if "end=1" in page.url:
        return False
    (name,) = re.findall(r"^s\d+", page.locator("#output-text").inner_text())
    said = truth(name)
    if name in wrong:
        said = FAITHFUL if said == HALLUCINATED else HALLUCINATED
    before = page.locator("h1").inner_text()
    for key in KEYS[said]:
        page.keyboard.press(key)
    page.wait_for_function(
        "before => location.search === '?end=1' || document.querySelector('h1').innerText !== before",
        arg=before,
    )
    return True


def decide(page: Page) -> None:
    """Decide the conflict that is shown as the texts say, by keyboard."""
    (name,) = set(re.findall(r"\bs\d+(?=:)", page.locator("main").inner_text()))
    tab_to(page, "input[name=label]")
    page.keyboard.press("Space")
    if truth(name) == HALLUCINATED:
        page.keyboard.press("ArrowRight")
    expect(page.locator("input[name=label]:checked")).to_have_value(truth(name))
    tab_to(page, "textarea[name=reason]")
    page.keyboard.type("The context says five.")
    tab_to(page, "button.primary")
    page.keyboard.press("Enter")


def test_two_people_a_conflict_a_decision_an_export_and_a_better_threshold(
    place: Path, tmp_path: Path, visit: Callable[..., Visit], call: Call
) -> None:
    with Store.open(place) as store:
        doubled = sorted(each.sample_id for each in store.labels.items("q") if each.wanted == 2)
    assert len(doubled) >= 5
    disputed = set(doubled[:3])
    with pages_of(place) as site:
        people = {
            "ana": visit(site, "/label/q"),
            "ben": visit(site, "/label/q", color_scheme="dark"),
        }
        wrong = {"ana": set[str](), "ben": disputed}
        for who, looked in people.items():
            page = begin(looked, who)
            tab_to(page, "a.primary")
            page.keyboard.press("Enter")
        at_work, n = dict(people), 0
        while at_work:
            for who, looked in list(at_work.items()):
                if not label(looked.page, wrong[who]):
                    del at_work[who]
                elif (n := n + 1) in (10, 11):
                    looked.shot(f"label-{who}")
        third = visit(site, "/label/q", viewport={"width": NARROW, "height": 800})
        page = begin(third, "cem")
        tab_to(page, "a[href$='/conflicts']")
        page.keyboard.press("Enter")
        for left in range(len(disputed), 0, -1):
            expect(page.locator(".conflict-page")).to_contain_text(
                f"{left} conflict{'s need' if left > 1 else ' needs'} a decision"
            )
            assert fits(page) and "ben" not in page.locator("main").inner_text()
            third.shot(f"conflict-{left}")
            decide(page)
        expect(page.locator(".queue-page")).to_contain_text(f"{N} of {N} decided")
        third.shot("queue")
    assert call("labels", "export", "q", "--gold", "--to", "gold.jsonl", "--store", place).code == 0
    rows = [json.loads(line) for line in Path("gold.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["id"]: row["label"] for row in rows} == {f"s{at}": truth(f"s{at}") for at in range(N)}
    better = tmp_path / "better"
    done = call("improve", "run", "--try", "threshold", "--to", better, "--store", place)
    assert done.code == 0 and (better / "calibration.json").is_file()
    assert re.search(r"threshold .*better|threshold .*kept", done.out), done.out
