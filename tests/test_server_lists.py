"""Lists of outcomes and runs: words, scores and orders choose what a look at every row does."""

from __future__ import annotations

import csv
import io
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from magistrate.report.counts import counted
from magistrate.server import figures
from magistrate.server.app import create_app
from magistrate.server.settings import Settings
from magistrate.store import Store
from magistrate.types import Failure, Outcome, Recipe, Sample, Scoring, Verdict

WORDS = [
    "100%",
    "a_b",
    'quo"te',
    "back\\slash",
    "École",
    "STRASSE",
    "<b>",
    "nul\0",
    "\ud800",
    "drop",
    "table",
    "output",
]
N = 60


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with Store.open(place) as opened:
        yield opened


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(store=store.place)), follow_redirects=False) as opened:
        yield opened


def run_of(store: Store, samples: list[Sample], outcomes: list[Outcome], **told: Any) -> str:
    run = store.create_run(
        dataset=told.pop("dataset", "set"),
        dataset_digest="d",
        model="tiny",
        engine_fingerprint="f",
        recipes={"j": Recipe("j@1", "tiny", "f", None, None, 0, len(samples), "1")},
        scoring={"j": Scoring("minimize", ("faithful", "hallucinated"), 0.5)},
        n_total=len(samples),
        **told,
    )
    store.add_samples(run, samples)
    store.add_outcomes(run, outcomes)
    store.finish_run(run, "done")
    return run


def mixed() -> tuple[list[Sample], list[Outcome]]:
    """Samples whose fields hold a few of the words, with equal scores, failures and every label."""
    chance = random.Random(7)
    samples, outcomes = list[Sample](), list[Outcome]()
    for i in range(N):
        some = chance.sample(WORDS, 3)
        gold = ("faithful", "hallucinated", None)[i % 3]
        samples.append(Sample(f"s{i:02d}", f"say {some[0]}", (f"have {some[1]}",), input=some[2], label=gold))
        score = chance.randrange(9) / 8
        label = "hallucinated" if score >= 0.5 else "faithful"
        failed = chance.random() < 0.2
        outcomes.append(
            Failure(f"s{i:02d}", "j", "timeout", "slow")
            if failed
            else Verdict(f"s{i:02d}", "j", label, score)
        )
    return samples, outcomes


def expected(samples: list[Sample], outcomes: list[Outcome], query: dict[str, Any]) -> list[str]:
    """The ids that a look at every row gives."""
    found = []
    for at, (sample, outcome) in enumerate(zip(samples, outcomes, strict=True)):
        texts = [
            each.casefold() for each in (sample.id, sample.output or "", sample.input or "", *sample.context)
        ]
        score = outcome.score if isinstance(outcome, Verdict) else None
        ranged = "least" in query or "most" in query or query.get("order", "sample") != "sample"
        fits = (
            all(any(word in text for text in texts) for word in query.get("q", "").casefold().split())
            and (not ranged or score is not None)
            and (score is None or query.get("least", 0) <= score <= query.get("most", 1))
            and ("said" not in query or (isinstance(outcome, Verdict) and outcome.label == query["said"]))
        )
        if fits:
            found.append((score, at, sample.id))
    by_score = ranged and not ("q" in query and query.get("order", "sample") == "sample")
    if by_score and query.get("order") != "lowest":
        found.sort(key=lambda each: (-(each[0] or 0), each[1]))
    elif by_score:
        found.sort(key=lambda each: (each[0] or 0, -each[1]))
    return [id for _, _, id in found]


QUERIES: list[dict[str, Any]] = [
    *(
        {"q": word}
        for word in ["100%", "A_B", 'QUO"te', "back\\slash", "école", "ÉCOLE", "strasse", "<B>", "nul", "%"]
    ),
    *(
        {"q": word}
        for word in ["_", "' OR 1=1 --", "output", "context", "s01", "drop table", "say say", "zzz"]
    ),
    {"least": 0.25, "most": 0.75},
    {"least": 0.5},
    {"most": 0.5, "order": "lowest"},
    {"order": "lowest"},
    {"order": "score", "said": "faithful"},
    {"q": "say", "order": "lowest", "least": 0.125},
    {"q": "drop", "order": "score"},
    {"q": "drop", "least": 0.3, "most": 0.9, "said": "hallucinated"},
]


