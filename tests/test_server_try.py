"""The page on which a judge is tried: the form, a judgement under way, and what came of it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import expect

from asked import CONTEXT, OUTPUT, YES, Door, an_app, until
from browsing import HOSTILE, Visit
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import ModelError, SpecError
from magistrate.server.judging import JudgingService, question
from magistrate.server.playground import KEPT_SECONDS, MOST_CHARACTERS, MOST_TRIES, Playground, PlaygroundForm
from served import Clock, served

SENT = {"output": OUTPUT, "context": ["", CONTEXT], "judge": "novelty"}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(an_app(tmp_path), follow_redirects=True) as opened:
        yield opened


def typed(page: str, name: str) -> list[str]:
    """What stands in the boxes of that name, as a browser shows it."""
    found = re.findall(rf'<textarea name="{name}"[^>]*>\n(.*?)</textarea>', page, re.DOTALL)
    return [unescape(each) for each in found]


def chosen(page: str, name: str) -> str:
    (options,) = re.findall(rf'<select name="{name}">(.*?)</select>', page, re.DOTALL)
    (found,) = re.findall(r'<option value="([^"]*)" selected>', options)
    return unescape(found)


# --- the form -----------------------------------------------------------------------------------


def test_the_form_offers_the_judges_that_can_be_asked_and_the_models_that_are_here(
    client: TestClient,
) -> None:
    page = client.get("/try").text
    assert chosen(page, "judge") == "auto"
    offered = re.findall(r'<option value="([a-z_0-9]+)"', page)
    assert {"novelty", "detector", "faithfulness", "exact", "rubric"} <= set(offered)
    assert not {"stack", "calibrated", "recorded_logprob"} & set(offered)  # they lack something
    assert '<option value="">its usual one</option>' in page and "smollm2-135m-instruct" in page
    assert typed(page, "output") == [""] and typed(page, "context") == ["", ""]


def test_the_form_names_a_usual_model_that_is_not_here(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = "smollm2-135m-judge"
    for here in (True, False):
        monkeypatch.setattr(
            "magistrate.server.playground.is_pulled", lambda model, here=here: here or model.name != tuned
        )
        page = client.get("/try").text
        assert (f"magistrate models pull {tuned}" in page) is not here
        assert "magistrate models pull smollm2-135m-instruct" not in page


def test_the_example_is_filled_in_and_can_be_judged(client: TestClient) -> None:
    page = client.get("/try?example=1").text
    (output,), context = typed(page, "output"), typed(page, "context")
    assert len(output) > 40 and len(context[0]) > 40
    sent = {"output": output, "context": context, "judge": chosen(page, "judge")}
    path = client.post("/try", data=sent).url.path  # the first verdict of a process loads the detector
    until(lambda: re.search("<h1>.*(Hallucinated|Faithful).*</h1>", client.get(path).text))
    assert chosen(client.get("/try?judge=exact").text, "judge") == "exact"


def test_another_context_is_added_and_nothing_typed_is_lost(client: TestClient) -> None:
    sent = {
        **SENT,
        "input": "When?",
        "expected": "At five.",
        "options": "base_rate=.2",
        "output": "\n\nIt closes\r\nat six </textarea>",
        "more": "1",
    }
    page = client.post("/try", data=sent).text
    assert typed(page, "context") == ["", CONTEXT, ""]
    assert typed(page, "output") == ["\n\nIt closes\nat six </textarea>"]
    assert (typed(page, "input"), typed(page, "expected")) == (["When?"], ["At five."])
    assert (chosen(page, "judge"), 'value="base_rate=.2"' in page) == ("novelty", True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"judge": "novelti"}, "did you mean 'novelty'?"),
        ({"judge": "detector", "options": "/etc"}, "cannot be set remotely"),
        ({"judge": "/etc/passwd"}, "unknown judge '/etc/passwd'"),
        ({"options": "base_rate=7"}, "base"),
        ({"model": "../models/x"}, "unknown model '../models/x'"),
        ({"judge": "faithfulness", "model": "qwen3-4b-instruct-2507"}, "magistrate models pull"),
        ({"output": "x" * 300_000}, "300,000 characters"),
    ],
)
def test_what_cannot_be_asked_is_said_above_the_form_as_it_was_sent(
    client: TestClient, words: dict[str, str], said: str
) -> None:
    answer = client.post("/try", data={**SENT, **words})
    assert answer.status_code == 422
    (error,) = re.findall(r'role="alert"[^>]*>(.*?)</p>', answer.text)
    assert said in unescape(error)
    assert typed(answer.text, "context")[0] == CONTEXT
    assert typed(answer.text, "output") == [{**SENT, **words}["output"]]


def test_too_much_at_once_is_said_and_nothing_typed_is_lost(tmp_path: Path) -> None:
    door = Door()
    with TestClient(an_app(tmp_path, ScriptedEngine(door), at_once=1, waiting=0)) as client:
        client.post("/try", data={**SENT, "judge": "faithfulness"})
        answer = client.post("/try", data={**SENT, "judge": "faithfulness"})
        door.open.set()
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
    assert "too many samples are being judged" in answer.text
    assert typed(answer.text, "output") == [OUTPUT]


# --- what came of it ----------------------------------------------------------------------------


def test_a_verdict_is_shown_with_its_evidence_at_an_address_of_its_own(client: TestClient) -> None:
    answer = client.post("/try", data=SENT)
    assert re.fullmatch(r"/try/[\w-]{20,}", answer.url.path)
    assert [each.status_code for each in answer.history] == [303]
    page = answer.text
    assert "Hallucinated</span></h1>" in page
    assert re.search(r'<mark class="[^"]*unsupported[^"]*"[^>]*>', page)
    assert "is not in the context: six" in page
    assert page == client.get(answer.url.path).text
    assert "try.js" not in page and "http-equiv" not in page  # nothing is going on
    assert "chosen" in client.get(f"{answer.url.path}?claim=1").text


def test_a_form_is_filled_in_again_with_what_was_sent(client: TestClient) -> None:
    sent = {**SENT, "judge": "exact", "expected": "At five.", "options": "ignore_case=true", "input": "When?"}
    answer = client.post("/try", data=sent)
    (link,) = re.findall(r'href="(/try\?again=[^"]+)"', answer.text)
    page = client.get(link).text
    assert (typed(page, "output"), typed(page, "context")) == ([OUTPUT], [CONTEXT, ""])
    assert (typed(page, "expected"), typed(page, "input")) == (["At five."], ["When?"])
    assert (chosen(page, "judge"), 'value="ignore_case=true"' in page) == ("exact", True)


def test_failures_and_abstentions_are_shown_as_what_they_are(tmp_path: Path, client: TestClient) -> None:
    page = client.post("/try", data={**SENT, "judge": "exact"}).text
    assert "Abstained</span></h1>" in page and "missing input" in page
    with TestClient(an_app(tmp_path, ScriptedEngine(lambda prompt: ValueError("<b>no</b>")))) as asking:
        page = asking.post("/try", data={**SENT, "judge": "faithfulness"}).text
    assert "Failed</span></h1>" in page and "ValueError: &lt;b&gt;no&lt;/b&gt;" in page
    with TestClient(an_app(tmp_path, ScriptedEngine(lambda prompt: ModelError("pull it <first>")))) as asking:
        page = asking.post("/try", data={**SENT, "judge": "faithfulness"}).text
    assert "It could not be judged" in page and "pull it &lt;first&gt;" in page


def test_an_address_that_nobody_has_is_not_found(client: TestClient) -> None:
    for path in ("/try/nope", "/try?again=nope", "/try/%00", "/try/..%2f..%2fetc"):
        answer = client.get(path)
        assert answer.status_code == 404 and "text/html" in answer.headers["content-type"]
    assert client.post("/try/nope/stop").status_code == 404


# --- under way ----------------------------------------------------------------------------------


def two_steps(door: Door) -> Callable[[object], Any]:
    """A script whose first answer comes at once and whose others wait at the door."""
    first = threading.Semaphore(1)

    def script(prompt: Any) -> Any:
        return YES if first.acquire(blocking=False) else door(prompt)

    return script


def test_a_judgement_under_way_shows_how_far_it_is_and_can_be_stopped(tmp_path: Path) -> None:
    door = Door()
    with TestClient(an_app(tmp_path, ScriptedEngine(two_steps(door)))) as client:
        answer = client.post("/try", data={**SENT, "judge": "faithfulness", "options": "permute=true"})
        page = answer.text
        assert "<h1>Judging…</h1>" in page and '<noscript><meta http-equiv="refresh"' in page
        (now,) = re.findall(r'<li class="now" aria-current="step">(.*?)</li>', page)
        assert now == "Judging…"
        assert "1 step so far" in page and "<b>choose</b>" in page
        (seconds,) = re.findall(r'data-seconds="([\d.]+)"', page)
        assert 0 < float(seconds) < 30
        stopped = client.post(f"{answer.url.path}/stop").text
    assert "Failed</span></h1>" in stopped and "cancelled" in stopped
    assert door.left == ["cancelled"]


def test_one_that_waits_for_its_turn_says_so(tmp_path: Path) -> None:
    door = Door()
    with TestClient(an_app(tmp_path, ScriptedEngine(door), at_once=1)) as client:
        first = client.post("/try", data={**SENT, "judge": "faithfulness"})
        second = client.post("/try", data=SENT)
        assert "Waiting in the queue…" in second.text
        assert "Loading the model" not in second.text  # its judge asks none
        door.open.set()
        until(lambda: "Hallucinated</span>" in client.get(second.url.path).text)
        assert "Faithful</span>" in client.get(first.url.path).text


def test_whoever_follows_is_told_of_each_step_and_of_the_end(tmp_path: Path) -> None:
    first, second = Door(), Door()
    doors = iter([first, second])
    engine = ScriptedEngine(lambda prompt: next(doors)(prompt))
    with served(an_app(tmp_path, engine)) as site:
        sent = {**SENT, "judge": "faithfulness", "options": "permute=true"}
        answer = httpx.post(f"{site}/try", data=sent, timeout=30)
        path = answer.headers["location"]
        with httpx.stream("GET", f"{site}/live{path.replace('/try/', '/tries/')}", timeout=30) as events:
            said = (line for line in events.iter_lines() if line.startswith("event:"))
            assert next(said) == "event: hello"
            until(lambda: "Judging…" in httpx.get(f"{site}{path}").text)
            first.open.set()
            assert next(said) == "event: changed"
            second.open.set()
            rest = list(said)
        assert rest[-1] == "event: done" and set(rest[:-1]) <= {"event: changed"}
        gone = httpx.get(f"{site}/live/tries/nope", timeout=30).text
        assert "event: done" in gone


@pytest.mark.full
def test_the_verdict_comes_into_the_open_page(tmp_path: Path, visit: Callable[..., Visit]) -> None:
    door = Door()
    with served(an_app(tmp_path, ScriptedEngine(two_steps(door)))) as site:
        page = visit(site, "/try?example=1").page
        page.select_option("[name=judge]", "faithfulness")
        page.fill("[name=options]", "permute=true")
        page.click("text=Judge it")
        expect(page.locator("h1")).to_have_text("Judging…")
        expect(page.locator("#trial")).to_contain_text("1 step so far")
        before = float(page.locator("[data-seconds]").inner_text())
        expect(page.locator("[data-seconds]")).not_to_have_text(str(before))
        door.open.set()
        expect(page.locator("h1")).to_have_text("Faithful")
        page.click("text=Try again with changes")
        assert page.locator("[name=options]").input_value() == "permute=true"


# --- texts that attack --------------------------------------------------------------------------


@pytest.mark.full
def test_no_text_becomes_part_of_the_page(client: TestClient) -> None:
    tags = (
        "<script",
        "<iframe",
        "<form",
        "<base",
        "<meta",
        "<link",
        "<object",
        "<style",
        "<svg onload",
        "<img",
    )
    plain = client.post("/try", data=typed_in("It is six", "b"))
    empty = client.get("/try").text
    for text in HOSTILE[:60]:
        sent = {**typed_in(text, text), "output": f"It closes at six. {text}", "expected": text[:1000]}
        page = client.post("/try", data=sent)
        assert {tag: page.text.count(tag) for tag in tags} == {tag: plain.text.count(tag) for tag in tags}, (
            text
        )
        again = client.get(re.findall(r'href="(/try\?again=[^"]+)"', page.text)[0]).text
        odd = dict.fromkeys(("judge", "options", "model"), text[:100])
        wrong = client.post("/try", data={**sent, **odd}).text
        for shown in (again, wrong):
            assert typed(shown, "input") == [text.replace("\r\n", "\n")], "it is sent again as it was"
            assert shown.count("<script") == empty.count("<script"), text


def typed_in(text: str, context: str) -> dict[str, Any]:
    """What is sent by the form: the same text in every field."""
    told = dict.fromkeys(("output", "input", "expected"), text)
    return {**told, "context": [CONTEXT, context], "judge": "novelty"}


# --- what is kept -------------------------------------------------------------------------------


def test_the_newest_are_kept_for_an_hour() -> None:
    clock = Clock()
    playground = Playground(JudgingService(waiting=MOST_TRIES + 3), clock=clock)
    asked = question(output=OUTPUT, context=CONTEXT, judge="novelty")
    made = [playground.begin(PlaygroundForm(output=OUTPUT), asked) for _ in range(MOST_TRIES + 3)]
    for each in made:
        each.judgement.wait(30)
    assert len({each.id for each in made}) == MOST_TRIES + 3
    for each in made[:3]:
        with pytest.raises(SpecError, match="this attempt does not exist"):
            playground.find(each.id)
    assert playground.find(made[3].id) is made[3]
    clock.now += KEPT_SECONDS + 1
    with pytest.raises(SpecError):
        playground.find(made[-1].id)


def test_long_texts_are_kept_fewer_and_whoever_is_dropped_is_stopped() -> None:
    door = Door()
    judging = JudgingService(engine_of=lambda judges, model: ScriptedEngine(door))
    playground = Playground(judging)
    asked = question(output=OUTPUT, context=CONTEXT, judge="faithfulness")
    long = PlaygroundForm(output="x" * (MOST_CHARACTERS // 2))
    first, second, third = (playground.begin(long, asked) for _ in range(3))
    with pytest.raises(SpecError):
        playground.find(first.id)
    assert (playground.find(second.id), playground.find(third.id)) == (second, third)
    first.judgement.wait(30)
    assert "cancelled" in str(first.judgement.outcome())
    judging.close()
