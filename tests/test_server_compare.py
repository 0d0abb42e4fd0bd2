"""Judges beside each other on a page and as data: what is compared, what is told, and what cannot be."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from browsing import HOSTILE, PAYLOADS
from furnished import run_of
from magistrate import Run
from magistrate._text import seen
from magistrate.api.compare import compare
from magistrate.errors import InputError
from magistrate.server.app import create_app
from magistrate.server.compare import AT_ONCE, MOST_SIDES, check_metrics, find_sides, run_and_judge, word_of
from magistrate.server.settings import Settings
from magistrate.server.state import STOPPING, TOO_MUCH, Refused
from magistrate.store import Store
from magistrate.types import Claim, Failure, Outcome, Sample, Span, Verdict
from two_judges import label, samples_of

PATIENCE = 30
N = 120


def said(samples: Sequence[Sample], judge: str, wrong: float) -> list[Outcome]:
    """A verdict of the judge on each sample, wrong about this share of them; one in forty fails."""
    source = random.Random(judge)
    found: list[Outcome] = []
    for at, sample in enumerate(samples):
        bad = (sample.label == "hallucinated") == (source.random() >= wrong)
        score = source.uniform(0.5, 1) if bad else source.uniform(0, 0.49)
        found.append(Verdict(sample.id, judge, label(bad), score, max(score, 1 - score)))
        if at % 40 == len(judge) % 40:
            found[-1] = Failure(sample.id, judge, "timeout", "late")
    return found


def samples(n: int = N, labelled: bool = True) -> list[Sample]:
    """Samples of which two share a context; every tenth has no label."""
    truth = [bool(at % 3) if labelled and at % 10 else None for at in range(n)]
    return list(samples_of(truth, [at // 2 for at in range(n)]).values())


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with Store.open(place) as opened:
        yield opened


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Store]:
    """A store in a file, for what is the same in every database."""
    with Store.open(tmp_path / "runs.db") as opened:
        yield opened


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    opened = request.getfixturevalue("store" if "store" in request.fixturenames else "here")
    app = create_app(Settings(store=opened.place))
    with TestClient(app, follow_redirects=False) as client:
        yield client


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def two(store: Store, **more: Any) -> tuple[str, str]:
    """Two runs over the same samples, of a judge that is better and one that is worse."""
    asked = samples()
    return (
        run_of(store, asked, said(asked, "good", 0.05), name="large", **more),
        run_of(store, asked, said(asked, "bad", 0.4), name="small", **more),
    )


def data(client: TestClient, *runs: str, **more: Any) -> Any:
    """The comparison as data, waited for."""
    found = client.get("/api/compare", params={"run": runs, "wait": PATIENCE, **more})
    assert found.status_code == 200, found.text
    return found.json()


def page(client: TestClient, *runs: str, **more: Any) -> httpx.Response:
    """The page with the comparison, once it is computed."""
    end = time.monotonic() + PATIENCE
    while True:
        found = client.get("/compare", params={"run": runs, **more})
        if "data-again" not in found.text:
            return found
        assert time.monotonic() < end
        time.sleep(0.02)


class Html(HTMLParser):
    """What a page is made of: its elements with their attributes, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self._words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, words: str) -> None:
        self._words.append(words)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self._words).split())

    def all(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        return [each for name, each in self.elements if name == tag and wanted.items() <= each.items()]

    def links(self, start: str) -> list[str]:
        return [each["href"] for each in self.all("a") if each["href"].startswith(start)]

    def chosen(self) -> list[str]:
        return [each["value"] for each in self.all("input", name="run") if "checked" in each]

    def choices(self) -> list[str]:
        return [each["value"] for each in self.all("input", name="run")]


# --- it is the comparison ------------------------------------------------------------------------


def told(found: Any) -> dict[str, Any]:
    """What the API says, in the shape of `Comparison.to_dict`, but for the flips."""

    def estimate(each: dict[str, Any]) -> dict[str, Any]:
        names = ("value", "low", "high") if each["undefined"] is None else tuple(each)
        return {name: each[name] for name in ("value", "low", "high", "undefined") if name in names}

    def difference(each: dict[str, Any]) -> dict[str, Any]:
        return {
            **estimate(each),
            **{name: each[name] for name in ("p", "p_corrected", "exploratory", "detectable", "better")},
        }

    names = [side["name"] for side in found["sides"]]
    counts = ("both_right", "only_first_right", "only_second_right", "both_wrong", "mcnemar_p")
    return {
        **{
            name: found[name]
            for name in ("n", "n_all", "n_contexts", "left_out", "gold", "metrics", "primary")
        },
        **{name: found[name] for name in ("corrected_together", "draws", "seed", "remarks")},
        "sides": [
            {
                **{
                    name: side[name]
                    for name in ("name", "run", "judge", "n_total", "n_ok", "coverage", "labels")
                },
                "failures": side["n_failures"],
                "abstentions": side["n_abstentions"],
                "metrics": {name: estimate(each) for name, each in side["figures"].items()},
            }
            for side in found["sides"]
        ],
        "pairs": [
            {
                "first": names[pair["first"]],
                "second": names[pair["second"]],
                **{name: pair[name] for name in counts},
                "differences": {name: difference(each) for name, each in pair["differences"].items()},
            }
            for pair in found["pairs"]
        ],
        "sentences": [each for pair in found["pairs"] for each in pair["sentences"]],
    }


def expected(plain: Any) -> Any:
    for pair in plain["pairs"]:
        del pair["flips"]
        for each in pair["differences"].values():
            del each["standard_error"]
    return plain


def test_two_runs_are_compared_as_the_library_compares_them(store: Store, client: TestClient) -> None:
    first, second = two(store)
    found = data(client, first, second, limit=500)
    library = compare(Run(first, store.place), Run(second, store.place)).to_dict()
    flips = library["pairs"][0]["flips"]
    own = {"large": "first", "small": "second", "good": "first", "bad": "second", None: None}
    assert len(flips) == found["flips"]["n"] == found["pairs"][0]["n_flips"] > AT_ONCE
    for each, row in zip(flips, found["flips"]["rows"], strict=True):
        assert row["sample_id"] == each["sample"] and row["right"] == own[each["right"]]
        assert {name: row[name] for name in each if name in row and name != "right"} == {
            name: each[name] for name in each if name in row and name != "right"
        }
        assert row["excerpt"] == f"output {each['sample'][1:]}"
    assert told(found) == expected(json.loads(json.dumps(library)))
    assert found["pairs"][0]["differences"]["balanced_accuracy"]["better"] == "first"
    assert found["pairs"][0]["differences"]["f1"]["exploratory"]


def test_one_run_compares_its_judges_and_some_of_them(here: Store, client: TestClient) -> None:
    asked = samples()
    judges = {"a": 0.1, "b": 0.2, "c": 0.45}
    run = run_of(here, asked, [each for judge, wrong in judges.items() for each in said(asked, judge, wrong)])
    library = compare(Run(run, here.place)).to_dict()
    assert told(data(client, run)) == expected(json.loads(json.dumps(library)))
    some = compare(Run(run, here.place), judges=["c", "a"], metrics=["f1"]).to_dict()
    found = data(client, word_of(run, "c"), word_of(run, "a"), metric=["f1"])
    assert told(found) == expected(json.loads(json.dumps(some)))
    pairs = [(pair["first"], pair["second"]) for pair in data(client, run)["pairs"]]
    assert pairs == [(0, 1), (0, 2), (1, 2)]


def test_of_several_runs_each_gives_all_its_judges(here: Store, client: TestClient) -> None:
    asked = samples()
    both = [*said(asked, "a", 0.1), *said(asked, "b", 0.2)]
    runs = [run_of(here, asked, both, name=name) for name in ("one", "two")]
    names = [side["name"] for side in data(client, *runs)["sides"]]
    assert names == ["one:a", "one:b", "two:a", "two:b"]


def test_the_page_says_it_in_words_and_in_figures(here: Store, client: TestClient) -> None:
    first, second = two(here)
    library = compare(Run(first, here.place), Run(second, here.place))
    found = page(client, first, second)
    assert found.status_code == 200
    shown = Html(found.text)
    for sentence in (*library.sentences, *library.remarks):
        assert sentence in shown.words
    pair = library.pairs[0]
    assert f"On the {library.n} samples that both have judged, of {N} in all" in shown.words
    assert f"good right, {pair.only_first}" in shown.words and f"bad right, {pair.only_second}" in shown.words
    assert str(library.sides[0].figures["f1"]).replace(" ", "  ").split()[0] in shown.words
    assert shown.links(f"/runs/{first}?judge=good") and shown.links(f"/runs/{second}?judge=bad")


def test_every_flip_leads_to_the_sample_of_both_runs(here: Store, client: TestClient) -> None:
    first, second = two(here)
    shown = Html(page(client, first, second).text)
    library = compare(Run(first, here.place), Run(second, here.place))
    ids = [each.sample_id for each in library.pairs[0].flips[:AT_ONCE]]
    assert shown.links(f"/runs/{first}/samples/") == [
        f"/runs/{first}/samples/{each}?judge=good" for each in ids
    ]
    assert shown.links(f"/runs/{second}/samples/") == [
        f"/runs/{second}/samples/{each}?judge=bad" for each in ids
    ]
    assert client.get(shown.links(f"/runs/{second}/samples/")[0]).status_code == 200


def test_flips_are_filtered_by_who_is_right_and_paged(here: Store, client: TestClient) -> None:
    first, second = two(here)
    everything = data(client, first, second, limit=500)
    counts = everything["pairs"][0]
    for who, count in (("first", "only_first_right"), ("second", "only_second_right"), (None, "n_flips")):
        wanted_rows = [row for row in everything["flips"]["rows"] if who in (None, row["right"])]
        assert len(wanted_rows) == counts[count]
        rows, start = list[Any](), 0
        while start is not None:
            found = data(client, first, second, limit=10, start=start, **({"right": who} if who else {}))[
                "flips"
            ]
            assert (found["n"], found["start"]) == (counts[count], start)
            assert found["previous"] == (start - 10 if start else None)
            rows, start = rows + found["rows"], found["next"]
        assert rows == wanted_rows
    beyond = page(client, first, second, start=10_000)
    assert beyond.status_code == 200 and "so far down" in beyond.text


def test_every_link_of_the_page_leads_somewhere(here: Store, client: TestClient) -> None:
    asked = samples()
    judges = {"a": 0.1, "b": 0.2, "c": 0.45}
    run = run_of(here, asked, [each for judge, wrong in judges.items() for each in said(asked, judge, wrong)])
    shown = Html(page(client, run, pair=2, metric="f1").text)
    links = {each for start in ("/compare", "/api/compare") for each in shown.links(start)}
    assert len(links) > 8
    for each in links:
        found = client.get(each)
        assert found.status_code == 200 and "data-again" not in found.text, each
    assert all("metric=f1" in each for each in links if each != "/compare")


def test_without_labels_nobody_is_called_better(here: Store, client: TestClient) -> None:
    asked = samples(40, labelled=False)
    run = run_of(here, asked, [*said(asked, "a", 0.1), *said(asked, "b", 0.3)])
    found = page(client, run)
    words = Html(found.text).words
    assert found.status_code == 200
    assert (
        "There are no gold labels: differences can be shown" in words
        and "Flips" in words
        and "no label" in words
    )
    assert "Who is right" not in words and "first minus second" not in words
    assert {row["right"] for row in data(client, run)["flips"]["rows"]} == {None}


def test_two_that_say_the_same_have_no_flips(here: Store, client: TestClient) -> None:
    asked = samples(40)
    outcomes = [replace(each, judge="twin") for each in said(asked, "a", 0.1)]
    run = run_of(here, asked, [*said(asked, "a", 0.1), *outcomes])
    assert "both give the same label to every sample" in page(client, run).text


# --- what is computed aside --------------------------------------------------------------------


def busy(client: TestClient, gate: threading.Event, n: int = 1) -> None:
    """Let the server have something else to work out."""
    jobs = client.app.state.jobs  # type: ignore[attr-defined]
    for number in range(n):
        jobs.submit(f"busy {number}", lambda: gate.wait(PATIENCE))
        end = time.monotonic() + PATIENCE
        while not number and not jobs.n_running and time.monotonic() < end:
            time.sleep(0.01)


def test_until_it_is_there_the_page_says_so_and_looks_again(
    here: Store, client: TestClient, gate: threading.Event
) -> None:
    first, second = two(here)
    busy(client, gate)
    waiting = client.get("/compare", params={"run": [first, second], "right": "first", "start": 3})
    shown = Html(waiting.text)
    assert waiting.status_code == 200 and "1 other is before it" in shown.words
    (region,) = [each for each in shown.all("section") if "data-again" in each]
    (refresh,) = shown.all("meta", **{"http-equiv": "refresh"})
    assert region["id"] == "comparison" and int(region["data-again"]) > 100
    assert refresh["content"] == f"2; url={region['data-from']}"
    gate.set()
    end = time.monotonic() + PATIENCE
    while "data-again" in (found := client.get(region["data-from"])).text:
        assert time.monotonic() < end
    assert found.status_code == 200 and "In words" in found.text
    assert not Html(found.text).all("meta", **{"http-equiv": "refresh"})
    assert "4 to " in Html(found.text).words, "what was asked for beside it is not lost"


def test_the_api_answers_202_until_it_is_there(
    here: Store, client: TestClient, gate: threading.Event
) -> None:
    first, second = two(here)
    busy(client, gate)
    query = {"run": [first, second], "limit": 7}
    for wait in (0, 0.05):
        found = client.get("/api/compare", params={**query, "wait": wait})
        assert (found.status_code, found.headers["retry-after"]) == (202, "1")
        assert found.json()["ahead"] == 1
    gate.set()
    done = until_there(client, found.json()["again"])
    assert len(done["flips"]["rows"]) == 7


def until_there(client: TestClient, address: str) -> Any:
    """What an address of the API answers at last."""
    end = time.monotonic() + PATIENCE
    while (found := client.get(address)).status_code == 202:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert found.status_code == 200, found.text
    return found.json()


def test_what_was_worked_out_is_not_worked_out_again(here: Store, client: TestClient) -> None:
    first, second = two(here)
    data(client, first, second)
    found = client.get("/api/compare", params={"run": [first, second], "right": "second"})
    assert found.status_code == 200
    turned = client.get("/api/compare", params={"run": [second, first]})
    assert turned.status_code == 202, "the other way round is another comparison"


def test_a_run_that_changed_is_compared_anew(here: Store, client: TestClient) -> None:
    first, second = two(here)
    before = data(client, first, second)
    here.add_samples(first, [Sample("new", "o", ("c",), label="faithful")])
    here.add_samples(second, [Sample("new", "o", ("c",), label="faithful")])
    here.add_outcomes(first, [Verdict("new", "good", "faithful", 0.1)])
    here.add_outcomes(second, [Verdict("new", "bad", "faithful", 0.1)])
    assert data(client, first, second)["n"] == before["n"] + 1


def test_a_renamed_run_is_called_by_its_new_name(here: Store, client: TestClient) -> None:
    asked = samples()
    wrong = {"one": 0.05, "two": 0.4}
    runs = [run_of(here, asked, said(asked, "a", wrong[name]), name=name) for name in wrong]
    assert data(client, *runs)["pairs"][0]["sentences"][0].startswith("one is better than two")
    here.rename(runs[0], "three")
    assert data(client, *runs)["pairs"][0]["sentences"][0].startswith("three is better than two")


def test_a_run_under_way_is_compared_as_it_was_when_somebody_asked(
    here: Store, client: TestClient, gate: threading.Event
) -> None:
    """It changes while it is compared; who waited is told of the moment that was asked for."""
    asked = samples()
    done = run_of(here, asked, said(asked, "a", 0.1), name="done")
    about = {"dataset": "bridges", "dataset_digest": "ab" * 32, "model": "m", "engine_fingerprint": "f"}
    going = here.create_run(**about, recipes={}, name="going")
    here.add_samples(going, asked)
    outcomes = said(asked, "b", 0.3)
    with here.hold(going):
        here.add_outcomes(going, outcomes[:60])
        busy(client, gate)
        found = client.get("/api/compare", params={"run": [done, going]})
        assert found.status_code == 202
        gate.set()
        until_there(client, found.json()["again"])
        here.add_outcomes(going, outcomes[60:])
        side = until_there(client, found.json()["again"])["sides"][1]
        assert (side["status"], side["changed"], side["n_ok"]) == ("running", True, 58)
        shown = client.get(found.json()["again"].removeprefix("/api"))
        words = Html(shown.text).words
        assert "Run going is in progress: this is based on its outcomes so far" in words
        assert "Since this was computed, run going has continued" in words
        links = Html(shown.text).links("/compare?run=")
        (anew,) = [each for each in links if "at=" not in each and "choose" not in each]
        assert "data-again" in client.get(anew).text
        assert any("at=" in each and each.endswith("#flips") for each in links), "pages of one moment"


def test_made_up_moments_are_not_believed(here: Store, client: TestClient) -> None:
    first, second = two(here)
    now = data(client, first, second)
    for at in ("1.2", "9", "", "999999.999999", "1.2.3"):
        assert data(client, first, second, at=at) == now
    assert client.get("/api/compare", params={"run": [first, second], "at": "-1"}).status_code == 422


def test_where_too_much_is_asked_it_is_said(here: Store, client: TestClient, gate: threading.Event) -> None:
    first, second = two(here)
    busy(client, gate, 17)
    found = client.get("/compare", params={"run": [first, second]})
    assert found.status_code == 503 and TOO_MUCH in found.text and "Try again" in found.text
    assert client.get("/api/compare", params={"run": [first, second]}).json() == {"detail": TOO_MUCH}


def test_it_ends_with_the_application(here: Store) -> None:
    app = create_app(Settings(store=here.place))
    with TestClient(app) as client:
        data(client, *two(here))
    assert app.state.jobs.submit("late", lambda: 1) == Refused(STOPPING)
    end = time.monotonic() + PATIENCE
    while any(each.name == "magistrate-jobs" for each in threading.enumerate()):
        assert time.monotonic() < end


# --- what cannot be compared ---------------------------------------------------------------------


def test_what_cannot_be_compared_is_told_and_others_can_be_chosen(here: Store, client: TestClient) -> None:
    first, second = two(here)
    many = [run_of(here, samples(4), said(samples(4), f"j{n}", 0.1)) for n in range(12)]
    empty = run_of(here, [], [], name="empty")
    refused: list[tuple[list[str], int, str]] = [
        ([first, "nope"], 404, "unknown run 'nope'"),
        (["", first], 404, "unknown run ''"),
        ([first, word_of(second, "nobody")], 404, "has no judge 'nobody'; it has: 'bad'"),
        ([first, f"{second}:%FF"], 404, "has no judge"),
        ([first, first], 422, "good of run large is given twice"),
        ([first, word_of(first, "good")], 422, "given twice"),
        (many, 422, f"at most {MOST_SIDES} judges can be compared at once"),
        ([first, *many[:MOST_SIDES]], 422, f"at most {MOST_SIDES} judges"),
        (["nope"] * 40, 404, "unknown run 'nope'"),
    ]
    for runs, status, why in refused:
        shown = client.get("/compare", params={"run": runs})
        assert (shown.status_code, why in Html(shown.text).words) == (status, True), runs
        assert Html(shown.text).all("input", type="checkbox", name="run")
        found = client.get("/api/compare", params={"run": runs})
        assert found.status_code == status and why in found.json()["detail"]
    assert first in " ".join(Html(client.get("/compare", params={"run": ["nope", first]}).text).chosen())
    nothing = page(client, first, many[0], empty)
    assert nothing.status_code == 422 and "no sample was judged by all 3 judges" in nothing.text
    assert "Choose others" in nothing.text and "Try again" not in nothing.text
    assert client.get("/api/compare", params={"run": [first, many[0], empty]}).status_code == 422


def test_one_judge_alone_is_a_beginning(here: Store, client: TestClient) -> None:
    first, _ = two(here)
    assert client.get("/api/compare", params={"run": first}).status_code == 422
    assert client.get("/api/compare").status_code == 422
    shown = client.get("/compare", params={"run": first})
    assert shown.status_code == 200 and Html(shown.text).chosen() == [word_of(first, "good")]
    assert not Html(shown.text).all("p", role="alert")


@pytest.mark.parametrize(
    "query",
    [
        {"metric": "f2"},
        {"pair": "-1"},
        {"pair": "x"},
        {"right": "both"},
        {"start": "-5"},
        {"wait": "31"},
        {"limit": "501"},
        {"limit": "0"},
    ],
)
def test_what_is_no_value_is_refused(here: Store, client: TestClient, query: Mapping[str, str]) -> None:
    first, second = two(here)
    found = client.get("/api/compare", params={"run": [first, second], **query})
    assert found.status_code == 422 and found.json()["detail"]
    if not query.keys() & {"wait", "limit"}:
        assert client.get("/compare", params={"run": [first, second], **query}).status_code == 422


def test_a_pair_that_there_is_not_is_not_found(here: Store, client: TestClient) -> None:
    first, second = two(here)
    data(client, first, second)
    for path in ("/compare", "/api/compare"):
        assert client.get(path, params={"run": [first, second], "pair": 1}).status_code == 404


def test_metrics_are_those_of_the_library() -> None:
    assert check_metrics([]) == ()
    assert check_metrics(["brier", "f1", "brier"]) == ("f1", "brier")
    with pytest.raises(InputError, match="unknown metric 'f2'; known: accuracy"):
        check_metrics(["f1", "f2"])


# --- choosing ------------------------------------------------------------------------------------


def test_runs_are_found_and_what_was_chosen_stays_chosen(here: Store, client: TestClient) -> None:
    first, second = two(here)
    others = [run_of(here, samples(4), said(samples(4), "j", 0.1), name=f"night {n}") for n in range(25)]
    shown = Html(client.get("/compare").text)
    assert len(shown.choices()) == 20 and shown.chosen() == []
    (older,) = shown.all("button", name="before")
    below = client.get(
        "/compare", params={"before": older["value"], "run": [word_of(others[-1], "j"), first]}
    )
    found = Html(below.text)
    assert set(found.chosen()) == {word_of(others[-1], "j"), word_of(first, "good")}
    assert found.choices().count(word_of(first, "good")) == 1
    assert found.all("button", name="after") and not found.all("button", name="before")
    searched = Html(client.get("/compare", params={"q": "small", "choose": "list", "run": first}).text)
    assert set(searched.choices()) == {word_of(first, "good"), word_of(second, "bad")}
    assert searched.chosen() == [word_of(first, "good")]


def test_runs_over_the_same_data_are_offered_first(here: Store, client: TestClient) -> None:
    first, second = two(here)
    other = run_of(here, samples(4), said(samples(4), "j", 0.1), dataset="harbours")
    assert word_of(other, "j") in Html(client.get("/compare").text).choices()
    shown = Html(client.get("/compare", params={"run": first}).text)
    assert set(shown.choices()) == {word_of(first, "good"), word_of(second, "bad")}
    shown = Html(client.get("/compare", params={"run": first, "data": "all"}).text)
    assert word_of(other, "j") in shown.choices()


def test_the_form_leads_to_the_address_of_the_comparison(here: Store, client: TestClient) -> None:
    runs = [word_of(run, judge) for run, judge in zip(two(here), ("good", "bad"), strict=True)]
    sent = client.get("/compare", params={"q": "what", "data": "same", "run": runs, "metric": "f1"})
    assert sent.status_code == 303
    assert parse_qsl(urlsplit(sent.headers["location"]).query) == [
        *(("run", each) for each in runs),
        ("metric", "f1"),
    ]
    shown = client.get("/compare", params={"choose": "list", "run": runs, "metric": "f1"})
    assert set(Html(shown.text).chosen()) == set(runs)
    assert [each["value"] for each in Html(shown.text).all("input", name="metric") if "checked" in each] == [
        "f1"
    ]


def test_an_empty_store_says_how_to_fill_it(here: Store, client: TestClient) -> None:
    shown = client.get("/compare")
    assert shown.status_code == 200 and "There are no runs yet" in shown.text


# --- names that are no names ---------------------------------------------------------------------


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=50))
def test_any_name_of_a_judge_can_stand_in_an_address(judge: str) -> None:
    word = word_of("20260102-030405-abcd", judge)
    assert run_and_judge(word) == ("20260102-030405-abcd", judge)
    assert seen(word) == word, "no page changes it"
    word.encode()