def test_words_scores_and_orders_choose_what_a_look_at_every_row_does(
    store: Store, client: TestClient
) -> None:
    samples, outcomes = mixed()
    run = run_of(store, samples, outcomes)
    address = f"/api/runs/{run}/judges/j/outcomes"
    for query in QUERIES:
        found, backwards, after = list[str](), list[str](), None
        while True:
            view = client.get(
                address, params=query | {"limit": 11} | ({"after": after} if after else {})
            ).json()
            assert not view["searching"] and view["n_unsearched"] == 0
            found += [line["sample_id"] for line in view["lines"]]
            if (after := view["later"]) is None:
                break
        wanted = expected(samples, outcomes, query)
        assert found == wanted, query
        before = view["earlier"]
        while before is not None:
            view = client.get(address, params=query | {"limit": 11, "before": before}).json()
            backwards = [line["sample_id"] for line in view["lines"]] + backwards
            before = view["earlier"]
        assert backwards == wanted[: len(backwards)] and len(backwards) > len(wanted) - 12, query
        sent = client.get(f"/runs/{run}/download", params=query | {"format": "jsonl"})
        assert [json.loads(line)["sample_id"] for line in sent.text.splitlines()] == wanted, query
        rows = csv.DictReader(io.StringIO(client.get(f"/runs/{run}/download", params=query).text))
        assert [row["sample_id"] for row in rows] == wanted, query
    assert client.get(f"/runs/{run}", params={"q": "x" * 201}).status_code == 422
    page = client.get(f"/runs/{run}", params=QUERIES[-1]).text
    assert (
        f"{len(expected(samples, outcomes, QUERIES[-1]))} of {N} outcomes" in page
        and "Download these" in page
    )


def test_a_file_has_the_labels_of_the_list(store: Store, client: TestClient) -> None:
    samples, outcomes = mixed()
    run = run_of(store, samples, outcomes)
    query = {"threshold": 0.25, "said": "hallucinated", "format": "jsonl"}
    rows = [json.loads(line) for line in client.get(f"/runs/{run}/download", params=query).text.splitlines()]
    high = sum(isinstance(each, Verdict) and each.score >= 0.25 for each in outcomes)
    assert len(rows) == high and {(row["label"], row["threshold"]) for row in rows} == {
        ("hallucinated", 0.25)
    }


def test_words_are_looked_for_aside_in_long_runs_and_only_in_so_many_samples(
    store: Store, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, outcomes = mixed()
    run = run_of(store, samples, outcomes)
    door, searched = threading.Event(), figures.searched
    monkeypatch.setattr(figures, "MOST_SEARCHED", 5)
    monkeypatch.setattr(figures, "searched", lambda *about: door.wait(60) and searched(*about))
    address, query = f"/api/runs/{run}/judges/j/outcomes", {"q": "drop"}
    assert client.get(f"/runs/{run}/download", params=query).status_code == 503, (
        "no file without what is not found yet"
    )
    view = client.get(address, params=query).json()
    assert view["searching"] and view["lines"] == [] and view["n_all"] == N
    page = client.get(f"/runs/{run}", params=query).text
    assert "are being looked for" in page and "data-again" in page and "Download" not in page
    door.set()
    while view["searching"]:
        time.sleep(0.01)
        view = client.get(address, params=query).json()
    assert [line["sample_id"] for line in view["lines"]] == expected(samples, outcomes, query)[:30]
    with store.snapshot() as moment:
        few = moment.find_samples(run, ["say"], most=10)
    assert few.positions == frozenset(range(10)) and few.n_left_out == N - 10


def test_the_next_sample_is_that_of_the_list(store: Store, client: TestClient) -> None:
    samples, outcomes = mixed()
    run = run_of(store, samples, outcomes)
    for query in ({"q": "drop"}, {"order": "lowest"}, {"q": "say", "order": "lowest"}):
        first, second = expected(samples, outcomes, query)[:2]
        page = client.get(f"/runs/{run}/samples/{first}", params={"judge": "j", **query}).text
        assert f"/samples/{second}?" in page, query


def test_runs_are_gone_through_in_every_order(store: Store, client: TestClient) -> None:
    chance = random.Random(3)
    told: dict[int, dict[str, Any]] = {}
    for i in range(9):
        n = chance.randrange(2, 5)
        samples = [Sample(f"s{k}", "o", ("c",), label=("faithful", "hallucinated")[k % 2]) for k in range(n)]
        said = [
            Verdict(f"s{k}", "j", ("faithful", "hallucinated")[chance.randrange(2)], 0.5) for k in range(n)
        ]
        run = run_of(store, samples, list(said), name=None if i == 4 else f"{'Ab'[i % 2]}{i % 3}")
        store.add_seconds(run, float(chance.randrange(3)))
        figure = counted(store, run).report.judges[0].result
        assert figure is not None
        record = store.find_run(run)
        told[record.number] = {
            "name": (record.name or record.id).lower(),
            "longest": -(record.seconds or 0),
            "largest": -n,
            "best": -(figure.metrics["balanced_accuracy"].value or 0),
            "newest": -record.number,
            "oldest": record.number,
        }
        told[record.number]["worst"] = -told[record.number]["best"]
    for order in ("newest", "oldest", "best", "worst", "longest", "largest", "name"):
        wanted = sorted(told, key=lambda number: (told[number][order], -number))
        found, before, view = list[int](), None, {}
        while True:
            more = {} if before is None else {"before": before}
            view = client.get("/api/runs", params={"order": order, "limit": 4, **more}).json()
            found += [row["number"] for row in view["rows"]]
            if (before := view["older"]) is None:
                break
        assert found == wanted, order
        back = client.get("/api/runs", params={"order": order, "limit": 4, "after": view["newer"]}).json()
        assert [row["number"] for row in back["rows"]] == wanted[4:8], order
        assert client.get("/", params={"order": order}).status_code == 200
    assert client.get("/api/runs", params={"order": "number; drop table runs"}).status_code == 422
