"""The pages of labels over HTTP, as a browser without scripts and other visitors meet them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html import unescape

import pytest
from fastapi.testclient import TestClient

from furnished import run_of
from magistrate.labels.queues import QueueOptions, queue_of_run
from magistrate.server.app import create_app
from magistrate.server.responses import static_files
from magistrate.server.security import protect
from magistrate.server.settings import Settings
from magistrate.store import Store
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Verdict
from served import TOKEN

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SECRET = "the judge's own words"
XSS = "</textarea><script>alert(1)</script>"
QUEUE = "/label/q%20%C3%BC"


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with Store.open(place) as opened:
        samples = [
            Sample(f"s{at}", f"It closes at six {at}. {XSS}", (f"It closes at five. {XSS}",), input="When?")
            for at in range(12)
        ]
        said = [Verdict(each.id, "j", HALLUCINATED, 0.91, explanation=SECRET) for each in samples]
        run = run_of(opened, samples, said, name="judged")
        options = QueueOptions(policy="uniform", double=1.0, instructions=XSS)
        queue_of_run(opened, opened.find_run(run), "q ü", options, NOW)
        yield opened


def visitor(store: Store, name: str | None = None, **settings: object) -> TestClient:
    made = Settings(store=store.place, **settings)  # type: ignore[arg-type]
    client = TestClient(create_app(made), follow_redirects=False)
    if name is not None:
        sent = client.post(f"{QUEUE}/annotator", data={"annotator": name})
        assert sent.status_code == 303
    return client


@pytest.fixture
def ana(store: Store) -> TestClient:
    return visitor(store, "ana")


def number_of(client: TestClient) -> int:
    sent = client.get(f"{QUEUE}/next")
    assert sent.status_code == 303
    return int(sent.headers["location"].rpartition("/")[2])


def post(client: TestClient, number: int, label: str, **more: object) -> object:
    return client.post(f"{QUEUE}/{number}", data={"label": label, "revision": 0, **more})


def test_items_are_labelled_with_radio_buttons_alone(store: Store, ana: TestClient) -> None:
    assert "q ü" in ana.get("/label").text
    page = ana.get(f"{QUEUE}/{number_of(ana)}").text
    assert page.count('type="radio" name="label"') == 4 and "<noscript>" in page
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    quotes = "closes at six\r\n\r\nIt"
    sent = post(ana, 1, "hallucinated", quotes=quotes, note="so\r\nit is", seconds="nan")
    assert (sent.status_code, sent.headers["location"]) == (303, f"{QUEUE}/next")  # type: ignore[attr-defined]
    (label,) = store.labels.labels("q ü")
    words = store.labels.item("q ü", 0)[1].output or ""
    assert [words[span.start : span.end] for span in label.spans] == ["It", "closes at six"]
    assert (label.annotator, label.note, label.seconds, label.shown) == ("ana", "so\nit is", None, False)
    assert number_of(ana) == 2
    again = ana.post(f"{QUEUE}/undo")
    assert again.headers["location"] == f"{QUEUE}/1"
    assert store.labels.labels("q ü") == [] and number_of(ana) == 1


def test_the_page_has_every_place_that_its_script_looks_for(ana: TestClient) -> None:
    post(ana, 1, FAITHFUL)
    page, script = ana.get(f"{QUEUE}/1").text, static_files()["label.js"].body.decode()
    wanted = set(re.findall(r"""["' ]#([a-z-]+)""", script))
    wanted |= set(re.findall(r"""getElementById\("([a-z-]+)"\)""", script))
    assert {"standing", "figure", "output-text", "told"} < wanted
    assert [each for each in sorted(wanted) if f'id="{each}"' not in page] == []


