"""Comments on items: nobody reads any before their own label, none is lost or changed, all stay texts."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import magistrate
from furnished import run_of
from magistrate.errors import InputError, SpecError
from magistrate.labels.queues import QueueOptions, queue_of_run
from magistrate.server.app import create_app
from magistrate.server.settings import Settings
from magistrate.store import Store
from magistrate.store.label_comments import LONGEST_COMMENT, MOST_COMMENTS
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Verdict
from terminal import Call

NOW = datetime(2026, 1, 2, tzinfo=UTC)
XSS = "</textarea><script>alert(1)</script> {{ 7 * 7 }} \\ \x00 😀"
HIDDEN = "once you have labelled"


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with Store.open(place) as opened:
        samples = [Sample(f"s{at}", f"It closes at {at}.", ("It closes at five.",)) for at in range(4)]
        run = run_of(opened, samples, [Verdict(each.id, "j", HALLUCINATED, 0.9) for each in samples])
        for name, blind in (("q", True), ("open", False)):
            options = QueueOptions(policy="uniform", double=1.0, blind=blind)
            queue_of_run(opened, opened.find_run(run), name, options, NOW)
        yield opened


def visitor(store: Store, name: str) -> TestClient:
    client = TestClient(create_app(Settings(store=store.place)), follow_redirects=False)
    assert client.post("/label/q/annotator", data={"annotator": name}).status_code == 303
    return client


def say(client: TestClient, number: int, label: str, revision: int = 0) -> None:
    sent = client.post(f"/label/q/{number}", data={"label": label, "revision": revision})
    assert sent.status_code == 303


def write(client: TestClient, text: str, at: str = "q/1") -> int:
    return client.post(f"/label/{at}/comments", data={"text": text}).status_code


def test_comments_are_kept_in_order_once_and_go_with_the_queue_alone(store: Store) -> None:
    made = [store.comments.add("q", 1, who, text, now=NOW) for who, text in ((" ana ", XSS), ("ben", "no"))]
    assert [(each.author, each.text) for each in made] == [("ana", XSS), ("ben", "no")]
    assert store.comments.add("q", 1, "ben", " no\r\n", now=NOW) == made[1], "sent twice"
    again = store.comments.add("q", 1, "ana", XSS, now=NOW)
    assert again.id > made[1].id, "the same words later are an answer"
    other = store.comments.add("q", 0, "ana", "first", now=NOW)
    assert store.comments.of("q", 1) == [*made, again] and store.comments.of("q") == [other, *made, again]
    for text in ("", " \n", "x" * (LONGEST_COMMENT + 1)):
        with pytest.raises(InputError):
            store.comments.add("q", 1, "ana", text, now=NOW)
    for queue, at in (("none", 0), ("q", 4)):
        with pytest.raises(SpecError):
            store.comments.add(queue, at, "ana", "x", now=NOW)
    store.delete(str(store.labels.find("q").run_id))
    assert len(store.comments.of("q")) == 4
    store.labels.delete("q")
    with pytest.raises(SpecError):
        store.comments.of("q")
    assert store.comments.of("open") == []


def test_an_item_takes_a_bounded_number(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_COMMENTS >= 100
    monkeypatch.setattr("magistrate.store.label_comments.MOST_COMMENTS", 2)
    for text in ("one", "two"):
        store.comments.add("q", 0, "ana", text, now=NOW)
    with pytest.raises(InputError, match="at most 2 comments"):
        store.comments.add("q", 0, "ana", "three", now=NOW)
    store.comments.add("q", 1, "ana", "three", now=NOW)


def test_they_are_hidden_until_the_own_label_and_mark_what_is_changed_afterwards(store: Store) -> None:
    ana, ben = visitor(store, "ana"), visitor(store, "ben")
    assert HIDDEN in ana.get("/label/q/1").text and write(ana, "too early") == 422
    assert ana.get("/api/labels/q/items/1/comments?annotator=ana").status_code == 422
    say(ana, 1, FAITHFUL)
    assert write(ana, XSS) == 303 and write(ana, "  ") == 422
    page = ana.get("/label/q/1").text
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page and "{{ 7 * 7 }}" in page
    hidden = ben.get("/label/q/1").text
    assert HIDDEN in hidden and "alert(1)" not in hidden and "alert(1)" not in ben.get("/label/q").text
    say(ana, 1, HALLUCINATED, 1)  # only her own comment was there
    say(ben, 1, FAITHFUL)
    assert "alert(1)" in ben.get("/label/q/1").text
    say(ben, 1, HALLUCINATED, 1)
    said = [(each.annotator, each.label, each.shown) for each in store.labels.labels("q", history=True)]
    assert said == [
        ("ana", FAITHFUL, False),
        ("ana", HALLUCINATED, False),
        ("ben", FAITHFUL, False),
        ("ben", HALLUCINATED, True),
    ]
    ben.post("/label/q/undo")
    assert HIDDEN in ben.get("/label/q/1").text and write(ben, "late") == 422
    assert write(ben, "an open queue", "open/2") == 303, "without blind labels there is nothing to hide"
    assert [each.author for each in store.comments.of("open", 1)] == ["ben"]
    assert write(ana, "x", "q/9") == 404 and write(ana, "x", "none/1") == 404
    assert unescape(ana.get("/label/q").text).count('href="/label/q/1#comments"') == 1


def test_who_decides_reads_them_without_names(store: Store) -> None:
    ana, ben, cem = (visitor(store, name) for name in ("ana", "ben", "cem"))
    for who, label in ((ana, FAITHFUL), (ben, HALLUCINATED)):
        say(who, 1, label)
        assert write(who, f"It is {label} to me.") == 303
    store.comments.add("q", 0, "dora", "From elsewhere.", now=NOW)
    page = cem.get("/label/q/conflicts/1").text
    assert "It is hallucinated to me." in page and "<b>Somebody else</b>" in page
    assert not any(name in page for name in ("ana", "ben", "dora"))


def test_they_are_read_written_and_exported_by_programs(store: Store, tmp_path: Path, call: Call) -> None:
    ana, address = visitor(store, "ana"), "/api/labels/q/items/2/comments"
    store.comments.add("q", 1, "ben", "=1+1", now=NOW)
    ana.post("/api/labels/q/items/2", json={"label": "faithful", "annotator": "ana"})
    sent = ana.post(address, json={"text": XSS, "annotator": "ana"})
    assert (sent.status_code, sent.json()["author"]) == (200, "ana")
    assert [each["text"] for each in ana.get(f"{address}?annotator=ana").json()["comments"]] == ["=1+1", XSS]
    assert ana.get("/api/labels/q/export?comments=1&gold=1").status_code == 422
    rows = ana.get("/api/labels/q/export?comments=1").json()["rows"]
    place = store.place
    queue = magistrate.label_queue("q", store=place)
    assert queue.comment(2, "cem", "third").text == "third" and len(queue.comments()) == 3
    for suffix in ("csv", "jsonl"):
        target = tmp_path / f"c.{suffix}"
        exported = ("labels", "export", "q", "--comments", "--to", str(target), "--store", place)
        assert call(*exported).code == 0 and call(*exported, "--gold", "--force").code == 2
    read = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    assert read[:2] == rows and read[2]["author"] == "cem"
    sample = store.labels.item("q", 1)[0].sample_id
    assert {(each["id"], each["item"]) for each in read} == {(sample, 2)}
    with (tmp_path / "c.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert [each["text"] for each in cells] == ["'=1+1", XSS, "third"]