@pytest.mark.parametrize("word", ["", ":", "a:%", "a:%zz", "a:%ff", "%3a", "a::b", "a:%ed%a0%80"])
def test_any_word_can_be_asked_for(here: Store, word: str) -> None:
    assert find_sides(here, [word]).unknown


def test_hostile_names_stay_names(store: Store) -> None:
    """Every text is a judge, a run, an id, an output or a label once; all of it can be chosen and opened."""
    client = TestClient(create_app(Settings(store=store.place)))
    asked = [
        Sample(f"{at} {text[:300]}", f"{text} {at}", (text, str(at)), label=label(bool(at % 2)))
        for at, text in enumerate(HOSTILE)
    ]
    names = [f"{text[:200]}\ud800%41" for text in PAYLOADS[:28:2]]
    for at in range(0, len(names), 2):
        judges = sorted(names[at : at + 2])
        outcomes = [
            Verdict(
                sample.id,
                judge,
                (label(bool((n + j) % 3)) if n % 5 else HOSTILE[n][:100]) + ("" if n % 5 else str(j)),
                0.5,
                claims=(Claim("contradiction", Span(0, 1)),),
            )
            for j, judge in enumerate(judges)
            for n, sample in enumerate(asked)
        ]
        about = {
            "dataset": PAYLOADS[at],
            "dataset_digest": "d",
            "model": judges[1],
            "engine_fingerprint": "f",
        }
        run = store.create_run(**about, recipes={}, name=names[at])
        store.add_samples(run, asked)
        store.add_outcomes(run, outcomes)
        store.finish_run(run, "done")
        shown = Html(client.get("/compare", params={"run": run, "choose": "list"}).text)
        mine = [each for each in shown.chosen() if each.startswith(run)]
        assert [run_and_judge(each) for each in mine] == [(run, judge) for judge in judges]
        result = page(client, *mine)
        assert result.status_code == 200
        harmless(shown), harmless(found := Html(result.text))
        assert seen(judges[0]).split()[0] in found.words
        for link in found.links("/runs/")[:6]:
            assert client.get(link).status_code == 200, link
        assert [side["judge"] for side in data(client, *mine)["sides"]] == judges