def test_what_is_wrong_is_said_and_nothing_is_stored(store: Store, ana: TestClient) -> None:
    for form, message in (
        ({"label": "", "revision": 0}, "choose a label"),
        ({"label": "maybe"}, "a label must be one of"),
        ({"label": "hallucinated", "spans": "[[0, 9999, 'x']]"}, "cannot be read"),
        ({"label": "hallucinated", "spans": '[[0, 9999, "x"]]'}, "outside the output"),
        ({"label": "faithful", "spans": '[[0, 2, "x"]]'}, "has no wrong words"),
        ({"label": "hallucinated", "quotes": "not there"}, "does not contain these words"),
        ({"label": "hallucinated", "quote": "[5, 0, 1]"}, "not a place in the context"),
    ):
        sent = ana.post(f"{QUEUE}/1", data={"note": "kept", **form})
        assert sent.status_code == 422, form
        assert message in unescape(sent.text) and "kept" in sent.text, form
        by_script = ana.post(f"{QUEUE}/1", data=form, headers={"accept": "application/json"})
        assert by_script.status_code == 422 and message in by_script.json()["detail"]
    assert store.labels.labels("q ü", history=True) == []
    for path, status in (
        (f"{QUEUE}/13", 404),
        ("/label/none", 404),
        ("/label/none/1", 404),
        (f"{QUEUE}/0", 404),
        (f"{QUEUE}/{10**30}", 422),
        (f"{QUEUE}/conflicts/{10**30}", 422),
        (f"{QUEUE}/next?but={10**30}", 422),
    ):
        assert ana.get(path).status_code == status, path
    assert post(ana, 1, FAITHFUL).status_code == 303  # type: ignore[attr-defined]
    meanwhile = post(ana, 1, "unsure")
    assert meanwhile.status_code == 409 and "another window" in meanwhile.text  # type: ignore[attr-defined]
    assert [each.label for each in store.labels.labels("q ü", history=True)] == [FAITHFUL]


def test_verdicts_are_hidden_until_the_own_label_and_what_follows_says_so(
    store: Store, ana: TestClient
) -> None:
    def seen(client: TestClient, number: int = 1) -> bool:
        page = unescape(client.get(f"{QUEUE}/{number}?verdict=1").text)
        return SECRET in page or ".91" in page

    assert not seen(ana) and "Show verdicts of judges" not in ana.get(f"{QUEUE}/1").text
    post(ana, 1, FAITHFUL)
    assert SECRET not in unescape(ana.get(f"{QUEUE}/1").text)
    assert seen(ana)
    assert not seen(visitor(store, "ben"))
    ana.post(f"{QUEUE}/1", data={"label": HALLUCINATED, "revision": 1})
    ana.post(f"{QUEUE}/undo")
    assert not seen(ana)  # no label, no verdict
    ana.post(f"{QUEUE}/1", data={"label": FAITHFUL, "revision": 3})
    said = [(each.label, each.shown) for each in store.labels.labels("q ü", history=True)]
    assert said == [(FAITHFUL, False), (HALLUCINATED, True), ("undone", True), (FAITHFUL, True)]
    store.delete(str(store.labels.find("q ü").run_id))
    gone = ana.get(f"{QUEUE}/1?verdict=1")
    assert gone.status_code == 200 and "The run with these verdicts was deleted" in gone.text


def test_two_people_label_without_seeing_each_other_and_a_third_decides(
    store: Store, ana: TestClient
) -> None:
    ben, cem = visitor(store, "ben"), visitor(store, "cem")
    post(ana, 1, FAITHFUL, note="ana's note")
    assert "ana" not in re.sub(r"<[^>]*>", " ", ben.get(f"{QUEUE}/1").text)
    post(ben, 1, HALLUCINATED, spans='[[0, 2, "evident_conflict"]]', quote="[0, 0, 2]")
    assert ben.get(f"{QUEUE}/conflicts").headers["location"] == f"{QUEUE}/conflicts/1"
    page = unescape(cem.get(f"{QUEUE}/conflicts/1").text)
    assert "The labels differ" in page and "A says" in page and "B says" in page
    assert "ben" not in page and "ana says" not in page
    for form, message in (
        ({"label": "unsure", "reason": "x"}, "choose faithful or hallucinated"),
        ({"label": HALLUCINATED, "reason": "  "}, "a decision needs a reason"),
    ):
        sent = cem.post(f"{QUEUE}/conflicts/1", data=form)
        assert sent.status_code == 422 and message in sent.text
    letter = re.findall(r'<option value="([AB])"', page)
    assert len(letter) == 1  # only ben marked words
    decision = {"label": HALLUCINATED, "reason": f"five {XSS}", "spans_of": letter[0], "revision": 0}
    sent = cem.post(f"{QUEUE}/conflicts/1", data=decision)
    assert sent.headers["location"] == f"{QUEUE}/conflicts"
    assert cem.get(f"{QUEUE}/conflicts").headers["location"] == QUEUE
    assert cem.post(f"{QUEUE}/conflicts/1", data=decision).status_code == 409
    (gold,) = store.labels.gold("q ü")
    assert (gold.label, gold.adjudicator, len(gold.labels)) == (HALLUCINATED, "cem", 2)
    assert [(span.start, span.end, span.kind) for span in gold.spans] == [(0, 2, "evident_conflict")]
    assert "<script>alert" not in cem.get(f"{QUEUE}/conflicts/1").text
    overview = unescape(ana.get(QUEUE).text)
    assert "2 people labelled 1 item in common" in overview and "hallucinated 1.00" in overview


