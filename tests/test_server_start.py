"""Data sets on the server, and runs started there: what may be chosen, what is refused, what is seen."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import unescape
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from magistrate.engines.base import Engine
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.report.counts import counted
from magistrate.server import start
from magistrate.server.app import create_app
from magistrate.server.security import protect
from magistrate.server.settings import Settings
from magistrate.store import RunRecord, Store
from magistrate.types import Outcome, Sample

SETTINGS = {"data": "named:quickstart", "judge": "novelty", "samples": "6"}


@pytest.fixture
def store(tmp_path: Any) -> Iterator[Store]:
    with Store.open(tmp_path / "runs.db") as opened:
        yield opened


@pytest.fixture
def app(store: Store) -> FastAPI:
    return create_app(Settings(store=store.place, run_models=("openai:allowed",)))


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, follow_redirects=False) as opened:
        yield opened


def ended(store: Store, client: TestClient, **sent: Any) -> RunRecord:
    """The run that such a form starts, once it is over."""
    answer = client.post("/start", data=sent)
    assert answer.status_code == 303, re.findall(r'role="alert".*', unescape(answer.text))
    run = until(lambda: next(iter(store.runs(limit=1)), None))
    until(lambda: store.find_run(run.id).status != "running")
    counted(store, run.id)
    return store.find_run(run.id)


def until(look: Any) -> Any:
    """What `look` returns once that is true."""
    end = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.02)
    return found


def test_a_run_is_started_and_its_samples_are_judged_again(
    store: Store, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MAGISTRATE_DATA_DIR", raising=False)  # else public sets may be here
    with store:
        first = ended(store, client, name="from the page", more="regex:pattern=opens\n", **SETTINGS)
        assert (first.status, first.n_samples, first.name, first.model) == (
            "done",
            6,
            "from the page",
            "none",
        )
        assert first.judges == ("novelty", "regex:pattern=opens") and first.dataset == "quickstart"
        again = ended(store, client, data=f"run:{first.dataset_digest}", judge="novelty")
        assert again.dataset_digest == first.dataset_digest and again.dataset == first.dataset
        assert list(store.samples(again.id)) == list(store.samples(first.id))
        few = ended(store, client, data=f"run:{first.dataset_digest}", judge="novelty", samples="2")
        assert few.n_samples == 2 and few.dataset_digest != first.dataset_digest
        version = store.add_dataset("mine", store.samples(first.id), source="a test")
        kept = ended(store, client, data="stored:mine@1", judge="novelty")
        assert kept.dataset_version == version.ref == "mine@1"
        data = client.get("/datasets/data", params={"digest": first.dataset_digest}).text
        assert "from the page" in data and again.id in data and "novelty: balanced accuracy" in data
        assert "3 faithful" in data and few.dataset_digest[:12] in data
        listed = client.get("/datasets").text
        assert "mine@1" in listed and first.dataset_digest[:12] in listed and "from a test" in listed
        assert "data=named%3Aquickstart" in listed  # a run of a set that is not here would be refused
        assert "data=named%3Abegin" not in listed and "not on this machine" in listed
        assert kept.id in client.get("/datasets/data", params={"stored": "mine@1"}).text
        assert client.get("/start").text.count("ended") == 4
        noted = [(each.action, each.object, each.details) for each in store.audit.entries(limit=10)]
        assert len(noted) == 4 and noted[-1][:2] == ("start run", "named:quickstart")
        assert "novelty" in noted[-1][2] and "regex:pattern=opens" in noted[-1][2]


def test_paths_addresses_and_what_is_not_allowed_are_refused(
    store: Store, client: TestClient, tmp_path: Any
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"output": "a", "context": "b"}\n')
    wrong: list[dict[str, Any]] = [
        *(
            {"data": data}
            for data in (str(rows), f"named:{rows}", f"stored:{rows}", f"run:{rows}", "-", "named:-", "")
        ),
        *(
            {"data": data}
            for data in ("named:hf://a/b", "hf://a/b", "named:quickstart:x", "named:nothing", "run:", "run:0")
        ),
        *(
            {"judge": judge}
            for judge in (str(tmp_path / "j.yaml"), "nothing", "", f"stack:{tmp_path}", "hf_classifier:x")
        ),
        *(
            {"more": more}
            for more in (
                f"novelty:name={rows}",
                "rubric:extractor=openai:x",
                "\n".join(["exact"] * 2 + [f"regex:pattern={i}" for i in range(12)]),
            )
        ),
        *({"model": model} for model in (str(rows), "openai:other", "http://a/b", "qwen3-0.6b")),
        *(
            {field: value}
            for field in ("samples", "seconds", "calls")
            for value in ("0", "-1", "x", "nan", "1e99")
        ),
    ]
    for change in wrong:
        answer = client.post("/start", data={**SETTINGS, "judge": "faithfulness", **change})
        assert answer.status_code in (404, 422) and 'role="alert"' in answer.text, change
    assert store.runs() == [] and client.get("/start").text.count("Started here") == 0
    order = start.order_of(
        start.StartForm(
            data="named:quickstart",
            judges=("faithfulness",),
            model="openai:allowed",
            calls="7",
            seconds="2.5",
        ),
        store,
        Settings(store=store.place, run_models=("openai:allowed",)),
    )
    assert order.spec.engine.model == "openai:allowed"
    assert (order.spec.limits.max_calls, order.spec.limits.max_seconds) == (7, 2.5)


def test_another_site_starts_nothing(store: Store, app: FastAPI) -> None:
    async def answer(headers: dict[str, str]) -> httpx.Response:
        transport = httpx.ASGITransport(app=protect(app, Settings(store=store.place)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as visitor:
            return await visitor.post("/start", data=SETTINGS, headers=headers)

    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
        assert asyncio.run(answer(headers)).status_code == 403
    assert store.runs() == []


@dataclass(frozen=True)
class Slow:
    """A judge that takes as long as somebody waits."""

    of: Judge

    @property
    def info(self) -> Any:
        return replace(self.of.info, name="slow")

    def plan(self, sample: Sample) -> tuple[()]:
        return ()

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        await asyncio.sleep(600)
        raise AssertionError("nobody waits so long")


def test_a_run_is_stopped_and_what_waits_or_fails_is_seen(
    store: Store, client: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_of = start.judge_of
    monkeypatch.setattr(
        start,
        "judge_of",
        lambda words: Slow(registry.judge("novelty")) if words == "exact" else judge_of(words),
    )
    starter: start.RunStarter = app.state.starter
    client.post("/start", data={**SETTINGS, "judge": "exact"})
    running = starter.recent()[0]
    until(lambda: running.run_id)
    assert "Stop</button>" in client.get(f"/runs/{running.run_id}").text
    address = client.post("/start", data=SETTINGS).headers["location"]
    waiting = starter.recent()[0]
    page = client.get(address).text
    assert address == f"/start/{waiting.id}" and "Waiting for its turn; 1 run comes before it" in page
    assert "http-equiv" in page, "it is looked at again without scripts"
    assert client.post(f"{address}/stop").status_code == 303 and waiting.state == "stopped"
    assert "Stopped" in client.get(address).text
    assert client.post(f"/start/{running.id}/stop").headers["location"] == f"/runs/{running.run_id}"
    until(lambda: running.state == "stopped")
    client.post(f"/start/{running.id}/stop")
    noted = [(each.who, each.object) for each in store.audit.entries(limit=9) if each.action == "stop run"]
    assert noted == [("(no token)", running.run_id), ("(no token)", "quickstart")], "once each"
    assert store.find_run(running.run_id or "").status == "interrupted"
    monkeypatch.setattr(
        start.Order, "plan", lambda *_: (_ for _ in ()).throw(start.SpecError("the data <b>is gone</b>"))
    )
    address = client.post("/start", data=SETTINGS).headers["location"]
    assert "the data &lt;b&gt;is gone&lt;/b&gt;" in client.get(address).text
    assert client.get("/start/nothing").status_code == 404

    def panic(*_: object) -> None:
        raise BaseException("a panic of a library")

    monkeypatch.setattr(start.Order, "plan", panic)
    for _ in range(2):
        address = client.post("/start", data=SETTINGS).headers["location"]
        assert "an error in the program" in client.get(address).text, "and the next one gets its turn"
    door = threading.Event()
    for _ in range(start.MOST_WAITING + 1):
        starter.jobs.submit(object(), door.wait)
    full = client.post("/start", data=SETTINGS)
    door.set()
    assert full.status_code == 429 and int(full.headers["retry-after"]) > 0


def test_a_page_that_is_made_while_another_run_starts_is_whole(app: FastAPI) -> None:
    """Every request has a thread: what is listed may grow meanwhile."""
    starter: start.RunStarter = app.state.starter

    class Other:
        over = False

        @property
        def run_id(self) -> None:
            starter._kept[str(len(starter._kept))] = self  # type: ignore[assignment]

    starter._kept["0"] = starter._kept["1"] = Other()  # type: ignore[assignment]
    assert starter.of_run("another") is None
    assert len(starter.recent()) == len(starter._kept) == 4