def harmless(shown: Html) -> None:
    """Nothing but our own elements is in a page."""
    scripts = [each["src"].partition("?")[0] for each in shown.all("script")]
    assert scripts == ["/static/htmx.min.js", "/static/page.js"]
    tags = {tag for tag, _ in shown.elements}
    assert not tags & {"iframe", "img", "object", "embed", "base", "style", "textarea", "template"}
    names = {name for _, attributes in shown.elements for name in attributes}
    assert not [name for name in names if name.startswith(("on", "srcdoc", "style", "autofocus"))]
    assert not shown.all("meta", **{"http-equiv": "refresh"})
    hrefs = [each["href"] for each in shown.all("a")]
    assert all(re.match(r"[/#]", each) for each in hrefs)
    assert not {"\u202e", "\u2066", "\x1b", "\x00", "\u2028", "\x07"} & set(shown.words)


def test_hostile_words_in_the_address_stay_words(here: Store, client: TestClient) -> None:
    first, _ = two(here)
    for text in (each[:2000] for each in PAYLOADS):
        asked: list[dict[str, Any]] = [{"run": text}, {"run": [first, f"{first}:{text}"]}]
        for query in (*asked, {"q": text[:200], "choose": "list"}):
            words = urlencode(query, doseq=True, errors="surrogatepass")
            shown = client.get(f"/compare?{words}")
            assert shown.status_code in (200, 404)
            harmless(Html(shown.text))
            if "run" in query:
                assert client.get(f"/api/compare?{words}").status_code == 404


