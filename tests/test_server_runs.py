"""The page of all runs and its API: what is listed and found, what changes, and who is told of it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from html import unescape

import httpx
import pytest
import uvicorn
from fastapi.testclient import TestClient

from magistrate.datasets.rows import SETTING, Unread
from magistrate.report.counts import counted
from magistrate.server.app import create_app
from magistrate.server.settings import Settings
from magistrate.store import Store
from magistrate.types import Failure, Recipe, Sample, Scoring, Verdict


def judged(store: Store, name: str, n: int = 6, *, finished: bool = True, **options: object) -> str:
    """A run of `n` samples, half of them hallucinated: the first judged wrong, the last failed."""
    told = {
        "dataset": "set",
        "dataset_digest": "d",
        "model": "tiny",
        "engine_fingerprint": "f",
        "recipes": {"j": Recipe("j@1", "tiny", "f", None, None, 0, n, "1")},
        "scoring": {"j": Scoring("minimize", ("faithful", "hallucinated"), 0.5)},
        "name": name,
        "n_total": n,
    }
    run = store.create_run(**{**told, **options})  # type: ignore[arg-type]
    golds = ["hallucinated" if i % 2 else "faithful" for i in range(n)]
    store.add_samples(run, [Sample(f"s{i}", f"o{i}", (f"c{i}",), label=golds[i]) for i in range(n)])
    for i, gold in enumerate(golds[:-1]):
        label = "hallucinated" if i == 0 else gold
        store.add_outcome(run, Verdict(f"s{i}", "j", label, float(label == "hallucinated")))
    store.add_outcome(run, Failure(f"s{n - 1}", "j", "timeout", "slow"))
    if finished:
        store.finish_run(run, "done")
        counted(store, run)
    return run


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with Store.open(place) as opened:
        yield opened


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(store=store.place)), follow_redirects=False) as opened:
        yield opened


def names(page: str) -> list[str]:
    return [unescape(found) for found in re.findall(r"<h2><a [^>]*>(.*?)</a>", page)]


def test_runs_are_listed_newest_first_with_what_heads_them(store: Store, client: TestClient) -> None:
    for n in range(3):
        judged(store, f"night {n}", tags=["ci"])
    page = client.get("/")
    assert page.status_code == 200
    assert names(page.text) == ["night 2", "night 1", "night 0"]
    row = client.get("/api/runs").json()["rows"][0]
    (head,) = row["judges"]
    assert (head["metric"], head["n_ok"], head["n_total"], head["n_failures"]) == (
        "balanced_accuracy",
        5,
        6,
        1,
    )
    assert head["value"] == pytest.approx((2 / 3 + 1) / 2)
    assert head["low"] < head["value"] < head["high"]
    assert head["coverage"] == pytest.approx(5 / 6)
    assert head["counted"] and len(head["trend"]) == 3
    assert "5/6 judged" in page.text and "1 failed" in page.text and 'href="/?tag=ci"' in page.text


def test_every_run_is_reached_by_going_on_and_back(store: Store, client: TestClient) -> None:
    ids = [judged(store, f"run {n}", finished=False) for n in range(7)]
    for run in ids:
        store.finish_run(run, "done")
    found, seen, before = [], [], None
    while True:
        query = {"limit": 3} | ({} if before is None else {"before": before})
        view = client.get("/api/runs", params=query).json()
        found += [row["id"] for row in view["rows"]]
        seen.append(view)
        before = view["older"]
        if before is None:
            break
    assert found == ids[::-1]
    assert [view["newer"] is None for view in seen] == [True, False, False]
    back = client.get("/api/runs", params={"limit": 3, "after": seen[1]["newer"]}).json()
    assert [row["id"] for row in back["rows"]] == ids[:3:-1]
    assert back["newer"] is None and back["older"] == back["rows"][-1]["number"]


def test_rows_that_could_not_be_read_are_told(store: Store, client: TestClient) -> None:
    judged(store, "whole", settings={SETTING: Unread(0, 6).to_dict()})
    judged(store, "less", settings={SETTING: Unread(4, 10, ("no output (4 rows)",)).to_dict()})
    text = client.get("/").text
    assert "4 unread</span>" in text and text.count("unread") == 1
    assert [row["n_unread"] for row in client.get("/api/runs").json()["rows"]] == [4, 0]


def test_words_tags_and_data_choose_and_nothing_found_is_said(store: Store, client: TestClient) -> None:
    judged(store, "50% better", dataset="x", tags=["a b"])
    judged(store, "other")
    assert names(client.get("/", params={"q": "50% BETT"}).text) == ["50% better"]
    assert names(client.get("/", params={"tag": "a b", "dataset": "x"}).text) == ["50% better"]
    assert names(client.get("/", params={"judge": "j"}).text) == ["other", "50% better"]
    nothing = client.get("/", params={"q": "%%"})
    assert nothing.status_code == 200 and "No run matches all filters" in nothing.text


def test_an_empty_store_says_how_to_make_a_run(client: TestClient) -> None:
    assert "magistrate run quickstart" in client.get("/").text
    assert client.get("/api/runs").json()["rows"] == []


def test_a_run_under_way_shows_how_far_it_is_and_a_killed_one_that_it_was(
    store: Store, client: TestClient
) -> None:
    run = judged(store, "going", finished=False, n_total=20)
    with store.hold(run):
        row = client.get("/api/runs").json()["rows"][0]
        assert row["status"] == "running"
        assert row["progress"] == {"n_done": 6, "n_failures": 1, "n_expected": 20}
        assert 'value="6"' in client.get("/").text
    assert client.get("/api/runs").json()["rows"][0]["status"] == "killed"


def test_a_run_is_renamed_tagged_and_deleted(store: Store, client: TestClient) -> None:
    run = judged(store, "before")
    assert client.post(f"/runs/{run}/rename", data={"name": " after "}).status_code == 303
    assert client.post(f"/runs/{run}/tags", data={"add": "good"}).status_code == 303
    assert (store.find_run(run).name, store.find_run(run).tags) == ("after", ("good",))
    client.post(f"/runs/{run}/tags", data={"remove": "good"})
    assert store.find_run(run).tags == ()
    asked = client.get(f"/runs/{run}/delete")
    assert "Delete after?" in asked.text and store.runs()
    assert client.post(f"/runs/{run}/delete").headers["location"] == "/"
    assert store.runs() == []


def test_a_run_that_is_being_judged_is_not_deleted(store: Store, client: TestClient) -> None:
    run = judged(store, "going", finished=False)
    with store.hold(run):
        refused = client.post(f"/runs/{run}/delete")
        assert refused.status_code == 409 and "being judged" in unescape(refused.text)
        assert client.delete(f"/api/runs/{run}").status_code == 409
    assert client.delete(f"/api/runs/{run}").status_code == 204
    assert client.delete(f"/api/runs/{run}").status_code == 404


def test_names_that_runs_cannot_have_are_refused_in_words(store: Store, client: TestClient) -> None:
    run = judged(store, "before")
    refused = client.post(f"/runs/{run}/rename", data={"name": "last"})
    assert refused.status_code == 422 and "cannot be named" in refused.text
    assert client.post(f"/runs/{run}/rename", data={"name": "x" * 201}).status_code == 422
    assert store.find_run(run).name == "before"


@pytest.mark.parametrize("query", ["before=x", "after=-1", "limit=0", "limit=101", "q=" + "x" * 201])
def test_addresses_that_mean_nothing_are_refused(client: TestClient, query: str) -> None:
    assert client.get(f"/api/runs?{query}").status_code == 422


def test_what_is_not_there_is_a_page_for_people_and_data_for_programs(client: TestClient) -> None:
    page = client.get("/nowhere")
    assert page.status_code == 404 and page.headers["content-type"].startswith("text/html")
    assert client.get("/api/runs/nothing").status_code == 404
    assert "unknown run" in client.get("/api/runs/nothing").json()["detail"]


def test_hostile_names_are_text(store: Store, client: TestClient) -> None:
    name = "</a><script>alert(1)</script>\x1b[31m\u202e"
    judged(store, name, dataset="\"'><img src=x onerror=alert(1)>", model="{{ 7*7 }}", tags=["<i>"])
    judged(store, "half \ud800", dataset="\ud83d", tags=["\udfff"])
    assert client.get("/api/runs").json()["rows"][0]["name"] == "half \ud800"
    page = client.get("/").text
    assert "<script>alert" not in page and "<img" not in page and "<i>" not in page
    assert "\x1b" not in page and "{{ 7*7 }}" in page


def test_runs_that_nobody_counted_are_counted_aside(store: Store, client: TestClient) -> None:
    run = judged(store, "quiet", finished=False)
    store.finish_run(run, "interrupted")
    client.app.state.counter.ask(run)  # type: ignore[attr-defined]
    deadline = time.monotonic() + 30
    while not client.get("/api/runs").json()["rows"][0]["judges"][0]["counted"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_whoever_follows_is_told_that_something_has_changed(store: Store) -> None:
    server = uvicorn.Server(
        uvicorn.Config(create_app(Settings(store=store.place)), port=0, log_level="error")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.stream("GET", f"http://127.0.0.1:{port}/live/runs", timeout=20) as events:
            assert events.headers["content-type"].startswith("text/event-stream")
            lines = events.iter_lines()
            assert next(lines) == "event: hello"
            judged(store, "new")
            assert next(line for line in lines if line.startswith("event:")) == "event: changed"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
    assert not thread.is_alive()