def test_after_ten_labels_the_interval_is_told_and_at_the_end_that_nothing_is_left(
    store: Store, ana: TestClient
) -> None:
    assert "So far" not in ana.get(f"{QUEUE}/1").text
    for _ in range(11):
        post(ana, number_of(ana), FAITHFUL)
    page = ana.get(f"{QUEUE}/12").text
    # All outputs share a context here, and say together as much as one.
    assert "So far: hallucinated .00" in page
    post(ana, number_of(ana), FAITHFUL)
    sent = ana.get(f"{QUEUE}/next")
    assert sent.headers["location"] == f"{QUEUE}?end=1"
    assert "nothing left for you" in ana.get(sent.headers["location"]).text


def test_names_are_signed_asked_for_and_never_taken_over(store: Store) -> None:
    local = visitor(store)
    assert number_of(local) == 1  # nobody else is on this machine
    asked = visitor(store, token=TOKEN)
    for path in ("next", "1"):
        assert asked.get(f"{QUEUE}/{path}").headers["location"] == QUEUE
    assert "Enter your name first" in asked.get(QUEUE).text
    assert post(asked, 1, FAITHFUL).status_code == 422  # type: ignore[attr-defined]
    for name in ("", " ", "a\x1b[2J", "x" * 81):
        assert asked.post(f"{QUEUE}/annotator", data={"annotator": name}).status_code == 422
    named = visitor(store, 'Zoë "<b>"', token=TOKEN)
    assert post(named, 1, FAITHFUL).status_code == 303  # type: ignore[attr-defined]
    assert store.labels.labels("q ü")[0].annotator == 'Zoë "<b>"'
    (cookie,) = named.cookies.jar
    forged = visitor(store, token=TOKEN)
    forged.cookies.set(cookie.name, "YmVu." + str(cookie.value).rpartition(".")[2])
    assert forged.get(f"{QUEUE}/next").headers["location"] == QUEUE
    # A server that was started anew does not know the cookie, and does not call them somebody else.
    other = visitor(store)
    other.cookies.set(cookie.name, str(cookie.value))
    assert post(other, 2, FAITHFUL).status_code == 422  # type: ignore[attr-defined]
    for back, to in (
        ("//evil.example", QUEUE),
        ("https://evil.example", QUEUE),
        ("/label/x/1", "/label/x/1"),
    ):
        sent = local.post(f"{QUEUE}/annotator", data={"annotator": "a", "following": back})
        assert sent.headers["location"] == to


def test_other_sites_label_nothing(store: Store) -> None:
    settings = Settings(store=store.place)
    client = TestClient(protect(create_app(settings), settings), base_url="http://localhost")
    for path, form in (
        ("1", {"label": FAITHFUL, "revision": "0"}),
        ("undo", {}),
        ("annotator", {"annotator": "eve"}),
        ("conflicts/1", {"label": FAITHFUL, "reason": "x", "revision": "0"}),
    ):
        for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
            assert client.post(f"{QUEUE}/{path}", data=form, headers=headers).status_code == 403, path
    assert store.labels.labels("q ü", history=True) == [] == store.labels.gold("q ü")