# --- what the store is asked ---------------------------------------------------------------------


def test_what_runs_share_is_read_once_and_is_the_same(store: Store) -> None:
    asked = samples(30)
    renamed = [replace(each, id=f"other {each.id}") for each in asked[10:]]
    one, other = run_of(store, asked, []), run_of(store, [*renamed, Sample("new", "o")], [])
    known: dict[str, Sample] = {}
    with store.snapshot() as moment:
        assert moment.samples_with(one, known) == asked
        before = dict(known)
        assert len(before) == 30
        assert moment.samples_with(other, known) == [*renamed, Sample("new", "o")]
        assert len(known) == 31 and all(known[key] is each for key, each in before.items())


def test_bare_outcomes_are_outcomes_without_documents(store: Store) -> None:
    asked = samples(30)
    run = run_of(store, asked, [*said(asked, "a", 0.2), *said(asked, "b", 0.2)])
    with store.snapshot() as moment:
        whole = list(moment.outcomes(run, judge="a"))
        bare = list(moment.bare_outcomes(run, "a"))
    assert bare == [replace(each, message="") if isinstance(each, Failure) else each for each in whole]


def test_outputs_are_those_of_the_samples_asked_for(store: Store) -> None:
    asked = [*samples(5), Sample("none", None)]
    run = run_of(store, asked, [])
    with store.snapshot() as moment:
        found = moment.outputs(run, ["s1", "none", "nobody"])
    assert found == {"s1": "output 1", "none": None}
